"""What the workload of pods that are no job's says: a pod's, a group's, or a part's."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import msgspec

from bayplan import Handle, PodInfo
from bayplan.api import ObjectMeta, OwnerReference, Pod
from bayplan.api.kueue import KueueWorkload, KueueWorkloadSpec, PodSet, PriorityClassRef
from bayplan.dialects.kueue import GROUP_MARK, JOB_UID
from bayplan.dialects.progress import MIN_RUNTIME, min_runtime
from bayplan.dialects.queued_jobs import QUEUE_LABEL
from bayplan.dialects.queued_parts import QueuedParts
from bayplan_plugins.queues.kueue import pod_groups
from bayplan_plugins.queues.kueue.job_slices import MANAGED_BY
from bayplan_plugins.queues.kueue.job_workloads import longest_time, provisioning_parameters
from bayplan_plugins.queues.kueue.managed_jobs import ManagedJobs
from bayplan_plugins.queues.kueue.part_workloads import PartWorkloads
from bayplan_plugins.queues.kueue.priority_classes import class_of

__all__ = ["Made", "WorkloadMaker"]

_encode = msgspec.json.Encoder(enc_hook=lambda quantity: quantity.text).encode


class Made(msgspec.Struct, frozen=True):
    """A workload, with the pod set of each of its pods."""

    workload: KueueWorkload
    set_of: Mapping[str, str]


class WorkloadMaker:
    """Makes the workloads of pods by what these say."""

    def __init__(self, handle: Handle, managed: ManagedJobs, parts: PartWorkloads) -> None:
        self._handle = handle
        self._managed = managed
        self._parts = parts

    def make(
        self,
        key: str,
        members: Sequence[PodInfo],
        ended: Mapping[str, Pod],
        owners: Sequence[OwnerReference],
    ) -> Made:
        """Return the workload of some pods.

        :param key: that of the workload.
        :param members: those that run, or may run; at least one.
        :param ended: those that have ended, by uid.
        :param owners: what the workload goes with, unless the pods are of a part.
        :raises ValueError: for pods that Kueue makes no Workload of.
        """
        first = members[0]
        sets, set_of = _pod_sets(members, ended.values())
        stamps = [pod.pod.metadata.creation_timestamp for pod in members]
        created = min((one for one in stamps if one), default=None)
        part = self._parts.object_of(key)
        if part is not None:
            return self._made_of_part(key, part, members, created)
        namespace, _, name = key.partition("/")
        own = self._managed.copied(*(one.labels for one in members))
        labels = {**own, **dict([MANAGED_BY])}
        marks = provisioning_parameters(first.annotations)
        if first.gang is None:
            labels[JOB_UID] = first.uid
        elif pod_groups.is_group_of(first):
            marks |= dict([GROUP_MARK])
        meta = ObjectMeta(
            name=name,
            namespace=namespace,
            uid=key,
            labels=labels,
            annotations=marks,
            owner_references=tuple(owners),
            creation_timestamp=created,
        )
        ref, priority = self._priority(members, first.pod.metadata)
        spec = KueueWorkloadSpec(
            sets,
            self._managed.queue_of_pod(first),
            ref,
            priority,
            maximum_execution_time_seconds=longest_time(first.pod.metadata),
        )
        return Made(KueueWorkload(meta, spec), set_of)

    def _made_of_part(
        self, key: str, part: QueuedParts, members: Sequence[PodInfo], created: str | None
    ) -> Made:
        """Return the workload of a part, whichever of its pods exist."""
        owner = part.obj.metadata
        ref, priority = self._priority(members, owner)
        sets = self._parts.pod_sets_of(key)
        spec = KueueWorkloadSpec(
            tuple(_with_minimum(one, members) for one in sets),
            owner.labels.get(QUEUE_LABEL) or self._managed.queue_of_pod(members[0]),
            ref,
            priority,
            maximum_execution_time_seconds=longest_time(owner),
        )
        set_of = {one.key: self._parts.pod_set_of(key, one.pod) for one in members}
        return Made(KueueWorkload(self._parts.metadata_of(key, created), spec), set_of)

    def _priority(
        self, members: Sequence[PodInfo], metadata: ObjectMeta
    ) -> tuple[PriorityClassRef | None, int]:
        """Return the class of pods, if any, and its value, or else their highest priority.

        :param metadata: may name a class of workloads.
        """
        highest = max(members, key=lambda one: one.priority)
        name = highest.pod.spec.priority_class_name
        chosen = class_of(self._handle.snapshot, metadata, name)
        if chosen is not None and chosen[0].kind == "WorkloadPriorityClass":
            return chosen
        # Their priority is that of the class when they were created.
        return chosen[0] if chosen is not None and name else None, highest.priority


def _pod_sets(
    members: Sequence[PodInfo], ended: Iterable[Pod]
) -> tuple[tuple[PodSet, ...], dict[str, str]]:
    """Return the pod sets of pods, and the name of that of each pod by its key.

    :raises ValueError: for pods that Kueue makes no Workload of.
    """
    ordered = sorted(members, key=lambda one: (one.rank or 0, one.key))
    if pod_groups.is_group_of(members[0]):
        pods = [one.pod for one in ordered]
        pods += (one for one in ended if one.status.phase != "Failed")
        beyond = {one.metadata.name for one in pod_groups.excess_of(pods)}
        pods = [one for one in pods if one.metadata.name not in beyond]
        if problem := pod_groups.refusal_of(pods):
            raise ValueError(problem)
        sets = pod_groups.pod_sets_of(pods)
        set_of = {one.key: pod_groups.role_of(one.pod) for one in members}
        return tuple(_with_minimum(one, members) for one in sets), set_of
    alike: dict[object, list[PodInfo]] = {}
    for pod in ordered:
        alike.setdefault(_shape_of(pod), []).append(pod)
    found: list[PodSet] = []
    names: dict[str, str] = {}
    for index, some in enumerate(alike.values()):
        name = f"main-{index}" if index else "main"
        found.append(_with_minimum(pod_groups.pod_set_of(some[0].pod, name, len(some)), some))
        names |= {pod.key: name for pod in some}
    return tuple(found), names


def _with_minimum(pod_set: PodSet, pods: Sequence[PodInfo]) -> PodSet:
    """Return a pod set with the longest minimum runtime that any of its pods states."""
    most = max(min_runtime(pod.annotations) for pod in pods)
    if not most:
        return pod_set
    meta = ObjectMeta(annotations={MIN_RUNTIME: f"{most:g}"})
    template = msgspec.structs.replace(pod_set.template, metadata=meta)
    return msgspec.structs.replace(pod_set, template=template)


def _shape_of(pod: PodInfo) -> Hashable:
    """Return what the pods of one pod set of a gang of another system have in common."""
    spec = pod.spec
    where = _encode((spec.node_selector, spec.affinity, spec.tolerations))
    return tuple(sorted(pod.requests.items())), where
