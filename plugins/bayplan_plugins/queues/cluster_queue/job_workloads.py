"""The workloads of suspended jobs: a Workload object each, as Kueue's controllers keep them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from bayplan import Handle, PodInfo
from bayplan.api import (
    ApiObject,
    Job,
    ObjectMeta,
    OwnerReference,
    Pod,
    PriorityClass,
    WorkloadPriorityClass,
)
from bayplan.api.kueue import (
    AdmissionCheckState,
    KueueWorkload,
    KueueWorkloadSpec,
    PodSet,
    ReclaimablePods,
    ResourceFlavor,
)
from bayplan.api.object_key import object_key
from bayplan.api.objects import KINDS, kind_of
from bayplan.api.pod import PodSpec, PodTemplate
from bayplan.dialects.queued_jobs import QUEUED_KINDS, JobPods, QueuedJob, queued_job
from bayplan.snapshot.job_annotations import passed_on
from bayplan_plugins.queues.cluster_queue.conditions import has_quota
from bayplan_plugins.queues.cluster_queue.injection import admitted_spec
from bayplan_plugins.queues.cluster_queue.victims import JOB_UID

__all__ = ["MANAGED_BY", "PRIORITY_LABEL", "QUEUE_LABEL", "JobWorkloads"]

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
MANAGED_BY = ("app.kubernetes.io/managed-by", "bayplan")
"""The label of the Workloads that bayplan makes. Others have controllers of their own."""
_LONGEST_TIME = "kueue.x-k8s.io/max-exec-time-seconds"
_LONGEST_NAME = 247
"""Characters of a Workload's name before the dash and the five of its hash."""
_OWNERS_DEEP = 3
"""A RayJob's RayCluster's pods, a JobSet's Jobs' pods."""


@dataclass
class _Told:
    """What users and the controllers of admission checks wrote into a Workload, to be applied."""

    active: tuple[bool | None] | None = None
    checks: dict[str, AdmissionCheckState] = field(default_factory=dict)


