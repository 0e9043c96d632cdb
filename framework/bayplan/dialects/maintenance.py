"""Announced maintenance: when a node goes, so that what runs there can end or move before."""

from __future__ import annotations

from bayplan.api import Node
from bayplan.dialects.reading import timestamp

__all__ = ["MAINTENANCE_AT", "maintenance_at"]

MAINTENANCE_AT = "bayplan.dev/maintenance-at"
"""On a node: when its maintenance begins, in RFC 3339; whoever plans it sets and removes it."""


def maintenance_at(node: Node) -> float | None:
    """Return when a node's maintenance begins, in seconds since 1970; None if none is announced.

    A time that cannot be read counts as now: somebody wants the node.
    """
    text = node.metadata.annotations.get(MAINTENANCE_AT)
    return None if text is None else timestamp(text)
