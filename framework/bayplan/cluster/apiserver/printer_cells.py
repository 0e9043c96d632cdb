"""Cells of kubectl's tables: ages, states of pods and nodes, amounts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from bayplan.cluster.apiserver.selectors import at_path
from bayplan.inputs.durations import duration_text

__all__ = [
    "NONE",
    "access_modes",
    "address",
    "age",
    "claim_of",
    "claim_state",
    "containers",
    "controller",
    "endpoints",
    "gang_policy",
    "gang_scheduled",
    "gang_workload",
    "hosts",
    "involved",
    "job_share",
    "job_state",
    "job_time",
    "last_seen",
    "levels",
    "node_state",
    "pairs",
    "pod_state",
    "ports",
    "quota",
    "ready_containers",
    "restarts",
    "roles",
    "scale_metrics",
    "scale_target",
    "selector",
    "slice_endpoints",
]

Content = Mapping[str, Any]
NONE = "<none>"
_ROLE = "node-role.kubernetes.io/"


def age(stamp: Any, now: datetime) -> str:
    """Return the age of a timestamp, as kubectl shows it."""
    try:
        then = datetime.fromisoformat(str(stamp))
        return duration_text((now - then).total_seconds())
    except (TypeError, ValueError):
        return "<unknown>"


def _spec(content: Content) -> Content:
    found: Content = content.get("spec") or {}
    return found


def _conditions(content: Content) -> dict[str, Content]:
    found = at_path(content, "status.conditions")
    items = found if isinstance(found, list | tuple) else []
    return {c["type"]: c for c in items if isinstance(c, dict) and "type" in c}


def pod_state(content: Content) -> str:
    """Return the STATUS of a pod."""
    status = content.get("status", {})
    if content["metadata"].get("deletionTimestamp"):
        return "Terminating"
    state = status.get("reason") or status.get("phase", "Unknown")
    scheduled = _conditions(content).get("PodScheduled", {})
    if scheduled.get("reason") == "SchedulingGated" or (
        _spec(content).get("schedulingGates") and not _spec(content).get("nodeName")
    ):
        state = "SchedulingGated"
    for one in reversed(status.get("containerStatuses", ())):
        inner = one.get("state", {})
        for kind in ("waiting", "terminated"):
            state = inner.get(kind, {}).get("reason") or state
    return "Completed" if state == "Succeeded" else str(state)


def ready_containers(content: Content) -> str:
    """Return how many of a pod's containers are ready, as in ``1/2``."""
    total = len(_spec(content).get("containers", ()))
    statuses = content.get("status", {}).get("containerStatuses")
    if statuses is not None:
        return f"{sum(bool(one.get('ready')) for one in statuses)}/{total}"
    ready = _conditions(content).get("Ready", {}).get("status") == "True"
    return f"{total if ready else 0}/{total}"


def restarts(content: Content) -> str:
    """Return the number of restarts of a pod's containers."""
    statuses = content.get("status", {}).get("containerStatuses", ())
    return str(sum(one.get("restartCount", 0) for one in statuses))


def node_state(content: Content) -> str:
    """Return the STATUS of a node."""
    ready = _conditions(content).get("Ready", {}).get("status")
    state = {"True": "Ready", None: "Unknown"}.get(ready, "NotReady")
    return f"{state},SchedulingDisabled" if _spec(content).get("unschedulable") else state


def roles(content: Content) -> str:
    """Return the roles of a node."""
    labels = content["metadata"].get("labels") or {}
    found = sorted(key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE))
    return ",".join(found) or NONE


def claim_state(content: Content) -> str:
    """Return the STATE of a resource claim."""
    status = content.get("status", {})
    parts = ["deleted"] if content["metadata"].get("deletionTimestamp") else []
    if "allocation" in status:
        parts.append("allocated")
    if status.get("reservedFor"):
        parts.append("reserved")
    return ",".join(parts) if "allocation" in status else ",".join([*parts, "pending"])


