"""What usage of a span of time earns, tenant by tenant, and what idle capacity would have."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec

from bayplan.billing.idle import unused
from bayplan.billing.invoice import invoice
from bayplan.billing.money import rounded
from bayplan.billing.month import Month
from bayplan.billing.prices import PriceList, thousandths_of
from bayplan.billing.tariff import Tariff, pieces
from bayplan.billing.usage_source import UsageSource

__all__ = ["Earnings", "earnings"]

_HOUR = 3_600_000


class Earnings(msgspec.Struct, frozen=True):
    """The sum of each tenant's invoices, and the list price of what nobody used."""

    currency: str
    by_tenant: Mapping[str, Decimal]
    idle: Decimal

    @property
    def total(self) -> Decimal:
        """What all tenants pay."""
        return sum(self.by_tenant.values(), rounded(Decimal(0), self.currency))

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; amounts are decimals in text."""
        return {
            "currency": self.currency,
            "byTenant": {tenant: str(amount) for tenant, amount in self.by_tenant.items()},
            "total": str(self.total),
            "idle": str(self.idle),
        }


def earnings(prices: PriceList, source: UsageSource, since: int, until: int) -> Earnings:
    """Return what a span of time earns.

    :param since: the begin of all usage of its month, in milliseconds since 1970.
    :param until: its end, until which usage is known.
    :raises InputError: for usage at a time without prices.
    """
    usage = list(source.records(since, until))
    by_tenant: dict[str, Decimal] = {}
    for tenant in sorted({record.tenant for record in usage}):
        month, last = Month.at(since), Month.at(max(since, until - 1))
        total = rounded(Decimal(0), prices.currency)
        while month <= last:
            total += invoice(tenant, month, prices, source, until).total
            month = month.next
        by_tenant[tenant] = total
    tariff = Tariff(prices, since, max(since, until))
    idle = Fraction(0)
    for record in unused(usage, source.capacity(since, until), since, until):
        prices.check(record.since, record.until)
        rates = tariff.rates(record.resource, record.model, record.pool)
        cost = sum(
            (
                Fraction(rate.per_hour) * of
                for rate, of in pieces(rates, record.since, record.until)
            ),
            Fraction(0),
        )
        idle += cost * record.amount / (_HOUR * thousandths_of(record.resource))
    return Earnings(prices.currency, by_tenant, rounded(idle, prices.currency))
