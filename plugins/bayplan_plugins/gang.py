"""Gang: members wait until enough of them exist, and are refused unless enough are placed.

The unit cycle places all of a gang or nothing; this plugin says when a gang may be tried, and
that a definition which cannot work never is.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from msgspec.structs import replace

from bayplan import (
    Args,
    ClusterEvent,
    NodeView,
    Placements,
    Plugin,
    PodInfo,
    Reads,
    Unit,
    hookimpl,
)
from bayplan.api import Job, Pod, ReplicaSet, StatefulSet
from bayplan.dialects import membership_of

__all__ = ["Gang"]

_UNITS = {"cpu": "milli-"}


class Gang(Plugin[Args]):
    """Admit a gang to the queue when it is complete, and to its nodes when enough have one."""

    reads = Reads.NODE
    requeue_on = (
        ClusterEvent.GANG_CHANGED
        | ClusterEvent.POD_CHANGED
        | ClusterEvent.POD_REMOVED
        | ClusterEvent.NODE_ADDED
        | ClusterEvent.NODE_ALLOCATABLE
    )

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        """Hold members back until their PodGroup and enough members exist."""
        if pod.gang is None:
            return None
        gang = self.handle.gang(pod.gang).gang
        if gang is None:
            return f'waiting for PodGroup "{pod.gang}", which does not exist'
        if gang.problem is not None:
            return f"PodGroup {gang.key}: {gang.problem}"
        for key in gang.together or (pod.gang,):
            refusal = self._incomplete(key, pod)
            if refusal is not None:
                return refusal if key == pod.gang else f"{refusal} (a gang of the same group)"
        return None

    def _incomplete(self, key: str, pod: PodInfo) -> str | None:
        """Say what a gang waits for; ``pod`` is one that is about to join its own."""
        members = self.handle.gang(key)
        gang = members.gang
        if gang is None:
            return f'waiting for PodGroup "{key}", which does not exist'
        own = {pod.key: pod} if pod.gang == key else {}
        pending = {**members.pending, **own}
        for role, least in gang.roles:
            have = sum(other.role == role for other in pending.values())
            have += sum(other.role == role for other, _ in members.bound.values())
            if have < least:
                return f'gang "{key}" is waiting for role "{role}": {have} of {least} exist'
        counted = len(members.bound)
        if gang.match_policy == "only-waiting":
            counted = 0
        elif gang.match_policy == "once-satisfied" and (members.satisfied or gang.satisfied):
            return None
        need, have = gang.min_member, counted + len({*pending} - {*members.bound})
        if have >= need:
            return None
        possible = self._possible(key, list(pending.values())) + counted
        if possible < need:
            return (
                f'gang "{key}" needs {need} members, but its pods and controllers '
                f"make {possible} at most"
            )
        return f'gang "{key}" is waiting for members: {have} of {need} exist'

    def _possible(self, gang: str, pending: list[PodInfo]) -> int:
        """Return how many unplaced members there can be: single pods, and what controllers make."""
        singles = {
            pod.key
            for pod in pending
            if not any(owner.controller for owner in pod.pod.metadata.owner_references)
        }
        total = len(singles)
        snapshot = self.handle.snapshot
        for job in snapshot.objects(Job).values():
            if gang == _template_gang(job):
                total += min(job.spec.parallelism, job.spec.completions or job.spec.parallelism)
        sets: tuple[ReplicaSet | StatefulSet, ...] = (
            *snapshot.objects(ReplicaSet).values(),
            *snapshot.objects(StatefulSet).values(),
        )
        for owner in sets:
            if gang == _template_gang(owner):
                total += owner.spec.replicas
        owned = len({pod.key for pod in pending}) - len(singles)
        return max(total, len(singles) + owned)

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Only what is wrong with the pod or its gang matters."""
        return self._problem(pod)

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> str | None:
        """Refuse a pod whose annotations, or whose gang's, cannot be read."""
        return self._problem(pod)

    @hookimpl
    def placement_generate(self, unit: Unit, nodes: NodeView) -> Placements | None:
        """Refuse a gang whose minResources are not free in the cluster."""
        if unit.gang is None or unit.bound:
            return None
        for resource, need in unit.gang.min_resources:
            free = int(np.maximum(nodes.free(resource), 0).sum())
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

    def _problem(self, pod: PodInfo) -> str | None:
        if pod.problem is not None:
            return f"Pod {pod.key}: {pod.problem}"
        gang = self.handle.gang(pod.gang).gang if pod.gang is not None else None
        if gang is not None and gang.problem is not None:
            return f"PodGroup {gang.key}: {gang.problem}"
        return None


def _template_gang(owner: Job | ReplicaSet | StatefulSet) -> str | None:
    """Return the gang of the pods that a controller makes."""
    template = owner.spec.template
    meta = replace(template.metadata, namespace=owner.metadata.namespace)
    return membership_of(Pod(meta, template.spec)).gang