class JobWorkloads:
    """Follows the jobs that name a LocalQueue.

    All keys are those of their Workloads, ``namespace/name``.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.jobs: dict[str, QueuedJob] = {}
        self.changed: dict[str, None] = {}
        """The jobs that changed since they were last looked at; some may be gone."""
        self._key_of: dict[tuple[type, str], str] = {}
        self._of_pod: dict[str, str] = {}
        self._of_owner: dict[str, str] = {}
        """The keys by the uids of jobs and what is between them and their pods, which may outlive
        them."""
        self._virtual: dict[str, tuple[object, list[PodInfo]]] = {}
        self._told: dict[str, _Told] = {}
        self.told = False
        """Whether others have written into a Workload since this was reset."""
        for type_ in QUEUED_KINDS:
            handle.snapshot.on_object(type_, self._job_changed)
        handle.snapshot.on_object(KueueWorkload, self._workload_changed)

    # Following ---------------------------------------------------------------------------

    def _job_changed(self, old: ApiObject | None, new: ApiObject | None) -> None:
        obj = new if new is not None else old
        assert obj is not None, "a change is of something"
        place = type(obj), object_key(obj)
        before = self._key_of.get(place)
        after = _workload_key(obj) if new is not None and self._waits(new) else None
        if before is not None and before != after:
            self.jobs.pop(before, None)
            self._key_of.pop(place)
            self.changed[before] = None
        if after is not None:
            self._key_of[place] = after
            self._of_owner[obj.metadata.uid] = after
            self.jobs[after] = queued_job(obj)
            self.changed[after] = None

    def _waits(self, obj: ApiObject) -> bool:
        """Tell whether a job waits for a queue itself, and no job that it is a part of does."""
        if QUEUE_LABEL not in obj.metadata.labels:
            return False
        return self._owner_key(obj.metadata) is None

    def _workload_changed(self, old: KueueWorkload | None, new: KueueWorkload | None) -> None:
        if new is None or old is None:
            one = new if new is not None else old
            if one is not None and one.key in self.jobs:
                self.changed[one.key] = None
            return
        self.changed[new.key] = None
        told = self._told.setdefault(new.key, _Told())
        if old.spec.active is not new.spec.active:
            self.told, told.active = True, (new.spec.active,)
        before = {one.name: one for one in old.status.admission_checks}
        for check in new.status.admission_checks:
            if before.get(check.name) != check:
                self.told, told.checks[check.name] = True, check

    def all_changed(self) -> None:
        """Have every workload compared with its job again."""
        self.changed |= dict.fromkeys(self.jobs)

    # Pods --------------------------------------------------------------------------------

    def key_of(self, pod: PodInfo) -> str | None:
        """Return the key of the workload of the job that a pod belongs to; None without one."""
        known = self._of_pod.get(pod.key)
        if known is not None or not self._of_owner:
            return known
        return self._owner_key(pod.pod.metadata)

    def forget(self, key: str) -> None:
        """Forget a job that is gone with all its pods."""
        self._of_owner = {uid: one for uid, one in self._of_owner.items() if one != key}

    def lives(self, pod: PodInfo, added: bool) -> None:
        """Note a pod that has become known, or has ended."""
        if not added:
            self._of_pod.pop(pod.key, None)
        elif (key := self.key_of(pod)) is not None:
            self._of_pod[pod.key] = key

    def _owner_key(self, metadata: ObjectMeta) -> str | None:
        uids: list[str] = []
        for _ in range(_OWNERS_DEEP):
            owner = next((one for one in metadata.owner_references if one.controller), None)
            if owner is None:
                return None
            uids.append(owner.uid)
            known = self._of_owner.get(owner.uid)
            if known is not None:
                self._of_owner |= dict.fromkeys(uids, known)
                return known
            group = owner.api_version.rpartition("/")[0]
            kind = KINDS.get((group, owner.kind))
            if kind is None or kind.type not in QUEUED_KINDS:
                return None
            key = f"{metadata.namespace}/{owner.name}"
            found = self._handle.snapshot.objects(kind.type).get(key)
            if found is None or found.metadata.uid != owner.uid:
                return None
            metadata = found.metadata
        return None

    def pod_set_of(self, pod: PodInfo, key: str) -> str:
        """Return the name of the pod set that a job's pod belongs to; "" if it tells of none."""
        job = self.jobs.get(key)
        for pods in job.pods if job is not None else ():
            if pods.labels.items() <= pod.labels.items():
                return pods.name
        return ""

    def to_come(
        self, key: str, counts: Mapping[str, int], flavors: Mapping[str, Sequence[ResourceFlavor]]
    ) -> list[PodInfo]:
        """Return the pods that a job has once it runs, as far as its templates tell.

        :param counts: the number of pods of each pod set.
        :param flavors: the flavors of each pod set, which say where its pods may run.
        """
        job = self.jobs[key]
        shape = (job.pods, tuple(counts.items()), tuple((n, *f) for n, f in flavors.items()))
        known = self._virtual.get(key)
        if known is not None and known[0] == shape:
            return known[1]
        made = []
        for pods in job.pods:
            spec = admitted_spec(pods.template.spec, flavors.get(pods.name, ()))
            spec = msgspec.structs.replace(spec, priority=self._pod_priority(pods.template))
            for index in range(counts.get(pods.name, 0)):
                made.append(self._pod(job, key, pods, spec, index))
        self._virtual[key] = (shape, made)
        return made

    def _pod(self, job: QueuedJob, key: str, pods: JobPods, spec: PodSpec, index: int) -> PodInfo:
        meta, template = job.obj.metadata, pods.template.metadata
        # Kubernetes gives no pod a name with a colon.
        name = f"{meta.name}:{pods.name}:{index}"
        labels = {**template.labels, **pods.labels}
        made = ObjectMeta(
            name=name, namespace=meta.namespace, labels=labels, annotations=template.annotations
        )
        inherits = job.obj if isinstance(job.obj, Job) else None
        info = PodInfo(Pod(made, spec), passed_on(inherits))
        self._of_pod[info.key] = key
        return info

    def _pod_priority(self, template: PodTemplate) -> int:
        """Return the priority that the API server will give pods of a template."""
        if template.spec.priority is not None:
            return template.spec.priority
        classes = self._handle.snapshot.objects(PriorityClass)
        name = template.spec.priority_class_name
        if name:
            return classes[name].value if name in classes else 0
        return next((one.value for one in classes.values() if one.global_default), 0)

    # Workloads ---------------------------------------------------------------------------

    def workload_of(self, key: str, known: KueueWorkload | None) -> KueueWorkload:
        """Return the Workload that a job needs now.

        :param known: the one that it has: what has quota keeps its pod sets.
        """
        job = self.jobs[key]
        seen = self._handle.snapshot.objects(KueueWorkload).get(key)
        if known is None and seen is not None:
            # This process has just started, and the Workload is of its predecessor.
            known = seen
        if known is None:
            return _made(job, key, self._spec(job))
        known = _with_told(known, self._told.pop(key, _Told()))
        if seen is not None:
            known = msgspec.structs.replace(known, metadata=seen.metadata)
        if not has_quota(known):
            spec = msgspec.structs.replace(
                self._spec(job),
                active=known.spec.active,
                preemption_gates=known.spec.preemption_gates,
            )
            known = msgspec.structs.replace(known, spec=spec)
        spare = tuple(
            ReclaimablePods(name, count) for name, count in sorted(job.state.spare.items())
        )
        status = msgspec.structs.replace(known.status, reclaimable_pods=spare)
        return msgspec.structs.replace(known, status=status)

    def _spec(self, job: QueuedJob) -> KueueWorkloadSpec:
        meta = job.obj.metadata
        longest = meta.labels.get(_LONGEST_TIME, "")
        return KueueWorkloadSpec(
            tuple(PodSet(one.name, one.template, one.count, one.least) for one in job.pods),
            meta.labels[QUEUE_LABEL],
            priority=self._priority(job),
            maximum_execution_time_seconds=int(longest) if longest.isdecimal() else None,
        )

    def _priority(self, job: QueuedJob) -> int:
        """Return the value of the WorkloadPriorityClass, or else the pods' highest priority."""
        name = job.obj.metadata.labels.get(PRIORITY_LABEL, "")
        chosen = self._handle.snapshot.objects(WorkloadPriorityClass).get(name)
        if chosen is not None:
            return chosen.value
        return max((self._pod_priority(one.template) for one in job.pods), default=0)


