"""The door to the allocator: claims and a node's devices in, choices or a reason out.

Claims are made ready by :func:`.requests.prepare`, the devices that a node can use by
:class:`.table.DeviceTable`; :func:`.results.allocation_of` turns choices into the API's allocation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bayplan_dra.allocator.model import AllocatedState, TimedOut
from bayplan_dra.allocator.reference import Reference
from bayplan_dra.allocator.requests import ClaimToAllocate
from bayplan_dra.allocator.solve import Failure, Interrupt, Score, Solved, Task, solve
from bayplan_dra.allocator.table import TOPOLOGY, DeviceTable

__all__ = ["Allocator"]


@dataclass(frozen=True)
class Allocator:
    """Allocates claims: all that it is given, or none. It keeps and changes nothing.

    :param levels: the attributes that say which devices belong together, the most precious first.
    :param strict_reference: try devices in Kubernetes' order and take the first solution.
    """

    levels: Sequence[str] = TOPOLOGY
    strict_reference: bool = False

    def allocate(
        self,
        claims: Sequence[ClaimToAllocate],
        table: DeviceTable,
        state: AllocatedState,
        interrupt: Interrupt | None = None,
        score: Score | None = None,
    ) -> Solved | Failure:
        """Allocate claims on the node whose devices the table holds.

        :param interrupt: called every few steps; the search stops when it returns True.
        :param score: rates complete choices; ignored with ``strict_reference``.
        :raises AllocationError: when no node can help, as for an expression that does not compile.
        :raises NodeError: with ``strict_reference``, when the node's pools are invalid.
        """
        if self.strict_reference:
            return _in_reference_order(claims, table, state, interrupt)
        tasks = [Task(claim, table.all) for claim in claims]
        return solve(table, tasks, state, self.levels, interrupt, score)

    def allocate_across(
        self,
        tasks: Sequence[Task],
        table: DeviceTable,
        state: AllocatedState,
        interrupt: Interrupt | None = None,
        score: Score | None = None,
    ) -> Solved | Failure:
        """Allocate claims on several nodes, which may share devices.

        Kubernetes has nothing like it, so ``strict_reference`` makes no difference.

        :param table: the devices of all these nodes.
        :raises AllocationError: for an expression that does not compile.
        """
        return solve(table, tasks, state, self.levels, interrupt, score)


def _in_reference_order(
    claims: Sequence[ClaimToAllocate],
    table: DeviceTable,
    state: AllocatedState,
    interrupt: Interrupt | None,
) -> Solved | Failure:
    search = Reference(claims, table.pools, state, table.features, interrupt)
    try:
        found = search.run()
    except TimedOut as exc:
        return Failure(str(exc), search.calls, timed_out=True)
    if found is None:
        return Failure("no combination of devices fits", search.calls)
    return Solved(found, 0, search.calls)
