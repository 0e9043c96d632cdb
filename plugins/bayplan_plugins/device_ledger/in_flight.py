"""Allocations in flight: decided by this scheduler, not yet visible in the API."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from bayplan import PodInfo
from bayplan.api.dra import AllocationResult
from bayplan_dra.allocator import Choice, ClaimToAllocate, HeldDevice
from bayplan_plugins.device_ledger.device_usage import DeviceUsage

__all__ = ["InFlightAllocation", "InFlightAllocations"]

_NONE: Mapping[str, InFlightAllocation] = {}


class InFlightAllocation(msgspec.Struct, eq=False):
    """The allocation of one claim on a node, decided for a unit.

    ``pods`` are those that use the claim, by uid.
    """

    claim: ClaimToAllocate
    node: str
    unit: str
    choices: Sequence[Choice]
    allocation: AllocationResult
    pods: dict[str, PodInfo] = msgspec.field(default_factory=dict)

    @property
    def uid(self) -> str:
        """The claim's uid."""
        return self.claim.claim.metadata.uid

    @property
    def held(self) -> list[HeldDevice]:
        """The devices that are held; those with admin access are not."""
        node = self.allocation.bound_node
        return [
            HeldDevice(
                choice.device.id,
                choice.consumed,
                node if choice.device.spec.binding_conditions else "",
            )
            for choice in self.choices
            if not choice.wanted.admin
        ]


class InFlightAllocations:
    """All allocations in flight, by the claim's uid; their devices count as used."""

    def __init__(self, usage: DeviceUsage) -> None:
        self._usage = usage
        self._by_claim: dict[str, InFlightAllocation] = {}
        self._by_unit: dict[str, dict[str, InFlightAllocation]] = {}
        self._claims_of: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        """Return the number of claims whose allocation is in flight."""
        return len(self._by_claim)

    def __iter__(self) -> Iterator[InFlightAllocation]:
        """Iterate over the allocations, the oldest first."""
        return iter(self._by_claim.values())

    def get(self, claim: str) -> InFlightAllocation | None:
        """Return the allocation of a claim, by uid."""
        return self._by_claim.get(claim)

    def of_unit(self, unit: str) -> Collection[InFlightAllocation]:
        """Return the allocations that were decided for a unit, the oldest first."""
        return self._by_unit.get(unit, _NONE).values()

    def of(self, pod: PodInfo) -> list[InFlightAllocation]:
        """Return the allocations that a pod uses."""
        return [self._by_claim[claim] for claim in self._claims_of.get(pod.uid, ())]

    def concern(self, pod: str) -> bool:
        """Tell whether a pod, by uid, uses any of the allocations."""
        return pod in self._claims_of

    def add(self, allocation: InFlightAllocation, pod: PodInfo) -> None:
        """Record an allocation that was decided for a pod, and hold its devices."""
        self._keep(allocation)
        self.join(allocation, pod)
        self._usage.hold(allocation.held)

    def join(self, allocation: InFlightAllocation, pod: PodInfo) -> None:
        """Let a pod use an allocation that was decided for another one."""
        allocation.pods[pod.uid] = pod
        self._claims_of.setdefault(pod.uid, {})[allocation.uid] = None

    def replace(self, allocation: InFlightAllocation) -> InFlightAllocation | None:
        """Change a claim's allocation; return the former one, or None where there is none."""
        before = self._by_claim.get(allocation.uid)
        if before is None:
            return None
        self._usage.release(before.held)
        allocation.pods = before.pods
        self._keep(allocation)
        self._usage.hold(allocation.held)
        return before

    def leave(self, pod: PodInfo) -> None:
        """Remove a pod from its allocations; those that no other pod uses are dropped."""
        for allocation in self.of(pod):
            del allocation.pods[pod.uid]
            self._unlink(pod.uid, allocation.uid)
            if not allocation.pods:
                self._forget(allocation)
                self._usage.release(allocation.held)

    def land(self, claim: str) -> InFlightAllocation | None:
        """Stop tracking a claim, by uid; return its allocation, whose devices stay held."""
        allocation = self._by_claim.get(claim)
        if allocation is not None:
            self._forget(allocation)
            for pod in allocation.pods:
                self._unlink(pod, claim)
        return allocation

    def drop(self, claim: str) -> None:
        """Stop tracking a claim, by uid, and release its devices."""
        allocation = self.land(claim)
        if allocation is not None:
            self._usage.release(allocation.held)

    def _keep(self, allocation: InFlightAllocation) -> None:
        before = self._by_claim.get(allocation.uid)
        if before is not None and before.unit != allocation.unit:
            self._forget(before)
        self._by_claim[allocation.uid] = allocation
        self._by_unit.setdefault(allocation.unit, {})[allocation.uid] = allocation

    def _forget(self, allocation: InFlightAllocation) -> None:
        del self._by_claim[allocation.uid]
        own = self._by_unit[allocation.unit]
        del own[allocation.uid]
        if not own:
            del self._by_unit[allocation.unit]

    def _unlink(self, pod: str, claim: str) -> None:
        claims = self._claims_of[pod]
        del claims[claim]
        if not claims:
            del self._claims_of[pod]
