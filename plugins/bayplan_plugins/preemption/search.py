"""The cheapest victims that let a unit be placed in one placement, found by trial."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bayplan import Handle, Placement, PodInfo, Unit
from bayplan_plugins.shared.victims import Evictable, EvictionCost

__all__ = ["VictimSearch", "VictimSet", "missing_for", "until_enough"]

_FEW = 8
"""Up to this many possible victims, every subset of them is tried."""
_MINIMISED = 16
"""Up to this many victims, the search tries once more at the end to spare each of them."""


@dataclass(frozen=True)
class VictimSet:
    """Victims whose eviction lets a unit be placed, its nodes by pod key, and the cost."""

    placement: Placement
    victims: tuple[PodInfo, ...]
    nodes: Mapping[str, str]
    cost: EvictionCost


@dataclass(frozen=True)
class VictimStep:
    """Pods of one node that are evicted together, so that one more member fits."""

    victims: tuple[PodInfo, ...]
    cost: EvictionCost


class VictimSearch:
    """The search for one unit, by trials of the snapshot.

    :param by_row: the pods that may be evicted on each node row, the least important first.
    """

    def __init__(
        self,
        handle: Handle,
        unit: Unit,
        evictable: Evictable,
        by_row: Mapping[int, list[PodInfo]],
    ) -> None:
        self._handle = handle
        self._unit = unit
        self._evictable = evictable
        self._by_row = by_row

    def solve(self, placement: Placement) -> VictimSet | None:
        """Return the cheapest victims found that let the unit be placed; None if it never fits."""
        found = self._solve(placement)
        if found is None or not found.cost.gangs:
            return found
        other = self._reprieving_gangs()._solve(placement)
        return other if other is not None and other.cost <= found.cost else found

    def _reprieving_gangs(self) -> VictimSearch:
        """Return the same search for victims that end no gang."""
        evictable = Evictable(self._unit, self._handle, protect=True)
        by_row = {row: pods for row in self._by_row if (pods := evictable.on_row(row))}
        return VictimSearch(self._handle, self._unit, evictable, by_row)

    def _solve(self, placement: Placement) -> VictimSet | None:
        if self._unit.gang is None:
            assert placement.rows is not None, "one node"
            here = self._by_row.get(int(placement.rows[0]), [])
            return self._reprieved(placement, here)
        steps = self.steps(placement)
        if not steps or self._place(placement, steps) is None:
            return None
        # The smallest prefix of the cheapest steps that is enough.
        low, high = 0, len(steps)
        while high - low > 1:
            middle = (low + high) // 2
            if self._place(placement, steps[:middle]) is None:
                low = middle
            else:
                high = middle
        removed = [victim for step in steps[:high] for victim in step.victims]
        solution = self._reprieved(placement, removed)
        assert solution is not None, "it was placed with the same pods gone"
        everybody = [victim for step in steps for victim in step.victims]
        if len(everybody) <= _FEW:
            return self._best_subset(placement, everybody, solution)
        return self.minimised(placement, solution)

    def steps(self, placement: Placement) -> list[VictimStep]:
        """Return the victims on the placement's nodes, member by member, the cheapest first."""
        pod = max(self._unit.pods, key=lambda p: sorted(p.requests.values(), reverse=True))
        rows = self._by_row if placement.rows is None else placement.rows.tolist()
        steps: list[tuple[tuple[object, ...], VictimStep]] = []
        for order, row in enumerate(rows):
            left = list(self._by_row.get(row, ()))
            highest: tuple[object, ...] = ()
            slot = 0
            while left:
                slot += 1
                need = missing_for(self._handle, pod, row) if slot == 1 else dict(pod.requests)
                taken = until_enough(left, need) or left
                taken = taken or left[:1]
                left = left[len(taken) :]
                cost = self._evictable.cost(self._evictable.closure(taken))
                key = (cost.violations, cost.highest, cost.total, cost.pods, order, slot)
                # A later step of the same node never comes before an earlier one.
                highest = max(highest, key)
                steps.append((highest, VictimStep(tuple(taken), cost)))
        steps.sort(key=lambda item: item[0])
        return [step for _, step in steps]

    def _place(self, placement: Placement, steps: Sequence[VictimStep]) -> Mapping[str, str] | None:
        return self._place_without(placement, [v for step in steps for v in step.victims])

    def _place_without(
        self, placement: Placement, victims: Sequence[PodInfo]
    ) -> Mapping[str, str] | None:
        """Return the unit's nodes if these pods were gone."""
        snapshot = self._handle.snapshot
        with snapshot.trial():
            for victim in victims:
                snapshot.remove_pod(victim.key)
            return self._handle.place(self._unit, placement)

    def _reprieved(self, placement: Placement, removed: Sequence[PodInfo]) -> VictimSet | None:
        """Spare the pods, the most important first, that are not in the unit's way.

        None if the unit has no place even without all of them.
        """
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
        violations = len({pod.key for pod in violating} & {pod.key for pod in victims})
        victims = self._evictable.closure(victims)
        # A pod that is reprieved on one node may matter on another, so the whole is tried again.
        found = self._place_without(placement, victims)
        if found is not None:
            nodes = found
        else:
            # Each of them may stay, but not all together, as they hold the same devices.
            cost = self._evictable.cost(everybody)
            return self.minimised(placement, VictimSet(placement, tuple(everybody), nodes, cost))
        cost = self._evictable.cost(victims)
        if self._unit.gang is None:
            # Which pods violate a budget was decided when all of them were to go, as in
            # kube-scheduler.
            cost = replace(cost, violations=violations)
        return VictimSet(placement, tuple(victims), nodes, cost)

    def _stays(self, victim: PodInfo, node: str, members: Sequence[PodInfo]) -> bool:
        """Put a pod back on its node, unless a member of the unit then no longer fits there."""
        snapshot = self._handle.snapshot
        row = snapshot.nodes.row_of[node]
        if not members:
            snapshot.add_pod(victim, node)
            return True
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
        self, placement: Placement, everybody: Sequence[PodInfo], found: VictimSet
    ) -> VictimSet:
        """Try all subsets that cost less than what was found."""
        subsets: dict[frozenset[str], list[PodInfo]] = {}
        for size in range(len(everybody)):
            for chosen in itertools.combinations(everybody, size):
                victims = self._evictable.closure(chosen)
                subsets.setdefault(frozenset(pod.key for pod in victims), victims)
        priced = [(self._evictable.cost(victims), victims) for victims in subsets.values()]
        cheaper = [item for item in priced if item[0] < found.cost]
        for cost, victims in sorted(cheaper, key=lambda item: item[0]):
            nodes = self._place_without(placement, victims)
            if nodes is not None:
                return VictimSet(placement, tuple(victims), nodes, cost)
        return found

    def minimised(self, placement: Placement, found: VictimSet) -> VictimSet:
        """Spare every victim without whose eviction the unit can be placed as well."""
        victims = list(found.victims)
        if len(victims) > _MINIMISED:
            return found
        for victim in reversed(self._evictable.by_importance(found.victims)):
            fewer = [other for other in victims if other is not victim]
            if len(self._evictable.closure(fewer)) > len(fewer):
                continue
            if self._place_without(placement, fewer) is not None:
                victims = fewer
        nodes = self._place_without(placement, victims)
        if len(victims) == len(found.victims) or nodes is None:
            return found
        return VictimSet(placement, tuple(victims), nodes, self._evictable.cost(victims))


def until_enough(victims: Sequence[PodInfo], need: Mapping[str, int]) -> list[PodInfo] | None:
    """Return the first pods that together free what is needed; None if all of them do not."""
    missing = dict(need)
    taken: list[PodInfo] = []
    for victim in victims:
        if not missing:
            break
        taken.append(victim)
        for name in list(missing):
            freed = 1 if name == "pods" else victim.requests.get(name, 0)
            missing[name] -= freed
            if missing[name] <= 0:
                del missing[name]
    return None if missing else taken


def missing_for(handle: Handle, pod: PodInfo, row: int) -> dict[str, int]:
    """Return what a node lacks for a pod: amounts by resource, pod slots as "pods"."""
    table = handle.snapshot.nodes
    lacking = {
        name: need - int(table.allocatable(name)[row] - table.used(name)[row])
        for name, need in (*pod.requests.items(), ("pods", 1))
    }
    return {name: amount for name, amount in lacking.items() if amount > 0}
