"""What evicting the less important pods would free on each node, and what it costs at least.

Preemption asks the same of every node for every unit. The answers are columns over the node table,
one set for each priority that asks, kept up to date by the rows that changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bayplan import Handle, PodInfo
from bayplan.plugin.hookspecs import FloatColumn, IntColumn
from bayplan.snapshot.row_changes import RowChanges, Rows, moved, numbers_now
from bayplan_plugins.shared.budgets import DisruptionBudgets
from bayplan_plugins.shared.victims import Evictable

__all__ = ["PODS", "EvictionColumns", "needs_of"]

PODS = "pods"
_COUNTS = (
    *("victims", "unprotected"),
    *("highest", "lost", "total", "pods", "gangs", "rank", "added", "own", "first"),
)
_COST = ("highest", "lost", "total", "pods", "gangs", "started", "rank")


class _Row(NamedTuple):
    """What is known of one node: how many pods may go, and the least that any of them costs."""

    victims: int
    unprotected: int
    cheapest: tuple[float, ...]
    added: int
    own: int
    gpus: tuple[int, int]
    first: int
    budgets: int
    freed: Mapping[str, int]
    largest: Mapping[str, int]


_EMPTY = _Row(0, 0, (0,) * len(_COST), 0, 0, (0, 0), 0, -1, {}, {})


class EvictionColumns:
    """The columns for units of one priority; each has one number a node row."""

    victims: IntColumn
    """How many pods may go."""
    unprotected: IntColumn
    """How many of them may go although gangs are kept at their minimum."""
    highest: IntColumn
    """Fields of the least EvictionCost of any of these pods, with all that go with it."""
    lost: IntColumn
    total: IntColumn
    pods: IntColumn
    gangs: IntColumn
    started: FloatColumn
    rank: IntColumn
    added: IntColumn
    """What each of these pods adds to ``total`` at least."""
    own: IntColumn
    """What each of these pods adds to ``lost`` at least."""
    first: IntColumn
    """The first row of the gang that ends with one of these pods, else the row itself."""
    freed: dict[str, IntColumn]
    """What these pods hold, by resource; the pods themselves are "pods"."""
    largest: dict[str, IntColumn]
    """The most that one of them holds, by resource."""

    def __init__(self, handle: Handle, priority: int) -> None:
        self._handle = handle
        self._table = handle.snapshot.nodes
        self._priority = priority
        self._budgets = DisruptionBudgets.of(handle.snapshot)
        self.changes = RowChanges()
        """Logs the rows that were read again."""
        self._budgets_version = -1
        self._epoch = -1
        self._position = 0
        self._objects_version = -1
        self._as_of = 0.0
        """Up to when the work of pods counts, in seconds since 1970."""
        self._reset()

    def _reset(self) -> None:
        self.changes.restart()
        size = len(self._table)
        self._unread: set[int] = set()
        """Rows that changed and are read later."""
        self._changed_since: set[int] = set()
        """Rows that changed since others were left for later."""
        for name in _COUNTS:
            setattr(self, name, np.zeros(size, dtype=np.int64))
        self.started = np.zeros(size)
        self._gpus = np.zeros((2, size), dtype=np.int64)
        """By how much ``lost`` and ``own`` grow with each second, at least."""
        self._budget_codes = np.full(size, -1, dtype=np.int64)
        self._budget_sets: dict[tuple[str, ...], int] = {}
        self.freed, self.largest = {}, {}
        self._gangs_on: dict[int, tuple[str, ...]] = {}
        self._needs: dict[object, Mapping[str, int]] = {}
        self._gang_states: dict[str, object] = {}
        self._gang_versions: dict[str, int] = {}
        self._first_row: dict[str, int] = {}

    def count(self, protect: bool = False) -> IntColumn:
        """Return how many pods may go.

        :param protect: whether gangs are kept at their minimum.
        """
        return self.unprotected if protect else self.victims

    def violations(self) -> IntColumn:
        """Return how many budgets' limits each row's cheapest eviction exceeds at least: 0 or 1."""
        allowed = self._budgets.allowed()
        if not self._budget_sets:
            return np.zeros(len(self._table), dtype=np.int64)
        exhausted = [any(allowed[key] < 1 for key in keys) for keys in self._budget_sets]
        return np.array([*exhausted, False], dtype=np.int64)[self._budget_codes]

    def slots(self, needs: Mapping[str, int], rows: Rows) -> tuple[IntColumn, IntColumn]:
        """Return how many pods fit on some rows now, and how many once all that may go is gone.

        By amounts alone. What a node does not offer as an amount may come from elsewhere, such as
        device classes.

        :param needs: what one pod takes, by resource.
        """
        table = self._table
        now = np.full(len(rows), np.iinfo(np.int32).max, dtype=np.int64)
        most = now.copy()
        for name, need in needs.items():
            offered = table.allocatable_of(name, rows)
            free = offered - table.used_of(name, rows)
            freed = self.freed[name][rows] if name in self.freed else 0
            known = offered > 0
            now = np.where(known, np.minimum(now, np.maximum(free, 0) // need), now)
            most = np.where(known, np.minimum(most, np.maximum(free + freed, 0) // need), most)
        return now, most

    def refresh(self) -> None:
        """Bring the columns up to date with the snapshot."""
        self.read_on(len(self._table))

    def read_on(self, most: int) -> bool:
        """Read so many rows that changed, and what that changes for others; return if it was all.

        Nothing else may be asked before it is. Rows that change in between are read with the last
        part, however many: whoever tries a unit again changes some each time.
        """
        table = self._table
        stale = table.changes.stale_since(self._epoch, self._position)
        self._epoch, self._position = table.epoch, table.position
        gangs: set[str] = set()
        in_parts = bool(self._unread)
        if stale is None or self._budgets_version != self._budgets.version:
            self._budgets_version = self._budgets.version
            self._reset()
            rows = {row for row, pods in enumerate(table.pods) if pods}
            most = len(table) if in_parts else most
        else:
            if stale.origin is not None:
                gangs = self._move(stale.origin)
            rows = set(stale.rows)
            if in_parts:
                self._changed_since |= rows - self._unread
                rows = self._unread
        self._unread = set(sorted(rows)[most:])
        rows = rows - self._unread
        if not self._unread:
            rows |= self._changed_since
            self._changed_since = set()
        evictable = Evictable(self._handle, self._priority)
        self._count_until(evictable.as_of)
        rows |= self._rows_of_gangs(gangs | self._changed_gangs(rows), evictable) - self._unread
        if rows:
            self._fill(sorted(rows), evictable)
        self.changes.trim(len(table))
        return not self._unread

    def _count_until(self, as_of: float) -> None:
        """Count the work that was done since the last time; nothing costs less by that."""
        seconds, self._as_of = int(as_of - self._as_of), as_of
        if seconds and self._gpus.any():
            self.lost += seconds * self._gpus[0]
            self.own += seconds * self._gpus[1]
            self.changes.restart()

    def _move(self, origin: Rows) -> set[str]:
        """Follow the rows to their new numbers; return the gangs with pods on rows that are gone.

        What is said of a gang may name its first row, so all of its rows are read again.
        """
        now = numbers_now(origin, len(self.victims))
        for name in _COUNTS:
            setattr(self, name, moved(getattr(self, name), origin))
        self.started = moved(self.started, origin)
        self._gpus = np.stack([moved(one, origin) for one in self._gpus])
        self._budget_codes = moved(self._budget_codes, origin, -1)
        self.freed = {name: moved(column, origin) for name, column in self.freed.items()}
        self.largest = {name: moved(column, origin) for name, column in self.largest.items()}
        gangs_on, self._gangs_on = self._gangs_on, {}
        gone: set[str] = set()
        for row, gangs in gangs_on.items():
            if now[row] >= 0:
                self._gangs_on[int(now[row])] = gangs
            else:
                gone.update(gangs)
        self._unread = {int(now[row]) for row in self._unread if now[row] >= 0}
        self._changed_since = {int(now[row]) for row in self._changed_since if now[row] >= 0}
        if len(now):
            self._first_row = {key: int(now[row]) for key, row in self._first_row.items()}
        for key in gone:
            self._gang_states.pop(key, None)
        if len(now):
            self.first = np.where(self.victims > 0, np.maximum(now[self.first], 0), 0)
        self.changes.restart()
        return gone

    # Gangs -------------------------------------------------------------------------------

    def _changed_gangs(self, rows: set[int]) -> set[str]:
        """Return the gangs that may have other members, or another minimum, than before."""
        table = self._table
        gangs: set[str] = set()
        for row in rows:
            gangs.update(self._gangs_on.get(row, ()))
            gangs.update(pod.gang for pod in table.pods[row].values() if pod.gang is not None)
        version = self._handle.snapshot.objects_version
        if version != self._objects_version:
            self._objects_version = version
            of = self._handle.gang
            gangs |= {key for key, known in self._gang_versions.items() if known != of(key).version}
        return gangs

    def _rows_of_gangs(self, gangs: set[str], evictable: Evictable) -> set[int]:
        """Return the rows of those gangs whose end costs something else than before."""
        row_of = self._table.row_of
        rows: set[int] = set()
        for key in gangs:
            known = self._handle.gang(key)
            if not known.bound:
                self._gang_states.pop(key, None)
                self._gang_versions.pop(key, None)
                continue
            own = [row_of[node] for _, node in known.bound.values() if node in row_of]
            self._first_row[key] = min(own, default=0)
            state = (evictable.gang_state(key), self._first_row[key])
            self._gang_versions[key] = known.version
            if state != self._gang_states.get(key):
                rows.update(own)
            self._gang_states[key] = state
        return rows

    # Rows --------------------------------------------------------------------------------

    def _fill(self, rows: list[int], evictable: Evictable) -> None:
        """Read these rows again."""
        for row in rows:
            self.changes.mark(row)
        at = np.array(rows, dtype=np.intp)
        found = [self._row(row, evictable) for row in rows]
        victims, alone, cheapest, *others = zip(*found, strict=True)
        added, own, gpus, first, budgets, freed, largest = others
        for name, values in zip(_COST, zip(*cheapest, strict=True), strict=True):
            getattr(self, name)[at] = values
        self.victims[at], self.unprotected[at] = victims, alone
        self.added[at], self.own[at], self.first[at] = added, own, first
        self._gpus[:, at] = np.array(gpus).T
        self._budget_codes[at] = budgets
        self._set_amounts(self.freed, at, freed)
        self._set_amounts(self.largest, at, largest)

    def _set_amounts(
        self, columns: dict[str, IntColumn], at: Rows, amounts: Sequence[Mapping[str, int]]
    ) -> None:
        """Set the amounts of some rows in the columns of all resources."""
        kinds = {id(own): own for own in amounts}
        places = {key: place for place, key in enumerate(kinds)}
        codes = np.array([places[id(own)] for own in amounts], dtype=np.intp)
        for name in {name for own in kinds.values() for name in own}.difference(columns):
            columns[name] = np.zeros(len(self._table), dtype=np.int64)
        for name, column in columns.items():
            column[at] = np.array([own.get(name, 0) for own in kinds.values()])[codes]

    def _row(self, row: int, evictable: Evictable) -> _Row:
        here = self._table.pods[row].values()
        gangs = tuple({pod.gang: None for pod in here if pod.gang is not None})
        if gangs:
            self._gangs_on[row] = gangs
        elif row in self._gangs_on:
            del self._gangs_on[row]
        victims = evictable.on_row(row)
        if not victims:
            return _EMPTY
        cheapest: tuple[float, ...]
        cheapest, added, own, gpus, ends, alone = evictable.least_cost(victims[0])
        unprotected = int(alone)
        first = row if ends is None else min(row, self._first_row.get(ends, row))
        for pod in victims[1:]:
            cost, added_too, own_too, gpus_too, ends, alone = evictable.least_cost(pod)
            cheapest = tuple(map(min, cheapest, cost))
            added, own = min(added, added_too), min(own, own_too)
            gpus = min(gpus[0], gpus_too[0]), min(gpus[1], gpus_too[1])
            unprotected += alone
            first = first if ends is None else min(first, self._first_row.get(ends, row))
        freed, largest = self._amounts(victims)
        code = self._budget_code(victims) if self._budgets and added else -1
        count = len(victims)
        return _Row(count, unprotected, cheapest, added, own, gpus, first, code, freed, largest)

    def _amounts(self, victims: Sequence[PodInfo]) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return what pods hold together, and the most that one of them does, by resource."""
        if len(victims) == 1:
            own = self._needs.get(victims[0].facts)
            if own is None:
                own = self._needs[victims[0].facts] = needs_of(victims[0])
            return own, own
        freed: dict[str, int] = {}
        largest: dict[str, int] = {}
        for pod in victims:
            for name, amount in needs_of(pod).items():
                freed[name] = freed.get(name, 0) + amount
                largest[name] = max(largest.get(name, 0), amount)
        return freed, largest

    def _budget_code(self, victims: Sequence[PodInfo]) -> int:
        """Return the number of the budgets that cover all of these pods alike; -1 for none."""
        budgets = {self._budgets.covering(pod) for pod in victims}
        if len(budgets) > 1 or budgets == {()}:
            return -1
        return self._budget_sets.setdefault(budgets.pop(), len(self._budget_sets))


def needs_of(pod: PodInfo) -> dict[str, int]:
    """Return what a pod takes of a node, its place among the pods included."""
    return {**pod.requests, PODS: 1}