def _items(content: Content, path: str) -> list[Content]:
    found = at_path(content, path)
    items = found if isinstance(found, list | tuple) else ()
    return [item for item in items if isinstance(item, dict)]


def _shortened(names: list[str], most: int = 3) -> str:
    """Return the first names and the number of the others."""
    more = len(names) - most
    shown = ",".join(names[:most])
    return (f"{shown} + {more} more..." if more > 0 else shown) or NONE


def pairs(found: Any) -> str:
    """Return labels as ``key=value,key=value``."""
    if not isinstance(found, dict):
        return NONE
    return ",".join(f"{key}={value}" for key, value in sorted(found.items())) or NONE


def selector(content: Content, path: str) -> str:
    """Return a label selector, or plain labels, as text."""
    found = at_path(content, path)
    if not isinstance(found, dict):
        return NONE
    if "matchLabels" not in found and "matchExpressions" not in found:
        return pairs(found)
    words = {"In": "in", "NotIn": "notin"}
    parts = [pairs(found["matchLabels"])] if found.get("matchLabels") else []
    for one in found.get("matchExpressions") or ():
        key, operator = one.get("key"), one.get("operator")
        if operator in words:
            parts.append(f"{key} {words[operator]} ({','.join(sorted(one.get('values') or ()))})")
        else:
            parts.append(str(key) if operator == "Exists" else f"!{key}")
    return ",".join(parts) or NONE


def containers(content: Content, path: str, field: str) -> str:
    """Return the names or the images of a template's containers."""
    return ",".join(str(one.get(field, "")) for one in _items(content, f"{path}.containers"))


def address(content: Content, kind: str) -> str:
    """Return an address of a node."""
    found = _items(content, "status.addresses")
    return next((str(one.get("address")) for one in found if one.get("type") == kind), NONE)


def ports(content: Content) -> str:
    """Return the PORT(S) of a service."""
    shown = []
    for port in _items(content, "spec.ports"):
        outside = f":{port['nodePort']}" if port.get("nodePort") else ""
        shown.append(f"{port.get('port')}{outside}/{port.get('protocol', 'TCP')}")
    return ",".join(shown) or NONE


def controller(content: Content) -> str:
    """Return who controls an object, as in ``daemonset.apps/agent``."""
    for one in _items(content, "metadata.ownerReferences"):
        if one.get("controller"):
            group = str(one.get("apiVersion", "")).rpartition("/")[0]
            kind = str(one.get("kind", "")).lower()
            return f"{kind}.{group}/{one.get('name')}" if group else f"{kind}/{one.get('name')}"
    return NONE


def involved(content: Content) -> str:
    """Return the OBJECT of an event."""
    found = content.get("involvedObject") or {}
    return f"{str(found.get('kind', '')).lower()}/{found.get('name', '')}"


def last_seen(content: Content, now: datetime) -> str:
    """Return the LAST SEEN of an event."""
    series = at_path(content, "series.lastObservedTime")
    fields = ("lastTimestamp", "eventTime", "firstTimestamp")
    stamp = series or next((content[f] for f in fields if content.get(f)), None)
    return age(stamp or at_path(content, "metadata.creationTimestamp"), now)


# Jobs ----------------------------------------------------------------------------------------


def job_state(content: Content) -> str:
    """Return the STATUS of a Job."""
    for condition in _items(content, "status.conditions"):
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            return str(condition["type"])
    return "Suspended" if at_path(content, "spec.suspend") else "Running"


def newest_condition(content: Content) -> str:
    """Return the STATE of a PyTorchJob: the type of its newest condition."""
    return next((str(c.get("type")) for c in reversed(_items(content, "status.conditions"))), "")


def job_time(content: Content, now: datetime) -> str:
    """Return the DURATION of a Job."""
    start, end = at_path(content, "status.startTime"), at_path(content, "status.completionTime")
    if start is None:
        return ""
    return age(start, datetime.fromisoformat(end) if end else now)


