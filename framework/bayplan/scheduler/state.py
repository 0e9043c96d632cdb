"""What the parts of one scheduler share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import msgspec

from bayplan.api import Pod
from bayplan.api.gang import Gang
from bayplan.cluster.protocol import Bind, Cluster
from bayplan.cycle.reservations import Reserved
from bayplan.gangs.directory import GangDirectory
from bayplan.plugin.base import Unit
from bayplan.plugin.decision import Decision
from bayplan.plugin.events import ClusterEvent
from bayplan.profiles.loading import ProfileSet
from bayplan.scheduler.active_profiles import ActiveProfile, ActiveProfiles
from bayplan.scheduler.changed_gangs import ChangedGangs
from bayplan.scheduler.claim_index import ClaimIndex
from bayplan.scheduler.network_status import NetworkStatusWriter
from bayplan.scheduler.nominator import Nominator
from bayplan.scheduler.observer import Observer
from bayplan.scheduler.permits import Permits
from bayplan.scheduler.pre_bind import Preparations
from bayplan.scheduler.queue import UnitQueue
from bayplan.scheduler.queue_status import QueueStatusWriter
from bayplan.scheduler.queued_unit import QueuedUnit
from bayplan.scheduler.recorder import Recorder
from bayplan.scheduler.requeue import RequeueRules
from bayplan.scheduler.units import make_unit
from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["AssumedPod", "SchedulerState", "Statistics"]


class AssumedPod(msgspec.Struct, eq=False):
    """A pod whose binding was submitted and that the watch has not shown on its node yet.

    ``write`` is the binding. ``newer`` is a version of the pod that came meanwhile, still without
    a node.
    """

    reserved: Reserved
    profile: ActiveProfile
    write: Bind
    newer: Pod | None = None


class Statistics(msgspec.Struct):
    """Counts since the start."""

    cycles: int = 0
    bound: int = 0


class SchedulerState:
    """The snapshot, the queue and the records of one scheduler.

    ``decisions`` holds the latest decisions by unit, oldest first.

    :param keep_decisions: how many decisions are kept.
    :param observer: called at every cycle and binding.
    """

    def __init__(
        self, cluster: Cluster, profiles: ProfileSet, keep_decisions: int, observer: Observer
    ) -> None:
        self.cluster = cluster
        self.observer = observer
        self.statistics = Statistics()
        self.snapshot = Snapshot(lambda: cluster.unix_time)
        self.recorder = Recorder(cluster)
        self.changed_gangs = ChangedGangs()
        self.network_status = NetworkStatusWriter(cluster, self.snapshot)
        self.queue_status = QueueStatusWriter(cluster, self.snapshot)
        self.gangs = GangDirectory(self.changed_gangs.add)
        self.profiles = ActiveProfiles(profiles.any_scheduler)
        self.nominator = Nominator(self.snapshot, lambda unit: self.queue.no_longer_waits(unit))
        self.queue = UnitQueue(
            RequeueRules(self.profiles, self.gangs, self.nominator, self.recorder, self.snapshot),
            self.gangs.unit_of,
            profiles.initial_backoff,
            profiles.max_backoff,
        )
        self.permits = Permits(self.snapshot, self.recorder.plugin_failed)
        self.preparations = Preparations(cluster)
        self.claims = ClaimIndex()
        self.assumed: dict[str, AssumedPod] = {}
        self.decisions: dict[str, Decision] = {}
        self.events = 0
        """Counts all events."""
        self._keep_decisions = keep_decisions

    @property
    def pods(self) -> Mapping[str, PodInfo]:
        """The living pods that the scheduler knows: those of its profiles, and all on nodes."""
        return self.snapshot.living

    @property
    def now(self) -> float:
        """The cluster's time in seconds."""
        return self.cluster.now

    def broadcast(self, event: ClusterEvent, subject: PodInfo | None = None) -> None:
        """Let the queue and the waits at Permit react to what happened, one event at a time.

        :param subject: the pod that was placed, changed or removed.
        """
        self.events += 1
        now = self.now
        for single in _singles(event):
            self.queue.on_event(single, subject, now)
            self.permits.on_event(single, subject)

    def unit(self, queued: QueuedUnit) -> Unit:
        """Return a queued unit as a cycle gets it."""
        pods = list(queued.ready.values()) or list(queued.pods.values())
        return self.unit_of(queued.key, pods)

    def unit_of(self, key: str, pods: Sequence[PodInfo], gang: Gang | None = None) -> Unit:
        """Return the unit of some of a queued unit's pods.

        :param gang: its definition, where it is not what the cluster's objects say now.
        """
        return make_unit(key, pods, self.gangs, self.nominator.get(key), gang)

    def remember(self, decision: Decision) -> None:
        """Keep a decision as the latest on its unit."""
        self.decisions.pop(decision.unit, None)
        self.decisions[decision.unit] = decision
        if len(self.decisions) > self._keep_decisions:
            del self.decisions[next(iter(self.decisions))]

    def give_back(self, profile: ActiveProfile, reserved: list[Reserved]) -> None:
        """Undo reservations: ``unreserve`` hooks first, then the snapshot, last pod first."""
        profile.cycle.unreserve(reserved)
        for one in reversed(reserved):
            placed = self.snapshot.placed.get(one.pod.key)
            if placed is None or placed[0] is not one.pod:
                continue
            removed = self.snapshot.remove_pod(one.pod.key)
            if removed is not None:
                self.broadcast(ClusterEvent.POD_REMOVED, removed)


@cache
def _singles(event: ClusterEvent) -> tuple[ClusterEvent, ...]:
    """Return the events of a union: enumerations take long to go through."""
    return tuple(event)
