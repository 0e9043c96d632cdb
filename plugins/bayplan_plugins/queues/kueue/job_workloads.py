"""The workloads of suspended jobs: a Workload object each, as Kueue's controllers keep them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from bayplan import Handle, PodInfo
from bayplan.api import (
    ApiObject,
    ObjectMeta,
    PriorityClass,
    RayCluster,
)
from bayplan.api.kueue import (
    AdmissionCheckState,
    KueueWorkload,
    KueueWorkloadSpec,
    PodSet,
    PriorityClassRef,
    ReclaimablePods,
)
from bayplan.api.object_key import object_key
from bayplan.api.objects import KINDS, kind_of
from bayplan.api.operated import ClusterTrainingRuntime, TrainingRuntime, TrainJob
from bayplan.api.pod import PodTemplate
from bayplan.dialects.queued_job_checks import LONGEST_TIME
from bayplan.dialects.queued_jobs import (
    QUEUE_LABEL,
    JobPods,
    QueuedJob,
    queued_job,
    queued_kinds,
    ray_clusters_of,
    sized_by,
)
from bayplan.dialects.train_jobs import runtime_name
from bayplan_plugins.queues.kueue.conditions import is_true
from bayplan_plugins.queues.kueue.homes import Homes
from bayplan_plugins.queues.kueue.job_slices import home_of, updated
from bayplan_plugins.queues.kueue.managed_jobs import ManagedJobs
from bayplan_plugins.queues.kueue.pods_to_come import PodToCome, Wanted, pods_to_come
from bayplan_plugins.queues.kueue.prebuilt import prebuilt_key
from bayplan_plugins.queues.kueue.priority_classes import class_of

__all__ = [
    "PARAMETER",
    "JobWorkloads",
    "is_of_pod",
    "longest_time",
    "provisioning_parameters",
]

PARAMETER = "provreq.kueue.x-k8s.io/"
"""What annotations begin with that are parameters of a ProvisioningRequest."""
_CLUSTER_LABEL = "ray.io/cluster"
_OWNERS_DEEP = 3
"""A RayJob's RayCluster's pods, a JobSet's Jobs' pods."""


class _Reported(msgspec.Struct):
    """What users and the controllers of admission checks wrote into a Workload, to be applied."""

    active: tuple[bool | None] | None = None
    clusters: tuple[tuple[str, ...], str | None] | None = None
    """The clusters that may get the job, and the one that has it."""
    checks: dict[str, AdmissionCheckState] = msgspec.field(default_factory=dict)


class JobWorkloads:
    """Follows the jobs that wait for a LocalQueue.

    A job is known by its home, ``namespace/name`` of its Workload as long as it never grows; each
    of its Workloads has a key of its own.
    """

    def __init__(self, handle: Handle, managed: ManagedJobs, on_first: Callable[[], None]) -> None:
        self._handle = handle
        self._managed = managed
        self._on_first = on_first
        self.jobs: dict[str, QueuedJob] = {}
        self.refused: dict[str, QueuedJob] = {}
        """By home, the jobs that cannot be queued as they are: they may not run either."""
        self.nameless: dict[str, None] = {}
        """The homes of those of ``jobs`` that name no queue."""
        self._left_alone: set[str] = set()
        """The uids of jobs that ran without a queue before anybody asked."""
        self.adopted: list[str] = []
        """The uids of owners of pods that have become known since this was last emptied."""
        self._below: dict[str, dict[tuple[type, str], str]] = {}
        """What objects own, by their uids: the uids by type and key."""
        self.changed: dict[str, None] = {}
        """The jobs that changed since they were last looked at; some may be gone."""
        self._home_at: dict[tuple[type, str], str] = {}
        self._slices: dict[str, dict[str, None]] = {}
        """The keys of the Workloads by the uid of the job that owns them."""
        self._home_of: dict[str, str] = {}
        """The homes by the keys of Workloads."""
        self._uids: dict[str, str] = {}
        """The uids of jobs by home."""
        self._current: dict[str, str] = {}
        """By home, the key of the Workload that says which pods may run."""
        self._of_pod: dict[str, str] = {}
        self._of_owner = Homes()
        """Of jobs and what is between them and their pods, which may outlive them."""
        self._prebuilt: dict[str, tuple[type[ApiObject], str]] = {}
        """By the keys of Workloads that users made, the jobs that name them."""
        self._virtual: dict[str, tuple[object, list[PodToCome]]] = {}
        self._reported: dict[str, _Reported] = {}
        self.any_waited = False
        """Whether any job has been seen that does not run before somebody admits it."""
        self.reported = False
        """Whether others have written into a Workload since this was reset."""
        for type_ in queued_kinds():
            handle.snapshot.on_object(type_, self._job_changed)
        for runtime in (TrainingRuntime, ClusterTrainingRuntime):
            handle.snapshot.on_object(runtime, self._runtime_changed)
        handle.snapshot.on_object(KueueWorkload, self._workload_changed)

    # Following ---------------------------------------------------------------------------

    def _job_changed(self, old: ApiObject | None, new: ApiObject | None) -> None:
        obj = new if new is not None else old
        assert obj is not None, "a change is of something"
        place = type(obj), object_key(obj)
        self._note_owner(place, old, new)
        before = self._home_at.get(place)
        after = home_of(obj) if new is not None and self._waits(new) else None
        if new is None:
            self._left_alone.discard(obj.metadata.uid)
            self._prebuilt = {key: one for key, one in self._prebuilt.items() if one != place}
        if before is not None:
            self.refused.pop(before, None)
        if before is not None and before != after:
            self.jobs.pop(before, None)
            self.nameless.pop(before, None)
            self._home_at.pop(place)
            self.changed[before] = None
        if after is not None:
            self._home_at[place] = after
            self._follow(obj, after)
        if isinstance(obj, RayCluster):
            self._cluster_changed(obj)

    def _waits(self, obj: ApiObject) -> bool:
        named = bool(obj.metadata.labels.get(QUEUE_LABEL))
        return self._managed.waits(obj) and (named or obj.metadata.uid not in self._left_alone)

    def leave(self, home: str) -> None:
        """Leave a job alone that runs, as long as it names no queue."""
        obj = self.jobs[home].obj
        self._left_alone.add(obj.metadata.uid)
        self._job_changed(obj, obj)

    def _follow(self, obj: ApiObject, home: str) -> None:
        known, job = self.jobs.get(home), self._read(obj)
        if not job.pods and known is not None:
            # What it was admitted with can be given back only by what could be read of it.
            job = replace(job, pods=known.pods)
        self.jobs[home] = job
        self.changed[home] = None
        if job.suspended and not self.any_waited:
            self.any_waited = True
            self._on_first()
        if obj.metadata.labels.get(QUEUE_LABEL):
            self.nameless.pop(home, None)
        else:
            self.nameless[home] = None
        self._uids[home] = obj.metadata.uid
        for key in self._slices.setdefault(obj.metadata.uid, {}):
            self._home_of[key] = home
        self._adopt(obj.metadata.uid, home)

    def refuse(self, home: str) -> None:
        """Keep a job from its queue until it changes: it has no quota, and may not run."""
        self.refused[home] = self.jobs.pop(home)
        self.nameless.pop(home, None)

    def _note_owner(
        self, place: tuple[type, str], old: ApiObject | None, new: ApiObject | None
    ) -> None:
        """Note what owns an object, so that it follows a job that is seen later."""
        before, after = _owner_of(old), _owner_of(new)
        if before and before != after and before in self._below:
            self._below[before].pop(place, None)
            if not self._below[before]:
                del self._below[before]
        if new is None and before and old is not None:
            self._of_owner.drop(old.metadata.uid)
        if after and new is not None:
            self._below.setdefault(after, {})[place] = new.metadata.uid
            home = self._of_owner.get(after)
            if home is not None:
                self._adopt(new.metadata.uid, home)

    def _adopt(self, uid: str, home: str) -> None:
        """Note that an object, and what it owns, belongs to a job."""
        if self._of_owner.get(uid) == home:
            return
        self._of_owner.put(uid, home)
        self.adopted.append(uid)
        for child in self._below.get(uid, {}).values():
            self._adopt(child, home)

    def _cluster_changed(self, cluster: RayCluster) -> None:
        """Look again at what made a cluster that changed, because Ray's autoscaler sizes it."""
        home = self._of_owner.get(cluster.metadata.uid) or self._home_of_owner(cluster.metadata)
        job = self.jobs.get(home) if home is not None else None
        if home is not None and job is not None and ray_clusters_of(job.obj) and job.elastic:
            self.jobs[home] = self._read(job.obj)
            self.changed[home] = None

    def _read(self, obj: ApiObject) -> QueuedJob:
        """Return what there is to know of a job: what made Ray clusters is as large as they."""
        job = queued_job(obj, self._find)
        known = self._handle.snapshot.objects(RayCluster)
        named = (known.get(f"{obj.metadata.namespace}/{one}") for one in ray_clusters_of(obj))
        job = sized_by(job, [one for one in named if one is not None])
        key = prebuilt_key(job)
        if not key:
            return job
        self._prebuilt[key] = type(obj), object_key(obj)
        return job if job.problem else replace(job, problem=self._lacks(key, obj.metadata.uid))

    def _lacks(self, key: str, uid: str) -> str:
        """Return why a job cannot have the Workload that it names; "" if it can."""
        found = self._handle.snapshot.objects(KueueWorkload).get(key)
        if found is None or found.metadata.deletion_timestamp is not None:
            return f'waits for the Workload "{key.partition("/")[2]}", which it names'
        owners = (one.uid for one in found.metadata.owner_references if one.controller)
        if next(owners, uid) == uid:
            return ""
        return f'the Workload "{found.metadata.name}", which it names, is that of another job'

    def to_adopt(self) -> Iterator[tuple[QueuedJob, KueueWorkload]]:
        """Yield the jobs that name a Workload that is not theirs yet, with that."""
        workloads = self._handle.snapshot.objects(KueueWorkload)
        for key, place in self._prebuilt.items():
            job, found = self.jobs.get(self._home_at.get(place, "")), workloads.get(key)
            if job is not None and found is not None and not job.problem:
                if not any(one.controller for one in found.metadata.owner_references):
                    yield job, found

    def is_of_next_cluster(self, pod: PodInfo) -> bool:
        """Tell whether a pod is of the cluster that is to serve in the place of another.

        A service that is not elastic has quota for one cluster, also while it is upgraded, as in
        Kueue, and its operator keeps the old one until the next one is ready.
        """
        home = self.home_of_pod(pod)
        job = self.jobs.get(home) if home is not None else None
        if job is None or job.elastic:
            return False
        return pod.labels.get(_CLUSTER_LABEL) in ray_clusters_of(job.obj)[1:]

    def _find(self, type_: type[ApiObject], key: str) -> ApiObject | None:
        return self._handle.snapshot.objects(type_).get(key)

    def _runtime_changed(self, old: ApiObject | None, new: ApiObject | None) -> None:
        """Read the TrainJobs again that name a runtime: their pods are as it says."""
        runtime = new if new is not None else old
        assert runtime is not None, "a change is of something"
        named = kind_of(runtime).name, runtime.metadata.name
        for job in list(self._handle.snapshot.objects(TrainJob).values()):
            if _names(job) == named:
                self._job_changed(job, job)

    def look_again(self, namespaces: set[str]) -> None:
        """Look again which jobs of some namespaces wait for queues."""
        for type_ in queued_kinds():
            for job in list(self._handle.snapshot.objects(type_).values()):
                if job.metadata.namespace in namespaces:
                    self._job_changed(job, job)

    def _workload_changed(self, old: KueueWorkload | None, new: KueueWorkload | None) -> None:
        one = new if new is not None else old
        assert one is not None, "a change is of something"
        owner = next((o.uid for o in one.metadata.owner_references if o.controller), "")
        if new is None:
            self._reported.pop(one.key, None)
        elif owner and not is_of_pod(one):
            self._slices.setdefault(owner, {})[one.key] = None
            home = self._of_owner.get(owner)
            if home is not None:
                self._home_of[one.key] = home
        place = self._prebuilt.get(one.key)
        named = self._handle.snapshot.objects(place[0]).get(place[1]) if place is not None else None
        if named is not None and place in self._home_at:
            self._job_changed(named, named)
        home = self.home_of(one.key)
        if new is None or old is None:
            if home in self.jobs:
                self.changed[home] = None
            return
        self.changed[home] = None
        reported = self._reported.setdefault(new.key, _Reported())
        if old.spec.active is not new.spec.active:
            self.reported, reported.active = True, (new.spec.active,)
        clusters = _clusters(new)
        if clusters != _clusters(old):
            reported.clusters = clusters
        before = {one.name: one for one in old.status.admission_checks}
        for check in new.status.admission_checks:
            if before.get(check.name) != check:
                self.reported, reported.checks[check.name] = True, check

    def all_changed(self) -> None:
        """Have every workload compared with its job again."""
        self.changed |= dict.fromkeys(self.jobs)

    # Slices ------------------------------------------------------------------------------

    def home_of(self, key: str) -> str:
        """Return the home of the job that a Workload is of; the key itself of any other."""
        return self._home_of.get(key, key)

    def job_of(self, key: str) -> QueuedJob | None:
        """Return the job that a Workload is of; None if it is no job's."""
        return self.jobs.get(self.home_of(key))

    def current(self, home: str) -> str:
        """Return the key of the Workload by which the pods of a job run."""
        return self._current.get(home, home)

    def replaced(self, old: str, new: str) -> None:
        """Note that a slice was admitted in place of another one."""
        home = self.home_of(new)
        if self.current(home) == old:
            self._current[home] = new

    def knows(self, home: str) -> bool:
        """Tell whether this is the home of a job, which may be gone while its pods end."""
        return home in self._uids

    def slices_of(self, home: str) -> list[str]:
        """Return the keys of the Workloads of a job, which may be gone."""
        return list(self._slices.get(self._uids.get(home, ""), ()))

    # Pods --------------------------------------------------------------------------------

    def home_of_pod(self, pod: PodInfo) -> str | None:
        """Return the home of the job that a pod belongs to; None without one."""
        known = self._of_pod.get(pod.key)
        if known is not None or not self._of_owner:
            return known
        return self._home_of_owner(pod.pod.metadata)

    def forget(self, home: str) -> None:
        """Forget a job that is gone with all its pods; one that is refused is still there."""
        if home in self.refused:
            return
        for uid in self._of_owner.take(home):
            for key in self._slices.pop(uid, ()):
                self._home_of.pop(key, None)
        self._current.pop(home, None)
        self._uids.pop(home, None)

    def lives(self, pod: PodInfo, added: bool) -> None:
        """Note a pod that has become known, or has ended."""
        if not added:
            self._of_pod.pop(pod.key, None)
        elif (home := self.home_of_pod(pod)) is not None:
            self._of_pod[pod.key] = home

    def _home_of_owner(self, metadata: ObjectMeta) -> str | None:
        uids: list[str] = []
        for _ in range(_OWNERS_DEEP):
            owner = next((one for one in metadata.owner_references if one.controller), None)
            if owner is None:
                return None
            uids.append(owner.uid)
            known = self._of_owner.get(owner.uid)
            if known is not None:
                for uid in uids:
                    self._of_owner.put(uid, known)
                return known
            group = owner.api_version.rpartition("/")[0]
            kind = KINDS.get((group, owner.kind))
            if kind is None or kind.type not in queued_kinds():
                return None
            key = f"{metadata.namespace}/{owner.name}"
            found = self._handle.snapshot.objects(kind.type).get(key)
            if found is None or found.metadata.uid != owner.uid:
                return None
            metadata = found.metadata
        return None

    def pod_set_of(self, pod: PodInfo, home: str) -> str:
        """Return the name of the pod set that a job's pod belongs to; "" if it tells of none."""
        job = self.jobs.get(home)
        for pods in job.pods if job is not None else ():
            if pods.labels.items() <= pod.labels.items():
                return pods.name
        return ""

    def to_come(self, home: str, wanted: Mapping[str, Wanted]) -> list[PodToCome]:
        """Return the pods that a job does not have yet, as far as its templates tell.

        :param wanted: by the names of its pod sets.
        """
        job = self.jobs[home]
        shape = (job.pods, tuple(wanted.items()))
        known = self._virtual.get(home)
        if known is not None and known[0] == shape:
            return known[1]
        made = list(pods_to_come(job, wanted, self._pod_priority))
        self._of_pod |= {one.pod.key: home for one in made}
        self._virtual[home] = (shape, made)
        return made

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

    def workloads_of(
        self, home: str, store: Mapping[str, KueueWorkload], now: float
    ) -> list[KueueWorkload]:
        """Return the Workloads that a job needs now, and those of it that have ended.

        :param store: those that are known, by key: what has quota keeps its pod sets.
        :param now: seconds since 1970.
        """
        job = self.jobs[home]
        uid = job.obj.metadata.uid
        keys = self._slices.setdefault(uid, {})
        known = [one for key in keys if (one := self.known(key, store.get(key))) is not None]
        if not known and prebuilt_key(job):
            # It is about to be the job's.
            return []
        found = updated(job, known, lambda: self._spec(job), now)
        self._current[home] = found.current
        there = {one.key for one in known}
        all_ = [one if one.key in there else self._as_created(one, job) for one in found.all]
        for one in all_:
            keys[one.key] = None
            self._home_of[one.key] = home
        spare = tuple(
            ReclaimablePods(name, count) for name, count in sorted(job.state.spare.items())
        )
        ended = job.state.end is not None
        return [one if _is_over(one, ended) else _with_spare(one, spare) for one in all_]

    def _as_created(self, workload: KueueWorkload, job: QueuedJob) -> KueueWorkload:
        """Return a new Workload with what it keeps of its job's labels and annotations."""
        own, meta = job.obj.metadata, workload.metadata
        labels = {**self._managed.copied(own.labels), **meta.labels}
        marks = {**provisioning_parameters(own.annotations), **meta.annotations}
        metadata = msgspec.structs.replace(meta, labels=labels, annotations=marks)
        return msgspec.structs.replace(workload, metadata=metadata)

    def known(self, key: str, known: KueueWorkload | None) -> KueueWorkload | None:
        """Return a Workload with what others wrote into it."""
        seen = self._handle.snapshot.objects(KueueWorkload).get(key)
        if known is None:
            # This process has just started, and the Workload is of its predecessor.
            return seen
        known = _with_reported(known, self._reported.pop(key, _Reported()))
        return msgspec.structs.replace(known, metadata=seen.metadata) if seen is not None else known

    def _spec(self, job: QueuedJob) -> KueueWorkloadSpec:
        meta = job.obj.metadata
        ref, priority = self._priority(job)
        return KueueWorkloadSpec(
            tuple(
                PodSet(one.name, one.template, one.count, _fewer(one), one.topology)
                for one in job.pods
            ),
            meta.labels.get(QUEUE_LABEL, ""),
            ref,
            priority,
            maximum_execution_time_seconds=longest_time(meta),
        )

    def _priority(self, job: QueuedJob) -> tuple[PriorityClassRef | None, int]:
        """Return the class of a job, if any, and its value, or else the pods' highest priority."""
        chosen = class_of(self._handle.snapshot, job.obj.metadata, job.priority)
        if job.priority or (chosen is not None and chosen[0].kind == "WorkloadPriorityClass"):
            return chosen or (None, 0)
        highest = max((self._pod_priority(one.template) for one in job.pods), default=0)
        return chosen[0] if chosen is not None and chosen[1] == highest else None, highest


