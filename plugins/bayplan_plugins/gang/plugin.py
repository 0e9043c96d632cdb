"""Gang: members wait until enough of them exist, and are refused unless enough are placed.

The scheduling cycle places a whole gang or nothing; this plugin decides when a gang may be tried,
refuses definitions that cannot work, and tells pod groups what became of them.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from bayplan import (
    SUPPOSED,
    Args,
    ClusterEvent,
    CycleState,
    Eviction,
    Handle,
    NodeView,
    Overdue,
    Placements,
    Plugin,
    PodInfo,
    Reads,
    Unit,
    hookimpl,
)
from bayplan.api import Job, ReplicaSet, StatefulSet, VolcanoJob
from bayplan.gangs.directory import GangMembers
from bayplan_plugins.gang.lacks import Lacks
from bayplan_plugins.gang.status import GroupStatuses, Write

__all__ = ["Gang"]

_UNITS = {"cpu": "milli-"}


class Gang(Plugin[Args]):
    """Admit a gang to the queue once it is complete, and to its nodes once enough have one."""

    reads = Reads.NODE
    requeue_on = (
        ClusterEvent.GANG_CHANGED
        | ClusterEvent.POD_CHANGED
        | ClusterEvent.POD_REMOVED
        | ClusterEvent.NODE_ADDED
        | ClusterEvent.NODE_ALLOCATABLE
    )
    gate_reads = frozenset({Job, ReplicaSet, StatefulSet, VolcanoJob})

    def __init__(self, args: Args, handle: Handle) -> None:
        super().__init__(args, handle)
        self._lacks = Lacks(handle)
        self._statuses = GroupStatuses(handle, self._lacks)

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        """Keep members out of the queue until their PodGroup and enough members exist."""
        if pod.gang is None:
            return None
        gang = self.handle.gang(pod.gang).gang
        if gang is None:
            return f'waiting for PodGroup "{pod.gang}", which does not exist'
        if gang.problem is not None:
            return f"{gang.title}: {gang.problem}"
        lack = self._lacks.of(gang)
        return lack.text if lack is not None else None

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by what is wrong with the pod or its gang."""
        return self._problem(pod)

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> str | None:
        """Refuse a pod if its annotations, or its gang's, cannot be read."""
        return self._problem(pod)

    @hookimpl
    def placement_generate(
        self, unit: Unit, nodes: NodeView, state: CycleState
    ) -> Placements | None:
        """Refuse a gang if its minResources are not free in the cluster."""
        if unit.gang is None or unit.bound:
            return None
        supposed = state.get(SUPPOSED)
        for resource, need in unit.gang.min_resources:
            column = nodes.free(resource) if supposed is None else supposed.free(resource)
            free = int(np.maximum(column, 0).sum(dtype=np.float64))
            if free < need:
                return Placements(
                    reason=f'gang "{unit.key}" needs {need} {_UNITS.get(resource, "")}{resource} '
                    f"(minResources), {free} are free in the cluster."
                )
        return None

    @hookimpl
    def permit(self, unit: Unit) -> str | None:
        """Refuse a gang that has fewer members than it needs."""
        if unit.gang is None or len(unit.pods) >= unit.min_placed:
            return None
        have = len(unit.pods) + len(unit.bound)
        return f'gang "{unit.key}" has {have} of the {unit.gang.min_member} members it needs'

    @hookimpl
    def group_status(self, members: GangMembers, why: str) -> list[Write]:
        """Tell pod groups of all systems what became of them."""
        return list(self._statuses.of(members, why))

    @hookimpl
    def overdue(self) -> Overdue | None:
        """Evict nobody: tell the groups that run and lack members, which takes some seconds."""
        for key in self._statuses.lacking:
            for write in self._statuses.of(self.handle.gang(key), ""):
                self.handle.submit(write)
        again = self._statuses.next_lack
        return Overdue(again=again) if again is not None else None

    @hookimpl
    def post_evict(self, pod: PodInfo, eviction: Eviction) -> None:
        """Tell a KAI pod group that one of its members was evicted."""
        for write in self._statuses.of_eviction(pod, eviction):
            self.handle.submit(write)

    def _problem(self, pod: PodInfo) -> str | None:
        if pod.problem is not None:
            return f"Pod {pod.key}: {pod.problem}"
        gang = self.handle.gang(pod.gang).gang if pod.gang is not None else None
        if gang is not None and gang.problem is not None:
            return f"{gang.title}: {gang.problem}"
        return None
