"""Recovery: when a node fails, the job comes back.

A member of a gang on a node that is lost is evicted soon, so that its controller makes it again
while its neighbours keep running. A gang that stays below its minimum is evicted as a whole after a
grace period: what is left of it holds nodes for nothing. Nodes that are sick get no pods, and those
that failed lately no gangs, for longer each time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from pydantic import Field

from bayplan import (
    SKIP,
    Args,
    ClusterEvent,
    Eviction,
    Handle,
    NodeView,
    Overdue,
    Plugin,
    PodInfo,
    Reads,
    Reject,
    hookimpl,
)
from bayplan.api.owners import belongs_to_node
from bayplan.queues.lost_work import gpu_hours
from bayplan_plugins.recovery.broken import BrokenGang, BrokenGangs, is_deleted
from bayplan_plugins.recovery.failed_devices import FailedDevices
from bayplan_plugins.recovery.health import HealthRules, NodeHealth, NodeWatch, Trust
from bayplan_plugins.recovery.maintenance import MAINTENANCE, Maintenance
from bayplan_plugins.recovery.spares import SpareRule, Spares
from bayplan_plugins.recovery.stuck import StuckPods
from bayplan_plugins.shared.victims import Evictable

__all__ = ["Recovery", "RecoveryArgs"]

_LONGEST = 86_400.0
_ACTION = "recovery"
_FATAL = (
    "ContainerRuntimeUnhealthy",
    "CperHardwareErrorFatal",
    "KernelDeadlock",
    "ReadonlyFilesystem",
    "XfsShutdown",
)
"""Conditions of node-problem-detector with which a node is of no use."""
_LEAVING = "node(s) go into maintenance before it would end"
_KEPT = "node(s) are spares for jobs that lose a node"
_REASONS = {
    Trust.DISTRUSTED: "node(s) are not trusted yet",
    Trust.SICK: "node(s) are sick",
    Trust.LOST: "node(s) are lost",
}
_RETRY = 60.0
"""Seconds after which disruption budgets are looked at again."""
_LostNode = tuple[str, str, float]
_BrokenFor = tuple[BrokenGang, str, float]
_Due = tuple[PodInfo, str, float]
"""A node, a gang, or a pod; why it is evicted, or its pods, and when, in seconds since 1970."""


class RecoveryArgs(Args):
    """Arguments of Recovery; times are in seconds.

    A member of a gang is evicted from a node that has been lost for ``lostAfter``, or if one of its
    devices has failed for so long, as the kubelet says. A gang that has
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
    reads = Reads.NODE
    # Which nodes are spares follows from the pods on all of them; that a node is trusted again is
    # known by no event of its own.
    requeue_on = ClusterEvent.NODE | ClusterEvent.POD_REMOVED | ClusterEvent.OBJECT_CHANGED

    def __init__(self, args: RecoveryArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        rules = HealthRules(frozenset(args.fatal_conditions), args.distrust)
        self._watch = NodeWatch(handle, rules)
        self._devices = FailedDevices(handle)
        self._gangs = BrokenGangs(handle)
        self._stuck = StuckPods(handle)
        self._maintenance = Maintenance(handle)
        self._spares = Spares(handle, args.spares, self._useless)
        self._seen: Callable[[Mapping[str, NodeHealth], int, Iterable[str]], None] | None = None
        self._count_lost: Callable[[str, float], None] | None = None

    def _useless(self) -> set[str]:
        """Return the nodes that are no spares: those that are not well, or go soon."""
        return {*self._watch.look(), *self._maintenance.times()}

    def declare_metrics(self) -> None:
        """Create the ``bayplan_recovery_*`` series."""
        from bayplan_plugins.recovery import metrics

        self._seen, self._count_lost = metrics.seen, metrics.lost

    # Where pods may go ---------------------------------------------------------------------------

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by all that keeps the pod from nodes; most of the time that is nothing."""
        return self._closed(pod)

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods that nothing keeps from any node."""
        return SKIP if self._closed(pod) is None else None

    def _closed(self, pod: PodInfo) -> Hashable:
        """Return what tells which nodes are closed to a pod; None if none are."""
        if belongs_to_node(pod.pod.metadata):
            return None
        spares = 0 if self._spares.may_use(pod) else self._spares.version
        unwell = tuple(self._unwell_for(pod).items())
        leaving = tuple(self._maintenance.closed_to(pod))
        return (spares, unwell, leaving) if spares or unwell or leaving else None

    def _unwell_for(self, pod: PodInfo) -> dict[str, NodeHealth]:
        """Return the nodes that are trusted too little for a pod."""
        least = Trust.DISTRUSTED if pod.gang is not None else Trust.SICK
        return {name: one for name, one in self._watch.look().items() if one.trust >= least}

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Keep pods off spares, off nodes that are not well, and off those that go too soon."""
        kept = self._spares.kept_from(pod)
        if kept is not None:
            yield Reject(nodes.pick(kept), _KEPT)
        reasons = _by_reason(self._unwell_for(pod))
        leaving = self._maintenance.closed_to(pod)
        if leaving:
            reasons[_LEAVING] = leaving
        for reason, names in reasons.items():
            mask = np.zeros(len(nodes.table), dtype=bool)
            mask[[nodes.table.row_of[name] for name in names if name in nodes.table.row_of]] = True
            yield Reject(nodes.pick(mask), reason, resolvable=False)

    # What becomes of those that run --------------------------------------------------------------

    @hookimpl
    def overdue(self) -> Overdue | None:
        """Evict the members of gangs that nodes lost, and what is left of gangs for too long."""
        unwell, now = self._watch.look(), self.handle.unix_time
        found = list(self._on_lost_nodes(unwell)) if not self._watch.is_outage else []
        lost = {name for name, _, at in found if at <= now}
        stuck = self._stuck.let_go({name: at for name, _, at in found})
        broken = list(self._broken_for_long(lost))
        # A pod of a broken gang on a lost node goes once, for the first reason.
        failed = list(self._with_failed_devices())
        broken, requeued = self._without_requeued(broken)
        victims = {pod.key: (pod, why) for pod, why in self._due(found, failed, broken)}
        trusted, self._watch.is_trusted_again = self._watch.is_trusted_again, False
        # Queues look at what they got back.
        trusted |= bool(requeued)
        times = [at for _, _, at in (*found, *failed, *broken) if at > now]
        times += [stuck] if stuck is not None else []
        times = [at - now + self.handle.now for at in times] + self._watch.next_times()
        if self._seen is not None:
            self._seen(unwell, len(self._gangs), self._spares.now().values())
        if not victims and not requeued:
            moved = self._maintenance.overdue()
            if moved is not None and moved.victims:
                return msgspec.structs.replace(moved, waited=trusted)
            times += [moved.again] if moved is not None and moved.again is not None else []
        return Overdue(
            tuple(victims.values()),
            min(times, default=None),
            waited=trusted,
            action=_ACTION,
            restarts=requeued.union(gang.key for gang, _, at in broken if gang.left and at <= now),
            at_once=frozenset(victims),
        )

    @hookimpl
    def post_evict(self, pod: PodInfo, eviction: Eviction) -> None:
        """Count what was lost with nodes that fail, or go."""
        if self._count_lost is not None and eviction.action in (_ACTION, MAINTENANCE):
            self._count_lost(eviction.action, gpu_hours(eviction.lost))

    def _without_requeued(
        self, broken: Sequence[_BrokenFor]
    ) -> tuple[list[_BrokenFor], frozenset[str]]:
        """Leave what is due of jobs to their queues, where these take them back.

        :return: the others, and the keys of those that were taken back.
        """
        queueing, now = self.handle.queueing, self.handle.unix_time
        left: list[_BrokenFor] = []
        taken: set[str] = set()
        for gang, why, at in broken:
            due = at <= now and bool(gang.members)
            if due and queueing is not None and queueing.requeue(gang.members, why):
                self._gangs.leave(gang.key)
                taken.add(gang.key)
            else:
                left.append((gang, why, at))
        return left, frozenset(taken)

    def _due(
        self, lost: Sequence[_LostNode], failed: Sequence[_Due], broken: Sequence[_BrokenFor]
    ) -> Iterator[tuple[PodInfo, str]]:
        """Yield the pods that are evicted now, those with the better reason last."""
        now = self.handle.unix_time
        for gang, why, at in broken:
            if at <= now:
                yield from ((pod, why) for pod in gang.left)
        yield from ((pod, why) for pod, why, at in failed if at <= now)
        for name, why, at in lost:
            if at <= now:
                yield from ((pod, why) for pod in self._members_on(name))

    def _on_lost_nodes(self, unwell: Mapping[str, NodeHealth]) -> Iterator[_LostNode]:
        for name, health in unwell.items():
            if health.trust is Trust.LOST:
                why = f"{_ACTION}: node {name} is lost, {health.source}"
                yield name, why, health.since + self.args.lost_after

    def _with_failed_devices(self) -> Iterator[_Due]:
        for pod, devices, since in self._devices.look():
            if self._may_go(pod):
                why = f"{_ACTION}: its devices have failed: {devices}"
                yield pod, why, since + self.args.lost_after

    def _broken_for_long(self, lost: Collection[str]) -> Iterator[_BrokenFor]:
        for gang in self._gangs.look(lost):
            at = gang.free_since + self.args.grace
            if gang.ending:
                at = gang.since + max(self.args.grace, self.args.ending_grace)
            if at <= self.handle.unix_time and self._is_guarded(gang):
                # A budget may have let some of them go, and the rest of a gang never comes back.
                at = self.handle.unix_time + _RETRY
            yield gang, f"{_ACTION}: {gang.title} is broken, {gang.why}", at

    def _is_guarded(self, gang: BrokenGang) -> bool:
        """Tell whether disruption budgets keep any of a gang's pods."""
        if not gang.left:
            return False
        unit = self.handle.unit(gang.left[:1])
        return bool(Evictable.by(unit, self.handle).violations(gang.left))

    def _members_on(self, node: str) -> list[PodInfo]:
        """Return the members of gangs of several pods on a node that do not end yet."""
        return [pod for pod in self.handle.snapshot.pods_on(node) if self._may_go(pod)]

    def _may_go(self, pod: PodInfo) -> bool:
        """Tell whether a pod is a member of a gang that we schedule, and does not end yet."""
        if pod.gang is None or belongs_to_node(pod.pod.metadata):
            return False
        return not is_deleted(pod) and self.handle.schedules(pod)


def _by_reason(unwell: Mapping[str, NodeHealth]) -> dict[str, list[str]]:
    """Return nodes by why they are not trusted."""
    found: dict[str, list[str]] = {}
    for name, health in unwell.items():
        reason = _REASONS[health.trust]
        found.setdefault(f"{reason} ({health.source})", []).append(name)
    return found
