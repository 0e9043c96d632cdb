"""What a job will cost, before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from bayplan.billing.money import Money, rounded
from bayplan.billing.prices import PriceList, thousandths_of
from bayplan.billing.tariff import Tariff, pieces

__all__ = ["estimate"]

_HOUR = 3_600_000


def estimate(
    amounts: Mapping[tuple[str, str], int],
    pool: str,
    hours: Fraction,
    prices: PriceList,
    start: int,
) -> Money:
    """Return what resources cost for some hours from a time on, at list price.

    :param amounts: thousandths of a unit, as in ``UsageRecord``, by resource and model.
    :param start: milliseconds since 1970.
    :raises InputError: when there are no prices for that time.
    """
    end = start + max(1, round(hours * _HOUR))
    prices.check(start, end)
    tariff = Tariff(prices, start, end)
    total = Fraction(0)
    for (resource, model), amount in amounts.items():
        found = pieces(tariff.rates(resource, model, pool), start, end)
        cost = sum((Fraction(rate.per_hour) * length for rate, length in found), Fraction(0))
        total += cost * amount / (_HOUR * thousandths_of(resource))
    return Money(rounded(total, prices.currency), prices.currency)
