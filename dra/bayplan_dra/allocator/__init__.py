"""The device allocator: which devices of a node meet a set of claims.

The search keeps a node's topology whole and never explodes (:mod:`.search`); ``strict_reference``
runs Kubernetes' own order instead, first solution wins (:mod:`.reference`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bayplan.api.dra import AllocationResult, DeviceClass, ResourceClaim
from bayplan.api.node import Node
from bayplan_dra.allocator.model import (
    AllocatedState,
    AllocationError,
    DeviceId,
    Features,
    Held,
    NodeError,
    PoolDevice,
    TimedOut,
    allocated_ids,
)
from bayplan_dra.allocator.pools import Inventory, Pool
from bayplan_dra.allocator.reference import Reference
from bayplan_dra.allocator.requests import ClaimToAllocate, prepare
from bayplan_dra.allocator.results import Choice, allocation_of
from bayplan_dra.allocator.solve import Failure, Score, Solved, Task, solve
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
    "Held",
    "Inventory",
    "NodeError",
    "Pool",
    "PoolDevice",
    "Reference",
    "Score",
    "Solved",
    "Task",
    "TimedOut",
    "allocated_ids",
    "allocation_of",
    "prepare",
    "solve",
]


@dataclass
class Allocator:
    """Allocates claims on nodes, one node at a time.

    :param classes: finds a device class by name.
    :param strict_reference: try devices in the reference's order and take the first solution.
    """

    inventory: Inventory
    classes: Callable[[str], DeviceClass | None]
    strict_reference: bool = False
    levels: Sequence[str] = TOPOLOGY
    calls: int = field(default=0, init=False)

    def allocate(
        self,
        claims: Sequence[ResourceClaim],
        node: Node,
        state: AllocatedState,
        interrupt: Callable[[], bool] | None = None,
        score: Score | None = None,
    ) -> list[AllocationResult] | Failure:
        """Allocate all claims on a node, or say why that cannot be done there.

        ``calls`` is then the number of steps that it took. Nothing that is given is changed.

        :param interrupt: asked now and then whether to stop.
        :param score: rates complete solutions; not in the reference's order.
        :raises AllocationError: when no node can help: a class that does not exist, an expression
            that is no CEL.
        :raises NodeError: in the reference's order, when the node's pools are wrong.
        """
        features = self.inventory.features
        ready = [prepare(claim, self.classes, features) for claim in claims]
        pools = self.inventory.pools(node)
        if self.strict_reference:
            search = Reference(ready, pools, state, features, interrupt)
            found = search.run()
            self.calls = search.calls
            if found is None:
                return Failure("cannot allocate all claims", search.calls)
            return self._results(ready, found, node)
        table = DeviceTable(pools, features)
        tasks = [Task(claim, table.all) for claim in ready]
        solved = solve(table, tasks, state, self.levels, interrupt, score)
        self.calls = solved.steps
        if isinstance(solved, Failure):
            return solved
        return self._results(ready, solved.choices, node)

    def _results(
        self, claims: Sequence[ClaimToAllocate], found: Sequence[Sequence[Choice]], node: Node
    ) -> list[AllocationResult]:
        features, repeat = self.inventory.features, self.strict_reference
        return [
            allocation_of(claim, choices, node, features, repeat)
            for claim, choices in zip(claims, found, strict=True)
        ]
