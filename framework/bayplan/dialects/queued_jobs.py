"""Jobs that wait suspended until a queue admits them, whatever kind they are.

A job's pods exist only while it is not suspended. What is needed to admit it before that is in its
pod templates; the table of kinds says where these are, and how far a job is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import KINDS, ApiObject, Job, JobSet, RayCluster, RayJob
from bayplan.api.kueue import PodSetTopologyRequest
from bayplan.api.meta import ObjectMeta
from bayplan.api.objects import decode_part, kind_of
from bayplan.api.operated import (
    AppWrapper,
    ClusterTrainingRuntime,
    RayService,
    TrainingRuntime,
    TrainJob,
)
from bayplan.api.pod import PodTemplate
from bayplan.api.workloads import JobSpec
from bayplan.dialects.kueue import topology_request_of
from bayplan.dialects.queued_job_checks import (
    ELASTIC_ANNOTATION,
    GATES_ANNOTATION,
    LEAST_PODS,
    QUEUE_LABEL,
    SAME_COMPLETIONS,
    gates_of,
    refusals_of,
)
from bayplan.dialects.reading import is_index
from bayplan.dialects.train_jobs import job_set_of, runtime_name
from bayplan.kinds import (
    KINDS_OF_WORKLOADS,
    Progress,
    TemplateOf,
    WorkloadKind,
    progress_of,
    templates_of,
    units_of,
)
from bayplan.kinds.paths import holds

__all__ = [
    "ELASTIC_ANNOTATION",
    "QUEUE_LABEL",
    "SCALE_UP_ANNOTATION",
    "Find",
    "JobPods",
    "QueuedJob",
    "can_be_sliced",
    "is_elsewhere",
    "is_part",
    "job_pods",
    "pods_at_once",
    "priority_of",
    "queued_job",
    "queued_kinds",
    "ray_clusters_of",
    "read_job",
    "sized_by",
]

SCALE_UP_ANNOTATION = "kueue.x-k8s.io/elastic-job-scale-up"
"""Of elastic jobs: "partial" if they may grow by fewer pods than they want."""
_AUTOSCALED = "rayClusterConfig.enableInTreeAutoscaling"
_SERVING = ("activeServiceStatus", "pendingServiceStatus")
"""The statuses of a RayService's clusters: the one that serves, and the one that will."""
_OF_JOBS_CONTROLLER = frozenset(
    (
        "controller-uid",
        "job-name",
        "batch.kubernetes.io/controller-uid",
        "batch.kubernetes.io/job-name",
    )
)
"""The labels that the Job controller adds to the template of a Job."""


class JobPods(msgspec.Struct, frozen=True):
    """The pods of one template.

    :param content: the template as JSON, as its operator makes pods of it.
    :param pointer: the JSON pointer of the template in the job.
    :param absent: whether the job leaves the template out.
    :param labels: labels that its pods have, beyond the template's.
    :param count_pointers: where the number of pods stands, if the job may run with fewer.
    :param least: the number of pods that it can run with.
    :param whole: the number of pods that come together; more of them come in multiples of it.
    :param kept: labels of the template that a controller added, and that it has to keep.
    :param places: where fields of the template are set, if not in it, as JSON pointers.
    :param topology: where its pods ask to be, for the Workload.
    """

    name: str
    content: Mapping[str, Any]
    template: PodTemplate
    count: int
    pointer: str
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    count_pointers: tuple[str, ...] = ()
    least: int | None = None
    whole: int = 1
    kept: Mapping[str, str] = msgspec.field(default_factory=dict)
    absent: bool = False
    topology: PodSetTopologyRequest | None = None
    places: Mapping[str, str] = msgspec.field(default_factory=dict)


class QueuedJob(msgspec.Struct, frozen=True):
    """A job that can be suspended.

    :param pods: one entry for each template.
    :param suspend: the fields that suspend it, by JSON pointer; their values are plain JSON.
    :param resume: the fields that let it run.
    :param started: the fields of the status to remove so that the templates may change.
    :param priority: the name of the priority class of its pods; "" without one.
    :param problem: why it cannot be queued.
    :param content: the job as JSON, where its templates are not its own: a TrainJob's, an
        AppWrapper's.
    """

    obj: ApiObject
    pods: tuple[JobPods, ...]
    suspended: bool
    suspend: Mapping[str, Any]
    resume: Mapping[str, Any]
    state: Progress
    started: tuple[str, ...] = ()
    priority: str = ""
    problem: str = ""
    content: Mapping[str, Any] = msgspec.field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The kind, as manifests name it."""
        return kind_of(self.obj).name

    @property
    def elastic(self) -> bool:
        """Whether its size may change while it runs.

        That of what makes Ray clusters changes by Ray's autoscaler alone.
        """
        if isinstance(self.obj, RayJob):
            cluster = self.obj.spec.ray_cluster_spec
            if cluster is None or not cluster.enable_in_tree_autoscaling:
                return False
        if isinstance(self.obj, RayService) and not _value(self.obj.spec, _AUTOSCALED):
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


def _is_elastic(obj: ApiObject) -> bool:
    return obj.metadata.annotations.get(ELASTIC_ANNOTATION) == "true"


def can_be_sliced(type_: type[ApiObject]) -> bool:
    """Tell whether jobs of a type may grow while they run; others wait again with another size."""
    return type_ in (Job, RayCluster, RayJob, RayService)


def pods_at_once(spec: JobSpec) -> int:
    """Return how many pods of a Job run at the same time at most."""
    return spec.parallelism if spec.completions is None else min(spec.parallelism, spec.completions)


def queued_kinds() -> tuple[type[ApiObject], ...]:
    """Return the types of jobs that can be suspended, those of users' own rows among them."""
    found = (KINDS.get(key) for key, row in KINDS_OF_WORKLOADS.items() if row.suspend)
    return tuple(kind.type for kind in found if kind is not None)


