"""NodeResourcesFit and NodeResourcesBalancedAllocation: room on a node, and how it is used."""

from bayplan_plugins.node_resources.balanced_allocation import (
    NodeResourcesBalancedAllocation,
    NodeResourcesBalancedAllocationArgs,
)
from bayplan_plugins.node_resources.fit import NodeResourcesFit, NodeResourcesFitArgs

__all__ = [
    "NodeResourcesBalancedAllocation",
    "NodeResourcesBalancedAllocationArgs",
    "NodeResourcesFit",
    "NodeResourcesFitArgs",
]
