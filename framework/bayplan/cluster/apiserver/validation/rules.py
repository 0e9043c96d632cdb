"""Which rules hold for an object that is to be stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bayplan.cluster.api_errors import Cause
from bayplan.cluster.apiserver.resources import Resource
from bayplan.cluster.apiserver.validation import claims, core, groups, pods, storage, workloads
from bayplan.cluster.apiserver.validation.metadata import metadata_problems
from bayplan.cluster.apiserver.validation.pod_updates import pod_update_problems
from bayplan.cluster.apiserver.validation.schemas import schema_problems

__all__ = ["problems"]

Content = Mapping[str, Any]
Rule = Callable[[Content, Content | None], Iterator[Cause]]

_DRA, _STORAGE, _GANGS = "resource.k8s.io", "storage.k8s.io", "scheduling.k8s.io"

_RULES: Mapping[tuple[str, str], Rule] = {
    ("", "ConfigMap"): core.config_map_problems,
    ("", "Event"): core.event_problems,
    ("", "Node"): core.node_problems,
    ("", "PersistentVolume"): storage.volume_problems,
    ("", "PersistentVolumeClaim"): storage.volume_claim_problems,
    ("", "Pod"): pods.pod_problems,
    ("", "Secret"): core.secret_problems,
    ("", "Service"): core.service_problems,
    ("apps", "DaemonSet"): workloads.workload_problems,
    ("apps", "Deployment"): workloads.workload_problems,
    ("apps", "ReplicaSet"): workloads.workload_problems,
    ("apps", "StatefulSet"): workloads.workload_problems,
    ("batch", "Job"): workloads.job_problems,
    ("coordination.k8s.io", "Lease"): core.lease_problems,
    ("policy", "PodDisruptionBudget"): groups.budget_problems,
    (_GANGS, "PodGroup"): groups.group_problems,
    (_GANGS, "PriorityClass"): groups.priority_class_problems,
    (_GANGS, "Workload"): groups.workload_problems,
    (_DRA, "DeviceClass"): claims.class_problems,
    (_DRA, "ResourceClaim"): claims.claim_problems,
    (_DRA, "ResourceClaimTemplate"): claims.template_problems,
    (_DRA, "ResourceSlice"): claims.slice_problems,
    (_STORAGE, "CSINode"): storage.csi_node_problems,
    (_STORAGE, "StorageClass"): storage.storage_class_problems,
}
_STATUS_RULES: Mapping[tuple[str, str], Rule] = {
    ("", "Node"): core.node_status_problems,
    ("", "Pod"): pods.pod_status_problems,
    ("policy", "PodDisruptionBudget"): groups.budget_status_problems,
    (_GANGS, "PodGroup"): groups.group_status_problems,
    (_DRA, "ResourceClaim"): claims.claim_status_problems,
}


def problems(
    resource: Resource,
    after: Content,
    before: Content | None = None,
    status: bool = False,
    group: str = "",
) -> list[Cause]:
    """Return what the API server refuses in an object that is to be stored.

    What was wrong before the request is not shown again: controllers and simulations make objects
    that say only what matters to them.

    :param before: the object as it was, None for a new one.
    :param status: whether the request writes the status only.
    :param group: the API group of the request.
    """
    found = _all(resource, after, before, status, group)
    if found and before is not None:
        known = _all(resource, before, None, status, group)
        found = [cause for cause in found if cause not in known]
    return found


def _all(
    resource: Resource, after: Content, before: Content | None, status: bool, group: str
) -> list[Cause]:
    key = (resource.group, resource.kind)
    rule: Rule | None
    if resource.open_api is not None:
        found = [] if status else list(metadata_problems(resource, after, before))
        return [*found, *_by_schema(resource.open_api, after, status)]
    if status:
        return list(_cautious(_STATUS_RULES.get(key), after, before))
    rule = core.new_event_problems if group == "events.k8s.io" else _RULES.get(key)
    found = [*metadata_problems(resource, after, before), *_cautious(rule, after, before)]
    if key == ("", "Pod") and before is not None:
        found += pod_update_problems(after, before)
    return list(dict.fromkeys(found))


def _by_schema(schema: Content, after: Content, status: bool) -> Iterator[Cause]:
    """Yield the problems of a custom resource; a request writes its status or the rest of it."""
    for cause in schema_problems(schema, {k: v for k, v in after.items() if k != "metadata"}):
        if cause.field.partition(".")[0] != "status" or status:
            yield cause


def _cautious(rule: Rule | None, after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield the problems that a rule finds; values of the wrong type are found elsewhere."""
    if rule is None:
        return
    try:
        yield from rule(after, before)
    except (AttributeError, TypeError):
        return
