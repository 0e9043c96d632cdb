"""How near a device is to the host that uses it: in it, attached to it, or still to be attached."""

from __future__ import annotations

from enum import IntEnum

from bayplan_dra.allocator.model import PoolDevice

__all__ = ["Reach", "reach_of"]


class Reach(IntEnum):
    """How near a device is; a larger one takes longer to be ready.

    A device ``COMING`` is of one node and not ready yet, such as one that is being attached. One
    that is ``POOLED`` belongs to no node, and has to be attached to the one that uses it. One that
    is ``DOUBTFUL`` failed to get ready when it was used last.
    """

    LOCAL = 0
    ATTACHED = 1
    COMING = 2
    POOLED = 3
    DOUBTFUL = 4


def reach_of(device: PoolDevice) -> Reach:
    """Return how near a device is to a node that can use it.

    Binding conditions say that it has to be made ready first. A fabric's device that is attached
    has none, is of one node, and still binds its claims to their node.
    """
    node = device.spec.node_name or device.slice.node_name
    if device.spec.binding_conditions:
        return Reach.COMING if node else Reach.POOLED
    return Reach.ATTACHED if device.spec.node_name and device.spec.binds_to_node else Reach.LOCAL
