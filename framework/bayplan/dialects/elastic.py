"""Elastic jobs, whatever kind they are: how many replicas they have, may have, and where it stands.

A job is resized only if its annotation ``bayplan.dev/resize`` is "true"; ElasticJobs exist for it.
Each kind has its own fields for the number of replicas and its bounds. Where it has no bounds, the
annotations ``bayplan.dev/min-replicas`` and ``bayplan.dev/max-replicas`` state them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import (
    AiElasticJob,
    ApiObject,
    ElasticJob,
    HorizontalPodAutoscaler,
    Job,
    JobSet,
    PyTorchJob,
    RayCluster,
    VolcanoJob,
)
from bayplan.api.meta import ObjectMeta
from bayplan.api.object_key import object_key
from bayplan.api.objects import kind_of
from bayplan.api.pod import PodTemplate
from bayplan.api.ray import NO_MAXIMUM
from bayplan.api.workloads import JobSpec
from bayplan.dialects import elastic_job
from bayplan.dialects.queued_jobs import (
    ELASTIC_ANNOTATION,
    QUEUE_LABEL,
    can_be_sliced,
    queued_job,
)
from bayplan.dialects.reading import is_index
from bayplan.dialects.volcano import TASK_ANNOTATION

__all__ = [
    "ADVICE_ANNOTATION",
    "ELASTIC_KINDS",
    "MAX_ANNOTATION",
    "MIN_ANNOTATION",
    "RESIZED_ANNOTATION",
    "RESIZE_ANNOTATION",
    "Mark",
    "Replicas",
    "Size",
    "elastic_parts",
    "index_of",
    "part_marks",
    "targets",
]

RESIZE_ANNOTATION = "bayplan.dev/resize"
MIN_ANNOTATION = "bayplan.dev/min-replicas"
MAX_ANNOTATION = "bayplan.dev/max-replicas"
RESIZED_ANNOTATION = "bayplan.dev/resized-at"
"""On a job: when it was resized last."""
ADVICE_ANNOTATION = "bayplan.dev/would-gain"
"""On a job: what it would gain by moving."""

_JOB_UID = "batch.kubernetes.io/controller-uid"
_JOB_INDEX = "batch.kubernetes.io/job-completion-index"
_TRAINING = "training.kubeflow.org/"
_JOBSET, _JOBSET_GROUP = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/replicatedjob-name"
_RAY_CLUSTER, _RAY_GROUP = "ray.io/cluster", "ray.io/group"
_VOLCANO_JOB, _VOLCANO_INDEX = "volcano.sh/job-name", "volcano.sh/task-index"

Mark = tuple[str, str, str]
"""What tells a pod's part of a job: the kind, the job in its namespace, the part."""


class Size(msgspec.Struct, frozen=True):
    """Numbers of replicas: how many there should be now, and between which bounds."""

    now: int
    least: int
    most: int


class Replicas(msgspec.Struct, frozen=True):
    """The replicas of one template of an elastic job, which are resized together.

    :param part: the name of the part of the job, "" for a job that has only one.
    :param mark: what its pods are known by, see ``part_marks``.
    :param pods_each: the number of pods of one replica.
    :param active: whether it may have pods: it is not suspended and has not ended.
    :param problem: why it cannot be resized, "" if it can.
    :param fields: returns the fields that set a number of replicas, by JSON pointer; the second
        argument names the pods that go.
    """

    obj: ApiObject
    part: str
    mark: Mark
    size: Size
    template: PodTemplate
    fields: Callable[[int, Sequence[str]], Mapping[str, Any]]
    pods_each: int = 1
    active: bool = True
    problem: str = ""
    indexed: bool = True
    """Whether its pods have indexes, of which the highest go first."""
    waits: bool = False
    """Whether it is suspended until a queue admits it."""

    @property
    def key(self) -> str:
        """``namespace/name`` of the job."""
        return object_key(self.obj)

    @property
    def kind(self) -> str:
        """The kind of the job, as manifests name it."""
        return kind_of(self.obj).name


