"""The device allocator: which devices of a node meet a set of claims.

:class:`.allocator.Allocator` is the entry point. Its search keeps a node's topology whole, in a
bounded number of steps (:mod:`.search`); with ``strict_reference`` it takes the first solution in
Kubernetes' order (:mod:`.reference`).
"""

from __future__ import annotations

from bayplan_dra.allocator.allocator import Allocator
from bayplan_dra.allocator.capacity import as_quantity
from bayplan_dra.allocator.equivalence import EquivalenceClasses
from bayplan_dra.allocator.host import HostLimits
from bayplan_dra.allocator.model import (
    AllocatedState,
    AllocationError,
    Amount,
    DeviceId,
    Features,
    HeldDevice,
    Interrupt,
    NodeError,
    PoolDevice,
    TimedOut,
    allocated_ids,
)
from bayplan_dra.allocator.pools import Inventory, Pool, PoolKey
from bayplan_dra.allocator.reach import Reach, reach_of
from bayplan_dra.allocator.requests import ClaimToAllocate, SelectorError, prepare
from bayplan_dra.allocator.results import Choice, allocation_of
from bayplan_dra.allocator.solve import Failure, Score, Solved, Task
from bayplan_dra.allocator.table import TOPOLOGY, DeviceTable
from bayplan_dra.allocator.usage import CounterKey, Usage

__all__ = [
    "TOPOLOGY",
    "AllocatedState",
    "AllocationError",
    "Allocator",
    "Amount",
    "Choice",
    "ClaimToAllocate",
    "CounterKey",
    "DeviceId",
    "DeviceTable",
    "EquivalenceClasses",
    "Failure",
    "Features",
    "HeldDevice",
    "HostLimits",
    "Interrupt",
    "Inventory",
    "NodeError",
    "Pool",
    "PoolDevice",
    "PoolKey",
    "Reach",
    "Score",
    "SelectorError",
    "Solved",
    "Task",
    "TimedOut",
    "Usage",
    "allocated_ids",
    "allocation_of",
    "as_quantity",
    "prepare",
    "reach_of",
]
