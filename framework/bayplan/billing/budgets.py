"""Budgets: what a tenant has spent of its month, what it will have spent, and who is notified.

The forecast bills what holds resources now until the end of the month, and nothing that begins
later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal

import msgspec

from bayplan.billing.accounts import Budget
from bayplan.billing.invoice import invoice
from bayplan.billing.month import Month
from bayplan.billing.terms import BillingTerms
from bayplan.billing.usage_source import UsageSource
from bayplan.metering.record import CapacityRecord, UsageRecord

__all__ = ["BudgetStatus", "Budgets"]

_LASTS = 60_000
"""Milliseconds for which a status is kept, as it reads a month of records."""


class BudgetStatus(msgspec.Struct, frozen=True):
    """A tenant's month so far.

    :param alerts: the percentages of the budget that are reached.
    :param expected: those that the forecast reaches.
    """

    tenant: str
    month: Month
    currency: str
    budget: Budget
    spent: Decimal
    forecast: Decimal
    alerts: tuple[int, ...]
    expected: tuple[int, ...]

    @property
    def share(self) -> float:
        """The part of the budget that is spent, for a gauge."""
        return float(self.spent / self.budget.per_month)

    @property
    def admits(self) -> bool:
        """Whether the tenant may start more."""
        return not self.budget.stop_admitting or self.spent < self.budget.per_month

    def __str__(self) -> str:
        return (
            f"{self.tenant} has spent {self.spent} of {self.budget.per_month} {self.currency} "
            f"in {self.month}"
        )


class _Known(msgspec.Struct, frozen=True):
    """A status, when it was read (in milliseconds since 1970), and by which price list."""

    at: int
    terms: BillingTerms
    status: BudgetStatus

    def holds(self, now: int) -> bool:
        return 0 <= now - self.at < _LASTS and self.status.month == Month.at(now)


class Budgets:
    """The budgets of all tenants; a status is read again after a minute, or with a new price list.

    :param terms: returns the prices and accounts of now.
    """

    def __init__(self, terms: Callable[[], BillingTerms], source: UsageSource) -> None:
        self._terms = terms
        self._source = source
        self._known: dict[str, _Known] = {}

    def _budget(self, terms: BillingTerms, tenant: str) -> Budget | None:
        account = terms.accounts.by_tenant.get(tenant) if terms.accounts is not None else None
        return account.budget if account is not None else None

    def may_stop(self, tenant: str) -> bool:
        """Return whether a tenant starts nothing more once its budget is spent."""
        budget = self._budget(self._terms(), tenant)
        return budget is not None and budget.stop_admitting

    def status(self, tenant: str, now: int) -> BudgetStatus | None:
        """Return a tenant's month so far, None when it has no budget.

        :param now: milliseconds since 1970.
        :raises InputError: for usage at a time without prices.
        """
        terms = self._terms()
        budget = self._budget(terms, tenant)
        if budget is None:
            return None
        known = self._known.get(tenant)
        if known is not None and known.terms is terms and known.holds(now):
            return known.status
        status = self._status(tenant, terms, budget, now)
        self._known[tenant] = _Known(now, terms, status)
        return status

    def all(self, now: int) -> Iterator[BudgetStatus]:
        """Yield the status of every tenant that has a budget; see ``status``."""
        accounts = self._terms().accounts
        for tenant in accounts.by_tenant if accounts is not None else ():
            status = self.status(tenant, now)
            if status is not None:
                yield status

    def _status(self, tenant: str, terms: BillingTerms, budget: Budget, now: int) -> BudgetStatus:
        month = Month.at(now)
        spent = invoice(tenant, month, terms.prices, self._source, now).total
        to_come = _to_come(self._source, now)
        forecast = invoice(tenant, month, terms.prices, to_come, month.until).total
        return BudgetStatus(
            tenant,
            month,
            terms.prices.currency,
            budget,
            spent,
            forecast,
            _reached(budget, spent),
            _reached(budget, forecast),
        )


def _reached(budget: Budget, amount: Decimal) -> tuple[int, ...]:
    return tuple(one for one in budget.alerts if amount * 100 >= budget.per_month * one)


def _to_come(source: UsageSource, now: int) -> UsageSource:
    """Return records as if nothing began after now: a journal has no others, if it ends by now."""
    # The database takes longer to import than a small simulation.
    from bayplan.metering.journal import Journal

    if isinstance(source, Journal) and source.heartbeat <= now:
        return source
    return _Continued(source, now)


class _Continued(msgspec.Struct, frozen=True):
    """Records as if nothing began after now, and what is open then went on."""

    source: UsageSource
    now: int

    def records(self, since: int, until: int, tenant: str | None = None) -> Iterator[UsageRecord]:
        """Yield the usage that began until now; see ``UsageSource``."""
        del until
        yield from self.source.records(since, self.now, tenant)

    def capacity(self, since: int, until: int) -> Iterator[CapacityRecord]:
        """Yield the capacity that there is until now; see ``UsageSource``."""
        del until
        yield from self.source.capacity(since, self.now)
