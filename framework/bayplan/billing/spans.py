"""What is billed of a tenant's records: their time, and the rest of the minimum period."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction

import msgspec

from bayplan.billing.month import Month
from bayplan.billing.prices import PriceList
from bayplan.billing.tariff import Time
from bayplan.metering.record import UsageRecord

__all__ = ["Key", "Span", "crossings_of", "rests_of_minimum", "spans_of"]

Key = tuple[str, str, str]
"""A resource, its model and its pool."""


class Span(msgspec.Struct, frozen=True):
    """What a line counts: an amount in thousandths from a time to a time."""

    resource: str
    model: str
    pool: str
    amount: int
    since: int
    until: int

    @property
    def key(self) -> Key:
        """What is billed together."""
        return self.resource, self.model, self.pool


def spans_of(records: Iterable[UsageRecord], since: int, until: int) -> Iterator[Span]:
    """Yield the time of records between two times."""
    for record in records:
        begin = max(record.since, since)
        end = until if record.until is None else min(record.until, until)
        if begin < end:
            yield _span(record, begin, end)


def rests_of_minimum(
    records: Iterable[UsageRecord], prices: PriceList, month: Month, until: int
) -> Iterator[Span]:
    """Yield what pods pay in a month beyond the time for which they held a resource.

    :param records: of the pods that ended early, all.
    :param until: who has not ended by then, in milliseconds since 1970, may still go on.
    """
    holds: dict[tuple[str, str, str], list[UsageRecord]] = defaultdict(list)
    for record in records:
        holds[record.pod_uid, record.resource, record.model].append(record)
    for hold in holds.values():
        ended = _last_end(hold)
        if ended is None or ended > until:
            continue
        began = min(record.since for record in hold)
        least = began + prices.version_at(max(began, prices.versions[0].since)).minimum
        begin, end = max(ended, month.since), min(least, month.until)
        for record in hold if begin < end else ():
            if record.until == ended:
                yield _span(record, begin, end)


def _last_end(hold: list[UsageRecord]) -> int | None:
    """Return when the last of a pod's records ends, None while one is open."""
    ends = [record.until for record in hold if record.until is not None]
    return max(ends) if len(ends) == len(hold) else None


def _span(record: UsageRecord, since: int, until: int) -> Span:
    return Span(record.resource, record.model, record.pool, record.amount, since, until)


def crossings_of(spans: list[Span], thresholds: set[Fraction]) -> dict[Fraction, Time]:
    """Return when the use of all spans together reached each threshold, as far as it did."""
    changes: dict[int, int] = defaultdict(int)
    for span in spans:
        changes[span.since] += span.amount
        changes[span.until] -= span.amount
    found: dict[Fraction, Time] = {}
    left = sorted(thresholds)
    used, level, last = 0, 0, 0
    for moment in sorted(changes):
        then = used + level * (moment - last)
        while left and left[0] <= then:
            found[left[0]] = last + (left[0] - used) / level
            del left[0]
        used, level, last = then, level + changes[moment], moment
    return found
