"""The ``/scale`` of Deployments, ReplicaSets and StatefulSets."""

from __future__ import annotations

from typing import Any

from bayplan.cluster.apiserver import writes
from bayplan.cluster.apiserver.bodies import Scale, read_body
from bayplan.cluster.apiserver.calls import Call
from bayplan.cluster.apiserver.history import Record
from bayplan.cluster.apiserver.reads import find
from bayplan.cluster.apiserver.status import Cause, invalid, method_not_allowed
from bayplan.cluster.apiserver.store import ServedCluster

__all__ = ["scale"]

Content = dict[str, Any]


def scale(cluster: ServedCluster, call: Call, content_type: str, body: Any) -> Content:
    """Read or change how many replicas there are to be.

    :raises ApiError: when it is refused.
    """
    record = find(cluster, call)
    shown = _shown(record)
    if call.verb == "get":
        return shown
    if call.verb == "update":
        wanted = body
    elif call.verb == "patch":
        wanted = writes.patched(content_type, shown, body)
    else:
        raise method_not_allowed()
    asked = read_body(Scale, wanted)
    replicas, version = asked.spec.replicas, asked.metadata.resource_version
    if replicas < 0:
        cause = Cause("FieldValueInvalid", "must be greater than or equal to 0", "spec.replicas")
        raise invalid("autoscaling", "Scale", call.name, [cause])
    meta = {"resourceVersion": version} if version else {}
    main = Call(
        "patch", call.resource, call.group, call.version, call.params, call.namespace, call.name
    )
    change = {"metadata": meta, "spec": {"replicas": replicas}}
    changed, _ = writes.patch(cluster, main, writes.MERGE_PATCH, change)
    return _shown(changed)


def _shown(record: Record) -> Content:
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
