"""Recovery: when a node fails, the job comes back.

A member of a gang on a node that is lost is evicted soon, so that its controller makes it again
while its neighbours keep running. A gang that stays below its minimum is evicted as a whole after a
grace period: what is left of it holds nodes for nothing. Nodes that are sick get no pods, and those
that failed lately no gangs, for longer each time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

import numpy as np
from pydantic import Field

from bayplan import (
    Args,
    ClusterEvent,
    Handle,
    NodeView,
    Overdue,
    Plugin,
    PodInfo,
    Reads,
    Reject,
    Unit,
    hookimpl,
)
from bayplan_plugins.recovery.broken import BrokenGangs
from bayplan_plugins.recovery.health import HealthRules, NodeHealth, NodeWatch, Trust
from bayplan_plugins.recovery.spares import SpareRule, Spares

__all__ = ["Recovery", "RecoveryArgs"]

_LONGEST = 86_400.0
_FATAL = (
    "ContainerRuntimeUnhealthy",
    "CperHardwareErrorFatal",
    "KernelDeadlock",
    "ReadonlyFilesystem",
    "XfsShutdown",
)
"""Conditions of node-problem-detector with which a node is of no use."""
_OF_NODES = ("DaemonSet", "Node")
"""Owners of pods that belong to their node."""
_ACTION = "recovery"
_KEPT = "node(s) are spares for jobs that lose a node"
_REASONS = {
    Trust.DISTRUSTED: "node(s) are not trusted yet",
    Trust.SICK: "node(s) are sick",
    Trust.LOST: "node(s) are lost",
}
_Due = tuple[PodInfo, str, float]
"""A pod to evict, why, and when, in seconds since 1970."""


class RecoveryArgs(Args):
    """Arguments of Recovery; times are in seconds.

    A member of a gang is evicted from a node that has been lost for ``lostAfter``. A gang that has
    been below its minimum for ``grace`` is evicted as a whole; while a member still ends on a node
    that is lost, so that it cannot be made again yet, after ``endingGrace``. A node with one of
    ``fatalConditions`` gets no new pods. One that was lost and is back gets no gangs for
    ``distrust``, and for twice as long each further time, up to a day. ``spares`` are kept for
    gangs that lost a node; pods of low priority may use them meanwhile.
    """

    lost_after: float = Field(default=30.0, ge=0, le=_LONGEST)
    grace: float = Field(default=60.0, ge=0, le=_LONGEST)
    ending_grace: float = Field(default=600.0, ge=0, le=_LONGEST)
    fatal_conditions: tuple[str, ...] = _FATAL
    distrust: float = Field(default=300.0, ge=0, le=_LONGEST)
    spares: tuple[SpareRule, ...] = ()


class Recovery(Plugin[RecoveryArgs]):
    """Decide what becomes of jobs on nodes that fail."""

    Args = RecoveryArgs
    reads = Reads.CLUSTER
    requeue_on = ClusterEvent.NODE

    def __init__(self, args: RecoveryArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        rules = HealthRules(frozenset(args.fatal_conditions), args.distrust)
        self._watch = NodeWatch(handle, rules)
        self._gangs = BrokenGangs(handle)
        self._spares = Spares(handle, args.spares)
        self._seen: Callable[[Mapping[str, NodeHealth], int, Iterable[str]], None] | None = None

    def declare_metrics(self) -> None:
        """Create the ``bayplan_recovery_*`` series."""
        from bayplan_plugins.recovery import metrics

        self._seen = metrics.seen

    # Where pods may go ---------------------------------------------------------------------------

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Keep pods off nodes that are not well, and gangs off those that failed lately."""
        if any(one.kind in _OF_NODES for one in pod.pod.metadata.owner_references):
            return
        kept = self._spares.kept_from(pod)
        if kept is not None:
            yield Reject(nodes.pick(kept), _KEPT)
        unwell = self._watch.look()
        if not unwell:
            return
        least = Trust.DISTRUSTED if pod.gang is not None else Trust.SICK
        for reason, names in _by_reason(unwell, least).items():
            mask = np.zeros(len(nodes.table), dtype=bool)
            mask[[nodes.table.row_of[name] for name in names if name in nodes.table.row_of]] = True
            yield Reject(nodes.pick(mask), reason, resolvable=False)

    @hookimpl
    def equivalence(self, unit: Unit) -> Hashable:
        """Tell gangs that may use spares from others."""
        return bool(self.args.spares) and self._spares.may_use(unit.pods[0])

    # What becomes of those that run --------------------------------------------------------------

    @hookimpl
    def overdue(self) -> Overdue | None:
        """Evict the members of gangs that nodes lost, and what is left of gangs for too long."""
        unwell = self._watch.look()
        lost = {name: one for name, one in unwell.items() if one.trust is Trust.LOST}
        broken = list(self._broken_for_long(lost))
        found = [*self._on_lost_nodes(lost), *broken]
        now = self.handle.unix_time
        # A pod of a broken gang on a lost node goes once, for the first reason.
        victims = {pod.key: (pod, why) for pod, why, at in reversed(found) if at <= now}
        restarts = frozenset(pod.gang for pod, _, at in broken if pod.gang and at <= now)
        times = [at - now + self.handle.now for _, _, at in found if at > now]
        trusted, self._watch.is_trusted_again = self._watch.is_trusted_again, False
        again = min([*times, *self._watch.next_times()], default=None)
        if self._seen is not None:
            self._seen(unwell, len(self._gangs), self._spares.now().values())
        evicted = tuple(victims.values())
        return Overdue(evicted, again, waited=trusted, action=_ACTION, restarts=restarts)

    def _on_lost_nodes(self, lost: Mapping[str, NodeHealth]) -> Iterator[_Due]:
        for name, health in lost.items():
            why = f"{_ACTION}: node {name} is lost, {health.source}"
            for pod in self._members_on(name):
                yield pod, why, health.since + self.args.lost_after

    def _broken_for_long(self, lost: Mapping[str, NodeHealth]) -> Iterator[_Due]:
        for gang in self._gangs.look(lost.keys()):
            why = f"{_ACTION}: {gang.title} is broken, {gang.why}"
            at = gang.free_since + self.args.grace
            if gang.ending:
                at = max(at, gang.since + self.args.ending_grace)
            for pod in gang.left:
                yield pod, why, at

    def _members_on(self, node: str) -> list[PodInfo]:
        """Return the members of gangs of several pods on a node that do not end yet."""
        table = self.handle.snapshot.nodes
        row = table.row_of.get(node)
        pods = table.pods[row].values() if row is not None else ()
        return [pod for pod in pods if self._may_go(pod)]

    def _may_go(self, pod: PodInfo) -> bool:
        """Tell whether a pod is a member of a gang that we schedule, and does not end yet."""
        return pod.gang is not None and not pod.terminating and self.handle.schedules(pod)


def _by_reason(unwell: Mapping[str, NodeHealth], least: Trust) -> dict[str, list[str]]:
    """Return the nodes that are trusted too little, by why they are."""
    found: dict[str, list[str]] = {}
    for name, health in unwell.items():
        if health.trust >= least:
            reason = _REASONS[health.trust]
            found.setdefault(f"{reason} ({health.source})", []).append(name)
    return found
