"""Changes of nodes at a time of a simulation: nodes that fail, return, are cordoned or added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bayplan.api import KINDS, ApiObject, Node, decode_object, kind_of
from bayplan.api.objects import DecodeError
from bayplan.cluster.snapshot_changes import patched
from bayplan.errors import did_you_mean
from bayplan.inputs.durations import parse_duration

__all__ = ["AT_ANNOTATION", "AT_PATH", "NodeChange", "change_of", "check_changes"]

AT_ANNOTATION = "bayplan.dev/at"
"""The annotation with the virtual time, such as "1h", at which a Node's manifest is applied."""
AT_PATH = f'$.metadata.annotations["{AT_ANNOTATION}"]'
_NODE = KINDS["", "Node"]
_SERVERS = ("uid", "resourceVersion", "creationTimestamp", "generation")
"""Fields of metadata that the API server writes."""


class NodeChange(msgspec.Struct, frozen=True):
    """A Node's manifest that is applied ``at`` seconds after the start."""

    at: float
    name: str
    content: Mapping[str, Any]

    def applied(self, node: Node | None) -> Node:
        """Return the node after ``kubectl apply``, its status included; None is no node yet.

        :raises DecodeError: when the result is not a node.
        """
        if node is None:
            before: dict[str, Any] = {"apiVersion": "v1"}
        else:
            before = msgspec.to_builtins(node, enc_hook=lambda quantity: quantity.text)
        after = decode_object(_NODE, patched(before, self.content))
        assert isinstance(after, Node)
        return after


def change_of(obj: ApiObject, content: Mapping[str, Any]) -> NodeChange | None:
    """Return the change that a manifest with ``bayplan.dev/at`` describes; None for another one.

    :raises DecodeError: when the time is none, and for objects other than nodes.
    """
    text = obj.metadata.annotations.get(AT_ANNOTATION)
    if text is None:
        return None
    if not isinstance(obj, Node):
        message = f"only a Node changes at a time; a {kind_of(obj).name} is there from the start"
        raise DecodeError(f"{message}, or from its creationTimestamp", AT_PATH)
    if not obj.metadata.name:
        raise DecodeError("expected the name of the Node that changes", "$.metadata.name")
    try:
        at = parse_duration(text)
    except ValueError as exc:
        raise DecodeError(str(exc), AT_PATH) from None
    annotations = {k: v for k, v in obj.metadata.annotations.items() if k != AT_ANNOTATION}
    # What kubectl get writes names a version that is not the current one any more.
    own = {key: part for key, part in content["metadata"].items() if key not in _SERVERS}
    metadata = {**own, "annotations": annotations}
    return NodeChange(at, obj.metadata.name, {**content, "metadata": metadata})


def check_changes(
    changes: Sequence[NodeChange], objects: Iterable[ApiObject]
) -> tuple[NodeChange, DecodeError] | None:
    """Return the first change that cannot be made, and why; None if all can.

    :param changes: in the order of their times.
    :param objects: what is there from the start.
    """
    nodes = {obj.metadata.name: obj for obj in objects if isinstance(obj, Node)} if changes else {}
    for change in changes:
        try:
            after = change.applied(nodes.get(change.name))
        except DecodeError as exc:
            return change, exc
        if change.name not in nodes and not (after.status.allocatable or after.status.capacity):
            near = did_you_mean(change.name, nodes)
            message = f'there is no Node "{change.name}" at that time{near}'
            hint = "" if near else "; a Node that is added needs status.allocatable"
            return change, DecodeError(f"{message}{hint}", "$.metadata.name")
        nodes[change.name] = after
    return None
