"""PreBind: writes the allocations, reserves the claims, and waits until their devices are ready."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bayplan import Handle, PodInfo, Preparation
from bayplan.api import ResourceClaim
from bayplan.api.dra import AllocatedDevice, AllocationResult
from bayplan.cluster.protocol import CreateClaim, ReleaseClaim, ReserveClaim, Write
from bayplan.errors import ClusterError, NotFound
from bayplan_plugins.dynamic_resources.in_flight import InFlightAllocation
from bayplan_plugins.dynamic_resources.ledger import DeviceLedger
from bayplan_plugins.dynamic_resources.pod_claims import PodClaims

__all__ = ["ClaimWriter"]

_RELEASES = 5
"""How often a release is tried."""


@dataclass
class _Plan:
    """What is written for one pod.

    ``claims`` are reserved, each with whether it is allocated by this pod's cycle.
    ``allocations`` are awaited, by the claim's key; "" stands for the claim that is created for
    the pod's extended resources.
    """

    writes: list[Write] = field(default_factory=list)
    claims: list[tuple[ResourceClaim, bool]] = field(default_factory=list)
    allocations: list[tuple[str, AllocationResult]] = field(default_factory=list)


class ClaimWriter:
    """Carries the allocations of pods to the API, and takes them back.

    :param timeout: seconds that devices may take to become ready.
    """

    def __init__(self, handle: Handle, ledger: DeviceLedger, timeout: float) -> None:
        self._handle = handle
        self._ledger = ledger
        self._timeout = timeout
        self._written: dict[str, list[tuple[ResourceClaim, bool]]] = {}

    def is_written(self, uid: str) -> bool:
        """Tell whether a pod's allocations, by uid, are on their way to the API."""
        return uid in self._written

    def prepare(self, pod: PodInfo, claims: PodClaims) -> Preparation | None:
        """Return the writes for a pod and what to wait for; None if nothing is to be written."""
        plan = self._plan(pod, claims)
        if not plan.writes:
            return None
        self._written[pod.uid] = plan.claims
        return Preparation(
            plan.writes, lambda: self._are_ready(pod, plan.allocations), self._timeout
        )

    def _plan(self, pod: PodInfo, claims: PodClaims) -> _Plan:
        in_flight = {one.uid: one for one in self._ledger.in_flight.of(pod)}
        plan = _Plan()
        for claim in [claim for claim, _ in claims.fixed] + [c.claim for c in claims.open]:
            uid = claim.metadata.uid
            decided = in_flight.get(uid)
            allocation = decided.allocation if decided is not None else None
            known = allocation or claim.status.allocation
            if known is not None:
                plan.allocations.append((claim.key, known))
            plan.writes.append(ReserveClaim(claim.key, uid, pod.key, pod.uid, allocation))
            plan.claims.append((claim, decided is not None))
        extended = claims.extended
        decided = in_flight.get(extended.claim.claim.metadata.uid) if extended is not None else None
        if extended is not None and decided is not None:
            mappings = [m for m in extended.mappings if _is_used(m.request_name, decided)]
            allocation = decided.allocation
            plan.writes.append(
                CreateClaim(pod.key, pod.uid, decided.claim.claim, allocation, mappings)
            )
            plan.allocations.append(("", allocation))
        return plan

    def _are_ready(
        self, pod: PodInfo, allocations: Sequence[tuple[str, AllocationResult]]
    ) -> bool | str:
        """Tell whether the API shows the allocations, and all binding conditions hold.

        A text says that a device failed, or that another claim holds it: the API server accepts
        any allocation, so the one that watchers saw first counts.
        """
        for key, allocation in allocations:
            if not key:
                status = pod.pod.status.extended_resource_claim_status
                if status is None:
                    return False
                key = f"{pod.namespace}/{status.resource_claim_name}"
            claim = self._handle.snapshot.objects(ResourceClaim).get(key)
            if claim is None:
                return f"resource claim {key} is gone"
            known = claim.status.allocation
            if known is None or known.devices.results != allocation.devices.results:
                return False
            rival = self._ledger.allocated.earlier_holder(claim)
            if rival:
                return f"claim {key}: a device of it was given to claim {rival} just before"
            ready = _conditions_hold(claim, allocation)
            if ready is not True:
                return ready
        return True

    def undo(self, pod: PodInfo) -> None:
        """Release what was written for a pod, and deallocate what its cycle allocated."""
        for claim, allocated_here in self._written.pop(pod.uid, ()):
            uid = claim.metadata.uid
            self._release(ReleaseClaim(claim.key, uid, pod.uid, deallocate=allocated_here))

    def _release(self, write: ReleaseClaim, tries: int = _RELEASES) -> None:
        """Write a release and retry where that fails: nobody else would do it."""

        def answered(error: ClusterError | None) -> None:
            if error is not None and not isinstance(error, NotFound) and tries > 1:
                self._release(write, tries - 1)

        self._handle.submit(write, answered)

    def forget(self, pod: PodInfo) -> None:
        """Stop tracking a pod that is bound."""
        self._written.pop(pod.uid, None)


def _is_used(request: str, allocation: InFlightAllocation) -> bool:
    return any(choice.wanted.name == request for choice in allocation.choices)


def _conditions_hold(claim: ResourceClaim, allocation: AllocationResult) -> bool | str:
    """Tell whether all binding conditions of the devices hold; a text names one that failed."""
    for device in allocation.devices.results:
        conditions = _conditions(claim, device)
        for name in device.binding_failure_conditions:
            if conditions.get(name) == "True":
                return f"claim {claim.key}: device {device.device} failed: condition {name} holds"
        if any(conditions.get(name) != "True" for name in device.binding_conditions):
            return False
    return True


def _conditions(claim: ResourceClaim, device: AllocatedDevice) -> Mapping[str, str]:
    """Return the status of each condition of a device, by its type."""
    for status in claim.status.devices:
        if (status.driver, status.pool, status.device, status.share_id) == (
            device.driver,
            device.pool,
            device.device,
            device.share_id,
        ):
            return {condition.type: condition.status for condition in status.conditions}
    return {}
