"""DefaultPreemption: evict less important pods so that a pod or a whole gang can be placed.

For a pod the candidates are nodes, and the rules those of kube-scheduler 1.36; for a gang they are
the network domains that it may use, or the cluster. In each candidate, :mod:`.search` looks for the
fewest and least important victims. Candidates are compared by
:class:`~bayplan_plugins.shared.victims.EvictionCost`, then by waste. A gang is never taken
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
    Remedy,
    Unit,
    hookimpl,
)
from bayplan.naming import short_key
from bayplan.plugin.decision import Decision
from bayplan_plugins.preemption.dry_run import DryRun, no_victims
from bayplan_plugins.preemption.messages import (
    UNHELPFUL_FOR_GANGS,
    preemption_of,
    refused_evictions,
    trial_of,
)
from bayplan_plugins.preemption.search import VictimSearch, VictimSet
from bayplan_plugins.shared.victims import Evictable

__all__ = ["DefaultPreemption", "DefaultPreemptionArgs"]

_MOST_DOMAINS = 24
"""Domains that are tried for a gang."""


class DefaultPreemptionArgs(Args):
    """Arguments of DefaultPreemption, those of kube-scheduler and whether gangs may preempt.

    For one pod, nodes are tried, the cheapest by estimate first, until evictions would help on
    ``minCandidateNodesPercentage`` of all nodes and on at least ``minCandidateNodesAbsolute``.
    """

    min_candidate_nodes_percentage: int = Field(default=10, ge=0, le=100)
    min_candidate_nodes_absolute: int = Field(default=100, ge=0)
    gangs: bool = True


class DefaultPreemption(Plugin[DefaultPreemptionArgs]):
    """Evict pods of lower priority if that lets a pod or a gang run."""

    Args = DefaultPreemptionArgs
    requeue_on = ClusterEvent.POD_REMOVED

    @hookimpl
    def post_filter(self, unit: Unit, decision: Decision) -> Preemption | str | None:
        """Find the cheapest victims whose eviction lets the unit be placed."""
        refused = any(own.pre_filter is not None for own in decision.pods.values())
        if unit.gang is not None and (refused or not self.args.gangs):
            return None
        if any(pod.spec.preemption_policy == "Never" for pod in unit.pods):
            return "preemption: not eligible due to preemptionPolicy=Never."
        evictable = Evictable(unit, self.handle)
        if unit.gang is None:
            found = self._for_pod(unit, decision, evictable)
        else:
            found = self._for_gang(unit, decision, evictable)
        if isinstance(found, str):
            return f"preemption: {found}{refused_evictions(evictable)}"
        return preemption_of(found, evictable)

    # One pod -----------------------------------------------------------------------------

    def _for_pod(self, unit: Unit, decision: Decision, evictable: Evictable) -> VictimSet | str:
        """Return the cheapest victims for a pod, or why there are none."""
        dry_run = DryRun(self.handle, unit, evictable, self._enough())
        dry_run.run()
        if dry_run.any_victims:
            decision.refused_by.add("DefaultPreemption")
        if not dry_run.solutions:
            decision.preemption = tuple(dry_run.trials)
            return dry_run.message()
        best = min(dry_run.solutions, key=lambda solution: solution.cost)
        decision.preemption = tuple(
            replace(trial, chosen=trial.domain == best.placement.name) for trial in dry_run.trials
        )
        return best

    def _enough(self) -> int:
        """Return how many candidates are enough (GetOffsetAndNumCandidates)."""
        nodes = len(self.handle.snapshot.nodes)
        share = nodes * self.args.min_candidate_nodes_percentage // 100
        return max(1, share, self.args.min_candidate_nodes_absolute)

    # Gangs -------------------------------------------------------------------------------

    def _for_gang(self, unit: Unit, decision: Decision, evictable: Evictable) -> VictimSet | str:
        """Return the cheapest victims for a gang, or why there are none."""
        by_row = self._evictable_by_row(evictable)
        if not by_row:
            return no_victims(self.handle, unit.pods[0])
        decision.refused_by.add("DefaultPreemption")
        search = VictimSearch(self.handle, unit, evictable, by_row)
        candidates = self._candidates(unit, by_row, evictable, search)
        solutions = [search.solve(placement) for placement in candidates]
        trials = [trial_of(*pair) for pair in zip(candidates, solutions, strict=True)]
        decision.preemption = tuple(trials)
        found = [solution for solution in solutions if solution is not None]
        if not found:
            return UNHELPFUL_FOR_GANGS
        # The candidate with the least waste comes first, so it wins among equal costs.
        best = min(found, key=lambda solution: solution.cost)
        for index, placement in enumerate(candidates):
            if _contains(placement, best.placement):
                # In a wider domain some of the victims may not be needed.
                wider = search.minimised(placement, best)
                if wider.cost < best.cost:
                    best = replace(wider, placement=placement)
                    trials[index] = trial_of(placement, best)
        decision.preemption = tuple(
            replace(trial, chosen=placement is best.placement)
            for trial, placement in zip(trials, candidates, strict=True)
        )
        return best

    def _evictable_by_row(self, evictable: Evictable) -> dict[int, list[PodInfo]]:
        """Return the pods that may be evicted, by row."""
        pods = self.handle.snapshot.nodes.pods
        found = {row: evictable.on_row(row) for row, on_node in enumerate(pods) if on_node}
        return {row: victims for row, victims in found.items() if victims}

    def _candidates(
        self,
        unit: Unit,
        by_row: Mapping[int, list[PodInfo]],
        evictable: Evictable,
        search: VictimSearch,
    ) -> list[Placement]:
        """Return the placements in which a gang might fit if all possible victims were gone."""
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

    def _free(self, unit: Unit, placement: Placement) -> int:
        """Return how many members fit in a placement now."""
        slots = np.minimum(self.handle.free_slots(unit.pods[0]), len(unit.pods))
        return int(slots.sum() if placement.rows is None else slots[placement.rows].sum())

    # Why not -----------------------------------------------------------------------------

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


def _contains(outer: Placement, inner: Placement) -> bool:
    """Tell whether a placement holds all rows of another, and more."""
    if inner.rows is None or outer is inner:
        return False
    return outer.rows is None or (
        len(outer.rows) > len(inner.rows) and bool(np.isin(inner.rows, outer.rows).all())
    )


def _is_too_small(placement: Placement, unit: Unit) -> bool:
    return placement.offered is not None and placement.offered < unit.min_placed
