"""The evictions that make one more pod fit on a node, the cheapest of the cluster first.

A *step* is the pods of one node that go together. Its real cost follows from those pods; the
columns (:mod:`.columns`) bound it from below for all nodes at once. So only the nodes are read that
may come next: those with the least bounds, until all others cost more for certain.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bayplan import Handle, PodInfo
from bayplan.plugin.hookspecs import BoolColumn, IntColumn
from bayplan_plugins.preemption.columns import PODS, EvictionColumns, needs_of
from bayplan_plugins.shared.victims import Evictable, EvictionCost

__all__ = ["EvictionStep", "EvictionSteps", "until_enough"]

Rows = npt.NDArray[np.intp]

_ANY = 1 << 20
_AT_ONCE = 32
"""Nodes that are read at first; then ever more."""

_Key = tuple[EvictionCost, int, int, int]
"""The cost, the first row of its gang, the row, and which one of the node it is."""


@dataclass(frozen=True)
class EvictionStep:
    """Pods of one node that are evicted together, so that more members fit.

    :param slots: how many more, by the amounts of resources.
    """

    row: int
    victims: Sequence[PodInfo]
    cost: EvictionCost
    slots: int


class EvictionSteps:
    """The steps for a pod, and for others like it.

    Where a node refuses the pod though its amounts are free, or takes fewer than these allow, all
    that may go there is one step, as any of it may be in the way.

    :param within: the rows where evictions may help.
    :param for_others: whether smaller pods come with it, to which evictions help that leave too
        little for this one.
    """

    def __init__(
        self,
        handle: Handle,
        pod: PodInfo,
        evictable: Evictable,
        columns: EvictionColumns,
        within: BoolColumn,
        for_others: bool,
    ) -> None:
        self._for_others = for_others
        self._table = handle.snapshot.nodes
        self._pod = pod
        self._evictable = evictable
        self._columns = columns
        self._needs = needs_of(pod)
        self._now, self._most = columns.slots(self._needs)
        self._otherwise = handle.free_slots(pod) < self._now
        self._least = self._least_victims()
        here = within & (columns.count(evictable.protect) > 0)
        short = here & ~self._otherwise & (self._most <= self._now)
        self._rows = np.flatnonzero(here & ~short)
        self.short = np.flatnonzero(short)
        """The rows where, by the amounts, no eviction lets one more pod fit."""

    # Bounds ------------------------------------------------------------------------------

    def _least_victims(self) -> IntColumn:
        """Return how many pods have to go at least for one more to fit, by the amounts."""
        table, columns = self._table, self._columns
        least = np.ones(len(table), dtype=np.int64)
        for name, need in self._needs.items():
            offered = table.allocatable(name)
            lacking = (self._now + 1) * need - (offered - table.used(name))
            largest = np.maximum(columns.largest.get(name, 0), 1)
            victims = np.where(offered > 0, -(-lacking // largest), 0)
            least = np.maximum(least, victims)
        return np.where(self._otherwise, 1, least)

    def _bounds(self) -> list[np.ndarray]:
        """Return the least cost of a step on each of the rows, field by field."""
        columns, rows = self._columns, self._rows
        least = self._least[rows]
        added = columns.added[rows]
        return [
            columns.violations()[rows],
            columns.highest[rows],
            np.maximum(columns.total[rows], least * added),
            np.maximum(columns.pods[rows], least * (added > 0)),
            columns.gangs[rows],
            columns.started[rows],
            columns.rank[rows],
            columns.first[rows],
            rows,
        ]

    @cached_property
    def least(self) -> EvictionCost:
        """A lower bound of what any step costs."""
        keys = self._bounds()
        first, _, _ = _bound(keys, _smallest(keys, np.arange(len(self._rows)), 1))
        return first

    # In order ----------------------------------------------------------------------------

    def in_order(self, rows: Rows | None = None) -> Iterator[EvictionStep]:
        """Yield all steps, the cheapest first; a later one of a node never before an earlier.

        :param rows: the nodes to use; None for all.
        """
        places = np.arange(len(self._rows))
        if rows is not None:
            places = places[np.isin(self._rows, rows)]
        keys = self._bounds()
        left = places
        known: list[tuple[_Key, EvictionStep]] = []
        count = _AT_ONCE
        while len(left):
            chosen = _smallest(keys, left, count)
            for place in chosen.tolist():
                for item in self.on_node(int(self._rows[place])):
                    heapq.heappush(known, item)
            left = left[~np.isin(left, chosen, assume_unique=True)]
            bound = _bound(keys, _smallest(keys, left, 1)) if len(left) else None
            while known and (bound is None or known[0][0][:3] < bound):
                yield heapq.heappop(known)[1]
            count *= 2
        while known:
            yield heapq.heappop(known)[1]

    def most(self, rows: Rows | None = None) -> int:
        """Return how many more of the pods fit at most once all that may go is gone.

        :param rows: the nodes to use; None for all.
        """
        own = self._rows if rows is None else np.intersect1d(self._rows, rows)
        more = np.where(self._otherwise[own], _ANY, self._most[own] - self._now[own])
        return int(np.minimum(more, _ANY).sum())

    def least_cost(self, rows: Rows | None, slots: int) -> EvictionCost:
        """Return a lower bound of what it costs that so many more pods fit.

        :param rows: the nodes to use; None for all.
        """
        columns = self._columns
        own = self._rows if rows is None else rows[np.isin(rows, self._rows)]
        if not len(own):
            return EvictionCost(0, 0, 0, 0, 0, 0.0)
        more = np.where(self._otherwise[own], _ANY, self._most[own] - self._now[own])
        most = int(more.max())
        order = np.argsort(columns.highest[own], kind="stable")
        nodes = int(np.searchsorted(np.cumsum(more[order]), slots)) + 1
        highest = int(columns.highest[own][order[min(nodes, len(own)) - 1]])
        added = columns.added[own] * self._least[own]
        total = np.sort(added)[: -(-slots // most)].sum()
        return EvictionCost(
            0,
            highest,
            max(int(total), int(columns.total[own].min())),
            max(int((added > 0).all()), int(columns.pods[own].min())),
            int(columns.gangs[own].min()),
            float(columns.started[own].min()),
            int(columns.rank[own].min()),
        )

    def all_of(self, row: int) -> EvictionStep:
        """Return the step of all pods of a node that may go."""
        victims = self._evictable.on_row(row)
        return EvictionStep(row, victims, self._evictable.cost_with_all(victims), 1)

    def on_node(self, row: int) -> list[tuple[_Key, EvictionStep]]:
        """Return the steps of one node, each with what it is sorted by."""
        left = self._evictable.on_row(row)
        now = int(self._now[row])
        first = int(self._columns.first[row])
        if left and self._otherwise[row]:
            cheapest = min(self._evictable.cost_with_all([pod]) for pod in left)
            return [((cheapest, first, row, 0), EvictionStep(row, left, cheapest, 1))]
        steps: list[tuple[_Key, EvictionStep]] = []
        highest: EvictionCost | None = None
        freed: dict[str, int] = {}
        while left:
            taken = until_enough(left, self._lacking(row, freed, now + 1))
            if taken is None:
                if not self._for_others:
                    break
                taken = left
            left = left[len(taken) :]
            for pod in taken:
                _add(freed, pod)
            after = self._fitting(row, freed)
            cost = self._evictable.cost_with_all(taken)
            highest = cost if highest is None else max(highest, cost)
            key = (highest, first, row, len(steps))
            steps.append((key, EvictionStep(row, taken, cost, after - now)))
            now = after
        return steps

    def _lacking(self, row: int, freed: Mapping[str, int], pods: int) -> dict[str, int]:
        """Return what a node lacks for so many of the pods once this is freed, by resource."""
        lacking = {
            name: pods * need - free - freed.get(name, 0) for name, need, free in self._free(row)
        }
        return {name: amount for name, amount in lacking.items() if amount > 0}

    def _fitting(self, row: int, freed: Mapping[str, int]) -> int:
        """Return how many of the pods fit on a node once this is freed."""
        return min((free + freed.get(name, 0)) // need for name, need, free in self._free(row))

    def _free(self, row: int) -> Iterator[tuple[str, int, int]]:
        """Yield each requested resource that a node offers, the request, and what is free."""
        table = self._table
        for name, need in self._needs.items():
            offered = table.allocatable(name).item(row)
            if offered > 0:
                yield name, need, offered - table.used(name).item(row)


def until_enough(victims: Sequence[PodInfo], need: Mapping[str, int]) -> list[PodInfo] | None:
    """Return the first pods that together free what is needed; None if all of them do not."""
    missing = dict(need)
    taken: list[PodInfo] = []
    for victim in victims:
        if not missing:
            break
        taken.append(victim)
        for name in list(missing):
            missing[name] -= 1 if name == PODS else victim.requests.get(name, 0)
            if missing[name] <= 0:
                del missing[name]
    return None if missing else taken


def _add(freed: dict[str, int], pod: PodInfo) -> None:
    freed[PODS] = freed.get(PODS, 0) + 1
    for name, amount in pod.requests.items():
        freed[name] = freed.get(name, 0) + amount


def _smallest(keys: Sequence[np.ndarray], among: np.ndarray, count: int) -> np.ndarray:
    """Return so many of the places with the smallest keys, by the first key that differs."""
    if len(among) <= count:
        return among
    chosen: list[np.ndarray] = []
    for key in keys:
        values = key[among]
        limit = np.partition(values, count - 1)[count - 1]
        below = among[values < limit]
        chosen.append(below)
        count -= len(below)
        among = among[values == limit]
        if len(among) == count:
            break
    chosen.append(among[:count])
    return np.concatenate(chosen)


def _bound(keys: Sequence[np.ndarray], place: np.ndarray) -> tuple[EvictionCost, int, int]:
    """Return the least key of a row."""
    at = int(place[0])
    *cost, first, row = (key[at].item() for key in keys)
    return EvictionCost(*cost), first, row
