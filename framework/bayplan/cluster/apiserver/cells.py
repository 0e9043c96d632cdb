"""How kubectl's tables show values: ages, states of pods and nodes, amounts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from bayplan.cluster.apiserver.selectors import at_path

__all__ = [
    "NONE",
    "age",
    "claim_state",
    "duration",
    "node_state",
    "pod_state",
    "ready_containers",
    "restarts",
    "roles",
]

Content = Mapping[str, Any]
NONE = "<none>"
_ROLE = "node-role.kubernetes.io/"
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400


def duration(seconds: float) -> str:
    """Return a duration as kubectl shows it, in one unit or two."""
    total = max(0, int(seconds))
    steps = (
        # up to, larger unit, its letter, smaller unit, its letter
        (2 * _MINUTE, 1, "s", 0, ""),
        (10 * _MINUTE, _MINUTE, "m", 1, "s"),
        (3 * _HOUR, _MINUTE, "m", 0, ""),
        (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
        (2 * _DAY, _HOUR, "h", 0, ""),
        (8 * _DAY, _DAY, "d", _HOUR, "h"),
        (2 * _YEAR, _DAY, "d", 0, ""),
        (8 * _YEAR, _YEAR, "y", _DAY, "d"),
    )
    for limit, unit, letter, rest, small in steps:
        if total < limit:
            more = total % unit // rest if rest else 0
            return f"{total // unit}{letter}{more}{small}" if more else f"{total // unit}{letter}"
    return f"{total // _YEAR}y"


def age(stamp: Any, now: datetime) -> str:
    """Return how long ago a time of the API was."""
    try:
        then = datetime.fromisoformat(str(stamp))
        return duration((now - then).total_seconds())
    except (TypeError, ValueError):
        return "<unknown>"


def _spec(content: Content) -> Content:
    found: Content = content.get("spec") or {}
    return found


def _conditions(content: Content) -> dict[str, Content]:
    found = at_path(content, "status.conditions")
    items = found if isinstance(found, list) else []
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
    """Return how often a pod's containers were started again."""
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