def job_share(content: Content) -> str:
    """Return the COMPLETIONS of a Job."""
    spec = content.get("spec", {})
    total = spec.get("completions") or spec.get("parallelism") or 1
    return f"{at_path(content, 'status.succeeded') or 0}/{total}"


# Scaling and networks ------------------------------------------------------------------------


def scale_target(content: Content) -> str:
    """Return the REFERENCE of an autoscaler."""
    target = at_path(content, "spec.scaleTargetRef") or {}
    return f"{target.get('kind')}/{target.get('name')}"


def scale_metrics(content: Content) -> str:
    """Return the TARGETS of an autoscaler; present values are unknown."""
    shown = []
    for metric in _items(content, "spec.metrics"):
        resource = metric.get("resource") or {}
        target = resource.get("target") or {}
        share = target.get("averageUtilization")
        wanted = f"{share}%" if share is not None else target.get("averageValue", "<auto>")
        shown.append(f"{resource.get('name', metric.get('type'))}: <unknown>/{wanted}")
    return _shortened(shown, 2)


def endpoints(content: Content) -> str:
    """Return the ENDPOINTS of an Endpoints object."""
    shown = []
    for subset in _items(content, "subsets"):
        for port in _items(subset, "ports") or [{}]:
            end = f":{port['port']}" if "port" in port else ""
            shown += [f"{one.get('ip')}{end}" for one in _items(subset, "addresses")]
    return _shortened(shown)


def slice_endpoints(content: Content) -> str:
    """Return the ENDPOINTS of an EndpointSlice."""
    found = _items(content, "endpoints")
    return _shortened([str(a) for one in found for a in one.get("addresses") or ()])


def hosts(content: Content) -> str:
    """Return the HOSTS of an Ingress."""
    found = [str(rule["host"]) for rule in _items(content, "spec.rules") if rule.get("host")]
    return _shortened(found) if found else "*"


def quota(content: Content, limits: bool) -> str:
    """Return the REQUEST or the LIMIT of a quota, as used/hard."""
    hard = at_path(content, "status.hard") or at_path(content, "spec.hard") or {}
    used = at_path(content, "status.used") or {}
    return ", ".join(
        f"{name}: {used.get(name, 0)}/{amount}"
        for name, amount in sorted(hard.items())
        if name.startswith("limits.") is limits
    )


# Volumes -------------------------------------------------------------------------------------

_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def access_modes(content: Content, part: str) -> str:
    """Return the ACCESS MODES of a volume or a claim."""
    found = at_path(content, f"{part}.accessModes") or ()
    return ",".join(_MODES.get(str(mode), str(mode)) for mode in found)


def claim_of(content: Content) -> str:
    """Return the CLAIM of a volume."""
    claim = at_path(content, "spec.claimRef")
    return f"{claim.get('namespace')}/{claim.get('name')}" if isinstance(claim, dict) else ""


# Gangs and networks of nodes -----------------------------------------------------------------


def gang_policy(content: Content) -> str:
    """Return whether the pods of a Kubernetes pod group start together, and how many."""
    policy = at_path(content, "spec.schedulingPolicy")
    if not isinstance(policy, dict):
        return NONE
    gang = policy.get("gang")
    return f"Gang({gang.get('minCount', 1)})" if isinstance(gang, dict) else "Basic"


def gang_workload(content: Content) -> str:
    """Return the Workload that a Kubernetes pod group takes its policy from."""
    return str(at_path(content, "spec.podGroupTemplateRef.workload.workloadName") or NONE)


def gang_scheduled(content: Content) -> str:
    """Return whether a Kubernetes pod group is scheduled."""
    return str(_conditions(content).get("PodGroupScheduled", {}).get("status", "Unknown"))


def levels(content: Content) -> str:
    """Return the node labels of a topology, the outermost first."""
    found = _items(content, "spec.levels")
    return ",".join(str(level.get("nodeLabel", "")) for level in found) or NONE
