"""What the owners of a pod tell of it."""

from __future__ import annotations

from bayplan.api.meta import ObjectMeta

__all__ = ["belongs_to_node", "is_restarted"]

_OF_NODES = ("DaemonSet", "Node")
_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
_VERSION = "volcano.sh/job-version"


def belongs_to_node(meta: ObjectMeta) -> bool:
    """Tell whether a pod belongs to its node: it comes with the node, and goes with it."""
    return any(one.kind in _OF_NODES for one in meta.owner_references)


def is_restarted(meta: ObjectMeta) -> bool:
    """Tell whether a pod's JobSet or Volcano job was restarted as a whole before it was made."""
    attempt, version = meta.labels.get(_ATTEMPT, "0"), meta.annotations.get(_VERSION, "0")
    return attempt != "0" or version != "0"
