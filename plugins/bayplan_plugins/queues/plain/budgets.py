"""Tenants that have spent their budget start nothing more, where their account says so.

What a tenant has spent is computed beside the scheduler, from the journal of usage: a month of
records takes longer than a decision may.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bayplan import Args
from bayplan.errors import BayplanError

if TYPE_CHECKING:
    from bayplan.billing.budgets import BudgetStatus
    from bayplan.billing.usage_source import UsageSource

__all__ = ["BudgetArgs", "BudgetGate"]

_log = logging.getLogger("bayplan.queues")
EVERY = 60.0
"""Seconds between two looks at what a tenant has spent."""


class BudgetArgs(Args):
    """Where budgets come from: a price list, the accounts of tenants, and the journal of usage."""

    prices: Path
    accounts: Path
    journal: str


class _Known(msgspec.Struct):
    """What is known of one tenant: when it was asked for, and the last answer."""

    asked: float
    answer: Future[BudgetStatus | None]
    status: BudgetStatus | None = None


class BudgetGate:
    """Tells which tenants may start nothing more.

    :param source: where usage is read; by default the journal of the arguments.
    :raises InputError: for prices, accounts or a journal that cannot be used.
    """

    def __init__(self, args: BudgetArgs, source: UsageSource | None = None) -> None:
        # Only who has budgets pays for what reads them.
        from bayplan.billing.budgets import Budgets
        from bayplan.billing.terms import BillingTermsFiles
        from bayplan.metering.journal import Journal

        self._files = BillingTermsFiles(args.prices, args.accounts)
        self._budgets = Budgets(self._files.terms, source or Journal(args.journal))
        self._looked = 0.0
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="budgets")
        self._known: dict[str, _Known] = {}

    def refusal(self, tenant: str, now: float) -> str | None:
        """Return why a tenant may start nothing more, as far as is known; None if it may.

        :param now: seconds since 1970.
        """
        if not 0 <= now - self._looked < EVERY:
            self._looked = now
            self._beside.submit(self._files.refresh)
        if not self._budgets.may_stop(tenant):
            return None
        known = self._known.get(tenant)
        if known is None or (known.answer.done() and not 0 <= now - known.asked < EVERY):
            status = known.status if known is not None else None
            answer = self._beside.submit(self._budgets.status, tenant, round(now * 1000))
            known = self._known[tenant] = _Known(now, answer, status)
        if known.answer.done():
            known.status = self._answered(tenant, known)
        elif known.status is None:
            return "what it has spent is being computed"
        status = known.status
        if status is None or status.admits:
            return None
        return f"its budget is spent: {status}"

    def again(self, now: float) -> float:
        """Return when to ask again for tenants that were refused, in seconds since 1970."""
        waiting = any(not known.answer.done() for known in self._known.values())
        return now + (1.0 if waiting else EVERY)

    def _answered(self, tenant: str, known: _Known) -> BudgetStatus | None:
        """Return the answer; without one, what was known before holds."""
        try:
            return known.answer.result()
        except BayplanError as exc:
            _log.warning('budget of tenant "%s": %s', tenant, exc)
            return known.status
