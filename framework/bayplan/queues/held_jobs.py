"""Jobs that wait for quota without pods that could be seen to wait: suspended, or not followed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from bayplan.api import (
    KINDS,
    ApiObject,
    ClusterQueue,
    KueueWorkload,
    LocalQueue,
    OwnerReference,
    kind_of,
)
from bayplan.api.object_key import object_key
from bayplan.api.operated import ClusterTrainingRuntime, TrainingRuntime, TrainJob
from bayplan.dialects.queued_jobs import QUEUE_LABEL, is_part, queued_job, queued_kinds
from bayplan.dialects.reading import timestamp
from bayplan.queues.workload_owners import is_lone
from bayplan.queues.workload_waits import QUOTA_RESERVED, true_conditions, waits_since
from bayplan.snapshot import Snapshot

__all__ = ["WORKLOAD", "HeldJob", "HeldJobs"]

WORKLOAD = "Workload"
"""The kind of what waits for quota without a job that bayplan follows."""
_PAST_WAITING = {QUOTA_RESERVED, "Finished"}


class HeldJob(msgspec.Struct, frozen=True):
    """A job without pods: how many it will have, its queue (``SYSTEM/NAME``, "" for none), why.

    One that bayplan does not follow is known by its Workload, whose kind and key it has.
    ``since`` is when it began to wait, in seconds since 1970.
    """

    kind: str
    key: str
    pods: int
    queue: str
    since: float
    why: str

    def __str__(self) -> str:
        """Return ``KIND/NAMESPACE/NAME``, as commands take it."""
        return f"{self.kind.lower()}/{self.key}"


class _Waiting(msgspec.Struct, frozen=True):
    """What is kept of such a job: its templates are large."""

    kind: str
    key: str
    namespace: str
    queue: str
    created: str | None
    pods: int
    problem: str = ""


Key = tuple[str, str]
"""A job's kind, and ``namespace/name``."""


