"""What can happen in a cluster that may make a refused pod schedulable."""

from __future__ import annotations

from enum import Flag, auto

__all__ = ["ClusterEvent"]


class ClusterEvent(Flag):
    """Kinds of change. A plugin names those that can undo its refusals in ``requeue_on``."""

    NONE = 0
    NODE_ADDED = auto()
    NODE_LABELS = auto()
    NODE_TAINTS = auto()
    NODE_ALLOCATABLE = auto()
    NODE_OTHER = auto()
    POD_PLACED = auto()
    POD_REMOVED = auto()
    POD_CHANGED = auto()
    GANG_CHANGED = auto()
    OBJECT_CHANGED = auto()

    NODE = NODE_ADDED | NODE_LABELS | NODE_TAINTS | NODE_ALLOCATABLE | NODE_OTHER
    POD = POD_PLACED | POD_REMOVED | POD_CHANGED
    ANY = NODE | POD | GANG_CHANGED | OBJECT_CHANGED
