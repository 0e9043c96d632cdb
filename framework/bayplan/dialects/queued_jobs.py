"""Jobs that wait suspended until a queue admits them, whatever kind they are.

A job's pods exist only while it is not suspended. What is needed to admit it before that is in its
pod templates. Each kind has its own fields for it; this is what they have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from bayplan.api import ApiObject, Job, JobSet, PyTorchJob, RayCluster, RayJob
from bayplan.api.kubeflow import RunPolicy
from bayplan.api.objects import kind_of
from bayplan.api.pod import PodTemplate
from bayplan.api.ray import RayClusterSpec, RayClusterStatus
from bayplan.api.workloads import JobSpec

__all__ = [
    "ELASTIC_ANNOTATION",
    "QUEUED_KINDS",
    "QUEUE_LABEL",
    "SCALE_UP_ANNOTATION",
    "JobPods",
    "JobState",
    "QueuedJob",
    "can_be_sliced",
    "pods_at_once",
    "queued_job",
    "sized_by",
]

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
ELASTIC_ANNOTATION = "kueue.x-k8s.io/elastic-job"
"""Of jobs, with the value "true", that may grow and shrink while they run."""
SCALE_UP_ANNOTATION = "kueue.x-k8s.io/elastic-job-scale-up"
"""Of elastic jobs: "partial" if they may grow by fewer pods than they want."""


@dataclass(frozen=True)
class JobPods:
    """The pods of one template.

    :param pointer: the JSON pointer of the template in the job, "" where it is not in it.
    :param labels: labels that its pods have, beyond the template's.
    :param count_pointers: where the number of pods stands, if the job may run with fewer.
    :param least: the number of pods that it can run with.
    :param whole: the number of pods that come together; more of them come in multiples of it.
    """

    name: str
    template: PodTemplate
    count: int
    pointer: str
    labels: Mapping[str, str] = field(default_factory=dict)
    count_pointers: tuple[str, ...] = ()
    least: int | None = None
    whole: int = 1


@dataclass(frozen=True)
class JobState:
    """How far a job is, by its own status.

    :param end: the reason and the message of its end; None before.
    :param succeeded: whether it ended well.
    :param started: the fields of the status to remove so that the templates may change.
    :param ready: the number of pods that are ready, or have succeeded.
    :param spare: for each template, pods that the job needs no more.
    """

    end: tuple[str, str] | None = None
    succeeded: bool = False
    started: tuple[str, ...] = ()
    ready: int = 0
    spare: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class QueuedJob:
    """A job that can be suspended.

    :param pods: one entry for each template.
    :param suspend: the fields that suspend it, by JSON pointer; their values are plain JSON.
    :param resume: the fields that let it run.
    """

    obj: ApiObject
    pods: tuple[JobPods, ...]
    suspended: bool
    suspend: Mapping[str, Any]
    resume: Mapping[str, Any]
    state: JobState

    @property
    def kind(self) -> str:
        """The kind, as manifests name it."""
        return kind_of(self.obj).name

    @property
    def elastic(self) -> bool:
        """Whether its size may change while it runs: a Ray job's, by Ray's autoscaler alone."""
        if isinstance(self.obj, RayJob):
            cluster = self.obj.spec.ray_cluster_spec
            if cluster is None or not cluster.enable_in_tree_autoscaling:
                return False
        return can_be_sliced(type(self.obj)) and _is_elastic(self.obj)

    @property
    def grows_in_parts(self) -> bool:
        """Whether it may grow by fewer pods than it wants, and wait for the others."""
        return self.elastic and self.obj.metadata.annotations.get(SCALE_UP_ANNOTATION) == "partial"

    @property
    def counts(self) -> dict[str, int]:
        """The number of pods of each template, by name."""
        return {one.name: one.count for one in self.pods}

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.obj.metadata.namespace}/{self.obj.metadata.name}"

    def job_of_pod(self, name: str, index: int) -> Job | None:
        """Return the Job that makes a pod of a template; None where no Job makes them.

        :param index: the pod's number among those of the template.
        """
        if isinstance(self.obj, Job):
            return self.obj
        if not isinstance(self.obj, JobSet):
            return None
        group = next(one for one in self.obj.spec.replicated_jobs if one.name == name)
        own, spec = self.obj.metadata, group.template.spec.job_spec
        number = index // max(1, pods_at_once(spec))
        made = msgspec.structs.replace(
            group.template.metadata, name=f"{own.name}-{name}-{number}", namespace=own.namespace
        )
        return Job(made, spec)


_SUSPEND: Mapping[str, Any] = {"/spec/suspend": True}
_RESUME: Mapping[str, Any] = {"/spec/suspend": False}
_LEAST = "kueue.x-k8s.io/job-min-parallelism"


def _is_elastic(obj: ApiObject) -> bool:
    return obj.metadata.annotations.get(ELASTIC_ANNOTATION) == "true"


def can_be_sliced(type_: type[ApiObject]) -> bool:
    """Tell whether jobs of a type may grow while they run; others wait again with another size."""
    return type_ in (Job, RayCluster, RayJob)


def pods_at_once(spec: JobSpec) -> int:
    """Return how many pods of a Job run at the same time at most."""
    return spec.parallelism if spec.completions is None else min(spec.parallelism, spec.completions)


def _batch_job(obj: ApiObject) -> QueuedJob:
    assert isinstance(obj, Job), "read by its type"
    spec, status = obj.spec, obj.status
    wanted = pods_at_once(spec)
    # What was admitted of an elastic job is what it asks for: no fewer pods.
    text = "" if _is_elastic(obj) else obj.metadata.annotations.get(_LEAST, "")
    least = int(text) if text.isdecimal() and 0 < int(text) < wanted else None
    pods = JobPods(
        "main",
        spec.template,
        wanted,
        "/spec/template",
        count_pointers=("/spec/parallelism",) if least is not None else (),
        least=least,
    )
    end = _end(status.conditions, "Complete", "Failed")
    succeeded = status.succeeded or 0
    left = max(0, (spec.completions if spec.completions is not None else wanted) - succeeded)
    state = JobState(
        end=end,
        succeeded=_end(status.conditions, "Complete") is not None,
        started=("/status/startTime",) if status.start_time is not None else (),
        ready=(status.ready or 0) + succeeded,
        spare={"main": wanted - left} if left < wanted else {},
    )
    return QueuedJob(obj, (pods,), spec.suspend, _SUSPEND, _RESUME, state)


def _job_set(obj: ApiObject) -> QueuedJob:
    assert isinstance(obj, JobSet), "read by its type"
    states = {one.name: one for one in obj.status.replicated_jobs_status}
    pods: list[JobPods] = []
    ready, spare = 0, {}
    for index, one in enumerate(obj.spec.replicated_jobs):
        spec = one.template.spec
        each = pods_at_once(spec)
        pods.append(
            JobPods(
                one.name,
                spec.template,
                one.replicas * each,
                f"/spec/replicatedJobs/{index}/template/spec/template",
                {"jobset.sigs.k8s.io/replicatedjob-name": one.name},
            )
        )
        state = states.get(one.name)
        if state is not None:
            ready += (state.ready + state.succeeded) * each
            if state.succeeded:
                spare[one.name] = state.succeeded * each
    end = _end(obj.status.conditions, "Completed", "Failed")
    state_of = JobState(end, obj.status.terminal_state == "Completed", (), ready, spare)
    return QueuedJob(obj, tuple(pods), obj.spec.suspend, _SUSPEND, _RESUME, state_of)


def _pytorch_job(obj: ApiObject) -> QueuedJob:
    assert isinstance(obj, PyTorchJob), "read by its type"
    spec, status = obj.spec, obj.status
    pods = [
        JobPods(
            kind.lower(),
            one.template,
            one.replicas,
            f"/spec/pytorchReplicaSpecs/{kind}/template",
            {"training.kubeflow.org/replica-type": kind.lower()},
        )
        for kind, one in sorted(spec.pytorch_replica_specs.items())
    ]
    counts = status.replica_statuses
    end = _end(status.conditions, "Succeeded", "Failed")
    state = JobState(
        end,
        any(c.type == "Succeeded" and c.status == "True" for c in status.conditions),
        (),
        sum(one.active + one.succeeded for one in counts.values()),
        {kind.lower(): one.succeeded for kind, one in counts.items() if one.succeeded},
    )
    field = "/spec/runPolicy/suspend"
    # A policy that says nothing may not be there at all.
    absent = spec.run_policy == RunPolicy()
    suspend: dict[str, Any] = {"/spec/runPolicy": {"suspend": True}} if absent else {field: True}
    return QueuedJob(obj, tuple(pods), spec.run_policy.suspend, suspend, {field: False}, state)


def _ray_cluster(obj: ApiObject) -> QueuedJob:
    assert isinstance(obj, RayCluster), "read by its type"
    pods = _ray_pods(obj.spec, "/spec")
    state = JobState(ready=_ray_ready(obj.status))
    return QueuedJob(obj, pods, obj.spec.suspend, _SUSPEND, _RESUME, state)


def _ray_job(obj: ApiObject) -> QueuedJob:
    assert isinstance(obj, RayJob), "read by its type"
    spec, status = obj.spec, obj.status
    pods: tuple[JobPods, ...] = ()
    if spec.ray_cluster_spec is not None:
        pods = _ray_pods(spec.ray_cluster_spec, "/spec/rayClusterSpec")
    ready = _ray_ready(status.ray_cluster_status)
    if spec.submission_mode == "K8sJobMode" and spec.ray_cluster_spec is not None:
        own = "/spec/submitterPodTemplate" if spec.submitter_pod_template is not None else ""
        name = {"job-name": obj.metadata.name}
        pods = (*pods, JobPods("submitter", spec.submitter_of(spec.ray_cluster_spec), 1, own, name))
        ready += status.job_status not in ("", "PENDING")
    ended = status.job_deployment_status in ("Complete", "Failed")
    state = JobState(
        (status.reason or status.job_deployment_status, status.message) if ended else None,
        status.job_status == "SUCCEEDED",
        ready=ready,
    )
    return QueuedJob(obj, pods, spec.suspend, _SUSPEND, _RESUME, state)


def _ray_pods(spec: RayClusterSpec, pointer: str) -> tuple[JobPods, ...]:
    head = JobPods(
        "head",
        spec.head,
        1,
        f"{pointer}/headGroupSpec/template",
        {"ray.io/node-type": "head"},
    )
    workers = (
        JobPods(
            group.group_name.lower(),
            group.template,
            group.wanted * group.num_of_hosts,
            f"{pointer}/workerGroupSpecs/{index}/template",
            {"ray.io/node-type": "worker", "ray.io/group": group.group_name},
            whole=group.num_of_hosts,
        )
        for index, group in enumerate(spec.worker_group_specs)
    )
    return head, *workers


def _ray_ready(status: RayClusterStatus) -> int:
    """Return how many pods of a Ray cluster are ready, its head included."""
    head = any(one.type == "HeadPodReady" and one.status == "True" for one in status.conditions)
    return status.ready_worker_replicas + head


def _end(conditions: Iterable[Any], *kinds: str) -> tuple[str, str] | None:
    """Return reason and message of the first of some conditions that is true."""
    for one in conditions:
        if one.type in kinds and one.status == "True":
            return one.reason or f"Job{one.type}", one.message
    return None


_READERS: dict[type, Callable[[ApiObject], QueuedJob]] = {
    Job: _batch_job,
    JobSet: _job_set,
    PyTorchJob: _pytorch_job,
    RayJob: _ray_job,
    RayCluster: _ray_cluster,
}
QUEUED_KINDS: tuple[type[ApiObject], ...] = tuple(_READERS)
"""The kinds of jobs that can be suspended."""


def queued_job(obj: ApiObject) -> QueuedJob:
    """Return what a queue has to know of a job of one of ``QUEUED_KINDS``.

    The pod sets have the names that Kueue gives them.
    """
    return _READERS[type(obj)](obj)


def sized_by(job: QueuedJob, cluster: RayCluster) -> QueuedJob:
    """Return an elastic Ray job with the size that Ray's autoscaler gave its cluster."""
    counts = {
        group.group_name.lower(): group.wanted * group.num_of_hosts
        for group in cluster.spec.worker_group_specs
    }
    pods = tuple(replace(one, count=counts.get(one.name, one.count)) for one in job.pods)
    return replace(job, pods=pods)
