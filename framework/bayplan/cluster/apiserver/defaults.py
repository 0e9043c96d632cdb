"""The defaults that the API server sets in pods."""

from __future__ import annotations

from typing import Any

__all__ = [
    "container_defaults",
    "pod_defaults",
    "pod_update_defaults",
    "quality_of_service",
]

Content = dict[str, Any]

_NOT_READY = "node.kubernetes.io/not-ready"
_UNREACHABLE = "node.kubernetes.io/unreachable"
_POD = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "serviceAccountName": "default",
    "serviceAccount": "default",
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
}
_CONTAINER = {
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}


def pod_defaults(content: Content) -> Content:
    """Return a new pod with its defaults."""
    spec = {**_POD, **content.get("spec", {})}
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [container_defaults(c) for c in spec[field]]
    status = {
        "phase": "Pending",
        **content.get("status", {}),
        "qosClass": quality_of_service(spec),
    }
    return {**content, "spec": spec, "status": status}


def pod_update_defaults(before: Content, after: Content) -> Content:
    """Return an updated pod with the fields that admission keeps or sets again."""
    spec = {**pod_defaults(after)["spec"]}
    old = before.get("spec", {})
    if "priority" not in spec and "priority" in old:
        spec["priority"] = old["priority"]
    given = spec.get("tolerations") or ()
    own = [one for one in given if isinstance(one, dict)]
    added = [
        one
        for one in old.get("tolerations", ())
        if one.get("key") in (_NOT_READY, _UNREACHABLE) and one not in own
        if not any(t.get("key") == one["key"] for t in own)
    ]
    if added:
        spec["tolerations"] = [*given, *added]
    return {**after, "spec": spec}


def container_defaults(content: Content) -> Content:
    """Return a container with its defaults."""
    image = str(content.get("image", ""))
    latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
    filled = {**_CONTAINER, "imagePullPolicy": "Always" if latest else "IfNotPresent", **content}
    resources = filled["resources"]
    limits = resources.get("limits") if isinstance(resources, dict) else None
    if limits:
        filled["resources"] = {**resources, "requests": {**limits, **resources.get("requests", {})}}
    return filled


def quality_of_service(spec: Content) -> str:
    """Return the QoS class of a pod."""
    guaranteed, best_effort = True, True
    for container in [*spec.get("containers", ()), *spec.get("initContainers", ())]:
        resources = container.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        for name in ("cpu", "memory"):
            if name in requests or name in limits:
                best_effort = False
            if name not in limits or requests.get(name, limits[name]) != limits[name]:
                guaranteed = False
    if best_effort:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"
