"""Elastic jobs of every kind, and clusters with their controllers."""

from __future__ import annotations

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
