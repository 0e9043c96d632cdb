"""GPUs that a fabric attached and handed over to the node's own driver.

The claim still names the fabric's placeholder, and the GPU is a new device of the node. It is
given to the claim at once, in place of the placeholder: otherwise another pod could take it first.
"""

from __future__ import annotations

from bayplan import NodeRow, PodInfo
from bayplan.api import ResourceClaim
from bayplan.api.dra import DeviceId
from bayplan_dra.allocator import AllocationError, Reach, allocation_of
from bayplan_plugins.device_ledger.in_flight import InFlightAllocation
from bayplan_plugins.device_ledger.ledger import DeviceLedger
from bayplan_plugins.dynamic_resources.node_allocator import NodeAllocator

__all__ = ["Handovers"]


class Handovers:
    """Finds what a claim gets in place of a placeholder."""

    def __init__(self, ledger: DeviceLedger, allocator: NodeAllocator) -> None:
        self._ledger = ledger
        self._allocator = allocator

    def devices(self, node: NodeRow) -> frozenset[DeviceId]:
        """Return the devices that a node can use."""
        return frozenset(device.id for device in self._ledger.devices.table(node.node).devices)

    def keep(
        self, pod: PodInfo, claim: ResourceClaim, node: NodeRow, known: frozenset[DeviceId]
    ) -> InFlightAllocation | None:
        """Hold devices that are not known and serve a claim, until ``give_back``; None without any.

        Their driver may publish them before the fabric says that it has handed them over.
        """
        if self.devices(node) <= known:
            return None
        try:
            found = self._find(pod, claim, node, known)
        except AllocationError:
            return None
        if found is not None:
            self._ledger.usage.hold(found.held)
        return found

    def give_back(self, kept: InFlightAllocation) -> None:
        """Undo ``keep``."""
        self._ledger.usage.release(kept.held)

    def take(self, pod: PodInfo, claim: ResourceClaim, node: NodeRow) -> InFlightAllocation | None:
        """Give devices of the node to a claim; None while there are none.

        :raises AllocationError: when no node could serve the claim any more.
        """
        taken = self._find(pod, claim, node)
        if taken is not None:
            self._ledger.decide(taken, pod)
        return taken

    def _find(
        self,
        pod: PodInfo,
        claim: ResourceClaim,
        node: NodeRow,
        known: frozenset[DeviceId] = frozenset(),
    ) -> InFlightAllocation | None:
        ledger = self._ledger
        ready = ledger.specs.prepared(claim)
        state = ledger.state.copy()
        table = ledger.devices.table(node.node)
        state.devices |= known | {
            device.id
            for device, reach in zip(table.devices, table.reaches, strict=True)
            if reach > Reach.ATTACHED
        }
        found = self._allocator.with_state([ready], node.node, state)
        if found.error is not None:
            raise AllocationError(found.reason)
        if found.choices is None:
            return None
        (choices,) = found.choices
        allocation = allocation_of(ready, choices, node.node, ledger.devices.features)
        return InFlightAllocation(ready, node.name, pod.gang or pod.key, choices, allocation)
