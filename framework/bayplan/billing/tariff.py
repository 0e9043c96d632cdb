"""Which price holds when: the prices of a span of time, cut where they change."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from functools import cached_property

import msgspec
from msgspec.structs import replace

from bayplan.billing.prices import Price, PriceList, PriceVersion

__all__ = ["Rate", "Tariff", "Time", "discounted", "pieces"]

Time = int | Fraction
"""Milliseconds since 1970; a discount may begin between two of them."""

_QUARTER = 15 * 60_000
"""Prices only change at full quarters of an hour in UTC, as every time zone's offset is one."""
_QUARTERS_OF_A_DAY = 96


class Rate(msgspec.Struct, frozen=True):
    """The price of a unit per hour, and its discount, from a time to a time."""

    since: Time
    until: Time
    version: PriceVersion
    band: str
    per_hour: Decimal
    factor: Decimal = Decimal(1)


class Tariff:
    """The prices of a span of time.

    :param since: the begin of the span, in milliseconds since 1970.
    :param until: its end.
    """

    def __init__(self, prices: PriceList, since: int, until: int) -> None:
        self.prices = prices
        self._begin = since - since % _QUARTER
        self._end = until + -until % _QUARTER
        self._rates: dict[tuple[str, str, str], tuple[Rate, ...]] = {}

    def rates(self, resource: str, model: str, pool: str) -> tuple[Rate, ...]:
        """Return the prices of a resource's model in a pool by time; where it is free, none."""
        key = (resource, model, pool)
        if key not in self._rates:
            self._rates[key] = tuple(self._found(*key))
        return self._rates[key]

    def _found(self, resource: str, model: str, pool: str) -> Iterator[Rate]:
        for version in self.prices.versions:
            since = max(version.since, self._begin)
            until = self._end if version.until is None else min(version.until, self._end)
            price = version.price(resource, model, pool)
            if since < until and price is not None:
                yield from self._of(version, price, since, until)

    def _of(self, version: PriceVersion, price: Price, since: int, until: int) -> Iterator[Rate]:
        if not price.of_quarter:
            band = price.bands[0]
            yield Rate(since, until, version, band.name, band.per_hour)
            return
        begin = since
        weekly = self._quarters
        first, last = ((moment - self._begin) // _QUARTER for moment in (since, until))
        now = price.of_quarter[weekly[first]]
        for index in range(first + 1, last):
            then = price.of_quarter[weekly[index]]
            if then != now:
                at = self._begin + index * _QUARTER
                yield Rate(begin, at, version, price.bands[now].name, price.bands[now].per_hour)
                begin, now = at, then
        yield Rate(begin, until, version, price.bands[now].name, price.bands[now].per_hour)

    @cached_property
    def _quarters(self) -> list[int]:
        """The local quarter of the week of each quarter of an hour of the span."""
        zone = self.prices.zone
        found = []
        for moment in range(self._begin, self._end, _QUARTER):
            local = datetime.fromtimestamp(moment // 1000, zone)
            day = local.weekday() * _QUARTERS_OF_A_DAY
            found.append(day + local.hour * 4 + local.minute // 15)
        return found


def discounted(
    rates: Sequence[Rate], resource: str, crossings: Mapping[Fraction, Time]
) -> tuple[Rate, ...]:
    """Return rates with the factors of the discounts.

    :param crossings: the times at which thresholds (see ``Tier.threshold``) were reached.
    """
    cuts = sorted(set(crossings.values()))
    found = []
    for rate in rates:
        tiers = rate.version.discounts.get(resource, ())
        inside = [cut for cut in cuts if rate.since < cut < rate.until] if tiers else []
        ends = [*inside, rate.until]
        for since, until in zip([rate.since, *inside], ends, strict=True):
            factor = Decimal(1)
            for tier in tiers:
                at = crossings.get(tier.threshold(resource))
                if at is not None and at <= since:
                    factor = tier.factor
            found.append(replace(rate, since=since, until=until, factor=factor))
    return tuple(found)


def pieces(rates: Sequence[Rate], since: Time, until: Time) -> Iterator[tuple[Rate, Time]]:
    """Yield the rates of a span of time, each with its share of the span in milliseconds."""
    index = max(0, bisect_right(rates, since, key=lambda rate: rate.since) - 1)
    while index < len(rates) and rates[index].since < until:
        rate = rates[index]
        length = min(until, rate.until) - max(since, rate.since)
        if length > 0:
            yield rate, length
        index += 1