class _Bounds(msgspec.Struct, frozen=True):
    """What annotations say of a job's bounds; a problem where they say nothing sensible."""

    least: int | None
    most: int | None
    problem: str = ""

    def size(self, now: int, least: int | None = None, most: int | None = None) -> Size:
        """Return a size within these bounds, which narrow those of the job's own fields."""
        low = max(one for one in (least, self.least, 1) if one is not None)
        tops = [one for one in (most, self.most) if one is not None]
        return Size(now, low, min(tops) if tops else now)

    def missing(self, least: int | None = None, most: int | None = None) -> str:
        """Return what is wrong with the bounds; "" for nothing."""
        if self.problem:
            return self.problem
        if most is None and self.most is None:
            return f'its most replicas are not known: annotation "{MAX_ANNOTATION}" states them'
        size = self.size(0, least, most)
        if size.most < size.least:
            return f"its minimum, {size.least}, is more than its maximum, {size.most}"
        return ""


def _bounds(meta: ObjectMeta) -> _Bounds:
    found: list[int | None] = []
    for name in (MIN_ANNOTATION, MAX_ANNOTATION):
        text = meta.annotations.get(name)
        if text is not None and not (is_index(text) and int(text)):
            problem = f'annotation "{name}": expected 1 or more, got {text[:20]!r}'
            return _Bounds(None, None, problem)
        found.append(int(text) if text is not None else None)
    return _Bounds(found[0], found[1])


# Kinds ---------------------------------------------------------------------------------------


def _has_ended(conditions: Sequence[Any], *kinds: str) -> bool:
    return any(c.type in kinds and c.status == "True" for c in conditions)


def _job_fields(spec: JobSpec, at: str, replicas: int) -> dict[str, Any]:
    """Return the size of an indexed Job, which has as many completions, or of a work queue."""
    fields: dict[str, Any] = {f"{at}/parallelism": replicas}
    if spec.completion_mode == "Indexed":
        fields[f"{at}/completions"] = replicas
    return fields


def _job_problem(spec: JobSpec) -> str:
    if spec.completion_mode == "Indexed" and spec.completions != spec.parallelism:
        return "only an indexed job with as many completions as parallelism can be resized"
    return ""


def _batch_job(obj: ApiObject) -> Iterator[Replicas]:
    assert isinstance(obj, Job), "read by its type"
    spec, bounds = obj.spec, _bounds(obj.metadata)
    yield Replicas(
        obj,
        "",
        ("Job", obj.metadata.uid, ""),
        bounds.size(spec.parallelism),
        spec.template,
        lambda replicas, gone: _job_fields(spec, "/spec", replicas),
        active=not spec.suspend and not _has_ended(obj.status.conditions, "Complete", "Failed"),
        problem=bounds.missing() or _job_problem(spec),
        indexed=spec.completion_mode == "Indexed",
    )


def _job_set(obj: ApiObject) -> Iterator[Replicas]:
    """Read the replicated jobs that can be resized: one more index for each of their Jobs."""
    assert isinstance(obj, JobSet), "read by its type"
    bounds, place = _bounds(obj.metadata), f"{obj.metadata.namespace}/{obj.metadata.name}"
    groups = [
        (at, one)
        for at, one in enumerate(obj.spec.replicated_jobs)
        if not _job_problem(one.template.spec) and one.template.spec.completion_mode == "Indexed"
    ]
    for at, group in groups[:1]:
        spec, pointer = group.template.spec, f"/spec/replicatedJobs/{at}/template/spec"
        several = "several of its groups are indexed jobs" if len(groups) > 1 else ""
        yield Replicas(
            obj,
            group.name,
            ("JobSet", place, group.name),
            bounds.size(spec.parallelism),
            spec.template,
            lambda replicas, gone, spec=spec, at=pointer: _job_fields(spec, at, replicas),  # type: ignore[misc]
            pods_each=group.replicas,
            active=not obj.spec.suspend and not obj.status.terminal_state,
            problem=bounds.missing() or several,
        )


