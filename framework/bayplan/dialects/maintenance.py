"""Announced maintenance: when a node goes, so that what runs there can end or move before."""

from __future__ import annotations

from bayplan.api import Node
from bayplan.dialects.reading import timestamp

__all__ = ["MAINTENANCE_AT", "MAINTENANCE_TAINTS", "maintenance_at"]

MAINTENANCE_AT = "bayplan.dev/maintenance-at"
"""On a node: when its maintenance begins, in RFC 3339; whoever plans it sets and removes it."""


MAINTENANCE_TAINTS = frozenset(
    {
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "cloud.google.com/impending-node-termination",
    }
)
"""Taints by which clouds say that a node goes soon, without a time."""


def maintenance_at(node: Node) -> float | None:
    """Return when a node's maintenance begins, in seconds since 1970; None if none is announced.

    A time that cannot be read, or is not stated, counts as now: somebody wants the node.
    """
    text = node.metadata.annotations.get(MAINTENANCE_AT)
    if text is not None:
        return timestamp(text)
    keys = {taint.key for taint in node.spec.taints}
    return None if keys.isdisjoint(MAINTENANCE_TAINTS) else 0.0
