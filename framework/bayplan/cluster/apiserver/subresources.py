"""The subresources pods/binding and pods/eviction."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from bayplan.api import Pod, PodCondition
from bayplan.cluster.api_errors import (
    ApiError,
    bad_request,
    conflict,
    precondition_failed,
    success,
    too_many_requests,
)
from bayplan.cluster.apiserver.deletes import check_preconditions
from bayplan.cluster.apiserver.object_identity import check_namespace
from bayplan.cluster.apiserver.reads import find
from bayplan.cluster.apiserver.request_info import RequestInfo
from bayplan.cluster.apiserver.request_kinds import (
    BindingBody,
    BodyMetadata,
    DeleteOptions,
    EvictionBody,
    Preconditions,
    read_body,
)
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.watch_cache import StoredObject
from bayplan.cluster.embedded import writes
from bayplan.cluster.embedded.admission import with_condition
from bayplan.cluster.embedded.disruption_budgets import take_disruption
from bayplan.cluster.protocol import Bind
from bayplan.errors import TooManyDisruptions

__all__ = ["bind", "evict"]

Content = dict[str, Any]


def bind(cluster: ServedCluster, info: RequestInfo, body: Any) -> Content:
    """Bind a pod to a node.

    :raises ApiError: 409, when the pod has a node, is being deleted, or is another pod.
    """
    binding = read_body(BindingBody, body)
    meta, target = binding.metadata, binding.target
    name = info.name or meta.name
    _check_identity(info, body, "Binding", "v1", meta)
    if not name:
        raise bad_request("Name parameter required.")
    if target.kind not in ("", "Node"):
        text = (
            f'target.kind: Unsupported value: "{target.kind}": supported values: "Node", "<empty>"'
        )
        raise ApiError(500, "", text)
    if not target.name:
        raise ApiError(500, "", "target.name: Required value")
    named = RequestInfo(
        "create", info.resource, "", "v1", info.params, info.namespace, name, "binding"
    )
    record = find(cluster, named)
    pod = record.obj
    assert isinstance(pod, Pod)
    _check(pod, meta.uid, meta.resource_version)
    why = ""
    if pod.metadata.deletion_timestamp is not None:
        why = f"pod {name} is being deleted, cannot be assigned to a host"
    elif pod.spec.node_name:
        why = f'pod {name} is already assigned to node "{pod.spec.node_name}"'
    elif pod.spec.scheduling_gates:
        why = f"pod {name} has non-empty .spec.schedulingGates"
    if why:
        raise conflict("", "pods/binding", name, why)
    if not info.dry_run:
        annotations = meta.annotations or {}
        writes.bind(cluster, pod, Bind(pod.key, pod.metadata.uid, target.name, annotations))
    return success(code=201)


def _check_identity(
    info: RequestInfo, body: Any, kind: str, version: str, meta: BodyMetadata
) -> None:
    """Refuse a body of another kind or pod than the URL says.

    :raises ApiError: 400.
    """
    body = body if isinstance(body, dict) else {}
    given = (body.get("apiVersion") or version, body.get("kind") or kind)
    short = given[0].rpartition("/")[2]
    if given[1] != kind:
        raise bad_request(
            f'{given[1]} in version "{short}" cannot be handled as a {kind}: unknown conversion'
        )
    if given[0] != version:
        raise bad_request(
            f'{kind} in version "{short}" cannot be handled as a {kind}: no kind "{kind}" is '
            f'registered for version "{given[0]}"'
        )
    if info.name and meta.name != info.name:
        raise bad_request(f"name in URL does not match name in {kind} object")
    check_namespace(info, {"namespace": meta.namespace})


def _check(pod: Pod, uid: str, version: str) -> None:
    """Check the preconditions of a request about a pod."""
    meta = pod.metadata
    for text, wanted, found in (
        ("UID", uid, meta.uid),
        ("ResourceVersion", version, meta.resource_version),
    ):
        if wanted and wanted != found:
            raise precondition_failed("pods", meta.namespace, meta.name, wanted, found, text)


def evict(cluster: ServedCluster, info: RequestInfo, body: Any) -> Content:
    """Evict a pod if its disruption budgets allow it.

    :raises ApiError: 429, when they do not.
    """
    record = find(cluster, info)
    pod = record.obj
    assert isinstance(pod, Pod)
    eviction = read_body(EvictionBody, body)
    _check_identity(info, body, "Eviction", "policy/v1", eviction.metadata)
    options = eviction.delete_options or DeleteOptions()
    check_preconditions(info, record, options.preconditions or Preconditions())
    if info.dry_run or options.dry_run or pod.metadata.deletion_timestamp is not None:
        return success(code=201)
    try:
        take_disruption(cluster, pod)
    except TooManyDisruptions:
        raise _refused(cluster, record) from None
    condition = PodCondition(
        "DisruptionTarget",
        "True",
        "EvictionByEvictionAPI",
        "Eviction API: evicting",
        cluster.timestamp(),
    )
    cluster.update(replace(with_condition(pod, condition), metadata=_current(pod)))
    cluster.delete(Pod, pod.key, options.grace_period_seconds)
    return success(code=201)


def _current(pod: Pod) -> Any:
    """Return a pod's metadata without a version, so that an update always succeeds."""
    return replace(pod.metadata, resource_version="")


def _refused(cluster: ServedCluster, record: StoredObject) -> Exception:
    causes = [
        {"reason": "DisruptionBudget", "message": message}
        for message in cluster.budget_problems(record)
    ]
    return too_many_requests(
        "Cannot evict pod as it would violate the pod's disruption budget.", None, causes=causes
    )
