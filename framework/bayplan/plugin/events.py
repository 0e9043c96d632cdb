"""Changes in a cluster that may make a refused pod schedulable."""

from __future__ import annotations

from enum import Flag, auto

__all__ = ["ClusterEvent"]


class ClusterEvent(Flag):
    """Kinds of change. A plugin names those that can undo its refusals in ``requeue_on``."""

    NONE = 0
    NODE_ADDED = auto()
    """A node was created."""
    NODE_LABELS = auto()
    """A node's labels changed."""
    NODE_TAINTS = auto()
    """A node's taints changed, or it was cordoned or uncordoned."""
    NODE_ALLOCATABLE = auto()
    """A node's allocatable or capacity changed."""
    NODE_OTHER = auto()
    """A node's annotations or images changed, or the node was deleted."""
    POD_PLACED = auto()
    """A pod was bound to a node."""
    POD_REMOVED = auto()
    """A pod left its node: deleted, ended, or its reservation was given back."""
    POD_CHANGED = auto()
    """A pod on a node changed in a way that scheduling reads."""
    GANG_CHANGED = auto()
    """The definition of a gang changed."""
    OBJECT_CHANGED = auto()
    """Any other object was created, changed or deleted: a claim, a volume, a PodGroup, ..."""
    LOAD_CHANGED = auto()
    """What nodes really use was reported again; at most one event a second."""

    NODE = NODE_ADDED | NODE_LABELS | NODE_TAINTS | NODE_ALLOCATABLE | NODE_OTHER
    """Any change of a node."""
    POD = POD_PLACED | POD_REMOVED | POD_CHANGED
    """Any change of pods on nodes."""
    ANY = NODE | POD | GANG_CHANGED | OBJECT_CHANGED | LOAD_CHANGED
    """Every event."""