def is_part(metadata: ObjectMeta) -> bool:
    """Tell whether an object belongs to a job that can be suspended, which waits in its place."""
    owners = (one for one in metadata.owner_references if one.controller)
    kinds = ((one.api_version.rpartition("/")[0], one.kind) for one in owners)
    return any((row := KINDS_OF_WORKLOADS.get(kind)) and row.suspend for kind in kinds)


def is_elsewhere(obj: ApiObject) -> bool:
    """Tell whether an object is no job of a queue: it makes no pods that a queue could hold."""
    kind = kind_of(obj)
    row = KINDS_OF_WORKLOADS.get((kind.group, kind.name))
    if row is None or not row.elsewhere:
        return False
    content = msgspec.to_builtins(obj, enc_hook=lambda quantity: quantity.text)
    return all(holds(one, content, content) for one in row.elsewhere)


Find = Callable[[type[ApiObject], str], ApiObject | None]
"""Returns the object of a type with a key, None if it is not there."""


def queued_job(obj: ApiObject, find: Find = lambda type_, key: None) -> QueuedJob:
    """Return what a queue has to know of a job of one of ``queued_kinds``.

    The pod sets have the names that Kueue gives them.

    :param find: where the runtimes of TrainJobs are.
    """
    kind = kind_of(obj)
    content = msgspec.to_builtins(obj, enc_hook=lambda quantity: quantity.text)
    row = KINDS_OF_WORKLOADS[kind.group, kind.name]
    try:
        made = _job_set_by(content, find) if isinstance(obj, TrainJob) else None
    except ValueError as exc:
        return replace(read_job(row, content, obj), problem=str(exc))
    return read_job(row, content, obj, made)


def _job_set_by(content: Mapping[str, Any], find: Find) -> Mapping[str, Any]:
    """Return the JobSet of a TrainJob.

    :raises ValueError: where its runtime is not there, or not one.
    """
    kind, name = runtime_name(content)
    if kind == "TrainingRuntime":
        namespace = (content.get("metadata") or {}).get("namespace", "")
        runtime = find(TrainingRuntime, f"{namespace}/{name}")
    else:
        runtime = find(ClusterTrainingRuntime, name)
    if runtime is None:
        raise ValueError(f"its {kind} {name} is not there")
    return job_set_of(content, msgspec.to_builtins(runtime))


def read_job(
    row: WorkloadKind,
    content: Mapping[str, Any],
    obj: ApiObject,
    made: Mapping[str, Any] | None = None,
) -> QueuedJob:
    """Return what a queue has to know of a job.

    :param content: the job as JSON; :param obj: the same, as bayplan reads it.
    :param made: the JobSet that it makes, of a TrainJob.
    """
    found: tuple[TemplateOf, ...] = ()
    pods: tuple[JobPods, ...] = ()
    problem = ""
    try:
        of = KINDS_OF_WORKLOADS["jobset.x-k8s.io", "JobSet"] if made is not None else row
        found = tuple(templates_of(of, made if made is not None else content))
        units = units_of(row, content)
        pods = tuple(job_pods(row, one, obj, units) for one in found)
        problem = _twice(pods) or next(map(str, refusals_of(obj, content, found)), "")
    except ValueError as exc:
        problem = str(exc)
    gates = gates_of(obj.metadata.annotations)
    if gates and not problem:
        problem = f"{GATES_ANNOTATION}: waits for {', '.join(gates)}"
    state = progress_of(row, content, found)
    if state.on_hold and row.on_hold is not None:
        said = _value(content, row.ends.message) if row.ends is not None else ""
        problem = ": ".join(filter(None, (row.on_hold.path, row.on_hold.value, said)))
    started = row.started and _value(content, row.started) is not None
    return QueuedJob(
        obj,
        pods,
        _value(content, row.suspend) is True,
        _field(content, row.suspend, True),
        _field(content, row.suspend, False),
        state,
        ("/" + row.started.replace(".", "/"),) if started else (),
        priority_of(row, content, pods),
        problem,
        content if isinstance(obj, TrainJob | AppWrapper) else {},
    )


