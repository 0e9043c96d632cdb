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
from bayplan.api.gang import Gang as GangDefinition
from bayplan.gangs.completeness import (
    has_enough_groups,
    missing_role,
    needs_no_minimum,
    still_needed,
)
from bayplan.gangs.directory import GangMembers
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

    def __init__(self, args: Args, handle: Handle) -> None:
        super().__init__(args, handle)
        self._statuses = GroupStatuses(handle)

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
        if gang.tree:
            return self._lacks_groups(gang)
        for key in gang.together or (pod.gang,):
            refusal = self._incomplete(key)
            if refusal is not None:
                return refusal if key == pod.gang else f"{refusal} (a gang of the same group)"
        return None

    def _lacks_groups(self, gang: GangDefinition) -> str | None:
        """Return what a gang of a tree of gangs waits for: its own members, or other gangs."""
        own = self._incomplete(gang.key)
        if own is not None:
            return own
        refusals = {key: self._incomplete(key) for key in gang.together}
        complete = [key for key, refusal in refusals.items() if refusal is None]
        if has_enough_groups(gang.tree, complete):
            return None
        first = next(refusal for refusal in refusals.values() if refusal is not None)
        return f"{first} (a group of the same tree)"

    def _incomplete(self, key: str) -> str | None:
        """Return what a gang waits for, None for nothing."""
        members = self.handle.gang(key)
        gang = members.gang
        if gang is None:
            return f'waiting for PodGroup "{key}", which does not exist'
        if needs_no_minimum(gang, members.satisfied):
            return None
        bound = len(members.bound) if members.satisfied else members.staying
        counted = gang.min_member - still_needed(gang, bound, members.satisfied)
        need, have = gang.min_member, counted + len(members.pending)
        if have >= need:
            return _missing_role(gang, members)
        overdue = ""
        if members.overdue:
            overdue = f", for longer than the {members.timeout:g} s that it allows"
        possible = self._possible(members)
        if possible < need:
            return (
                f'gang "{key}" needs {need} members, but its pods and controllers '
                f"make {possible} at most{overdue}"
            )
        return f'gang "{key}" is waiting for members: {have} of {need} exist{overdue}'

    def _possible(self, members: GangMembers) -> int:
        """Return the most members that single pods and controllers can make."""
        return sum(
            count if not kind else max(count, self._size_of(kind, key))
            for (kind, key), count in members.owners.items()
        )

    def _size_of(self, kind: str, key: str) -> int:
        objects = self.handle.snapshot.objects
        job = objects(Job).get(key) if kind == "Job" else None
        if job is not None:
            return min(job.spec.parallelism, job.spec.completions or job.spec.parallelism)
        volcano = objects(VolcanoJob).get(key) if kind == "Job" else None
        if volcano is not None:
            return sum(task.replicas for task in volcano.spec.tasks)
        replicas = objects(ReplicaSet).get(key) if kind == "ReplicaSet" else None
        stateful = objects(StatefulSet).get(key) if kind == "StatefulSet" else None
        owner = replicas or stateful
        return owner.spec.replicas if owner is not None else 0

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


def _missing_role(gang: GangDefinition, members: GangMembers) -> str | None:
    existing = [*members.pending.values(), *(pod for pod, _ in members.bound.values())]
    missing = missing_role(gang, existing)
    if missing is None:
        return None
    role, have, least = missing
    return f'gang "{gang.key}" is waiting for role "{role}": {have} of {least} exist'
