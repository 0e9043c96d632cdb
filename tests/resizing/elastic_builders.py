"""Elastic jobs of every kind, and clusters with their controllers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bayplan.api import ApiObject, Pod
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.cluster.protocol import Event
from bayplan.testing import Cluster, make_object

GPU = "nvidia.com/gpu"
OPT_IN = {"bayplan.dev/resize": "true"}


def template(gpus: int = 1, **spec: Any) -> dict[str, Any]:
    limits = {GPU: str(gpus)} if gpus else {}
    container = {"name": "main", "image": "trainer", "resources": {"limits": limits}}
    return {"spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}}


def bounded(least: int | None = None, most: int | None = None) -> dict[str, str]:
    found = dict(OPT_IN)
    if least is not None:
        found["bayplan.dev/min-replicas"] = str(least)
    if most is not None:
        found["bayplan.dev/max-replicas"] = str(most)
    return found


def job(
    name: str, least: int, most: int, now: int | None = None, gpus: int = 1, **spec: Any
) -> ApiObject:
    count = least if now is None else now
    return make_object(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": name,
                "namespace": "default",
                "annotations": bounded(least, most),
            },
            "spec": {
                "completionMode": "Indexed",
                "parallelism": count,
                "completions": count,
                "template": template(gpus, restartPolicy="Never", **spec),
            },
        }
    )


def content(version: str, kind: str, spec: dict[str, Any], annotations: dict[str, str]) -> Any:
    """Return a job named a, as a manifest."""
    meta = {"name": "a", "namespace": "default", "annotations": annotations}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}


def pytorch(**policy: Any) -> Any:
    worker = {"replicas": 4, "template": template()}
    elastic = {"minReplicas": 2, "maxReplicas": 6, **policy}
    spec = {"pytorchReplicaSpecs": {"Worker": worker}, "elasticPolicy": elastic}
    return content("kubeflow.org/v1", "PyTorchJob", spec, bounded())


def ray(hosts: int = 1, **spec: Any) -> Any:
    group = {
        "groupName": "w",
        "replicas": 2,
        "minReplicas": 2,
        "maxReplicas": 6 // hosts,
        "numOfHosts": hosts,
        "template": template(),
    }
    head = {"template": template(0)}
    given = {"headGroupSpec": head, "workerGroupSpecs": [group], **spec}
    return content("ray.io/v1", "RayCluster", given, bounded())


def volcano() -> Any:
    task = {"name": "w", "replicas": 4, "minAvailable": 2, "template": template()}
    return content(
        "batch.volcano.sh/v1alpha1",
        "Job",
        {"schedulerName": "default-scheduler", "tasks": [task]},
        bounded(most=6),
    )


def job_set() -> Any:
    spec = {"parallelism": 2, "completions": 2, "template": template(restartPolicy="Never")}
    group = {"name": "w", "replicas": 1, "template": {"spec": spec}}
    return content("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [group]}, bounded(2, 6))


def elastic(version: str = "bayplan.dev/v1alpha1", least: int = 2, **spec: Any) -> Any:
    scaling = {"minReplicas": least, "maxReplicas": 6, "gpuPerReplica": 1}
    return content(version, "ElasticJob", {"scaling": scaling, "template": template(0), **spec}, {})


def batch() -> Any:
    return content(
        "batch/v1",
        "Job",
        {
            "completionMode": "Indexed",
            "parallelism": 2,
            "completions": 2,
            "template": template(restartPolicy="Never"),
        },
        bounded(2, 6),
    )


ELASTIC: dict[str, Callable[[], Any]] = {
    "batch": batch,
    "pytorch": pytorch,
    "ray": ray,
    "volcano": volcano,
    "jobset": job_set,
    "elastic": elastic,
    "ai-elastic": lambda: elastic("ai.example.com/v1"),
}


def cluster_of(*objects: ApiObject, **args: Any) -> Cluster:
    """Return a cluster with all controllers; notices are short unless given."""
    given = {"growAfter": 60, "shrinkAfter": 10, "notice": 5, **args}
    found = Cluster(plugins={"Resizer": given})
    start_controllers(found.api)
    found.add(*objects)
    found.advance(1)
    return found


def running(cluster: Cluster, prefix: str) -> int:
    """Return how many pods with nodes, that stay, have names with a prefix."""
    return sum(
        bool(pod.spec.node_name) and pod.metadata.deletion_timestamp is None
        for pod in cluster.api.list(Pod)
        if pod.metadata.name.startswith(prefix)
    )


def events(cluster: Cluster, reason: str) -> list[Event]:
    return [event for _, event in cluster.api.events if event.reason == reason]
