"""Suspended jobs in Kueue's queues, in few words, and what became of them."""

from __future__ import annotations

from typing import Any

from kueue_builders import cluster_queue, flavor, local_queue

from bayplan.api import ApiObject, Job, KueueWorkload, Pod
from bayplan.api.objects import decode_part
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.testing import Cluster

GPU = "nvidia.com/gpu"
LABEL = "kueue.x-k8s.io/queue-name"


def job(
    name: str,
    pods: int = 2,
    queue: str = "lq",
    gpu: int = 1,
    annotations: dict[str, str] | None = None,
    priority: int = 0,
    **spec: Any,
) -> Job:
    container = {"name": "c", "resources": {"limits": {GPU: gpu}}}
    template = {"spec": {"containers": [container], "priority": priority}}
    metadata = {
        "name": name,
        "namespace": "default",
        "labels": {LABEL: queue},
        "annotations": annotations or {},
    }
    given = {
        "parallelism": pods,
        "completions": pods,
        "suspend": True,
        "template": template,
        **spec,
    }
    return decode_part(Job, {"metadata": metadata, "spec": given})


def started(*objects: ApiObject, args: dict[str, Any] | None = None) -> Cluster:
    cluster = Cluster((), plugins={"Queues": args or {}})
    start_controllers(cluster.api)
    cluster.add(*objects)
    cluster.schedule()
    cluster.advance(5.0)
    return cluster


def one_queue(quota: int, **spec: Any) -> list[ApiObject]:
    return [flavor("f", **spec), cluster_queue("cq", {"f": {GPU: quota}}), local_queue("lq", "cq")]


def running(cluster: Cluster) -> set[str]:
    """Return the names of the jobs that are not suspended."""
    return {one.metadata.name for one in cluster.api.list(Job) if not one.spec.suspend}


def on_nodes(cluster: Cluster) -> dict[str, int]:
    """Return the number of pods that each job has on nodes."""
    found: dict[str, int] = {}
    for pod in cluster.api.list(Pod):
        if pod.spec.node_name:
            name = pod.metadata.labels["job-name"]
            found[name] = found.get(name, 0) + 1
    return found


def workload_of(cluster: Cluster, name: str) -> KueueWorkload:
    (found,) = [
        one
        for one in cluster.api.list(KueueWorkload)
        if one.metadata.owner_references[0].name == name
    ]
    return found


def conditions(cluster: Cluster, name: str) -> dict[str, str]:
    return {one.type: one.status for one in workload_of(cluster, name).status.conditions}
