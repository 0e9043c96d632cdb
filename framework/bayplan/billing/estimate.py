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
    requests: Mapping[str, int],
    model: str,
    pool: str,
    hours: Fraction,
    prices: PriceList,
    start: int,
) -> Money:
    """Return what resources cost for some hours from a time on, at list price.

    :param requests: thousandths of a unit by resource, as in ``UsageRecord``, of all pods together.
    :param model: the model of the devices; what has no price of its own for it has the default's.
    :param start: milliseconds since 1970.
    :raises InputError: when there are no prices for that time.
    """
    length = round(hours * _HOUR)
    if length <= 0:
        return Money(rounded(Fraction(0), prices.currency), prices.currency)
    prices.check(start, start + length)
    tariff = Tariff(prices, start, start + length)
    total = Fraction(0)
    for resource, amount in requests.items():
        cost = sum(
            (
                Fraction(rate.per_hour) * during
                for rate, during in pieces(
                    tariff.rates(resource, model, pool), start, start + length
                )
            ),
            Fraction(0),
        )
        total += cost * amount / (_HOUR * thousandths_of(resource))
    return Money(rounded(total, prices.currency), prices.currency)
