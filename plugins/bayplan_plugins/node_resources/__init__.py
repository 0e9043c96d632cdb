"""NodeResourcesFit and NodeResourcesBalancedAllocation: what is free on a node, and its use."""

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
