"""What changed between two versions of an object, as far as scheduling reads it."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import Node, Pod, ResourceClaim
from bayplan.cluster.protocol import Bind
from bayplan.dialects.hami.heartbeats import without_heartbeats
from bayplan.dialects.progress import without_progress
from bayplan.plugin.events import ClusterEvent

__all__ = ["claim_freed", "is_as_bound", "node_difference", "same_needs"]


def same_needs(old: Pod, new: Pod) -> bool:
    """Tell whether a pod's update changes nothing that scheduling reads."""
    if old is new:
        return True
    before, after = old.metadata, new.metadata
    if before.labels != after.labels:
        return False
    if before.annotations != after.annotations and (
        without_progress(before.annotations) != without_progress(after.annotations)
    ):
        return False
    if before.owner_references != after.owner_references:
        return False
    if (before.deletion_timestamp is None) != (after.deletion_timestamp is None):
        return False
    if old.spec is new.spec:
        return True
    return replace(old.spec, node_name="") == replace(new.spec, node_name="")


def is_as_bound(old: Pod, new: Pod, write: Bind) -> bool:
    """Tell whether a pod is as its binding made it, so that scheduling knows all of it already."""
    annotations = {**old.metadata.annotations, **write.annotations}
    bound = replace(old, metadata=replace(old.metadata, annotations=annotations))
    return not write.labels and same_needs(bound, new)


def claim_freed(old: ResourceClaim | None, new: ResourceClaim) -> bool:
    """Tell whether a claim's update may let other claims be allocated, or its own pods be bound."""
    if old is None:
        return False
    before, after = old.status, new.status
    return (
        (before.allocation is not None and after.allocation is None)
        or len(after.reserved_for) < len(before.reserved_for)
        or before.devices != after.devices
    )


def node_difference(old: Node | None, new: Node) -> ClusterEvent:
    """Return the events, joined by ``|``, of a node's change; NONE when scheduling reads none."""
    if old is None:
        return ClusterEvent.NODE_ADDED
    event = ClusterEvent.NONE
    if old.metadata.labels != new.metadata.labels:
        event |= ClusterEvent.NODE_LABELS
    if old.spec.taints != new.spec.taints or old.spec.unschedulable != new.spec.unschedulable:
        event |= ClusterEvent.NODE_TAINTS
    if old.status.allocatable != new.status.allocatable or (
        old.status.capacity != new.status.capacity
    ):
        event |= ClusterEvent.NODE_ALLOCATABLE
    before, after = old.metadata.annotations, new.metadata.annotations
    if before != after and without_heartbeats(before) != without_heartbeats(after):
        event |= ClusterEvent.NODE_OTHER
    if old.status.images != new.status.images or old.status.conditions != new.status.conditions:
        event |= ClusterEvent.NODE_OTHER
    return event
