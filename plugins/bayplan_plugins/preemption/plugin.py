"""DefaultPreemption: evict less important pods so that a pod or a whole gang can be placed.

For a pod the candidates are nodes, and the rules those of kube-scheduler 1.36; for a gang they are
the network domains that it may use, or the cluster. In each candidate, :mod:`.search` looks for the
least important and fewest victims. Candidates are compared by
:class:`~bayplan_plugins.shared.victims.EvictionCost`, then by waste. A gang is never taken
below its minimum, unless all of it is evicted and nothing else is cheaper.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace
from pydantic import Field

from bayplan import (
    LATER,
    Args,
    ClusterEvent,
    Handle,
    Later,
    Plugin,
    PodInfo,
    Preemption,
    Remedy,
    Unit,
    hookimpl,
)
from bayplan.naming import short_key
from bayplan.plugin.decision import Decision
from bayplan.queues.lost_work import LostWork
from bayplan_plugins.preemption.dry_run import DryRun, no_victims
from bayplan_plugins.preemption.gang_search import GangSearch
from bayplan_plugins.preemption.known import KnownEvictions
from bayplan_plugins.preemption.messages import (
    UNHELPFUL_FOR_GANGS,
    kept_for_now,
    preemption_of,
)
from bayplan_plugins.preemption.search import VictimSet
from bayplan_plugins.shared.victims import Evictable

__all__ = ["DefaultPreemption", "DefaultPreemptionArgs"]


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

    def __init__(self, args: DefaultPreemptionArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._known = KnownEvictions(handle)

    @hookimpl
    def post_filter(self, unit: Unit, decision: Decision) -> Preemption | Later | str | None:
        """Find the cheapest victims whose eviction lets the unit be placed."""
        refused = any(own.pre_filter is not None for own in decision.pods.values())
        if unit.gang is not None and (refused or not self.args.gangs):
            return None
        if any(pod.spec.preemption_policy == "Never" for pod in unit.pods):
            return "preemption: not eligible due to preemptionPolicy=Never."
        # Once for all that is asked for this unit.
        LostWork.of(self.handle.snapshot).advance(self.handle.unix_time)
        evictable = Evictable.by(unit, self.handle)
        if not self._known.read_on(evictable.priority):
            return LATER
        if unit.gang is None:
            found = self._for_pod(unit, decision, evictable)
        else:
            found = self._for_gang(unit, decision, evictable)
        if isinstance(found, str):
            return f"preemption: {found}{kept_for_now(evictable)}"
        return preemption_of(found, evictable)

    # One pod -----------------------------------------------------------------------------

    def _for_pod(self, unit: Unit, decision: Decision, evictable: Evictable) -> VictimSet | str:
        """Return the cheapest victims for a pod, or why there are none."""
        dry_run = DryRun(self.handle, unit, evictable, self._known, self._enough())
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
        columns = self._known.columns(evictable.priority)
        if not columns.victims.any():
            return no_victims(self.handle, unit.pods[0])
        decision.refused_by.add("DefaultPreemption")
        search = GangSearch(self.handle, unit, evictable, self._known)
        best = search.run()
        decision.preemption = tuple(search.trials)
        return UNHELPFUL_FOR_GANGS if best is None else best

    # Why not -----------------------------------------------------------------------------

    @hookimpl
    def remedies(self, pod: PodInfo) -> Iterator[Remedy]:
        """Name the budgets, and the minimum runtimes, that keep pods from being evicted."""
        placed = self.handle.snapshot.placed.values()
        rows = {
            self.handle.snapshot.nodes.row_of[node]
            for info, node in placed
            if self.handle.in_eviction_cooldown(info) and node in self.handle.snapshot.nodes.row_of
        }
        evictable = Evictable.by(Unit(pod.key, (pod,)), self.handle)
        for row in sorted(rows):
            evictable.on_row(row)
        for other in evictable.in_cooldown.values():
            seconds = evictable.runs_until(other) - self.handle.unix_time
            if seconds > 0:
                text = f"would fit once {short_key(other.key)} has run for its minimum"
                yield Remedy(f"{text}, in {seconds:.0f} s", None, 1.0)
            budgets = ", ".join(evictable.budgets.covering(other))
            if budgets:
                text = f"would fit if PodDisruptionBudget {budgets} let {short_key(other.key)} go"
                yield Remedy(text, None, 1.0)
