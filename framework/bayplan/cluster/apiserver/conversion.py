"""Conversion between API versions that differ in more than their name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bayplan.api.dra_versions import as_v1

__all__ = ["converter", "core_event", "new_event"]

Content = dict[str, Any]
_DEVICE_NAME = "name"


def converter(group: str, source: str, target: str) -> Callable[[Content], Content]:
    """Return the function that converts objects of an API group from one version to another."""
    api_version = f"{group}/{target}" if group else target

    def convert(content: Content) -> Content:
        content = as_v1(source, content) if group == "resource.k8s.io" else content
        if group == "autoscaling":
            content = {k: _AUTOSCALERS[target](v) if k == "spec" else v for k, v in content.items()}
        if group == "resource.k8s.io" and target == "v1beta1":
            content = {k: _as_v1beta1(v) if k == "spec" else v for k, v in content.items()}
        return {**content, "apiVersion": api_version}

    return convert


def _as_v1beta1(spec: Any) -> Any:
    """Convert a spec of resource.k8s.io/v1 to v1beta1."""
    if not isinstance(spec, dict):
        return spec
    converted = dict(spec)
    devices = spec.get("devices")
    if isinstance(devices, list):
        converted["devices"] = [
            {
                _DEVICE_NAME: device.get(_DEVICE_NAME),
                "basic": {k: v for k, v in device.items() if k != _DEVICE_NAME},
            }
            for device in devices
        ]
    elif isinstance(devices, dict) and isinstance(devices.get("requests"), list):
        requests = [
            {**{k: v for k, v in one.items() if k != "exactly"}, **one.get("exactly", {})}
            for one in devices["requests"]
        ]
        converted["devices"] = {**devices, "requests": requests}
    if isinstance(spec.get("spec"), dict):
        converted["spec"] = _as_v1beta1(spec["spec"])
    return converted


# Autoscalers -------------------------------------------------------------------------------------

_SHARE = "targetCPUUtilizationPercentage"


def _autoscaler_v1(spec: Any) -> Any:
    """Convert an autoscaler's spec from v2 to v1, which has only cpu."""
    if not isinstance(spec, dict):
        return spec
    kept = {key: value for key, value in spec.items() if key in _COMMON}
    for metric in spec.get("metrics") or ():
        resource = metric.get("resource") or {}
        share = (resource.get("target") or {}).get("averageUtilization")
        if resource.get("name") == "cpu" and share is not None:
            kept[_SHARE] = share
    return kept


def _autoscaler_v2(spec: Any) -> Any:
    """Convert an autoscaler's spec from v1 to v2."""
    if not isinstance(spec, dict) or _SHARE not in spec:
        return spec
    target = {"type": "Utilization", "averageUtilization": spec[_SHARE]}
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    return {**{k: v for k, v in spec.items() if k != _SHARE}, "metrics": [metric]}


_COMMON = ("scaleTargetRef", "minReplicas", "maxReplicas")
_AUTOSCALERS = {"v1": _autoscaler_v1, "v2": _autoscaler_v2}

# Events ----------------------------------------------------------------------------------------

_EVENT_FIELDS = {
    # core v1: events.k8s.io/v1
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}


def new_event(content: Content) -> Content:
    """Convert a core v1 Event to events.k8s.io/v1."""
    renamed = {_EVENT_FIELDS.get(key, key): value for key, value in content.items()}
    return {**renamed, "apiVersion": "events.k8s.io/v1"}


def core_event(content: Content) -> Content:
    """Convert an Event of events.k8s.io/v1 to core v1."""
    back = {new: old for old, new in _EVENT_FIELDS.items()}
    renamed = {back.get(key, key): value for key, value in content.items()}
    return {**renamed, "apiVersion": "v1"}
