"""Clusters with Volcano's queues for tests: objects in one line, and time until nothing changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayplan.api import ApiObject, Pod, VolcanoPodGroup
from bayplan.testing import Cluster, make_object, make_pod

__all__ = ["cluster_of", "evictions", "group", "phase", "pods", "queue", "settle"]

_API = "scheduling.volcano.sh/v1beta1"


def queue(
    name: str,
    deserved: Mapping[str, Any] | None = None,
    capability: Mapping[str, Any] | None = None,
    guarantee: Mapping[str, Any] | None = None,
    state: str = "Open",
    **spec: Any,
) -> ApiObject:
    """Return a Queue; amounts as in YAML, ``gpu`` for nvidia.com/gpu."""
    amounts = {"deserved": deserved, "capability": capability}
    content = {key: _amounts(value) for key, value in amounts.items() if value is not None}
    if guarantee is not None:
        content["guarantee"] = {"resource": _amounts(guarantee)}
    return make_object(
        {
            "apiVersion": _API,
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": {**content, **spec},
            "status": {"state": state},
        }
    )


def _amounts(given: Mapping[str, Any]) -> dict[str, str]:
    return {"nvidia.com/gpu" if k == "gpu" else k: str(v) for k, v in given.items()}


def group(
    name: str,
    queue: str,
    least: int = 1,
    resources: Mapping[str, Any] | None = None,
    phase: str = "Inqueue",
    **spec: Any,
) -> ApiObject:
    """Return a PodGroup of the namespace "default" with its ``minMember`` and ``minResources``."""
    content: dict[str, Any] = {"minMember": least, "queue": queue, **spec}
    if resources is not None:
        content["minResources"] = _amounts(resources)
    return make_object(
        {
            "apiVersion": _API,
            "kind": "PodGroup",
            "metadata": {"name": name, "namespace": "default"},
            "spec": content,
            "status": {"phase": phase},
        }
    )


def pods(
    job: str, count: int, nodes: Sequence[str] = (), first: int = 0, **resources: Any
) -> list[ApiObject]:
    """Return pods of a pod group; the first ones run on ``nodes``, the others are pending."""
    return [
        make_pod(
            f"{job}-{first + index}",
            node=nodes[index] if index < len(nodes) else "",
            annotations={"scheduling.k8s.io/group-name": job},
            **{"cpu": None, "memory": None, **resources},
        )
        for index in range(count)
    ]


def cluster_of(
    objects: Sequence[ApiObject],
    configuration: Mapping[str, Any] | None = None,
    **plugins: Mapping[str, Any],
) -> Cluster:
    """Return a cluster with these objects whose queues follow a configuration of Volcano's.

    :param plugins: further plugins with their arguments.
    """
    args = {"volcano": configuration or {"policy": "capacity"}}
    return Cluster(objects, plugins={"Queues": args, **plugins})


def evictions(cluster: Cluster) -> list[str]:
    """Return the pods evicted so far, by name, in order."""
    return [one.pod.removeprefix("default/") for one in cluster.scheduler.evictor.evicted]


def settle(cluster: Cluster, rounds: int = 30) -> int:
    """Let time pass while evicted pods end and their controllers make them again.

    :returns: how many rounds passed before one without evictions.
    :raises AssertionError: when evictions never end.
    """
    for done in range(rounds):
        cluster.advance(20)
        gone = [p for p in cluster.api.list(Pod) if p.metadata.deletion_timestamp is not None]
        for pod in gone:
            cluster.remove(pod.key)
        cluster.advance(20)
        for pod in gone:
            resources = pod.spec.containers[0].resources.requests
            cluster.add(
                make_pod(
                    pod.metadata.name,
                    annotations=dict(pod.metadata.annotations),
                    **{"cpu": None, "memory": None, **{k: q.text for k, q in resources.items()}},
                )
            )
        cluster.advance(20)
        if not gone:
            return done
    raise AssertionError(f"evictions do not end: {evictions(cluster)[-20:]}")


def phase(cluster: Cluster, name: str) -> str:
    """Return a pod group's phase."""
    found = cluster.api.get(VolcanoPodGroup, f"default/{name}")
    assert found is not None
    return found.status.phase
