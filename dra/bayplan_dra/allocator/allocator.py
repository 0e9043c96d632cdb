"""The allocator's entry point: claims and a node's devices in, choices or a reason out.

Claims are made ready by :func:`.requests.prepare`, the devices that a node can use by
:class:`.table.DeviceTable`; :func:`.results.allocation_of` turns choices into the API's allocation.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bayplan_dra.allocator.model import (
    AllocatedState,
    AllocationError,
    Interrupt,
    NodeError,
    TimedOut,
)
from bayplan_dra.allocator.reference import Reference
from bayplan_dra.allocator.requests import ClaimToAllocate, SelectorError
from bayplan_dra.allocator.solve import PLAIN_STEPS, Failure, Score, Solved, Task, solve
from bayplan_dra.allocator.table import TOPOLOGY, DeviceTable

__all__ = ["Allocator"]


class Allocator(msgspec.Struct, frozen=True):
    """Allocates claims: all that it is given, or none. It keeps and changes nothing.

    :param levels: the attributes that say which devices belong together, the most precious first.
    :param strict_reference: try devices in Kubernetes' order and take the first solution.
    :param ignore_selector_errors: do not select a device on which a selector fails; without it,
        a failing selector fails the allocation wherever it does in Kubernetes.
    """

    levels: Sequence[str] = TOPOLOGY
    strict_reference: bool = False
    ignore_selector_errors: bool = False

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
        :raises SelectorError: when a selector fails on a device, see ``ignore_selector_errors``.
        :raises NodeError: with ``strict_reference``, when the node's pools are invalid.
        """
        if self.strict_reference:
            return self._in_reference_order(claims, table, state, interrupt)
        if not self.ignore_selector_errors:
            self._check_selectors(claims, table, state, interrupt)
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

    def _check_selectors(
        self,
        claims: Sequence[ClaimToAllocate],
        table: DeviceTable,
        state: AllocatedState,
        interrupt: Interrupt | None,
    ) -> None:
        """Look at devices in Kubernetes' order, until they suffice, if a selector fails on any.

        So whether a failing selector counts does not depend on the order of the better search.

        :raises SelectorError: when Kubernetes would come across such a device.
        """
        search = Reference(claims, table.pools, state, table.features, interrupt, PLAIN_STEPS)
        try:
            if any(
                table.filtered(way, claim.label, interrupt).failures
                for claim in claims
                for request in claim.requests
                for way in request.ways
            ):
                search.run()
        except SelectorError:
            raise
        except (AllocationError, NodeError):
            # Whatever else is wrong, the search that follows says so.
            return

    def _in_reference_order(
        self,
        claims: Sequence[ClaimToAllocate],
        table: DeviceTable,
        state: AllocatedState,
        interrupt: Interrupt | None,
    ) -> Solved | Failure:
        search = Reference(
            claims,
            table.pools,
            state,
            table.features,
            interrupt,
            ignore_selector_errors=self.ignore_selector_errors,
        )
        try:
            found = search.run()
        except TimedOut as exc:
            return Failure(str(exc), search.calls, timed_out=True)
        if found is None:
            return Failure("no combination of devices fits", search.calls)
        return Solved(found, 0, search.calls)
