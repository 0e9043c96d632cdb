"""The evictions that make one more pod fit on a node, the cheapest of the cluster first.

A *step* is the pods of one node that go together. Its real cost follows from those pods; the
columns (:mod:`.columns`) bound it from below for all nodes at once. So only the nodes are read that
may come next: those with the least bounds, until all others cost more for certain.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np

from bayplan import Handle, Placement, PodInfo, Unit
from bayplan.plugin.hookspecs import BoolColumn, IntColumn
from bayplan.snapshot.row_changes import Rows
from bayplan_plugins.preemption.bounds import ANY, Key, key_at
from bayplan_plugins.preemption.columns import PODS, needs_of
from bayplan_plugins.preemption.known import KnownEvictions
from bayplan_plugins.shared.victims import Evictable, EvictionCost

__all__ = ["EvictionStep", "EvictionSteps", "until_enough"]

_AT_ONCE = 4
"""Nodes that are read at first, or one for each slot; then ever more."""

_Order = tuple[float, ...]
"""A cost, a sum over several pods divided by the slots that they free."""
_Key = tuple[_Order, int, int, int]
"""The order, the first row of its gang, the row, and which one of the node it is."""


class EvictionStep(msgspec.Struct, frozen=True):
    """Pods of one node that are evicted together, so that more members fit.

    :param slots: how many more, by the amounts of resources.
    """

    row: int
    victims: Sequence[PodInfo]
    cost: EvictionCost
    slots: int


class EvictionSteps:
    """The steps for a unit: those for its largest pod, and for others like it.

    For members of a gang that are alike, what counts is the cost of a slot. To members that differ,
    evictions help, too, that leave too little for the largest.

    Where a node refuses the pod though its amounts are free, or takes fewer than these allow, all
    that may go there is one step, as any of it may be in the way.

    :param within: the rows where evictions may help.
    """

    def __init__(
        self,
        handle: Handle,
        unit: Unit,
        evictable: Evictable,
        known: KnownEvictions,
        within: BoolColumn,
    ) -> None:
        self.pod = max(unit.pods, key=lambda p: sorted(p.requests.values(), reverse=True))
        """The largest pod."""
        self.alike = not unit.parts and len({pod.facts for pod in unit.pods}) == 1
        """Whether all members are alike, and in no sub-groups."""
        self._table = handle.snapshot.nodes
        self._evictable = evictable
        self._needs = needs_of(self.pod)
        priority, protect = evictable.priority, evictable.protect
        self._bounds = known.bounds(priority, self._needs, self.alike, protect)
        self._columns = self._bounds.columns
        self._bounds.refresh(handle.free_slots(self.pod), within)
        self.amounts_decide = self._bounds.amounts_decide
        """Whether no node takes more pods than its amounts allow."""

    @property
    def slots(self) -> IntColumn:
        """How many of the pods each node takes now."""
        return self._bounds.slots

    def remembered(
        self, what: Hashable, placement: Placement, find: Callable[[], EvictionCost | None]
    ) -> EvictionCost | None:
        """Return a cost for a placement, found again only if any of its nodes has changed.

        :param what: which cost it is, besides the placement.
        """
        rows = placement.rows
        if rows is None or not placement.name:
            return find()
        return self._bounds.remembered((what, placement.name), rows, find)

    def short(self, rows: Rows | None) -> Rows:
        """Return the rows where, by the amounts, no eviction lets one more pod fit.

        :param rows: those that matter; None for all.
        """
        return _among(self._bounds.short, rows)

    @cached_property
    def least(self) -> EvictionCost:
        """A lower bound of what any step costs, for a single pod."""
        first = next(self._bounds.in_order(1), None)
        if first is None:
            return EvictionCost(-1, 0, 0, 0, 0, 0, 0.0)
        return EvictionCost(*first[0][0])  # type: ignore[arg-type]

    # In order ----------------------------------------------------------------------------

    def in_order(self, rows: Rows | None = None, wanted: int = 1) -> Iterator[EvictionStep]:
        """Yield all steps, the cheapest first; a later one of a node never before an earlier.

        :param rows: the nodes to use; None for all.
        :param wanted: for how many slots they are; what a step gives beyond these does not count.
        """
        known: list[tuple[_Key, EvictionStep]] = []
        for bound, row in self._candidates(rows, wanted):
            while known and known[0][0][:3] < bound:
                yield heapq.heappop(known)[1]
            for item in self._on_node(row, wanted):
                heapq.heappush(known, item)
        while known:
            yield heapq.heappop(known)[1]

    def _candidates(self, rows: Rows | None, wanted: int) -> Iterator[tuple[Key, int]]:
        """Yield the least key of a step on each node, and its row, in rising order."""
        if rows is None:
            yield from self._bounds.in_order(wanted)
            return
        keys = self._bounds.keys(wanted)
        left = _among(self._bounds.usable, rows)
        count = max(_AT_ONCE, wanted)
        while len(left):
            chosen = _smallest(keys, left, count)
            order = np.lexsort([key[chosen] for key in reversed(keys)])
            for row in chosen[order].tolist():
                yield key_at(keys, row), row
            left = _without(left, chosen, len(self._table))
            count *= 2

    def most(self, rows: Rows | None = None) -> int:
        """Return how many more of the pods fit at most once all that may go is gone.

        :param rows: the nodes to use; None for all.
        """
        return int(np.minimum(self._bounds.more[_among(self._bounds.usable, rows)], ANY).sum())

    def least_cost(self, rows: Rows | None, slots: int) -> EvictionCost:
        """Return a lower bound of what it costs that so many more pods fit.

        :param rows: the nodes to use; None for all.
        """
        columns, bounds = self._columns, self._bounds
        own = _among(bounds.usable, rows)
        if not len(own):
            return EvictionCost(0, 0, 0, 0, 0, 0, 0.0)
        more = bounds.more[own]
        most = max(1, int(more.max()))
        order = np.argsort(columns.highest[own], kind="stable")
        nodes = int(np.searchsorted(np.cumsum(more[order]), slots)) + 1
        highest = int(columns.highest[own][order[min(nodes, len(own)) - 1]])
        steps = -(-slots // most)
        added = columns.added[own] * bounds.least[own]
        total = np.sort(added)[:steps].sum()
        lost = np.sort(columns.own[own] * bounds.least[own])[:steps].sum()
        return EvictionCost(
            0,
            highest,
            max(int(lost), int(columns.lost[own].min())),
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

    def _on_node(self, row: int, wanted: int) -> list[tuple[_Key, EvictionStep]]:
        """Return the steps of one of the rows, each with what it is sorted by."""
        left = self._evictable.on_row(row)
        first = int(self._columns.first[row])
        if left and self._bounds.otherwise[row]:
            cheapest = min(self._evictable.cost_with_all([pod]) for pod in left)
            key = (_order(cheapest, 1), first, row, 0)
            return [(key, EvictionStep(row, left, cheapest, 1))]
        steps: list[tuple[_Key, EvictionStep]] = []
        highest: _Order = ()
        for taken, slots in self._parts(row, int(self._bounds.now[row]), left):
            cost = self._evictable.cost_with_all(taken)
            highest = max(highest, _order(cost, min(slots, wanted)))
            key = (highest, first, row, len(steps))
            steps.append((key, EvictionStep(row, taken, cost, slots)))
        return steps

    def _parts(
        self, row: int, now: int, left: Sequence[PodInfo]
    ) -> Iterator[tuple[list[PodInfo], int]]:
        """Yield what has to go of a node for more and more pods to fit, and for how many.

        :param now: how many of the pods fit there now.
        """
        if not self.alike:
            yield from self._parts_for_others(row, list(left))
            return
        freed: dict[str, int] = {}
        while left:
            lacking = self._lacking(row, freed, now + 1)
            taken = until_enough(left, lacking)
            if taken is None:
                return
            taken = _needed(taken, lacking)
            left = [pod for pod in left if pod not in taken]
            for pod in taken:
                for name, amount in needs_of(pod).items():
                    freed[name] = freed.get(name, 0) + amount
            after = self._fitting(row, freed)
            yield taken, after - now
            now = after

    def _parts_for_others(
        self, row: int, left: list[PodInfo]
    ) -> Iterator[tuple[list[PodInfo], int]]:
        """Yield what one such pod after the other would need, down to the last that may go."""
        table = self._table
        need = {
            name: amount - (table.allocatable(name).item(row) - table.used(name).item(row))
            for name, amount in self._needs.items()
        }
        need = {name: amount for name, amount in need.items() if amount > 0}
        while left:
            taken = until_enough(left, need) or left
            yield taken, 1
            left = left[len(taken) :]
            need = dict(self._needs)

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


def _among(mask: BoolColumn, rows: Rows | None) -> Rows:
    """Return the rows of a mask, in rising order; only those in ``rows``, if there are any."""
    return np.flatnonzero(mask) if rows is None else np.sort(rows[mask[rows]])


def _without(rows: Rows, others: Rows, size: int) -> Rows:
    gone = np.zeros(size, dtype=np.bool_)
    gone[others] = True
    return rows[~gone[rows]]


def _order(cost: EvictionCost, slots: int) -> _Order:
    """Return what steps are sorted by."""
    lost, total, pods = cost.lost / slots, cost.total / slots, cost.pods / slots
    return (cost.violations, cost.highest, lost, total, pods, cost.gangs, cost.started, cost.rank)


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


def _needed(taken: list[PodInfo], lacking: Mapping[str, int]) -> list[PodInfo]:
    """Leave out the pods that are not needed for what lacks, the most important first."""
    for pod in reversed(taken) if len(taken) > 1 else ():
        fewer = [other for other in taken if other is not pod]
        if until_enough(fewer, lacking) is not None:
            taken = fewer
    return taken


def _smallest(keys: Sequence[np.ndarray], among: np.ndarray, count: int) -> np.ndarray:
    """Return so many of the rows with the smallest keys, by the first key that differs."""
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
