"""What the owners of a pod tell of it."""

from __future__ import annotations

from bayplan.api.meta import ObjectMeta

__all__ = ["belongs_to_node"]

_OF_NODES = ("DaemonSet", "Node")


def belongs_to_node(meta: ObjectMeta) -> bool:
    """Tell whether a pod belongs to its node: it comes with the node, and goes with it."""
    return any(one.kind in _OF_NODES for one in meta.owner_references)
