"""Gang: members wait until enough of them exist, and are refused unless enough are placed.

The unit cycle places all of a gang or nothing; this plugin says when a gang may be tried, and
that a definition which cannot work never is.
"""

from __future__ import annotations

from collections.abc import Hashable

from msgspec.structs import replace

from bayplan import Args, ClusterEvent, Plugin, PodInfo, Reads, Unit, hookimpl
from bayplan.api import Job, Pod, ReplicaSet, StatefulSet
from bayplan.dialects import membership_of

__all__ = ["Gang"]


class Gang(Plugin[Args]):
    """Admit a gang to the queue when it is complete, and to its nodes when enough have one."""

    reads = Reads.NODE
    requeue_on = ClusterEvent.GANG_CHANGED | ClusterEvent.POD_CHANGED

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        """Hold members back until their PodGroup and enough members exist."""
        if pod.gang is None:
            return None
        members = self.handle.gang(pod.gang)
        if members.gang is None:
            return f'waiting for PodGroup "{pod.gang}", which does not exist'
        have = len({*members.pending, *members.bound, pod.key})
        need = members.gang.min_member
        if have >= need:
            return None
        possible = self._possible(pod.gang, [*members.pending.values(), pod])
        possible += len(members.bound)
        if possible < need:
            return (
                f'gang "{pod.gang}" needs {need} members, but its pods and controllers '
                f"make {possible} at most"
            )
        return f'gang "{pod.gang}" is waiting for members: {have} of {need} exist'

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
    def permit(self, unit: Unit) -> str | None:
        """Refuse a gang that has fewer members than it needs."""
        if unit.gang is None:
            return None
        have = len(unit.pods) + len(unit.bound)
        if have < unit.gang.min_member:
            return f'gang "{unit.key}" has {have} of the {unit.gang.min_member} members it needs'
        return None

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
