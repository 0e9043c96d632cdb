"""The ``/scale`` of Deployments, ReplicaSets and StatefulSets."""

from __future__ import annotations

from typing import Any

from bayplan.cluster.api_errors import Cause, invalid, method_not_allowed
from bayplan.cluster.apiserver import writes
from bayplan.cluster.apiserver.reads import find
from bayplan.cluster.apiserver.request_info import RequestInfo
from bayplan.cluster.apiserver.request_kinds import ScaleBody, read_body
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.watch_cache import StoredObject

__all__ = ["scale"]

Content = dict[str, Any]


def scale(cluster: ServedCluster, info: RequestInfo, content_type: str, body: Any) -> Content:
    """Read or change the number of replicas.

    :raises ApiError: when it is refused.
    """
    record = find(cluster, info)
    shown = _shown(record)
    if info.verb == "get":
        return shown
    if info.verb == "update":
        wanted = body
    elif info.verb == "patch":
        wanted = writes.patched(content_type, shown, body)
    else:
        raise method_not_allowed()
    asked = read_body(ScaleBody, wanted)
    replicas, version = asked.spec.replicas, asked.metadata.resource_version
    if replicas < 0:
        cause = Cause("FieldValueInvalid", "must be greater than or equal to 0", "spec.replicas")
        raise invalid("autoscaling", "Scale", info.name, [cause])
    meta = {"resourceVersion": version} if version else {}
    main = RequestInfo(
        "patch", info.resource, info.group, info.version, info.params, info.namespace, info.name
    )
    change = {"metadata": meta, "spec": {"replicas": replicas}}
    changed, _ = writes.patch(cluster, main, writes.MERGE_PATCH, change)
    return _shown(changed)


def _shown(record: StoredObject) -> Content:
    content = record.content
    meta = content["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    labels = (content["spec"].get("selector") or {}).get("matchLabels") or {}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": content["spec"].get("replicas", 1)},
        "status": {
            "replicas": (content.get("status") or {}).get("replicas", 0),
            "selector": ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        },
    }