def job_pods(row: WorkloadKind, one: TemplateOf, obj: ApiObject, units: int = 1) -> JobPods:
    """Return what a queue has to know of the pods of a template.

    :param units: how many indivisible parts of the object have such pods.
    :raises ValueError: for a topology request that cannot be read.
    """
    template = one.template
    typed = decode_part(PodTemplate, dict(template))
    least: int | None = None
    pointers: tuple[str, ...] = ()
    kept: dict[str, str] = {}
    if row.name == "Job" and row.group == "batch":
        template, kept = _without_controllers_labels(template)
        typed = decode_part(PodTemplate, dict(template)) if kept else typed
        least = _least_of(obj)
        pointers = _sizes_of(obj) if least is not None else ()
    elif one.places:
        # Kueue puts back the number of executors with the templates.
        pointers = one.counts
    return JobPods(
        one.name,
        template,
        typed,
        one.count * units,
        one.pointer,
        one.labels,
        pointers,
        least,
        one.each if one.made.bounds is not None else 1,
        kept,
        one.absent,
        topology_request_of(typed.metadata.annotations, one.made.index, _parts_of(one)),
        one.places,
    )


def _parts_of(one: TemplateOf) -> tuple[str, int] | None:
    """Return the label that tells equal parts of a template's pods, and the number of these."""
    if one.made.part is None:
        return None
    label, path = one.made.part
    parts = _value(one.entry, path)
    return label, parts if isinstance(parts, int) else 1


def _twice(pods: tuple[JobPods, ...]) -> str:
    """Return what is wrong with the names of pod sets, "" for nothing."""
    names = [one.name for one in pods]
    twice = next((name for name in names if names.count(name) > 1), None)
    return f'two of its pod sets have the name "{twice}"' if twice is not None else ""


def _without_controllers_labels(
    template: Mapping[str, Any],
) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Return the template of a Job without the labels that its controller added, and these."""
    meta = template.get("metadata") or {}
    labels = meta.get("labels") or {}
    added = {key: value for key, value in labels.items() if key in _OF_JOBS_CONTROLLER}
    if not added:
        return template, added
    own = {key: value for key, value in labels.items() if key not in added}
    meta = {key: value for key, value in {**meta, "labels": own}.items() if value}
    return {**template, "metadata": meta}, added


def _least_of(obj: ApiObject) -> int | None:
    """Return the number of pods with which a Job says it can run, which may be all of them."""
    # What was admitted of an elastic job is what it asks for: no fewer pods.
    text = "" if _is_elastic(obj) else obj.metadata.annotations.get(LEAST_PODS, "")
    return int(text) if is_index(text) and int(text) else None


def _sizes_of(obj: ApiObject) -> tuple[str, ...]:
    """Return the fields of a Job that have to say with how many pods it runs."""
    if obj.metadata.annotations.get(SAME_COMPLETIONS) == "true":
        return "/spec/parallelism", "/spec/completions"
    return ("/spec/parallelism",)


def priority_of(row: WorkloadKind, content: Mapping[str, Any], pods: Sequence[JobPods]) -> str:
    """Return the name of the priority class of a job's pods: its own, or a template's."""
    stated = [_value(content, path) for path in row.priority]
    stated += [one.template.spec.priority_class_name for one in pods]
    return next((name for name in stated if isinstance(name, str) and name), "")


def _value(content: Any, path: str) -> Any:
    for step in path.split("."):
        content = content.get(step) if isinstance(content, dict) else None
    return content


def _field(content: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return the field to set, with what leads to it where that is not there."""
    steps = path.split(".")
    at: Any = content
    for index, step in enumerate(steps[:-1]):
        at = at.get(step)
        if not isinstance(at, Mapping):
            for inner in reversed(steps[index + 1 :]):
                value = {inner: value}
            return {"/" + "/".join(steps[: index + 1]): value}
    return {"/" + "/".join(steps): value}


def ray_clusters_of(obj: ApiObject) -> tuple[str, ...]:
    """Return the names of the Ray clusters of a job or a service, the one that serves first.

    A service that is upgraded has two, until the new one serves.
    """
    if isinstance(obj, RayJob):
        names: tuple[Any, ...] = (obj.status.ray_cluster_name,)
    elif isinstance(obj, RayService):
        names = tuple(_value(obj.status, f"{one}.rayClusterName") for one in _SERVING)
    else:
        names = ()
    return tuple(dict.fromkeys(one for one in names if isinstance(one, str) and one))


def sized_by(job: QueuedJob, clusters: Sequence[RayCluster]) -> QueuedJob:
    """Return a job, an elastic one with the size that Ray's autoscaler gave its clusters.

    :param clusters: those that there are of ``ray_clusters_of``.
    """
    living = [one for one in clusters if one.metadata.deletion_timestamp is None]
    if not living or not job.elastic:
        return job
    counts = Counter[str]()
    for cluster in living:
        sizes = {
            group.group_name.lower(): group.wanted * group.num_of_hosts
            for group in cluster.spec.worker_group_specs
            if group.replicas is not None
        }
        # Each cluster has a head.
        counts.update({one.name: sizes.get(one.name, one.count) for one in job.pods})
    return replace(job, pods=tuple(replace(one, count=counts[one.name]) for one in job.pods))
