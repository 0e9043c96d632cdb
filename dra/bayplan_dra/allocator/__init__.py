"""The device allocator: which devices of a node meet a set of claims.

:class:`.allocator.Allocator` is the door. Its search keeps a node's topology whole and never
explodes (:mod:`.search`); with ``strict_reference`` it takes the first solution in Kubernetes'
order (:mod:`.reference`).
"""

from __future__ import annotations

from bayplan_dra.allocator.allocator import Allocator
from bayplan_dra.allocator.model import (
    AllocatedState,
    AllocationError,
    DeviceId,
    Features,
    HeldDevice,
    NodeError,
    PoolDevice,
    TimedOut,
    allocated_ids,
)
from bayplan_dra.allocator.pools import Inventory, Pool, PoolKey
from bayplan_dra.allocator.requests import ClaimToAllocate, prepare
from bayplan_dra.allocator.results import Choice, allocation_of
from bayplan_dra.allocator.shape import Shapes
from bayplan_dra.allocator.solve import Failure, Interrupt, Score, Solved, Task
from bayplan_dra.allocator.table import TOPOLOGY, DeviceTable

__all__ = [
    "TOPOLOGY",
    "AllocatedState",
    "AllocationError",
    "Allocator",
    "Choice",
    "ClaimToAllocate",
    "DeviceId",
    "DeviceTable",
    "Failure",
    "Features",
    "HeldDevice",
    "Interrupt",
    "Inventory",
    "NodeError",
    "Pool",
    "PoolDevice",
    "PoolKey",
    "Score",
    "Shapes",
    "Solved",
    "Task",
    "TimedOut",
    "allocated_ids",
    "allocation_of",
    "prepare",
]
