"""Small changes that admission and controllers make to pods and nodes."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from bayplan.api import Node, Pod, PodCondition, Taint, Toleration

__all__ = ["with_condition", "with_condition_taints", "with_spec", "with_tolerations"]

Effect = Literal["NoSchedule", "NoExecute"]

_NOT_READY = "node.kubernetes.io/not-ready"
_UNREACHABLE = "node.kubernetes.io/unreachable"
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_CONDITION_TAINTS = {
    ("Ready", "False"): _NOT_READY,
    ("Ready", "Unknown"): _UNREACHABLE,
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
}
_BOTH: tuple[Effect, ...] = ("NoSchedule", "NoExecute")
_FIRST: tuple[Effect, ...] = ("NoSchedule",)
_EFFECTS: dict[str, tuple[Effect, ...]] = {_NOT_READY: _BOTH, _UNREACHABLE: _BOTH}
_OWN = {_UNSCHEDULABLE, *_CONDITION_TAINTS.values()}
_GRACE = 300


def with_spec(pod: Pod, **changes: object) -> Pod:
    """Return a pod with some fields of its spec changed."""
    return replace(pod, spec=replace(pod.spec, **changes))


def with_condition(pod: Pod, condition: PodCondition) -> Pod:
    """Return a pod with a condition set, replacing one of the same type."""
    others = tuple(c for c in pod.status.conditions if c.type != condition.type)
    return replace(pod, status=replace(pod.status, conditions=(*others, condition)))


def with_condition_taints(node: Node, now: str) -> Node:
    """Taint cordoned nodes and nodes with bad conditions, as the node lifecycle controller does.

    A node without conditions counts as ready.

    :param now: the time in RFC 3339, which NoExecute taints tell.
    """
    wanted: set[tuple[str, Effect]] = set()
    for condition in node.status.conditions:
        key = _CONDITION_TAINTS.get((condition.type, condition.status))
        if key is not None:
            wanted |= {(key, effect) for effect in _EFFECTS.get(key, _FIRST)}
    if node.spec.unschedulable:
        wanted.add((_UNSCHEDULABLE, "NoSchedule"))
    taints = [t for t in node.spec.taints if t.key not in _OWN or (t.key, t.effect) in wanted]
    known = {(taint.key, taint.effect) for taint in taints}
    taints += [
        Taint(key, effect, time_added=now if effect == "NoExecute" else None)
        for key, effect in sorted(wanted - known)
    ]
    if len(taints) == len(node.spec.taints) and wanted <= known:
        return node
    return replace(node, spec=replace(node.spec, taints=tuple(taints)))


def with_tolerations(pod: Pod) -> Pod:
    """Add the default tolerations for failed nodes (300 s), as DefaultTolerationSeconds does."""
    own = pod.spec.tolerations
    added = tuple(
        Toleration(key, "Exists", effect="NoExecute", toleration_seconds=_GRACE)
        for key in (_NOT_READY, _UNREACHABLE)
        if not any(t.key in ("", key) and t.effect in ("", "NoExecute") for t in own)
    )
    return replace(pod, spec=replace(pod.spec, tolerations=(*own, *added))) if added else pod
