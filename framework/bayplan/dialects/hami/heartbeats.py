"""Annotations of nodes that are written again and again, and that say nothing new by that."""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.dialects.hami.systems import HAMI
from bayplan.topology.machine.readers.hami_register import HANDSHAKE, VOLCANO_HANDSHAKE

__all__ = ["without_heartbeats"]

_ALIVE = "Reported"


def without_heartbeats(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return a node's annotations without its lock and without when its device plugin was alive.

    The lock concerns who writes the next binding only.
    """
    heartbeats = {HAMI.annotations.lock, HANDSHAKE, VOLCANO_HANDSHAKE}
    if heartbeats.isdisjoint(annotations):
        return annotations
    return {
        name: text
        for name, text in annotations.items()
        if name not in heartbeats or (name != HAMI.annotations.lock and not text.startswith(_ALIVE))
    }
