"""The cheapest victims that let a unit be placed in one placement, found by trial."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from bayplan import Handle, Placement, PodInfo, Unit
from bayplan.plugin.hookspecs import BoolColumn
from bayplan_plugins.preemption.known import KnownEvictions
from bayplan_plugins.preemption.reprieve import Reprieve
from bayplan_plugins.preemption.steps import EvictionStep, EvictionSteps
from bayplan_plugins.shared.victims import Evictable, EvictionCost

__all__ = ["MOST_EMPTIED_NODES", "VictimSearch", "VictimSet"]

MOST_EMPTIED_NODES = 500
"""So many nodes that lack a resource are emptied of their victims, to ask their plugins."""
_FEW = 8
"""Up to this many possible victims, every subset of them is tried."""
_MINIMISED = 16
"""Up to this many victims, the search tries once more at the end to spare each of them."""


class VictimSet(msgspec.Struct, frozen=True):
    """Victims whose eviction lets a unit be placed, its nodes by pod key, and the cost."""

    placement: Placement
    victims: tuple[PodInfo, ...]
    nodes: Mapping[str, str]
    cost: EvictionCost


class VictimSearch:
    """The search for one unit, by trials of the snapshot.

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
        self._handle = handle
        self._unit = unit
        self._evictable = evictable
        self._known = known
        self._within = within
        self._columns = known.columns(evictable.priority)
        self.steps = EvictionSteps(handle, unit, evictable, known, within)

    def solve(self, placement: Placement) -> VictimSet | None:
        """Return the cheapest victims found that let the unit be placed; None if it never fits."""
        found = self._solve(placement)
        if found is None or not found.cost.gangs:
            return found
        other = self._reprieving_gangs()._solve(placement)
        return other if other is not None and other.cost <= found.cost else found

    def _reprieving_gangs(self) -> VictimSearch:
        """Return the same search for victims that end no gang."""
        evictable = Evictable.by(self._unit, self._handle, protect=True)
        return VictimSearch(self._handle, self._unit, evictable, self._known, self._within)

    def _solve(self, placement: Placement) -> VictimSet | None:
        if self._unit.gang is None:
            assert placement.rows is not None, "one node"
            return self._reprieved(placement, self._evictable.on_row(int(placement.rows[0])))
        found = self._enough(placement)
        if found is None:
            return None
        solution, minimal = found
        count = self._columns.count(self._evictable.protect)
        if (count.sum() if placement.rows is None else count[placement.rows].sum()) <= _FEW:
            return self._best_subset(placement, solution)
        return solution if minimal else self.minimised(placement, solution)

    # Enough --------------------------------------------------------------------------------

    def _enough(self, placement: Placement) -> tuple[VictimSet, bool] | None:
        """Return what the smallest prefix of the cheapest steps evicts that is enough.

        Also, whether each victim is needed, whatever becomes of the others. None if all steps are
        not enough.
        """
        steps: list[EvictionStep] = []
        slots = tried = 0
        needed = missing = self._missing(placement)
        emptied = self._emptied(placement)
        if self.steps.alike and not emptied and self.steps.most(placement.rows) < needed:
            return None
        cheapest = itertools.chain(self.steps.in_order(placement.rows, needed), emptied)
        while True:
            for step in cheapest:
                steps.append(step)
                slots += step.slots
                if slots >= missing:
                    break
            if len(steps) == tried:
                return None
            found = self._reprieved(placement, _victims(steps))
            if found is not None:
                break
            tried, missing = len(steps), 2 * max(slots, missing)
        if not tried and self.steps.alike:
            # Without the last step there are fewer slots than members.
            fewer = len(found.victims) < len(self._evictable.closure(_victims(steps)))
            return found, slots == needed and not fewer
        low, high = tried, len(steps)
        while high - low > 1:
            middle = (low + high) // 2
            if self._place_without(placement, _victims(steps[:middle])) is None:
                low = middle
            else:
                high = middle
        if high < len(steps):
            found = self._reprieved(placement, _victims(steps[:high]))
            assert found is not None, "it was placed with the same pods gone"
        return found, False

    def _emptied(self, placement: Placement) -> list[EvictionStep]:
        """Return a step for each of a few nodes that lack amounts: plugins may see it otherwise."""
        rows = self.steps.short(placement.rows)
        if len(rows) > MOST_EMPTIED_NODES:
            return []
        return [step for row in rows.tolist() if (step := self.steps.all_of(row)).victims]

    def _missing(self, placement: Placement) -> int:
        """Return how many more slots than there are now the unit needs at least."""
        slots = self.steps.slots if placement.rows is None else self.steps.slots[placement.rows]
        free = int(np.minimum(slots, len(self._unit.pods)).sum())
        return max(1, self._unit.min_placed - free)

    def estimate(self, placement: Placement) -> EvictionCost | None:
        """Return what the cheapest steps cost that are enough by their slots; None if none are.

        For members that differ, the slots are those of the largest, so all steps may be enough.
        """
        missing = self._missing(placement)
        what = ("estimate", missing)
        return self.steps.remembered(what, placement, lambda: self._estimate(placement, missing))

    def _estimate(self, placement: Placement, missing: int) -> EvictionCost | None:
        victims: list[PodInfo] = []
        steps = self.steps.in_order(placement.rows, missing)
        for step in itertools.chain(steps, self._emptied(placement)):
            victims += step.victims
            missing -= step.slots
            if missing <= 0:
                break
        if missing > 0 and self.steps.alike:
            return None
        return self._evictable.cost(self._evictable.closure(victims)) if victims else None

    def least_cost(self, placement: Placement) -> EvictionCost:
        """Return a lower bound of what the victims cost, not a tight one."""
        missing = self._missing(placement)
        found = self.steps.remembered(
            ("least", missing), placement, lambda: self.steps.least_cost(placement.rows, missing)
        )
        assert found is not None, "there is a bound for any nodes"
        return found

    def _place_without(
        self, placement: Placement, victims: Sequence[PodInfo]
    ) -> Mapping[str, str] | None:
        """Return the unit's nodes if these pods were gone."""
        snapshot = self._handle.snapshot
        with snapshot.trial():
            for victim in victims:
                snapshot.remove_pod(victim.key)
            return self._handle.place(self._unit, placement)

    # Fewer ---------------------------------------------------------------------------------

    def _reprieved(self, placement: Placement, removed: Sequence[PodInfo]) -> VictimSet | None:
        """Spare the pods, the most important first, that are not in the unit's way.

        None if the unit has no place even without all of them.
        """
        snapshot = self._handle.snapshot
        everybody = list(removed)
        if self._unit.gang is None:
            everybody = self._evictable.closure(everybody)
        where = {pod.key: snapshot.placed[pod.key][1] for pod in everybody}
        violating, others = self._evictable.to_reprieve(everybody)
        with snapshot.trial():
            for victim in everybody:
                snapshot.remove_pod(victim.key)
            nodes = self._handle.place(self._unit, placement)
            if nodes is None:
                return None
            reprieve = Reprieve(self._handle, self._unit, nodes, self.steps.amounts_decide)
            refused = reprieve.refused((*violating, *others), where)
        victims = self._evictable.closure(refused)
        # A pod that is reprieved on one node may matter on another, so the whole is tried again.
        if len(refused) < len(everybody):
            found = self._place_without(placement, victims)
            if found is None:
                # Each of them may stay, but not all together, as they hold the same devices.
                everybody = self._evictable.closure(everybody)
                cost = self._evictable.cost(everybody)
                return self.minimised(
                    placement, VictimSet(placement, tuple(everybody), nodes, cost)
                )
            nodes = found
        cost = self._evictable.cost(victims)
        if self._unit.gang is None:
            # Which pods violate a budget was decided when all of them were to go, as in
            # kube-scheduler.
            gone = {pod.key for pod in victims}
            cost = replace(cost, violations=sum(pod.key in gone for pod in violating))
        return VictimSet(placement, tuple(victims), nodes, cost)

    def _best_subset(self, placement: Placement, found: VictimSet) -> VictimSet:
        """Try all subsets of the possible victims that cost less than what was found."""
        rows = np.flatnonzero(self._columns.victims).tolist()
        if placement.rows is not None:
            rows = np.intersect1d(rows, placement.rows).tolist()
        everybody = [pod for row in rows for pod in self._evictable.on_row(row)]
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


def _victims(steps: Sequence[EvictionStep]) -> list[PodInfo]:
    return [victim for step in steps for victim in step.victims]
