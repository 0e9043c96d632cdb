"""Small changes that an API server and its controllers make to pods and nodes."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import Node, Pod, PodCondition, Taint

__all__ = ["with_condition", "with_condition_taints", "with_spec"]

_NOT_READY = "node.kubernetes.io/not-ready"
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


def with_spec(pod: Pod, **changes: object) -> Pod:
    """Return a pod with some fields of its spec changed."""
    return replace(pod, spec=replace(pod.spec, **changes))


def with_condition(pod: Pod, condition: PodCondition) -> Pod:
    """Return a pod with one condition set, in place of the one of its type."""
    others = tuple(c for c in pod.status.conditions if c.type != condition.type)
    return replace(pod, status=replace(pod.status, conditions=(*others, condition)))


def with_condition_taints(node: Node) -> Node:
    """Taint cordoned and unready nodes, as the node lifecycle controller does."""
    ready = next((c.status for c in node.status.conditions if c.type == "Ready"), "True")
    wanted = []
    if ready != "True":
        wanted.append(Taint(_NOT_READY, "NoSchedule"))
    if node.spec.unschedulable:
        wanted.append(Taint(_UNSCHEDULABLE, "NoSchedule"))
    own = (_NOT_READY, _UNSCHEDULABLE)
    taints = (*(taint for taint in node.spec.taints if taint.key not in own), *wanted)
    if taints == node.spec.taints:
        return node
    return replace(node, spec=replace(node.spec, taints=taints))
