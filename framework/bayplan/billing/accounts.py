"""The accounts file: each tenant's credits, opening balance and budget."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BeforeValidator, Field

from bayplan.billing.money import CURRENCIES
from bayplan.billing.month import Month
from bayplan.billing.pricelist_file import CurrencyCode, Fields, day, exact
from bayplan.billing.prices import PriceList, single_document
from bayplan.errors import InputError
from bayplan.inputs.validated import validated

__all__ = ["Account", "Accounts", "Budget", "Credit", "load_accounts"]

_MOST = Decimal(10) ** 15


class Credit(msgspec.Struct, frozen=True):
    """Money that a tenant gets or pays in on a day; a correction may be negative."""

    day: date
    amount: Decimal
    note: str


class Budget(msgspec.Struct, frozen=True):
    """What a tenant may spend in a month, and the percentages that are reported.

    ``stop_admitting`` asks for no new work once the budget is spent.
    """

    per_month: Decimal
    alerts: tuple[int, ...] = (80, 100)
    stop_admitting: bool = False


class Account(msgspec.Struct, frozen=True):
    """What a tenant has at the begin of a month, and what it gets after that."""

    tenant: str
    since: Month
    opening: Decimal = Decimal(0)
    credits: tuple[Credit, ...] = ()
    budget: Budget | None = None

    def credits_of(self, month: Month) -> tuple[Credit, ...]:
        """Return the credits of a month, by day."""
        found = [credit for credit in self.credits if month.holds(credit.day)]
        return tuple(sorted(found, key=lambda credit: credit.day))


class Accounts(msgspec.Struct, frozen=True):
    """The accounts of a file by tenant."""

    source: str
    currency: str
    by_tenant: Mapping[str, Account]

    def check_currency(self, prices: PriceList) -> None:
        """Check that accounts and prices are in one currency.

        :raises InputError: when they are not.
        """
        if self.currency != prices.currency:
            raise InputError(
                f"is in {self.currency}, but the prices of {prices.source} are in "
                f"{prices.currency}",
                self.source,
            )


def _amount(value: Any) -> Decimal:
    number = exact(value)
    if abs(number) > _MOST:
        raise ValueError(f"expected an amount of at most {_MOST:,}")
    return number


def _positive(value: Any) -> Decimal:
    number = _amount(value)
    if number <= 0:
        raise ValueError("expected an amount above 0")
    return number


def _month(value: Any) -> Month:
    if isinstance(value, str):
        return Month.parse(value)
    raise ValueError("expected a month such as 2026-01")


_Amount = Annotated[Decimal, BeforeValidator(_amount)]
_Percent = Annotated[int, Field(ge=1, le=1000)]


class _CreditFields(Fields):
    on: Annotated[date, BeforeValidator(day)] = Field(alias="date")
    amount: _Amount
    note: str = Field(default="", max_length=500)


class _BudgetFields(Fields):
    per_month: Annotated[Decimal, BeforeValidator(_positive)]
    alerts: tuple[_Percent, ...] = (80, 100)
    stop_admitting: bool = False


class _OpeningFields(Fields):
    month: Annotated[str, BeforeValidator(lambda value: str(_month(value)))]
    amount: _Amount = Decimal(0)


class _AccountFields(Fields):
    tenant: str = Field(min_length=1, max_length=253)
    opening: _OpeningFields
    credit: tuple[_CreditFields, ...] = Field(default=(), alias="credits")
    budget: _BudgetFields | None = None


class _AccountsFields(Fields):
    api_version: Literal["bayplan.dev/v1alpha1"]
    kind: Literal["Accounts"]
    currency: CurrencyCode
    accounts: tuple[_AccountFields, ...]


def load_accounts(path: Path) -> Accounts:
    """Read an accounts file.

    :raises InputError: naming file, line and path of what cannot be used.
    """
    document = single_document(path, "Accounts")
    fields = validated(_AccountsFields, document.content, document)
    found: dict[str, Account] = {}
    for index, entry in enumerate(fields.accounts):
        account = _account(entry)
        amounts = [account.opening, *(credit.amount for credit in account.credits)]
        if account.budget is not None:
            amounts.append(account.budget.per_month)
        at = ("accounts", index)
        where = document.where(at)
        problem = _problem(account, amounts, fields.currency, found)
        if problem:
            raise InputError(f"accounts.{index}: {problem}", where)
        found[account.tenant] = account
    return Accounts(str(path), fields.currency, found)


def _problem(
    account: Account, amounts: list[Decimal], currency: str, found: Mapping[str, Account]
) -> str:
    """Return what is wrong with an account, "" if nothing is."""
    if account.tenant in found:
        return f'the tenant "{account.tenant}" has an account already'
    places = CURRENCIES[currency]
    if any(amount != round(amount, places) for amount in amounts):
        return f"expected amounts with at most {places} decimal places"
    early = [credit.day for credit in account.credits if credit.day < _first(account.since)]
    if early:
        return f"the credit of {early[0]} is from before the opening month {account.since}"
    return ""


def _first(month: Month) -> date:
    return date(month.year, month.number, 1)


def _account(entry: _AccountFields) -> Account:
    budget = None
    if entry.budget is not None:
        alerts = tuple(sorted(set(entry.budget.alerts)))
        budget = Budget(entry.budget.per_month, alerts, entry.budget.stop_admitting)
    return Account(
        entry.tenant,
        Month.parse(entry.opening.month),
        entry.opening.amount,
        tuple(Credit(credit.on, credit.amount, credit.note) for credit in entry.credit),
        budget,
    )