def _pytorch_job(obj: ApiObject) -> Iterator[Replicas]:
    assert isinstance(obj, PyTorchJob), "read by its type"
    workers = obj.spec.pytorch_replica_specs.get("Worker")
    if workers is None:
        return
    bounds, policy = _bounds(obj.metadata), obj.spec.elastic_policy
    least = policy.min_replicas if policy is not None else None
    most = policy.max_replicas if policy is not None else None
    problem = bounds.missing(least, most)
    if policy is not None and policy.metrics:
        problem = "its elasticPolicy has metrics, so an autoscaler sets its replicas"
    yield Replicas(
        obj,
        "Worker",
        ("PyTorchJob", object_key(obj), "worker"),
        bounds.size(workers.replicas, least, most),
        workers.template,
        lambda replicas, gone: {"/spec/pytorchReplicaSpecs/Worker/replicas": replicas},
        active=not obj.spec.run_policy.suspend
        and not _has_ended(obj.status.conditions, "Succeeded", "Failed"),
        problem=problem,
    )


def _ray_cluster(obj: ApiObject) -> Iterator[Replicas]:
    """Read the worker groups; with an autoscaler of Ray their most replicas are moved instead."""
    assert isinstance(obj, RayCluster), "read by its type"
    bounds, auto = _bounds(obj.metadata), obj.spec.enable_in_tree_autoscaling
    for at, group in enumerate(obj.spec.worker_group_specs):
        pointer = f"/spec/workerGroupSpecs/{at}"
        most = None if auto or group.max_replicas >= NO_MAXIMUM else group.max_replicas

        def fields(replicas: int, gone: Sequence[str], at: str = pointer) -> dict[str, Any]:
            if auto:
                return {f"{at}/maxReplicas": replicas}
            strategy = {"workersToDelete": list(gone)}
            return {f"{at}/replicas": replicas, f"{at}/scaleStrategy": strategy}

        now = min(group.max_replicas, bounds.most or NO_MAXIMUM) if auto else group.wanted
        yield Replicas(
            obj,
            group.group_name,
            ("RayCluster", object_key(obj), group.group_name),
            bounds.size(now, group.min_replicas, most),
            group.template,
            fields,
            pods_each=group.num_of_hosts,
            active=not obj.spec.suspend and not group.suspend,
            problem=bounds.missing(group.min_replicas, most),
            indexed=False,
        )


def _volcano_job(obj: ApiObject) -> Iterator[Replicas]:
    """Read the elastic task: the only one, or the only one that states how few pods it needs."""
    assert isinstance(obj, VolcanoJob), "read by its type"
    tasks, bounds = obj.spec.tasks, _bounds(obj.metadata)
    stated = [at for at, one in enumerate(tasks) if one.min_available is not None]
    if not tasks:
        return
    at = 0 if len(tasks) == 1 else stated[0] if stated else len(tasks) - 1
    task, others = tasks[at], sum(one.replicas for one in tasks) - tasks[at].replicas
    problem = ""
    if len(tasks) > 1 and len(stated) != 1:
        problem = "exactly one of its tasks has to state minAvailable, the one that is resized"
    least = task.min_available
    if least is None and obj.spec.min_available is not None:
        least = max(1, obj.spec.min_available - others)

    def fields(replicas: int, gone: Sequence[str]) -> dict[str, Any]:
        wanted: dict[str, Any] = {f"/spec/tasks/{at}/replicas": replicas}
        kept = obj.spec.min_available
        if kept is None or kept > others + replicas:
            # All pods would have to start together, those that come later too.
            wanted["/spec/minAvailable"] = others + min(replicas, size.least)
        return wanted

    size = bounds.size(task.replicas, least)
    yield Replicas(
        obj,
        task.name or f"default{at}",
        ("VolcanoJob", object_key(obj), task.name or f"default{at}"),
        size,
        task.template,
        fields,
        active=obj.status.state.phase in ("", "Pending", "Running", "Inqueue", "Restarting"),
        problem=problem or bounds.missing(least),
    )


