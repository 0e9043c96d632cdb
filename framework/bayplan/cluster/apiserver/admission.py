"""Admission: what is refused because of other objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bayplan.api import Pod
from bayplan.cluster.api_errors import Cause, forbidden
from bayplan.cluster.apiserver.request_info import RequestInfo
from bayplan.cluster.apiserver.selectors import at_path
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.validation.formats import forbidden as forbidden_field
from bayplan.cluster.apiserver.validation.formats import items
from bayplan.cluster.embedded.admission import with_spec

__all__ = ["admission_problems", "check_priority", "check_runtime_class"]

_ADMIN_LABEL = "resource.kubernetes.io/admin-access"
_CLAIMS = {"resourceclaims": "spec", "resourceclaimtemplates": "spec.spec"}


def admission_problems(
    cluster: ServedCluster, info: RequestInfo, content: Mapping[str, Any]
) -> Iterator[Cause]:
    """Yield the devices that a claim may not have: those of administrators."""
    where = _CLAIMS.get(info.resource.plural)
    if where is None or info.resource.group != "resource.k8s.io":
        return
    for index, request in items(at_path(content, f"{where}.devices.requests")):
        if at_path(request, "exactly.adminAccess") and not _may_administer(cluster, info.namespace):
            yield forbidden_field(
                f"{where}.devices.requests[{index}].adminAccess",
                f"admin access to devices requires the `{_ADMIN_LABEL}: true` label on the "
                "containing namespace",
            )


def _may_administer(cluster: ServedCluster, name: str) -> bool:
    resource = cluster.resources.named("", "namespaces")
    record = cluster.records(resource).get(name) if resource is not None else None
    return record is not None and record.obj.metadata.labels.get(_ADMIN_LABEL) == "true"


def check_priority(cluster: ServedCluster, pod: Pod) -> None:
    """Refuse a new pod that has another priority than its class gives it.

    :raises ApiError: 403.
    :raises InputError: when there is no such class.
    """
    spec, name = pod.spec, pod.metadata.name
    if spec.priority is None and spec.preemption_policy is None:
        return
    computed = cluster.with_priority(with_spec(pod, priority=None, preemption_policy=None)).spec
    policy = computed.preemption_policy or "PreemptLowerPriority"
    why = ""
    if spec.priority not in (None, computed.priority):
        why = (
            f"the integer value of priority ({spec.priority}) must not be provided in pod spec; "
            f"priority admission controller computed {computed.priority} from the given "
            "PriorityClass name"
        )
    elif spec.preemption_policy not in (None, policy):
        why = (
            f"the string value of PreemptionPolicy ({spec.preemption_policy}) must not be provided "
            f"in pod spec; priority admission controller computed {policy} from the given "
            "PriorityClass name"
        )
    if why:
        raise forbidden(f'pods "{name}" is forbidden: {why}', "", "pods", name)


def check_runtime_class(cluster: ServedCluster, content: Mapping[str, Any]) -> None:
    """Refuse a pod of a missing RuntimeClass, and one with an overhead and no class.

    :raises ApiError: 403.
    """
    if content.get("kind") != "Pod":
        return
    name, resource = (
        at_path(content, "spec.runtimeClassName"),
        cluster.resources.of_kind("node.k8s.io", "RuntimeClass"),
    )
    why = ""
    if name and (resource is None or name not in cluster.records(resource)):
        why = f'RuntimeClass "{name}" not found'
    elif not name and at_path(content, "spec.overhead"):
        why = "Pod Overhead set without corresponding RuntimeClass defined Overhead"
    if why:
        own = str(content["metadata"].get("name") or "")
        raise forbidden(f'pods "{own}" is forbidden: pod rejected: {why}', "", "pods", own)
