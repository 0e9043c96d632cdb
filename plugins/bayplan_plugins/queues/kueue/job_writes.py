"""What is written of jobs, pods and groups of pods: their Workloads, and whether jobs may run.

A job runs only once the API server has its admission, so that a restart in between finds out what
it was admitted with. A job that is suspended again gets its templates back, and only then its
quota is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from bayplan import Handle, PodInfo
from bayplan.api.kueue import KueueWorkload, KueueWorkloadStatus
from bayplan.api.object_key import object_key
from bayplan.api.operated import TrainJob
from bayplan.cluster.protocol import (
    CreateObject,
    Event,
    Evict,
    PatchFields,
    PatchStatus,
    TemplateSource,
    pointer,
)
from bayplan.dialects.kueue import DEFAULT_QUEUE
from bayplan.dialects.queued_jobs import QUEUE_LABEL, QueuedJob
from bayplan.queues.workload_owners import is_lone
from bayplan_plugins.queues.kueue.admission import WorkloadEvent
from bayplan_plugins.queues.kueue.conditions import has_quota, is_true
from bayplan_plugins.queues.kueue.counts import AdmissionCounts
from bayplan_plugins.queues.kueue.gates import mark
from bayplan_plugins.queues.kueue.injection import admitted_fields, restored_fields
from bayplan_plugins.queues.kueue.job_slices import MANAGED_BY
from bayplan_plugins.queues.kueue.job_workloads import JobWorkloads
from bayplan_plugins.queues.kueue.pod_set_info import ConflictError, PodSetInfo
from bayplan_plugins.queues.kueue.pod_workloads import PodWorkloads, pod_set_pointer
from bayplan_plugins.queues.kueue.prebuilt import adopting
from bayplan_plugins.queues.kueue.slices import replaced_key
from bayplan_plugins.queues.kueue.store import Store
from bayplan_plugins.queues.kueue.written import Written

__all__ = ["JobWrites", "taking_over"]

_OWNERS = "/metadata/ownerReferences"


class JobWrites:
    """Writes what follows from admission; nothing twice for one version of an object."""

    def __init__(
        self,
        handle: Handle,
        jobs: JobWorkloads,
        pods: PodWorkloads,
        written: Written,
        counts: AdmissionCounts,
    ) -> None:
        self._handle = handle
        self._counts = counts
        self._jobs = jobs
        self._pods = pods
        self._written = written
        self._events: dict[str, dict[str, WorkloadEvent]] = {}
        """What is to be reported, by Workload and reason."""
        self._refused: set[str] = set()
        """The homes of the jobs that were refused when it was last looked."""

    def write(self, store: Store, keys: Iterable[str]) -> None:
        """Write what the workloads with these keys, and their jobs, do not say yet."""
        for key in keys:
            job, workload = self._jobs.job_of(key), store.workloads.get(key)
            if job is None and workload is not None and self._pods.owns(key):
                self._write_of_pods(key, workload)
                continue
            if job is None and workload is not None and is_lone(workload):
                self._write_lone(key, workload)
                continue
            if job is None or workload is None:
                self._written.forget(key)
                self._events.pop(key, None)
                continue
            seen = self._handle.snapshot.objects(KueueWorkload).get(key)
            is_current = key == self._jobs.current(self._jobs.home_of(key))
            if seen is None and not is_current and is_true(workload, "Finished"):
                continue
            if seen is None:
                made = CreateObject(_as_new(workload), templates=_sources(job, workload))
                if self._written.once(key, "create", job.obj.metadata.uid, made):
                    self._counts.created(job)
                continue
            self._record(key)
            self._write_workload(key, workload, seen, _sources(job, workload))
            if is_current:
                self._write_job(key, job, workload, seen, store)

    def _write_of_pods(self, key: str, workload: KueueWorkload) -> None:
        """Write the Workload of a pod, or of a group, that does not say what it has to yet."""
        seen = self._handle.snapshot.objects(KueueWorkload).get(key)
        owners, sources = self._pods.owners_of(key), self._pods.sources_of(workload)
        if seen is None:
            if not is_true(workload, "Finished"):
                made = CreateObject(_as_new(workload), templates=sources)
                self._written.once(key, "create", tuple(owners), made)
            return
        self._record(key)
        self._write_workload(key, workload, seen, sources)
        uids = {one.uid for one in seen.metadata.owner_references}
        if not uids.issuperset(one.uid for one in owners):
            # It goes with the last of them.
            others = [one for one in seen.metadata.owner_references if one.kind != "Pod"]
            references = msgspec.to_builtins([*others, *owners])
            write = PatchFields(KueueWorkload, key, seen.metadata.uid, {_OWNERS: references})
            self._written.once(key, "owners", tuple(owners), write)

    def _write_lone(self, key: str, workload: KueueWorkload) -> None:
        """Write what a Workload does not say yet that no job, pod or group has."""
        seen = self._handle.snapshot.objects(KueueWorkload).get(key)
        if seen is not None:
            self._record(key)
            self._write_workload(key, workload, seen, {})

    def delete_excess(self, workload: KueueWorkload) -> None:
        """Delete the pods that a group has beyond its number: nobody will admit them."""
        for pod in self._pods.excess(workload):
            uid = pod.metadata.uid
            why = "Excess pod deleted"
            self._written.once(workload.key, f"excess {uid}", uid, Evict(pod.key, uid, why))
            event = Event(pod.key, "Normal", "ExcessPodDeleted", why)
            self._written.once(workload.key, f"event of excess {uid}", uid, event)

    def stop_refused(self) -> None:
        """Suspend the jobs that cannot be queued as they are: they would run without quota."""
        for home in self._refused - self._jobs.refused.keys():
            self._written.forget(f"refused {home}")
        self._refused = set(self._jobs.refused)
        for home, job in self._jobs.refused.items():
            if job.state.end is not None:
                continue
            event = Event(job.key, "Warning", "NotQueued", job.problem, about=job.kind)
            self._written.once(f"refused {home}", "event", job.problem, event)
            if not job.suspended:
                self._patch(home, job, dict(job.suspend))

    def adopt_prebuilt(self) -> None:
        """Make Workloads that users made those of the jobs that name them."""
        for job, workload in self._jobs.to_adopt():
            key, meta = workload.key, workload.metadata
            write = adopting(job, workload, MANAGED_BY)
            reason = job.obj.metadata.uid, meta.resource_version
            self._written.once(key, "adopt", reason, write)

    def name_default_queues(self, store: Store) -> None:
        """Put what names no queue into the LocalQueue ``default`` of its namespace, if it has one.

        Kueue does so at creation.
        """
        queue = {QUEUE_LABEL: DEFAULT_QUEUE}
        for home in self._jobs.nameless:
            job = self._jobs.jobs[home]
            labels = job.obj.metadata.labels
            if _default_beside(job.key) not in store.local_queues:
                continue
            named: dict[str, Any] = {pointer("metadata", "labels", QUEUE_LABEL): DEFAULT_QUEUE}
            self._patch(home, job, named if labels else {"/metadata/labels": queue})
        for pod in self._pods.nameless():
            if _default_beside(pod.key) in store.local_queues:
                mark(self._written, self._pods.key_of(pod), pod, PodSetInfo(queue))

    def tell(self, events: Iterable[WorkloadEvent]) -> None:
        """Record events once the Workloads that they are about exist."""
        for one in events:
            seen = self._handle.snapshot.objects(KueueWorkload).get(one.workload)
            followed = self._jobs.job_of(one.workload) is not None or self._pods.owns(one.workload)
            if followed or (seen is not None and is_lone(seen)):
                self._events.setdefault(one.workload, {})[one.reason] = one

    def tell_stopped(self, key: str, pods: Iterable[PodInfo], why: str) -> None:
        """Record on the pods of a workload, which nobody suspends, why they are stopped."""
        for pod in pods:
            event = Event(pod.key, "Normal", "Stopped", why)
            self._written.once(key, f"stop of {pod.uid}", why, event)

    def _record(self, key: str) -> None:
        """Record what there is to tell of a Workload; nothing twice with one text."""
        for reason, one in self._events.pop(key, {}).items():
            event = Event(key, one.type, reason, one.message, about="Workload")
            self._written.once(key, f"event {reason}", one.message, event)

    def has_stopped(self, key: str, workload: KueueWorkload) -> bool:
        """Tell whether a job is suspended, and as it came."""
        job = self._jobs.job_of(key)
        return job is None or (job.suspended and not restored_fields(job, workload))

    def _write_workload(
        self,
        key: str,
        workload: KueueWorkload,
        seen: KueueWorkload,
        sources: Mapping[str, TemplateSource],
    ) -> None:
        uid, fields = seen.metadata.uid, _spec_fields(workload, seen)
        if fields:
            write = PatchFields(KueueWorkload, key, uid, fields, templates=sources)
            # Whoever made it active again is answered again.
            version = seen.metadata.resource_version if "/spec/active" in fields else ""
            self._written.once(key, "spec", (workload.spec, version), write)
        if workload.status != seen.status:
            self._written.once(
                key, "status", workload.status, PatchStatus(KueueWorkload, key, workload.status)
            )

    def _write_job(
        self,
        key: str,
        job: QueuedJob,
        workload: KueueWorkload,
        seen: KueueWorkload,
        store: Store,
    ) -> None:
        if job.state.end is not None:
            return
        runs = is_true(workload, "Admitted") and not is_true(workload, "Evicted")
        if runs and job.suspended:
            if seen.status.admission == workload.status.admission and is_true(seen, "Admitted"):
                self._start(key, job, workload, store)
        elif not runs and not job.suspended:
            if has_quota(workload) and not is_true(workload, "Evicted") and replaced_key(workload):
                # It runs with what the slice had that was replaced; only its new pods wait.
                return
            self._patch(key, job, dict(job.suspend))
        elif not runs and has_quota(workload):
            self._change(key, job, restored_fields(job, workload))

    def _start(self, key: str, job: QueuedJob, workload: KueueWorkload, store: Store) -> None:
        """Let a job run where it was admitted; report it where it contradicts that."""
        if job.problem:
            return
        try:
            fields = admitted_fields(job, workload, store.flavors)
        except ConflictError as exc:
            # It would hold its quota for ever: whoever mends it activates its Workload again.
            event = Event(key, "Warning", "FailedToStart", str(exc), about="Workload")
            self._written.once(key, "event FailedToStart", str(exc), event)
            uid, stop = workload.metadata.uid, {"/spec/active": False}
            write = PatchFields(KueueWorkload, key, uid, stop)
            self._written.once(key, "stop", (workload.metadata.resource_version, str(exc)), write)
            return
        self._change(key, job, fields)

    def _change(self, key: str, job: QueuedJob, fields: dict[str, Any]) -> None:
        """Change a suspended job; its templates are fixed as long as it counts as started."""
        if not fields:
            return
        if job.started:
            removed: dict[str, Any] = dict.fromkeys(job.started)
            self._patch(key, job, removed, "status")
        self._patch(key, job, fields)

    def _patch(
        self, key: str, job: QueuedJob, fields: dict[str, Any], subresource: Any = ""
    ) -> None:
        meta = job.obj.metadata
        where = object_key(job.obj)
        write = PatchFields(type(job.obj), where, meta.uid, fields, subresource)
        self._written.once(key, f"job {subresource}", (meta.resource_version, fields), write)


def _default_beside(key: str) -> str:
    """Return the key of the default LocalQueue in the namespace of an object."""
    return f"{key.partition('/')[0]}/{DEFAULT_QUEUE}"


def _sources(job: QueuedJob, workload: KueueWorkload) -> dict[str, TemplateSource]:
    """Return which templates of a job the pod sets of its Workload are copies of."""
    if isinstance(job.obj, TrainJob):
        # Its templates are its runtime's, as it changes them.
        return {}
    of_set = {one.name: one.pointer for one in job.pods if not one.absent}
    where = type(job.obj), object_key(job.obj)
    return {
        pod_set_pointer(index): TemplateSource(*where, of_set[one.name])
        for index, one in enumerate(workload.spec.pod_sets)
        if one.name in of_set
    }


def _as_new(workload: KueueWorkload) -> KueueWorkload:
    """Return a Workload to be created, which may be one that somebody has deleted."""
    metadata = msgspec.structs.replace(
        workload.metadata, resource_version="", deletion_timestamp=None, finalizers=()
    )
    return msgspec.structs.replace(workload, metadata=metadata, status=KueueWorkloadStatus())


def taking_over(workload: KueueWorkload) -> PatchFields:
    """Return the write that makes a Workload bayplan's."""
    name, value = MANAGED_BY
    fields: dict[str, Any] = {pointer("metadata", "labels", name): value}
    if not workload.metadata.labels:
        fields = {"/metadata/labels": {name: value}}
    return PatchFields(KueueWorkload, workload.key, workload.metadata.uid, fields)


def _spec_fields(workload: KueueWorkload, seen: KueueWorkload) -> dict[str, Any]:
    """Return the fields of a Workload's spec that have changed."""
    new, old = workload.spec, seen.spec
    fields: dict[str, Any] = {}
    if new.pod_sets != old.pod_sets:
        sets = msgspec.to_builtins(new.pod_sets, enc_hook=lambda quantity: quantity.text)
        fields["/spec/podSets"] = sets
    if new.queue_name != old.queue_name:
        fields["/spec/queueName"] = new.queue_name
    if new.priority != old.priority:
        fields["/spec/priority"] = new.priority
    if (ref := new.priority_class_ref) != old.priority_class_ref:
        fields["/spec/priorityClassRef"] = msgspec.to_builtins(ref)
    if new.active is False and old.active is not False:
        fields["/spec/active"] = False
    return fields
