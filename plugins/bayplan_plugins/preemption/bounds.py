"""What one more slot on each node costs at least, for one kind of pod.

A *slot* is a place for one more of these pods, a *step* the pods of one node that go together to
free some. The bounds are columns over the node table. They are kept from unit to unit, and brought
up to date by the rows that changed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bayplan.plugin.hookspecs import BoolColumn, IntColumn
from bayplan.snapshot import NodeTable
from bayplan.snapshot.row_changes import Rows
from bayplan_plugins.preemption.columns import EvictionColumns
from bayplan_plugins.shared.victims import EvictionCost

__all__ = ["ANY", "Key", "StepBounds", "key_at"]

ANY = 1 << 20
"""How many slots a node may have that refuses the pod though its amounts are free."""

Key = tuple[tuple[float, ...], int, int]
"""The least order of a step of a row, the first row of its gang, and the row."""
_MOST_REMEMBERED = 10_000
_MANY = 16
"""All rows are sorted again once one in so many has changed."""


def key_at(keys: Sequence[np.ndarray], row: int) -> Key:
    """Return the key of one row."""
    *order, first, _ = (key.item(row) for key in keys)
    return tuple(order), first, row


class _Remembered(NamedTuple):
    """A cost, the rows that it follows from, and in which refresh it was found."""

    at: int
    rows: Rows
    cost: EvictionCost | None


class _Order:
    """The usable rows in the order of their keys: sorted once, and a heap of those that changed."""

    def __init__(self, usable: BoolColumn, keys: Sequence[np.ndarray]) -> None:
        self._usable = usable
        rows = np.flatnonzero(usable)
        self._rows: list[int] = rows[np.lexsort([key[rows] for key in reversed(keys)])].tolist()
        self._first = 0
        """Before this place, all rows have changed."""
        self._versions: dict[int, int] = {}
        """How often each row has changed."""
        self._heap: list[tuple[Key, int]] = []
        """The keys of changed rows, and the versions that they belong to."""

    def update(self, rows: Rows, keys: Sequence[np.ndarray]) -> bool:
        """Sort some rows in again; return False if it is better to sort all."""
        versions = self._versions
        for row in rows.tolist():
            versions[row] = versions.get(row, 0) + 1
            if self._usable[row]:
                heapq.heappush(self._heap, (key_at(keys, row), versions[row]))
        return max(len(versions), len(self._heap) // 2) * _MANY <= len(self._usable) + _MANY

    def ascending(self, keys: Sequence[np.ndarray]) -> Iterator[tuple[Key, int]]:
        """Yield all keys with their rows, the smallest first."""
        changed = self._changed()
        other = next(changed, None)
        for row in self._unchanged():
            key = key_at(keys, row)
            while other is not None and other < key:
                yield other, other[2]
                other = next(changed, None)
            yield key, row
        while other is not None:
            yield other, other[2]
            other = next(changed, None)

    def _unchanged(self) -> Iterator[int]:
        rows, versions = self._rows, self._versions
        while self._first < len(rows) and rows[self._first] in versions:
            self._first += 1
        return (rows[i] for i in range(self._first, len(rows)) if rows[i] not in versions)

    def _changed(self) -> Iterator[Key]:
        """Yield the keys of changed rows in order; only what is outdated leaves the heap."""
        heap = self._heap
        while heap and not self._holds(*heap[0]):
            heapq.heappop(heap)
        reached = [(heap[0], 0)] if heap else []
        while reached:
            (key, version), place = heapq.heappop(reached)
            for child in range(2 * place + 1, min(2 * place + 3, len(heap))):
                heapq.heappush(reached, (heap[child], child))
            if self._holds(key, version):
                yield key

    def _holds(self, key: Key, version: int) -> bool:
        """Tell whether a key is still that of its row; every change of a row adds a new one."""
        row = key[2]
        return self._versions[row] == version and bool(self._usable[row])


class StepBounds:
    """The bounds of the steps for pods with equal needs.

    Where a node refuses the pod though its amounts are free, or takes fewer than these allow, one
    step of all that may go there is assumed, as any of it may be in the way.

    :param needs: what one pod takes, by resource.
    :param alike: whether all members of the unit are such pods. Otherwise evictions help, too, that
        leave too little for one of them.
    :param protect: whether gangs are kept at their minimum.
    """

    usable: BoolColumn
    """The rows where, by the amounts, evictions let one more pod fit."""
    short: BoolColumn
    """The rows with victims where they do not."""
    now: IntColumn
    """How many pods fit by the amounts."""
    most: IntColumn
    """How many fit by the amounts once all that may go is gone."""
    more: IntColumn
    """How many more fit then."""
    otherwise: BoolColumn
    """The rows that take fewer pods than their amounts allow."""
    least: IntColumn
    """How many pods have to go at least for one more to fit."""
    slots: IntColumn
    """How many of the pods each node takes now."""

    def __init__(
        self,
        table: NodeTable,
        columns: EvictionColumns,
        needs: Mapping[str, int],
        alike: bool,
        protect: bool,
    ) -> None:
        self._table = table
        self.columns = columns
        self._needs = needs
        self._alike = alike
        self._protect = protect
        self._seen = (-1, 0)
        self._reset(0)

    def _reset(self, size: int) -> None:
        self._order: _Order | None = None
        self._looks = 0
        self._changed_at = np.zeros(size, dtype=np.int64)
        """In which refresh each row changed last."""
        self._costs: dict[Hashable, _Remembered] = {}
        self.usable, self.short, self.otherwise, self._beyond, self._within = np.zeros(
            (5, size), dtype=np.bool_
        )
        self.now, self.most, self.more, self.least, self._most_slots, self.slots = np.zeros(
            (6, size), dtype=np.int64
        )
        self._for_slots = 1
        """For how many slots the three columns below are."""
        self._lost, self._total, self._pods = np.zeros((3, size))

    def refresh(self, slots: IntColumn, within: BoolColumn) -> None:
        """Bring the bounds up to date.

        :param slots: how many of the pods each node takes now.
        :param within: the rows where evictions may help.
        """
        changes = self.columns.changes
        stale = changes.since(self._seen[1]) if changes.epoch == self._seen[0] else None
        self._seen = changes.epoch, changes.position
        if stale is None:
            self._reset(len(slots))
            rows = np.arange(len(slots))
        else:
            differs = (slots != self.slots) | (within != self._within)
            differs[stale] = True
            rows = np.flatnonzero(differs)
        self.slots, self._within = slots, within
        self._looks += 1
        if len(rows):
            self._changed_at[rows] = self._looks
            self._fill(rows)

    def remembered(
        self, what: Hashable, rows: Rows, find: Callable[[], EvictionCost | None]
    ) -> EvictionCost | None:
        """Return a cost that follows from some rows alone, found again only if any has changed.

        :param what: which cost it is.
        """
        known = self._costs.get(what)
        if known is not None and self._changed_at[rows].max(initial=0) <= known.at:
            if np.array_equal(known.rows, rows):
                return known.cost
        if len(self._costs) >= _MOST_REMEMBERED:
            self._costs.clear()
        cost = find()
        self._costs[what] = _Remembered(self._looks, rows, cost)
        return cost

    @property
    def amounts_decide(self) -> bool:
        """Whether no node takes more pods than its amounts allow."""
        return not (self._beyond & (self.usable | self.short)).any()

    def _fill(self, rows: Rows) -> None:
        """Compute the bounds of some rows."""
        now, most = self.columns.slots(self._needs, rows)
        slots = self.slots[rows]
        otherwise = slots < now
        candidate = self._within[rows] & (self.columns.count(self._protect)[rows] > 0)
        short = ~otherwise & (most <= now) & self._alike
        self.usable[rows] = candidate & ~short
        self.short[rows] = candidate & short
        self.now[rows], self.most[rows], self.otherwise[rows] = now, most, otherwise
        self._beyond[rows] = slots > now
        self.more[rows] = np.where(otherwise, ANY, np.maximum(most - now, 0))
        self.least[rows] = np.where(otherwise, 1, self._least_victims(rows, now))
        self._most_slots[rows] = np.where(otherwise, 1, self._slots_of_a_step(rows, now, most))
        self._scale(rows)
        if self._order is not None and not self._order.update(rows, self.keys(self._for_slots)):
            self._order = None

    def _least_victims(self, rows: Rows, now: IntColumn) -> IntColumn:
        least = np.ones(len(rows), dtype=np.int64)
        for name, need in self._needs.items() if self._alike else ():
            offered = self._table.allocatable_of(name, rows)
            lacking = (now + 1) * need - (offered - self._table.used_of(name, rows))
            victims = -(-lacking // np.maximum(self._largest(name, rows), 1))
            least = np.where(offered > 0, np.maximum(least, victims), least)
        return least

    def _largest(self, resource: str, rows: Rows) -> IntColumn:
        """Return the most that one victim on each of the rows holds of a resource."""
        column = self.columns.largest.get(resource)
        return np.zeros(len(rows), dtype=np.int64) if column is None else column[rows]

    def _slots_of_a_step(self, rows: Rows, now: IntColumn, most: IntColumn) -> IntColumn:
        """Return how many slots a step gives at most.

        Its last victim gives all of them, and no more than of a resource that bounds them now.
        """
        gained = np.ones_like(now)
        if not self._alike:
            return gained
        for name, need in self._needs.items():
            offered = self._table.allocatable_of(name, rows)
            fits = np.maximum(offered - self._table.used_of(name, rows), 0) // need
            bounds = (offered > 0) & (fits == now)
            largest = -(-self._largest(name, rows) // need)
            gained = np.where(bounds, np.maximum(gained, largest), gained)
        most_gained: IntColumn = np.minimum(gained, np.maximum(most - now, 1))
        return most_gained

    # Keys --------------------------------------------------------------------------------

    def keys(self, wanted: int) -> list[np.ndarray]:
        """Return the least order of a step on each row, field by field; do not change it.

        :param wanted: for how many slots the steps are; what one gives beyond does not count.
        """
        if wanted != self._for_slots:
            self._for_slots, self._order = wanted, None
            self._scale(np.arange(len(self.now)))
        columns = self.columns
        return [
            columns.violations(),
            columns.highest,
            self._lost,
            self._total,
            self._pods,
            columns.gangs,
            columns.started,
            columns.rank,
            columns.first,
            np.arange(len(self.now)),
        ]

    def in_order(self, wanted: int) -> Iterator[tuple[Key, int]]:
        """Yield the least key of a step of each usable row, and the row, in rising order.

        The bounds must not change meanwhile.
        """
        keys = self.keys(wanted)
        if self._order is None:
            self._order = _Order(self.usable, keys)
        return self._order.ascending(keys)

    def _scale(self, rows: Rows) -> None:
        """Divide the least costs of some rows by the slots that they give."""
        columns, least = self.columns, self.least[rows]
        most = np.minimum(self._most_slots[rows], self._for_slots)
        added = columns.added[rows]
        self._lost[rows] = np.maximum(columns.lost[rows], least * columns.own[rows]) / most
        self._total[rows] = np.maximum(columns.total[rows], least * added) / most
        self._pods[rows] = np.maximum(columns.pods[rows], least * (added > 0)) / most
