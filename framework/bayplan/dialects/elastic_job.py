"""The pods of an ElasticJob: their names, labels, GPUs, and what torchrun reads from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from bayplan.api import ElasticJob, PriorityClass, Quantity
from bayplan.api.pod import Container, PodSpec

__all__ = [
    "INDEX_LABEL",
    "JOB_LABEL",
    "POOL_LABEL",
    "PREEMPTIBLE_LABEL",
    "UID_LABEL",
    "job_content",
    "labels_of",
    "pod_name",
    "priority_class",
    "priority_without_class",
    "service_content",
    "spec_content",
    "spec_of",
    "wanted",
]

JOB_LABEL = "bayplan.dev/elastic-job"
UID_LABEL = "bayplan.dev/elastic-job-uid"
INDEX_LABEL = "bayplan.dev/replica-index"
POOL_LABEL = "bayplan.dev/pool"
PREEMPTIBLE_LABEL = "bayplan.dev/preemptible"
"""With the value ``false`` a pod is not evicted for another one."""
_GPU = "nvidia.com/gpu"
_PORT = "29500"
_INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"


def wanted(job: ElasticJob) -> int:
    """Return how many replicas a job should have now, within its bounds."""
    scaling, replicas = job.spec.scaling, job.spec.replicas
    if replicas is None:
        return scaling.min_replicas
    return min(max(replicas, scaling.min_replicas), scaling.max_replicas)


def pod_name(job: ElasticJob, index: int) -> str:
    """Return the name of a replica's pod, which is its host name, too."""
    return f"{job.metadata.name}-{index}"


def labels_of(job: ElasticJob, index: int) -> dict[str, str]:
    """Return the labels of a replica's pod, beyond those of its template."""
    meta, spec = job.metadata, job.spec
    labels = {JOB_LABEL: meta.name, UID_LABEL: meta.uid, INDEX_LABEL: str(index)}
    if spec.pool:
        labels[POOL_LABEL] = spec.pool
    if not spec.preemptible:
        labels[PREEMPTIBLE_LABEL] = "false"
    return labels


def spec_of(job: ElasticJob) -> PodSpec:
    """Return the spec of a replica's pod as far as a scheduler reads it."""
    spec, gpus = job.spec.template.spec, job.spec.scaling.gpu_per_replica
    if gpus and spec.containers:
        first, *rest = spec.containers
        spec = replace(spec, containers=(_with_gpus(first, gpus), *rest))
    if job.spec.priority and spec.priority is None and not spec.priority_class_name:
        spec = replace(spec, priority=job.spec.priority)
    # A replica that fails is replaced, and counted, by the job.
    return replace(spec, restart_policy="Never")


def priority_without_class(job: ElasticJob) -> int:
    """Return the priority that a job states as a number, 0 if it names a class or states none.

    On a cluster pods get a priority by a class only.
    """
    spec = spec_of(job)
    return 0 if spec.priority_class_name else spec.priority or 0


def priority_class(value: int, classes: Iterable[PriorityClass]) -> str | None:
    """Return the name of a class with a priority, None if there is none.

    Of several, one of the users' comes before one of the system's, then one that preempts.
    """
    found = [one for one in classes if one.value == value]

    def order(one: PriorityClass) -> tuple[bool, bool, str]:
        name = one.metadata.name
        return name.startswith("system-"), one.preemption_policy == "Never", name

    return min(found, key=order).metadata.name if found else None


def _with_gpus(container: Container, gpus: int) -> Container:
    resources = container.resources
    if _GPU in resources.limits or _GPU in resources.requests:
        return container
    limits = {**resources.limits, _GPU: Quantity(gpus)}
    return replace(container, resources=replace(resources, limits=limits))


def spec_content(job: ElasticJob, content: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the JSON of a replica's spec: as its template's, with all that ``spec_of`` changes.

    Its environment lets torchrun find the others: PET_NNODES is the range of replicas, RANK and
    WORLD_SIZE are those of the moment, and the first replica is the master, by its stable name in
    the job's headless service.
    """
    meta, scaling, typed = job.metadata, job.spec.scaling, spec_of(job)
    master = f"{pod_name(job, 0)}.{meta.name}"
    environment = {
        "PET_NNODES": f"{scaling.min_replicas}:{scaling.max_replicas}",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{master}:{_PORT}",
        "PET_RDZV_ID": meta.uid,
        "WORLD_SIZE": str(wanted(job)),
        "RANK": str(index),
        "MASTER_ADDR": master,
        "MASTER_PORT": _PORT,
    }
    containers = []
    for plain, container in zip(content.get("containers", ()), typed.containers, strict=True):
        known = plain.get("env", [])
        names = {one.get("name") for one in known}
        added = [{"name": k, "value": v} for k, v in environment.items() if k not in names]
        resources = dict(plain.get("resources") or {})
        if container.resources.limits:
            limits = {name: one.text for name, one in container.resources.limits.items()}
            resources["limits"] = {**resources.get("limits", {}), **limits}
        containers.append({**plain, "env": [*known, *added], "resources": resources})
    own = {"hostname": pod_name(job, index), "subdomain": meta.name, "restartPolicy": "Never"}
    if typed.priority is not None:
        own |= {"priority": typed.priority}  # type: ignore[dict-item]
    return {**content, **own, "containers": containers}


def job_content(
    job: ElasticJob, content: dict[str, Any], class_name: str | None = None
) -> dict[str, Any]:
    """Return the JSON of the indexed Job that makes the pods of an elastic job on a cluster.

    :param content: the whole JSON of the elastic job: its template may have fields that are not
        read here.
    :param class_name: the PriorityClass of its pods, where the template names none.
    """
    meta, template = job.metadata, content["spec"].get("template", {})
    spec = spec_content(job, template.get("spec", {}), 0)
    # The Job gives its pods the names of their indexes, and admission their priority.
    for name in ("hostname", "priority"):
        spec.pop(name, None)
    if class_name is not None:
        spec["priorityClassName"] = class_name
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{_INDEX_ANNOTATION}']"}}
    for container in spec["containers"]:
        container["env"] = [
            {"name": "RANK", "valueFrom": index} if one == {"name": "RANK", "value": "0"} else one
            for one in container["env"]
        ]
    labels = labels_of(job, 0)
    del labels[INDEX_LABEL]
    held = template.get("metadata") or {}
    owner = {
        "apiVersion": content["apiVersion"],
        "kind": content["kind"],
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {
            "completionMode": "Indexed",
            "parallelism": wanted(job),
            "completions": wanted(job),
            "backoffLimit": job.spec.backoff_limit,
            "template": {
                "metadata": {**held, "labels": {**(held.get("labels") or {}), **labels}},
                "spec": spec,
            },
        },
    }


def service_content(job: ElasticJob, content: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of the headless service that gives the replicas their stable names."""
    made = job_content(job, content)["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {name: made[name] for name in ("name", "namespace", "ownerReferences")},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {UID_LABEL: job.metadata.uid},
        },
    }