def _elastic_job(obj: ApiObject) -> Iterator[Replicas]:
    assert isinstance(obj, ElasticJob), "read by its type"
    scaling, bounds = obj.spec.scaling, _bounds(obj.metadata)
    yield Replicas(
        obj,
        "",
        ("ElasticJob", obj.metadata.uid, ""),
        bounds.size(elastic_job.wanted(obj), scaling.min_replicas, scaling.max_replicas),
        obj.spec.template,
        lambda replicas, gone: {"/spec/replicas": replicas},
        active=obj.status.phase not in ("Succeeded", "Failed"),
        problem=bounds.missing(scaling.min_replicas, scaling.max_replicas),
    )


_READERS: dict[type, Callable[[ApiObject], Iterator[Replicas]]] = {
    Job: _batch_job,
    JobSet: _job_set,
    PyTorchJob: _pytorch_job,
    RayCluster: _ray_cluster,
    VolcanoJob: _volcano_job,
    ElasticJob: _elastic_job,
    AiElasticJob: _elastic_job,
}
ELASTIC_KINDS: tuple[type[ApiObject], ...] = tuple(_READERS)
"""The kinds of jobs that can be resized."""


def elastic_parts(obj: ApiObject) -> list[Replicas]:
    """Return what of a job may be resized; nothing of a job that has not asked for it.

    :param obj: a job of one of ``ELASTIC_KINDS``.
    """
    meta = obj.metadata
    asked = "true" if isinstance(obj, ElasticJob) else "false"
    if meta.annotations.get(RESIZE_ANNOTATION, asked) != "true":
        return []
    parts = list(_READERS[type(obj)](obj))
    if QUEUE_LABEL not in meta.labels:
        return parts
    if not can_be_sliced(type(obj)):
        text = f"its size is what Kueue admitted, and no {kind_of(obj).name} grows while it runs"
        return [replace(one, problem=text) for one in parts]
    if meta.annotations.get(ELASTIC_ANNOTATION) != "true":
        text = "its size is what Kueue admitted; "
        text += f'annotation "{ELASTIC_ANNOTATION}" would let it change'
        return [replace(one, problem=text) for one in parts]
    job = queued_job(obj)
    return [replace(one, waits=job.suspended and job.state.end is None) for one in parts]


def targets(autoscaler: HorizontalPodAutoscaler, job: ApiObject) -> bool:
    """Return whether an autoscaler sets the number of replicas of a job."""
    target, kind = autoscaler.spec.scale_target_ref, kind_of(job)
    group = target.api_version.rpartition("/")[0]
    return autoscaler.metadata.namespace == job.metadata.namespace and (
        group,
        target.kind,
        target.name,
    ) == (kind.group, kind.name, job.metadata.name)


# Pods ----------------------------------------------------------------------------------------


def part_marks(meta: ObjectMeta) -> list[Mark]:
    """Return what tells, by a pod's labels, which part of which job it belongs to."""
    labels, namespace = meta.labels, meta.namespace
    found: list[Mark] = []
    if not labels:
        return found
    if uid := labels.get(_JOB_UID):
        found.append(("Job", uid, ""))
    if uid := labels.get(elastic_job.UID_LABEL):
        found.append(("ElasticJob", uid, ""))
    if name := labels.get(_JOBSET):
        found.append(("JobSet", f"{namespace}/{name}", labels.get(_JOBSET_GROUP, "")))
    if name := labels.get(f"{_TRAINING}job-name"):
        kind = labels.get(f"{_TRAINING}replica-type", "")
        found.append(("PyTorchJob", f"{namespace}/{name}", kind))
    if name := labels.get(_RAY_CLUSTER):
        found.append(("RayCluster", f"{namespace}/{name}", labels.get(_RAY_GROUP, "")))
    if name := labels.get(_VOLCANO_JOB):
        task = labels.get(TASK_ANNOTATION) or meta.annotations.get(TASK_ANNOTATION, "")
        found.append(("VolcanoJob", f"{namespace}/{name}", task))
    return found


def index_of(meta: ObjectMeta) -> int | None:
    """Return the index of a pod among those of its part; None where its kind gives none."""
    for name in (elastic_job.INDEX_LABEL, _JOB_INDEX, f"{_TRAINING}replica-index", _VOLCANO_INDEX):
        text = meta.labels.get(name) or meta.annotations.get(name, "")
        if is_index(text):
            return int(text)
    return None
