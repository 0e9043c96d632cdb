"""Koordinator: the QoS class and the priority class of a pod.

Names and ranges as in koordinator-sh/koordinator v1.8 (apis/extension/qos.go, priority.go).
"""

from __future__ import annotations

from bayplan.api import Pod

__all__ = ["PRIORITY_LABEL", "PRIORITY_RANGES", "QOS_LABEL", "priority_class", "qos_class"]

QOS_LABEL = "koordinator.sh/qosClass"
PRIORITY_LABEL = "koordinator.sh/priority-class"
_QOS = ("LSE", "LSR", "LS", "BE", "SYSTEM")
PRIORITY_RANGES = {
    "koord-prod": (9000, 9999),
    "koord-mid": (7000, 7999),
    "koord-batch": (5000, 5999),
    "koord-free": (3000, 3999),
}
"""The priorities of each class, the first and the last."""


def qos_class(pod: Pod) -> str:
    """Return the pod's QoS class in Koordinator's sense, "" where it names none."""
    named = pod.metadata.labels.get(QOS_LABEL, "")
    return named if named in _QOS else ""


def priority_class(pod: Pod) -> str:
    """Return the pod's priority class: by label, by priority, else what its QoS class implies.

    A pod of no QoS class is of ``koord-prod`` if it requests CPU or memory, else of
    ``koord-batch``.
    """
    named = pod.metadata.labels.get(PRIORITY_LABEL)
    if named in PRIORITY_RANGES:
        return named
    priority = pod.spec.priority if named is None else None
    for name, (least, most) in PRIORITY_RANGES.items():
        if priority is not None and least <= priority <= most:
            return name
    best_effort = qos_class(pod) == "BE" or (not qos_class(pod) and not _has_requests(pod))
    return "koord-batch" if best_effort else "koord-prod"


def _has_requests(pod: Pod) -> bool:
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    stated = (
        {**container.resources.limits, **container.resources.requests} for container in containers
    )
    return any(amounts.get(name) for amounts in stated for name in ("cpu", "memory"))
