"""The pods that a job will have once it runs, and the gangs that its Jobs will make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from bayplan import PodInfo
from bayplan.api import Job, ObjectMeta, OwnerReference, Pod
from bayplan.api.gang import Gang
from bayplan.api.kueue import ResourceFlavor
from bayplan.api.pod import PodSpec, PodTemplate
from bayplan.dialects import gang_of
from bayplan.dialects.queued_jobs import JobPods, QueuedJob, pods_at_once
from bayplan.snapshot.job_annotations import passed_on
from bayplan_plugins.queues.kueue.injection import admitted_spec

__all__ = ["JOB_LABEL", "PodToCome", "Wanted", "pods_to_come"]

JOB_LABEL = "batch.kubernetes.io/job-name"
"""Of the pods of a Job: its name."""


class PodToCome(msgspec.Struct, frozen=True):
    """A pod that does not exist yet, and its pod set.

    ``gang`` is what its Job will be, None where it is no gang.
    """

    pod: PodInfo
    pod_set: str
    gang: Gang | None = None


class Wanted(msgspec.Struct, frozen=True):
    """What a job wants of one pod set: so many pods in all, of which so many are to come.

    ``present`` is how many there are by the name of their Job, "" without one. ``flavors`` say
    where the pods may run.
    """

    count: int
    to_come: int
    present: tuple[tuple[str, int], ...] = ()
    flavors: tuple[ResourceFlavor, ...] = ()


def pods_to_come(
    job: QueuedJob, wanted: Mapping[str, Wanted], priority: Callable[[PodTemplate], int]
) -> Iterator[PodToCome]:
    """Yield the pods that a job does not have yet.

    :param wanted: by the names of pod sets.
    :param priority: of the pods of a template.
    """
    for pods in job.pods:
        want = wanted.get(pods.name, Wanted(0, 0))
        spec = admitted_spec(pods.template.spec, want.flavors)
        spec = msgspec.structs.replace(spec, priority=priority(pods.template))
        for owner, numbers in _owners(job, pods.name, want):
            gang = gang_of(owner) if owner is not None else None
            for number in numbers:
                pod = _pod(job, pods, spec, number, owner)
                is_own = gang is not None and gang.key == pod.gang
                yield PodToCome(pod, pods.name, gang if is_own else None)


def _owners(job: QueuedJob, name: str, want: Wanted) -> Iterator[tuple[Job | None, Sequence[int]]]:
    """Yield the Jobs that make pods of a pod set, with the numbers of these pods in the set."""
    there, left, number = dict(want.present), want.to_come, 0
    while left > 0:
        owner = job.job_of_pod(name, number)
        if owner is None or owner is job.obj:
            yield _sized(owner, want.count) if owner is not None else None, range(left)
            return
        each = pods_at_once(owner.spec)
        lacks = min(left, each - there.get(owner.metadata.name, 0))
        if lacks > 0:
            yield owner, range(number, number + lacks)
            left -= lacks
        number += each


def _sized(job: Job, count: int) -> Job:
    """Return a Job as it runs with so many pods at once."""
    if count >= job.spec.parallelism:
        return job
    spec = msgspec.structs.replace(job.spec, parallelism=count)
    return msgspec.structs.replace(job, spec=spec)


def _pod(job: QueuedJob, pods: JobPods, spec: PodSpec, number: int, owner: Job | None) -> PodInfo:
    meta, template = job.obj.metadata, pods.template.metadata
    labels = {**template.labels, **pods.labels}
    owners: tuple[OwnerReference, ...] = ()
    if owner is not None:
        labels[JOB_LABEL] = owner.metadata.name
        uid = owner.metadata.uid
        owners = (OwnerReference("Job", owner.metadata.name, uid, "batch/v1", controller=True),)
    made = ObjectMeta(
        # Kubernetes gives no pod a name with a colon.
        name=f"{meta.name}:{pods.name}:{number}",
        namespace=meta.namespace,
        labels=labels,
        annotations=template.annotations,
        owner_references=owners,
    )
    return PodInfo(Pod(made, spec), passed_on(owner))
