"""What one plugin of one profile sees of the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan.api.dra import Device, DeviceId
from bayplan.api.gang import Gang
from bayplan.cluster.protocol import Cluster, Done, Write
from bayplan.errors import ClusterError
from bayplan.gangs.directory import GangMembers
from bayplan.plugin.base import (
    DeviceOpinion,
    NodeRefusals,
    Placement,
    Placements,
    Supposed,
    Unit,
)
from bayplan.plugin.failures import PLUGIN_RAISES, failure
from bayplan.plugin.queueing import Queueing
from bayplan.scheduler.active_profiles import ActiveProfile
from bayplan.scheduler.evictor import Evictor
from bayplan.scheduler.state import SchedulerState
from bayplan.snapshot import NodeRow, PodInfo, Snapshot

__all__ = ["PluginHandle"]


class PluginHandle:
    """Implements ``bayplan.Handle``, which documents its methods.

    :param profile: the scheduler name of the plugin's profile.
    :param plugin: the plugin's name.
    :param cluster: where the plugin's writes go.
    """

    def __init__(
        self, state: SchedulerState, evictor: Evictor, profile: str, plugin: str, cluster: Cluster
    ) -> None:
        self._state = state
        self._cluster = cluster
        self._evictor = evictor
        self._profile_name = profile
        self._plugin = plugin

    @property
    def _profile(self) -> ActiveProfile:
        profile = self._state.profiles.by_name.get(self._profile_name)
        if profile is None:
            raise RuntimeError("this is for hooks; the plugins of the profile are still being made")
        return profile

    @property
    def snapshot(self) -> Snapshot:
        return self._state.snapshot

    @property
    def now(self) -> float:
        return self._state.now

    @property
    def unix_time(self) -> float:
        return self._state.cluster.unix_time

    @property
    def writes(self) -> bool:
        return self._cluster.writes

    def gang(self, key: str) -> GangMembers:
        return self._state.gangs.all().get(key) or GangMembers()

    def former_nodes(self, key: str) -> Mapping[str, str]:
        return self._state.gangs.former_nodes(key)

    def unit(self, pods: Sequence[PodInfo], gang: Gang | None = None) -> Unit:
        key = self._state.gangs.unit_of(pods[0]) if gang is None else gang.key
        return self._state.unit_of(key, [_without_node(pod) for pod in pods], gang)

    def schedules(self, pod: PodInfo) -> bool:
        profile = self._state.profiles.of(pod.pod)
        return profile is not None and profile.profile.scheduler_name == self._profile_name

    def pending(self, queue: str) -> Sequence[Unit]:
        return [self._state.unit(queued) for queued in self._state.queue.pending(queue)]

    def is_waiting(self, unit: str) -> bool:
        return unit in self._state.queue.units

    def is_first(self, unit: Unit) -> bool:
        return self._state.queue.is_first(unit.key)

    def is_nominated(self, pod: PodInfo) -> bool:
        return pod.key in self._state.nominator

    def in_eviction_cooldown(self, pod: PodInfo) -> bool:
        return self._evictor.in_cooldown(pod.key) or self._evictor.is_young(pod)

    def offers(self, unit: Unit, supposed: Supposed | None = None) -> Placements:
        return self._profile.cycle.offers(unit, supposed is None, supposed)

    def place(self, unit: Unit, placement: Placement) -> Mapping[str, str] | None:
        return self._profile.cycle.place_here(unit, placement)

    def free_slots(self, pod: PodInfo) -> npt.NDArray[np.int64]:
        return self._profile.cycle.free_slots(pod)

    def refusals(self, pod: PodInfo) -> Sequence[NodeRefusals]:
        return self._profile.evaluator.evaluate(pod).refusals()

    @property
    def queueing(self) -> Queueing | None:
        return self._profile.runtime.queueing

    def may_give_up(self) -> Sequence[PodInfo]:
        calls = self._profile.runtime["may_give_up"]
        return list({pod.key: pod for call in calls for pod in call.call()}.values())

    def serves(self, pod: PodInfo) -> frozenset[str]:
        return frozenset[str]().union(*(call.call(pod) for call in self._profile.runtime["serves"]))

    def device_score(
        self,
        pod: PodInfo,
        node: NodeRow,
        chosen: Sequence[tuple[str, DeviceId]],
        devices: Callable[[], Mapping[DeviceId, Device]],
    ) -> DeviceOpinion | None:
        for call in self._profile.runtime.of(pod)["device_score"]:
            points: float | None = call.call(pod, node, chosen, devices())
            if points is not None:
                return DeviceOpinion(float(points), call.name)
        return None

    def concerns_changed(self) -> None:
        self._profile.runtime.ask_concerns_again()

    def recheck_gates(self, pod: PodInfo) -> None:
        unit = self._state.gangs.unit_of(pod)
        self._state.queue.refresh_gates(unit, self._state.now)
        self._state.recorder.gate_changed(unit)

    def submit(self, write: Write, done: Done | None = None) -> None:
        self._cluster.submit(write, self._guarded(done) if done is not None else None)

    def _guarded(self, done: Done) -> Done:
        def answered(error: ClusterError | None) -> None:
            try:
                done(error)
            except PLUGIN_RAISES as exc:
                # The caller has other writes to answer.
                self._state.recorder.log_failure(failure(self._plugin, "submit", exc, done))

        return answered

    def allow(self, waiting: Unit | PodInfo | str) -> bool:
        return self._state.permits.allow(waiting, self._plugin)

    def reject(self, waiting: Unit | PodInfo | str, reason: str) -> bool:
        return self._state.permits.reject(waiting, reason, self._plugin)

    def fit_message(self, pod: PodInfo) -> str:
        names = self._state.snapshot.nodes.names
        return self._profile.evaluator.evaluate(pod).describe(names, finalists=False).message


def _without_node(pod: PodInfo) -> PodInfo:
    """Return a pod as it was before it got its node; filters ask for the node that it names."""
    if not pod.spec.node_name:
        return pod
    spec = msgspec.structs.replace(pod.spec, node_name="")
    return pod.changed(msgspec.structs.replace(pod.pod, spec=spec))