class HeldJobs:
    """The suspended jobs that name a queue, or have a Workload without, and have not ended; and
    the Workloads without quota of what bayplan does not follow.

    A job that its user suspended has neither, and waits for nobody but the user.

    :param changed: called with the key of a job that may wait in another way, or no more.
    """

    def __init__(self, snapshot: Snapshot, changed: Callable[[Key], None] | None = None) -> None:
        self._snapshot = snapshot
        self._changed: Callable[[Key], None] = _nothing
        self._jobs: dict[Key, _Waiting] = {}
        self._workloads: dict[Key, KueueWorkload] = {}
        for workload in snapshot.objects(KueueWorkload).values():
            self._see_workload(None, workload)
        for type_ in queued_kinds():
            for job in snapshot.objects(type_).values():
                self._see_job(None, job)
        if changed is not None:
            self._changed = changed
            snapshot.on_object(KueueWorkload, self._see_workload)
            snapshot.on_object(LocalQueue, self._see_queue)
            snapshot.on_object(ClusterQueue, self._see_cluster_queue)
            for type_ in queued_kinds():
                snapshot.on_object(type_, self._see_job)
            for runtime in (TrainingRuntime, ClusterTrainingRuntime):
                snapshot.on_object(runtime, self._see_runtime)

    def all(self) -> Iterator[HeldJob]:
        """Yield all of them."""
        return (self._held(job) for job in self._jobs.values())

    def get(self, key: Key) -> HeldJob | None:
        """Return one of them, None for a job that is not held."""
        job = self._jobs.get(key)
        return self._held(job) if job is not None else None

    def _see_job(self, old: ApiObject | None, new: ApiObject | None) -> None:
        obj = new or old
        assert obj is not None, "one of them is there"
        key = (kind_of(obj).name, object_key(obj))
        waits = new is not None and (_names_queue(new) or key in self._workloads)
        job = queued_job(new, self._find) if new is not None and waits else None
        if job is not None and job.suspended and job.state.end is None:
            pods = sum(job.counts.values())
            meta, queue = job.obj.metadata, job.obj.metadata.labels.get(QUEUE_LABEL, "")
            created = meta.creation_timestamp
            waiting = _Waiting(job.kind, job.key, meta.namespace, queue, created, pods, job.problem)
            self._jobs[key] = waiting
        elif self._jobs.pop(key, None) is None:
            return
        self._changed(key)

    def _find(self, type_: type[ApiObject], key: str) -> ApiObject | None:
        return self._snapshot.objects(type_).get(key)

    def _see_runtime(self, old: ApiObject | None, new: ApiObject | None) -> None:
        for job in list(self._snapshot.objects(TrainJob).values()):
            self._see_job(None, job)

    def _see_workload(self, old: KueueWorkload | None, new: KueueWorkload | None) -> None:
        one = new or old
        assert one is not None, "one of them is there"
        for owner in one.metadata.owner_references:
            key = (owner.kind, f"{one.metadata.namespace}/{owner.name}")
            known = key in self._workloads
            if new is not None:
                self._workloads[key] = new
            else:
                self._workloads.pop(key, None)
            if known is not (new is not None):
                self._see_again(owner, key)
            self._changed(key)
        self._see_lone(new, (WORKLOAD, one.key))

    def _see_lone(self, new: KueueWorkload | None, key: Key) -> None:
        """Look at a Workload that may be of nothing that is followed."""
        if new is not None and is_lone(new) and not true_conditions(new).keys() & _PAST_WAITING:
            meta, pods = new.metadata, sum(one.count for one in new.spec.pod_sets)
            self._workloads[key] = new
            self._jobs[key] = _Waiting(
                *key, meta.namespace, new.spec.queue_name, meta.creation_timestamp, pods
            )
        elif self._jobs.pop(key, None) is None:
            return
        else:
            self._workloads.pop(key, None)
        self._changed(key)

    def _see_again(self, owner: OwnerReference, key: Key) -> None:
        """Look at a job whose Workload came or went: without a queue it is held by that alone."""
        kind = KINDS.get((owner.api_version.rpartition("/")[0], owner.kind))
        if kind is not None and kind.type in queued_kinds():
            job = self._find(kind.type, key[1])
            if job is not None and not _names_queue(job):
                self._see_job(None, job)

    def _see_cluster_queue(self, old: ClusterQueue | None, new: ClusterQueue | None) -> None:
        if old is None or new is None:
            self._see_queue(None, None)

    def _see_queue(self, old: LocalQueue | None, new: LocalQueue | None) -> None:
        for key in self._jobs:
            self._changed(key)

    def _held(self, job: _Waiting) -> HeldJob:
        name = job.queue
        queue = self._snapshot.objects(LocalQueue).get(f"{job.namespace}/{name}")
        workload = self._workloads.get((job.kind, job.key))
        since = timestamp(job.created) if workload is None else waits_since(workload)
        why = _reported(workload) if workload is not None else "not tried yet"
        if job.problem:
            why = job.problem
        elif not name:
            by = "spec.queueName" if job.kind == WORKLOAD else f"the label {QUEUE_LABEL}"
            why = f"it names no queue by {by}"
        elif queue is None:
            why = f'there is no LocalQueue "{name}" in namespace "{job.namespace}"'
        elif queue.spec.cluster_queue not in self._snapshot.objects(ClusterQueue):
            missing = queue.spec.cluster_queue
            why = f'its LocalQueue "{name}" names a ClusterQueue that is not there: "{missing}"'
        in_queue = "" if queue is None else f"kueue/{queue.spec.cluster_queue}"
        return HeldJob(job.kind, job.key, job.pods, in_queue, since, why)


def _names_queue(obj: ApiObject) -> bool:
    """Tell whether a job itself is queued, not as a part of another one."""
    return bool(obj.metadata.labels.get(QUEUE_LABEL)) and not is_part(obj.metadata)


def _nothing(key: Key) -> None:
    pass


def _reported(workload: KueueWorkload) -> str:
    """Return why a workload has no quota, as its condition says."""
    if workload.spec.active is False:
        return "its Workload is not active"
    reported = (one for one in workload.status.conditions if one.type == QUOTA_RESERVED)
    return next((one.message for one in reported if one.status == "False"), "") or "not tried yet"