def provisioning_parameters(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that ask something of those who make nodes."""
    return {key: value for key, value in annotations.items() if key.startswith(PARAMETER)}


def longest_time(metadata: ObjectMeta) -> int | None:
    """Return for how many seconds a job or a pod may run, None for as long as it takes."""
    text = metadata.labels.get(LONGEST_TIME, "")
    return int(text) if text.isdecimal() else None


def is_of_pod(workload: KueueWorkload) -> bool:
    """Tell whether a Workload is that of a pod without a group."""
    return any(o.controller and o.kind == "Pod" for o in workload.metadata.owner_references)


def _owner_of(obj: ApiObject | None) -> str:
    """Return the uid of what controls an object, "" without one."""
    owners = obj.metadata.owner_references if obj is not None else ()
    return next((one.uid for one in owners if one.controller), "")


def _names(job: TrainJob) -> tuple[str, str] | None:
    """Return kind and name of the runtime of a TrainJob, None if it names none."""
    try:
        return runtime_name({"spec": job.spec})
    except ValueError:
        return None


def _fewer(pods: JobPods) -> int | None:
    """Return with how many pods a job can run, None if it needs all of them."""
    return pods.least if pods.least is not None and pods.least < pods.count else None


def _with_reported(known: KueueWorkload, reported: _Reported) -> KueueWorkload:
    if reported.active is not None:
        spec = msgspec.structs.replace(known.spec, active=reported.active[0])
        known = msgspec.structs.replace(known, spec=spec)
    if reported.clusters is not None:
        nominated, name = reported.clusters
        status = msgspec.structs.replace(
            known.status, nominated_cluster_names=nominated, cluster_name=name
        )
        known = msgspec.structs.replace(known, status=status)
    if reported.checks:
        checks = {one.name: one for one in known.status.admission_checks} | reported.checks
        status = msgspec.structs.replace(known.status, admission_checks=tuple(checks.values()))
        known = msgspec.structs.replace(known, status=status)
    return known


def _clusters(workload: KueueWorkload) -> tuple[tuple[str, ...], str | None]:
    """Return which clusters may get a workload's job, and which has it."""
    return workload.status.nominated_cluster_names, workload.status.cluster_name


def _is_over(workload: KueueWorkload, ended: bool) -> bool:
    """Tell whether a slice was replaced before its job ended."""
    return is_true(workload, "Finished") and not ended


def _with_spare(workload: KueueWorkload, spare: tuple[ReclaimablePods, ...]) -> KueueWorkload:
    status = msgspec.structs.replace(workload.status, reclaimable_pods=spare)
    return msgspec.structs.replace(workload, status=status)
