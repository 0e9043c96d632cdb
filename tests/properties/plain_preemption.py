"""Preemption in plain steps, the oracle of the search over columns.

It takes every pod that may go off its node, for every domain, and looks for the shortest prefix of
the cheapest evictions by trial. It costs what the cluster holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from bayplan import Handle, Placement, PodInfo, Unit
from bayplan_plugins.preemption.steps import until_enough
from bayplan_plugins.preemption.unresolvable import unresolvable
from bayplan_plugins.shared.victims import Evictable, EvictionCost

__all__ = ["PlainSearch"]

_FEW = 8
_MINIMISED = 16


class PlainSearch:
    """The search for one unit."""

    def __init__(self, handle: Handle, unit: Unit, protect: bool = False) -> None:
        self._handle, self._unit = handle, unit
        self._evictable = Evictable.by(unit, handle, protect)
        pods = handle.snapshot.nodes.pods
        found = {row: self._evictable.on_row(row) for row in range(len(pods))}
        self._by_row = {row: victims for row, victims in found.items() if victims}

    def run(self) -> EvictionCost | None:
        """Return what the cheapest victims cost that were found; None if the unit never fits."""
        if not self._by_row:
            return None
        solved = [self.solve(placement) for placement in self._placements()]
        return min((cost for cost in solved if cost is not None), default=None)

    def _placements(self) -> list[Placement]:
        snapshot = self._handle.snapshot
        if self._unit.gang is None:
            hopeless = unresolvable(self._handle, self._unit.pods[0])
            rows = [row for row in self._by_row if not hopeless[row]]
            return [Placement(snapshot.nodes.names[row], np.array([row])) for row in rows]
        with snapshot.trial():
            for victim in itertools.chain.from_iterable(self._by_row.values()):
                snapshot.remove_pod(victim.key)
            return list(self._handle.offers(self._unit).candidates)

    def solve(self, placement: Placement) -> EvictionCost | None:
        found = self._solve(placement)
        if found is None or not found.gangs:
            return found
        other = PlainSearch(self._handle, self._unit, protect=True)._solve(placement)
        return min(found, other) if other is not None else found

    def _solve(self, placement: Placement) -> EvictionCost | None:
        if self._unit.gang is None:
            assert placement.rows is not None
            here = self._by_row.get(int(placement.rows[0]), [])
            victims = self._reprieved(placement, here)
            if victims is None:
                return None
            # Which pods violate a budget was decided when all of them were to go.
            violating, _ = self._evictable.to_reprieve(self._evictable.closure(here))
            gone = {pod.key for pod in victims}
            count = sum(pod.key in gone for pod in violating)
            return replace(self._evictable.cost(victims), violations=count)
        steps = self._steps(placement)
        if not steps or self._place(placement, _all(steps)) is None:
            return None
        low, high = 0, len(steps)
        while high - low > 1:
            middle = (low + high) // 2
            if self._place(placement, _all(steps[:middle])) is None:
                low = middle
            else:
                high = middle
        victims = self._reprieved(placement, _all(steps[:high]))
        assert victims is not None
        everybody = _all(steps)
        if len(everybody) <= _FEW:
            return self._best_subset(placement, everybody, self._evictable.cost(victims))
        return self._cost(self._minimised(placement, victims))

    def _cost(self, victims: Sequence[PodInfo] | None) -> EvictionCost | None:
        return None if victims is None else self._evictable.cost(victims)

    def _steps(self, placement: Placement) -> list[Sequence[PodInfo]]:
        pod = max(self._unit.pods, key=lambda p: sorted(p.requests.values(), reverse=True))
        rows = self._by_row if placement.rows is None else placement.rows.tolist()
        steps: list[tuple[tuple[object, ...], Sequence[PodInfo]]] = []
        for order, row in enumerate(rows):
            left = list(self._by_row.get(row, ()))
            highest: tuple[object, ...] = ()
            slot = 0
            while left:
                slot += 1
                need = self._missing(pod, row) if slot == 1 else dict(pod.requests)
                taken = until_enough(left, need) or left
                left = left[len(taken) :]
                cost = self._evictable.cost(self._evictable.closure(taken))
                key = (cost.violations, cost.highest, cost.total, cost.pods, order, slot)
                highest = max(highest, key)
                steps.append((highest, taken))
        steps.sort(key=lambda item: item[0])
        return [step for _, step in steps]

    def _missing(self, pod: PodInfo, row: int) -> dict[str, int]:
        table = self._handle.snapshot.nodes
        lacking = {
            name: need - int(table.allocatable(name)[row] - table.used(name)[row])
            for name, need in (*pod.requests.items(), ("pods", 1))
        }
        return {name: amount for name, amount in lacking.items() if amount > 0}

    def _place(self, placement: Placement, victims: Sequence[PodInfo]) -> Mapping[str, str] | None:
        snapshot = self._handle.snapshot
        with snapshot.trial():
            for victim in victims:
                snapshot.remove_pod(victim.key)
            return self._handle.place(self._unit, placement)

    def _reprieved(
        self, placement: Placement, removed: Sequence[PodInfo]
    ) -> Sequence[PodInfo] | None:
        snapshot = self._handle.snapshot
        everybody = self._evictable.closure(removed)
        where = {pod.key: snapshot.placed[pod.key][1] for pod in everybody}
        violating, others = self._evictable.to_reprieve(everybody)
        victims = []
        with snapshot.trial():
            for victim in everybody:
                snapshot.remove_pod(victim.key)
            nodes = self._handle.place(self._unit, placement)
            if nodes is None:
                return None
            members: dict[str, list[PodInfo]] = {}
            by_key = {pod.key: pod for pod in self._unit.pods}
            for key, node in nodes.items():
                members.setdefault(node, []).append(by_key[key])
            for victim in (*violating, *others):
                node = where[victim.key]
                if not self._stays(victim, node, members.get(node, ())):
                    victims.append(victim)
        victims = self._evictable.closure(victims)
        if self._place(placement, victims) is None:
            return self._minimised(placement, everybody)
        return victims

    def _stays(self, victim: PodInfo, node: str, members: Sequence[PodInfo]) -> bool:
        snapshot = self._handle.snapshot
        row = snapshot.nodes.row_of[node]
        with snapshot.trial() as trial:
            for member in members:
                snapshot.remove_pod(member.key)
            snapshot.add_pod(victim, node)
            for member in members:
                if self._handle.free_slots(member)[row] < 1:
                    return False
                snapshot.add_pod(member, node)
            trial.keep()
        return True

    def _best_subset(
        self, placement: Placement, everybody: Sequence[PodInfo], cost: EvictionCost
    ) -> EvictionCost:
        for size in range(len(everybody)):
            for chosen in itertools.combinations(everybody, size):
                victims = self._evictable.closure(chosen)
                other = self._evictable.cost(victims)
                if other < cost and self._place(placement, victims) is not None:
                    cost = other
        return cost

    def _minimised(self, placement: Placement, found: Sequence[PodInfo]) -> Sequence[PodInfo]:
        victims = list(found)
        if len(victims) > _MINIMISED:
            return victims
        for victim in reversed(self._evictable.by_importance(found)):
            fewer = [other for other in victims if other is not victim]
            if len(self._evictable.closure(fewer)) > len(fewer):
                continue
            if self._place(placement, fewer) is not None:
                victims = fewer
        return victims


def _all(steps: Sequence[Sequence[PodInfo]]) -> list[PodInfo]:
    return [victim for step in steps for victim in step]
