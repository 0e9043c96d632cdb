"""DefaultPreemption: evict less important pods so that a pod or a whole gang can be placed.

For a pod the candidates are nodes, and the rules those of kube-scheduler 1.36; for a gang they are
the network domains that it may use, or the cluster. In each candidate, :mod:`.search` looks for the
fewest and least important victims. Candidates are compared by
:class:`~bayplan_plugins.preemption.victims.EvictionCost`, then by waste. A gang is never taken
below its minimum, unless all of it is evicted and nothing else is cheaper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from pydantic import Field

from bayplan import (
    Args,
    ClusterEvent,
    Placement,
    Plugin,
    PodInfo,
    Preemption,
    PreemptionTrial,
    Remedy,
    Unit,
    hookimpl,
)
from bayplan.naming import short_key
from bayplan.plugin.decision import Decision
from bayplan_plugins.preemption.messages import (
    no_victims,
    not_helpful,
    preemption_of,
    refused_evictions,
    trial_of,
)
from bayplan_plugins.preemption.search import VictimSearch, VictimSet, missing_for, until_enough
from bayplan_plugins.preemption.victims import Evictable, EvictionCost

__all__ = ["DefaultPreemption", "DefaultPreemptionArgs"]

_MOST_NODES = 8
"""Nodes whose victims are compared for one pod, of those with the lowest estimated cost."""
_MOST_DOMAINS = 24
"""Domains that are tried for a gang."""


class DefaultPreemptionArgs(Args):
    """Arguments of DefaultPreemption, those of kube-scheduler and whether gangs may preempt.

    For one pod, at least ``minCandidateNodesPercentage`` of the nodes and at least
    ``minCandidateNodesAbsolute`` nodes are considered, in the order of their names.
    """

    min_candidate_nodes_percentage: int = Field(default=10, ge=0, le=100)
    min_candidate_nodes_absolute: int = Field(default=100, ge=0)
    gangs: bool = True


class DefaultPreemption(Plugin[DefaultPreemptionArgs]):
    """Evict pods of lower priority where that lets a pod or a gang run."""

    Args = DefaultPreemptionArgs
    requeue_on = ClusterEvent.POD_REMOVED

    @hookimpl
    def post_filter(self, unit: Unit, decision: Decision) -> Preemption | str | None:
        """Find the cheapest victims whose eviction lets the unit be placed."""
        if unit.gang is not None and not self.args.gangs:
            return None
        if any(pod.spec.preemption_policy == "Never" for pod in unit.pods):
            return "preemption: not eligible due to preemptionPolicy=Never."
        if any(own.pre_filter is not None for own in decision.pods.values()):
            return None
        nodes = len(self.handle.snapshot.nodes)
        evictable = Evictable(unit, self.handle)
        by_row = self._evictable_by_row(unit, evictable)
        if not by_row:
            own = decision.pods.get(unit.pods[0].key)
            text = no_victims(nodes, own.unresolvable if own is not None else 0)
            return f"preemption: {text}{refused_evictions(evictable)}"
        decision.refused_by.add("DefaultPreemption")
        search = VictimSearch(self.handle, unit, evictable, by_row)
        candidates = self._candidates(unit, by_row, evictable, search)
        trials: list[PreemptionTrial] = []
        solutions: list[VictimSet] = []
        for placement in candidates:
            if unit.gang is None and len(solutions) >= _MOST_NODES:
                break
            solution = search.solve(placement)
            if solution is not None and solution.cost.gangs:
                solution = self._without_ending_gangs(unit, placement, by_row, solution)
            trials.append(trial_of(placement, solution))
            if solution is not None:
                solutions.append(solution)
        decision.preemption = tuple(trials)
        if not solutions:
            text = not_helpful(nodes, unit.gang is not None)
            return f"preemption: {text}{refused_evictions(evictable)}"
        # The candidate with the least waste comes first, so it wins among equal costs.
        best = min(solutions, key=lambda solution: solution.cost)
        for index, placement in enumerate(candidates[: len(trials)]):
            if unit.gang is not None and _contains(placement, best.placement):
                # In a wider domain some of the victims may not be needed.
                wider = search.minimised(placement, best)
                if wider.cost < best.cost:
                    best = replace(wider, placement=placement)
                    trials[index] = trial_of(placement, best)
        decision.preemption = tuple(
            replace(trial, chosen=placement is best.placement)
            for trial, placement in zip(trials, candidates, strict=False)
        )
        return preemption_of(best, evictable)

    def _without_ending_gangs(
        self,
        unit: Unit,
        placement: Placement,
        by_row: Mapping[int, list[PodInfo]],
        found: VictimSet,
    ) -> VictimSet:
        """Return victims that end no gang, if they cost no more than those found."""
        evictable = Evictable(unit, self.handle, protect=True)
        careful = {row: pods for row in by_row if (pods := evictable.on_row(row))}
        other = VictimSearch(self.handle, unit, evictable, careful).solve(placement)
        return other if other is not None and other.cost <= found.cost else found

    @hookimpl
    def remedies(self, pod: PodInfo) -> Iterator[Remedy]:
        """Name the disruption budgets that keep pods from being evicted."""
        placed = self.handle.snapshot.placed.values()
        rows = {
            self.handle.snapshot.nodes.row_of[node]
            for info, node in placed
            if self.handle.in_eviction_cooldown(info) and node in self.handle.snapshot.nodes.row_of
        }
        evictable = Evictable(Unit(pod.key, (pod,)), self.handle)
        for row in sorted(rows):
            evictable.on_row(row)
        for other in evictable.in_cooldown.values():
            budgets = ", ".join(evictable.budgets_of(other))
            if budgets:
                text = f"would fit if PodDisruptionBudget {budgets} let {short_key(other.key)} go"
                yield Remedy(text, None, 1.0)

    def _evictable_by_row(self, unit: Unit, evictable: Evictable) -> dict[int, list[PodInfo]]:
        """Return the pods that may be evicted, by row; for one pod only on the nodes considered."""
        snapshot = self.handle.snapshot
        most = len(snapshot.nodes)
        if unit.gang is None:
            share = most * self.args.min_candidate_nodes_percentage // 100
            most = max(1, share, self.args.min_candidate_nodes_absolute)
        by_row: dict[int, list[PodInfo]] = {}
        unresolvable = self.handle.unresolvable(unit.pods[0]) if unit.gang is None else None
        for row, on_node in enumerate(snapshot.nodes.pods):
            if unresolvable is not None and unresolvable[row]:
                continue
            found = evictable.on_row(row) if on_node else []
            if not found:
                continue
            if unit.gang is None:
                need = missing_for(self.handle, unit.pods[0], row)
                if until_enough(found, need) is None:
                    continue
            by_row[row] = found
            if len(by_row) >= most:
                break
        return by_row

    # Candidates --------------------------------------------------------------------------

    def _candidates(
        self,
        unit: Unit,
        by_row: Mapping[int, list[PodInfo]],
        evictable: Evictable,
        search: VictimSearch,
    ) -> list[Placement]:
        """Return the placements in which the unit might fit if all possible victims were gone."""
        if unit.gang is None:
            return self._nodes(unit.pods[0], by_row, evictable)
        snapshot = self.handle.snapshot
        with snapshot.trial():
            for victims in by_row.values():
                for victim in victims:
                    snapshot.remove_pod(victim.key)
            offered = [p for p in self.handle.offers(unit).candidates if not _is_too_small(p, unit)]
        if len(offered) <= _MOST_DOMAINS:
            return offered
        priced = []
        for index, placement in enumerate(offered):
            steps = search.steps(placement)
            missing = unit.min_placed - self._free(unit, placement)
            needed = [pod for step in steps[: max(0, missing)] for pod in step.victims]
            priced.append((evictable.cost(needed), index, placement))
        priced.sort(key=lambda item: item[:2])
        return [placement for _, _, placement in priced[:_MOST_DOMAINS]]

    def _nodes(
        self, pod: PodInfo, by_row: Mapping[int, list[PodInfo]], evictable: Evictable
    ) -> list[Placement]:
        """Return the nodes where evictions could help one pod, the cheapest first."""
        names = self.handle.snapshot.nodes.names
        priced: list[tuple[EvictionCost, int]] = []
        for row in by_row:
            victims = until_enough(by_row[row], missing_for(self.handle, pod, row))
            if victims is not None:
                priced.append((evictable.cost(evictable.closure(victims)), row))
        priced.sort()
        return [Placement(names[row], np.array([row], dtype=np.intp)) for _, row in priced]

    def _free(self, unit: Unit, placement: Placement) -> int:
        """Return how many members fit in a placement now."""
        slots = np.minimum(self.handle.free_slots(unit.pods[0]), len(unit.pods))
        return int(slots.sum() if placement.rows is None else slots[placement.rows].sum())


def _contains(outer: Placement, inner: Placement) -> bool:
    """Tell whether a placement holds all rows of another, and more."""
    if inner.rows is None or outer is inner:
        return False
    return outer.rows is None or (
        len(outer.rows) > len(inner.rows) and bool(np.isin(inner.rows, outer.rows).all())
    )


def _is_too_small(placement: Placement, unit: Unit) -> bool:
    return placement.offered is not None and placement.offered < unit.min_placed
