"""Capacity that nobody uses, as records: what is in service and idle, and what is kept free.

Of a node's resource, what is used is taken from the capacity in service first, then from what is
reserved; what is left of the two is idle and reserved. So used, idle and reserved capacity add up
to what is not out of service.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum

import msgspec

from bayplan.metering.record import CapacityRecord, CapacityState, UsageRecord

__all__ = ["Unused", "UnusedRecord", "unused"]


class Unused(Enum):
    """Why capacity is not used."""

    IDLE = "idle"
    RESERVED = "reserved"


class UnusedRecord(msgspec.Struct, frozen=True):
    """What nobody uses of a node's resource; amounts and times as in ``UsageRecord``."""

    kind: Unused
    pool: str
    node: str
    resource: str
    model: str
    amount: int
    since: int
    until: int


_Key = tuple[str, str, str]
_Change = tuple[int, int, int, str]
_USED, _IN_SERVICE, _RESERVED = range(3)
_COLUMN = {CapacityState.IN_SERVICE: _IN_SERVICE, CapacityState.RESERVED: _RESERVED}


def unused(
    usage: Iterable[UsageRecord], capacity: Iterable[CapacityRecord], since: int, until: int
) -> Iterator[UnusedRecord]:
    """Yield what is idle and what is reserved in a span of time, node by node.

    :param usage: the usage of all tenants.
    """
    changes: dict[_Key, list[_Change]] = defaultdict(list)
    for offered in capacity:
        column = _COLUMN.get(offered.state)
        if column is not None:
            _add(changes, offered, column, since, until)
    for used in usage:
        if (used.node, used.resource, used.model) in changes:
            _add(changes, used, _USED, since, until)
    for key, of_key in changes.items():
        yield from _sweep(key, sorted(of_key))


def _add(
    changes: dict[_Key, list[_Change]],
    record: UsageRecord | CapacityRecord,
    column: int,
    since: int,
    until: int,
) -> None:
    start = max(since, record.since)
    end = until if record.until is None else min(until, record.until)
    if start < end:
        of_key = changes[record.node, record.resource, record.model]
        of_key.append((start, column, record.amount, record.pool))
        of_key.append((end, column, -record.amount, record.pool))


def _sweep(key: _Key, changes: list[_Change]) -> Iterator[UnusedRecord]:
    node, resource, model = key
    now = [0, 0, 0]
    began, was, levels = 0, "", (0, 0)
    pool = ""
    for index, (moment, column, amount, of) in enumerate(changes):
        now[column] += amount
        if column != _USED and amount > 0:
            pool = of
        if index + 1 < len(changes) and changes[index + 1][0] == moment:
            continue
        short = max(0, now[_USED] - now[_IN_SERVICE])
        then = (max(0, now[_IN_SERVICE] - now[_USED]), max(0, now[_RESERVED] - short))
        if (then, pool) == (levels, was):
            continue
        for kind, level in zip(Unused, levels, strict=True):
            if level:
                yield UnusedRecord(kind, was, node, resource, model, level, began, moment)
        began, was, levels = moment, pool, then