def _made(job: QueuedJob, key: str, spec: KueueWorkloadSpec) -> KueueWorkload:
    meta = job.obj.metadata
    kind = kind_of(job.obj)
    version = f"{kind.group}/{kind.versions[0]}"
    owner = OwnerReference(kind.name, meta.name, meta.uid, version, controller=True)
    made = ObjectMeta(
        name=key.partition("/")[2],
        namespace=meta.namespace,
        uid=key,
        labels={JOB_UID: meta.uid, **dict([MANAGED_BY])},
        owner_references=(owner,),
        creation_timestamp=meta.creation_timestamp,
    )
    return KueueWorkload(made, spec)


def _with_told(known: KueueWorkload, told: _Told) -> KueueWorkload:
    if told.active is not None:
        spec = msgspec.structs.replace(known.spec, active=told.active[0])
        known = msgspec.structs.replace(known, spec=spec)
    if told.checks:
        checks = {one.name: one for one in known.status.admission_checks} | told.checks
        status = msgspec.structs.replace(known.status, admission_checks=tuple(checks.values()))
        known = msgspec.structs.replace(known, status=status)
    return known


def _workload_key(obj: ApiObject) -> str:
    """Return the key of a job's Workload, with the name that Kueue gives it.

    It is that of Kueue's jobframework: the kind, the job's name, and five digits of a SHA-1 hash.
    """
    meta, kind = obj.metadata, kind_of(obj)
    parts = (kind.name, kind.group, meta.name, meta.uid)
    digits = hashlib.sha1("\n".join(parts).encode(), usedforsecurity=False).hexdigest()[:5]
    prefix = f"{kind.name.lower()}-{meta.name}"[:_LONGEST_NAME]
    return f"{meta.namespace}/{prefix}-{digits}"
