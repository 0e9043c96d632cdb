"""metrics.k8s.io for ``kubectl top``: pods and nodes use what they request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from bayplan.api import Node, Pod, pod_requests
from bayplan.cluster.api_errors import not_found
from bayplan.cluster.apiserver.selectors import label_predicate
from bayplan.cluster.apiserver.store import ServedCluster

__all__ = ["GROUP", "RESOURCES", "usage"]

Content = dict[str, Any]

GROUP, _VERSION = "metrics.k8s.io", "v1beta1"
_ROOT = f"/apis/{GROUP}/{_VERSION}"
_WINDOW = "15s"
_SHOWN = ("cpu", "memory")
RESOURCES = [
    {
        "name": plural,
        "singularName": "",
        "namespaced": namespaced,
        "kind": kind,
        "verbs": ["get", "list"],
    }
    for plural, kind, namespaced in (("nodes", "NodeMetrics", False), ("pods", "PodMetrics", True))
]
"""The group's resources in API discovery."""


def usage(cluster: ServedCluster, path: str, selector: str) -> tuple[str, str, Content] | None:
    """Return the resource, the namespace and the answer at a path, None for other paths.

    :raises ApiError: 404, for a pod or a node that does not exist.
    """
    if not path.startswith(f"{_ROOT}/"):
        return None
    steps = path.removeprefix(f"{_ROOT}/").split("/")
    namespace = ""
    if steps[0] == "namespaces" and len(steps) > 2:
        namespace, steps = steps[1], steps[2:]
    if steps[0] not in ("nodes", "pods") or len(steps) > 2:
        return None
    predicate = label_predicate(selector)
    stamp = cluster.timestamp()
    if steps[0] == "nodes":
        found = _nodes(cluster, stamp)
    else:
        pods = (p for p in cluster.list(Pod) if p.status.phase == "Running")
        found = [_pod(p, stamp) for p in pods if namespace in ("", p.metadata.namespace)]
    if len(steps) == 2:
        one = next((item for item in found if item["metadata"]["name"] == steps[1]), None)
        if one is None:
            raise not_found(GROUP, steps[0], steps[1])
        return steps[0], namespace, one
    if predicate is not None:
        found = [item for item in found if predicate(item)]
    kind = "NodeMetricsList" if steps[0] == "nodes" else "PodMetricsList"
    body = {"kind": kind, "apiVersion": f"{GROUP}/{_VERSION}", "metadata": {}, "items": found}
    return steps[0], namespace, body


def _nodes(cluster: ServedCluster, stamp: str) -> list[Content]:
    used: dict[str, Counter[str]] = {node.metadata.name: Counter() for node in cluster.list(Node)}
    for pod in cluster.list(Pod):
        if pod.spec.node_name in used and pod.status.phase in ("Pending", "Running"):
            used[pod.spec.node_name].update(pod_requests(pod.spec).effective)
    return [
        _item("NodeMetrics", node, stamp, {"usage": _amounts(used[node.metadata.name])})
        for node in cluster.list(Node)
    ]


def _pod(pod: Pod, stamp: str) -> Content:
    containers = []
    for container in pod.spec.containers:
        requests = container.resources.requests or container.resources.limits
        amounts = {
            name: quantity.milli if name == "cpu" else int(quantity.amount)
            for name, quantity in requests.items()
        }
        containers.append({"name": container.name, "usage": _amounts(amounts)})
    return _item("PodMetrics", pod, stamp, {"containers": containers})


def _item(kind: str, obj: Pod | Node, stamp: str, more: Content) -> Content:
    meta = obj.metadata
    shown: Content = {"name": meta.name, "creationTimestamp": stamp, "labels": dict(meta.labels)}
    if meta.namespace:
        shown["namespace"] = meta.namespace
    return {
        "kind": kind,
        "apiVersion": f"{GROUP}/{_VERSION}",
        "metadata": shown,
        "timestamp": stamp,
        "window": _WINDOW,
        **more,
    }


def _amounts(used: Mapping[str, int]) -> Content:
    """Return amounts as quantities; cpu is in milli."""
    return {name: f"{used.get(name, 0)}{'m' if name == 'cpu' else ''}" for name in _SHOWN}
