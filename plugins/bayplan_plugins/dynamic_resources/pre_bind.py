"""PreBind: writes the allocations, reserves the claims, and waits until their devices are ready."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import msgspec
from msgspec.structs import replace

from bayplan import Handle, NodeRow, PodInfo, Preparation
from bayplan.api import ResourceClaim
from bayplan.api.dra import AllocatedDevice, AllocationResult, DeviceId
from bayplan.api.times import rfc3339, seconds_of
from bayplan.cluster.protocol import CreateClaim, ReleaseClaim, ReserveClaim, Write
from bayplan.errors import ClusterError, NotFound
from bayplan_dra.allocator import AllocationError, HeldDevice
from bayplan_plugins.device_ledger.in_flight import InFlightAllocation
from bayplan_plugins.device_ledger.ledger import DeviceLedger
from bayplan_plugins.dynamic_resources.binding_conditions import (
    HANDED_OVER,
    failed_condition,
    hands_over,
    has_conditions,
    id_of,
    missing_text,
    unready,
)
from bayplan_plugins.dynamic_resources.conflicting_claims import earlier_claim
from bayplan_plugins.dynamic_resources.handover import Handovers
from bayplan_plugins.dynamic_resources.pod_claims import PodClaims

__all__ = ["ClaimWriter"]

_RELEASES = 5
"""How often a release is tried."""


class _Plan(msgspec.Struct):
    """What is written for one pod.

    ``claims`` are reserved, each with whether it is allocated by this pod's cycle.
    ``allocations`` are awaited, by the claim's key; "" stands for the claim that is created for
    the pod's extended resources. ``replaced`` are the allocations that take the place of those, by
    the claim's key, and ``kept`` what is held until then; the node had the devices ``known``
    before. The devices have been getting ready for ``waited`` seconds, and fail at
    ``deadline``, in seconds of the cluster's clock.
    """

    node: NodeRow
    writes: list[Write] = msgspec.field(default_factory=list)
    claims: list[tuple[ResourceClaim, bool]] = msgspec.field(default_factory=list)
    allocations: list[tuple[str, AllocationResult]] = msgspec.field(default_factory=list)
    replaced: dict[str, ReserveClaim] = msgspec.field(default_factory=dict)
    kept: dict[str, InFlightAllocation] = msgspec.field(default_factory=dict)
    known: frozenset[DeviceId] = frozenset()
    waited: float = 0.0
    deadline: float = math.inf
    failed: bool = False


class ClaimWriter:
    """Carries the allocations of pods to the API, and takes them back.

    :param timeout: seconds that devices may take to become ready.
    """

    def __init__(
        self, handle: Handle, ledger: DeviceLedger, handovers: Handovers, timeout: float
    ) -> None:
        self._handle = handle
        self._ledger = ledger
        self._handovers = handovers
        self._timeout = timeout
        self._written: dict[str, _Plan] = {}

    def is_written(self, uid: str) -> bool:
        """Tell whether a pod's allocations, by uid, are on their way to the API."""
        return uid in self._written

    @property
    def pods(self) -> Collection[str]:
        """The uids of the pods whose allocations are on their way to the API."""
        return self._written.keys()

    def prepare(self, pod: PodInfo, claims: PodClaims, node: NodeRow) -> Preparation | None:
        """Return the writes for a pod and what to wait for; None if nothing is to be written."""
        plan = self._plan(pod, claims, node)
        if not plan.writes:
            return None
        self._written[pod.uid] = plan
        if any(hands_over(allocation) for _, allocation in plan.allocations):
            plan.known = self._handovers.devices(node)
        seconds = max(0.0, self._timeout - plan.waited)
        plan.deadline = self._handle.now + seconds
        return Preparation(
            plan.writes,
            lambda: self._are_ready(pod, plan),
            seconds,
            then=lambda: list(plan.replaced.values()),
            missing=lambda: self._missing(pod, plan),
            waited=plan.waited,
        )

    def _plan(self, pod: PodInfo, claims: PodClaims, node: NodeRow) -> _Plan:
        in_flight = {one.uid: one for one in self._ledger.in_flight.of(pod)}
        plan = _Plan(node)
        for claim in [claim for claim, _ in claims.fixed] + [c.claim for c in claims.open]:
            uid = claim.metadata.uid
            decided = in_flight.get(uid)
            allocation = self._stamped(decided.allocation) if decided is not None else None
            known = allocation or claim.status.allocation
            if known is not None:
                plan.allocations.append((claim.key, known))
                if allocation is None and unready(claim, known):
                    since = seconds_of(known.allocation_timestamp)
                    passed = self._handle.unix_time - since if since else 0.0
                    plan.waited = max(plan.waited, passed)
            plan.writes.append(ReserveClaim(claim.key, uid, pod.key, pod.uid, allocation))
            plan.claims.append((claim, decided is not None))
        extended = claims.extended
        decided = in_flight.get(extended.claim.claim.metadata.uid) if extended is not None else None
        if extended is not None and decided is not None:
            mappings = [m for m in extended.mappings if _is_used(m.request_name, decided)]
            allocation = self._stamped(decided.allocation)
            plan.writes.append(
                CreateClaim(pod.key, pod.uid, decided.claim.claim, allocation, mappings)
            )
            plan.allocations.append(("", allocation))
        return plan

    def _stamped(self, allocation: AllocationResult) -> AllocationResult:
        """Return an allocation with the time from which on its devices have to get ready."""
        if not has_conditions(allocation):
            return allocation
        return replace(allocation, allocation_timestamp=rfc3339(self._handle.unix_time))

    # Waiting ---------------------------------------------------------------------------------

    def _are_ready(self, pod: PodInfo, plan: _Plan) -> bool | str:
        """Tell whether the API shows the allocations, and all binding conditions hold.

        A text says that a device failed, or that another claim holds it: the API server accepts
        any allocation, so the one that watchers saw first counts.
        """
        for key, allocation in plan.allocations:
            claim = self._claim(pod, key)
            if claim is None:
                return False
            if isinstance(claim, str):
                return claim
            if claim.key in plan.replaced:
                continue
            known = claim.status.allocation
            if known is None or known.devices.results != allocation.devices.results:
                return False
            earlier = earlier_claim(self._ledger, claim, plan.node.node)
            if earlier:
                return f"claim {key}: a device of it was given to claim {earlier} just before"
            ready = self._is_ready(pod, plan, claim, allocation)
            if ready is not True:
                return ready
        return True

    def _claim(self, pod: PodInfo, key: str) -> ResourceClaim | str | None:
        """Return a claim of a pod; None while it is not made, a text if it is gone."""
        if not key:
            status = pod.pod.status.extended_resource_claim_status
            if status is None:
                return None
            key = f"{pod.namespace}/{status.resource_claim_name}"
        claim = self._handle.snapshot.objects(ResourceClaim).get(key)
        return claim if claim is not None else f"resource claim {key} is gone"

    def _is_ready(
        self, pod: PodInfo, plan: _Plan, claim: ResourceClaim, allocation: AllocationResult
    ) -> bool | str:
        """Tell whether the devices of one claim are ready; a text names one that failed."""
        failure = failed_condition(claim, allocation)
        if failure is None:
            if unready(claim, allocation):
                self._keep(pod, plan, claim, allocation)
                return False
            self._give_back(plan, claim.key)
            for device in allocation.devices.results:
                self._note(plan, device, ready=True)
            return True
        device, condition = failure
        if condition.endswith(HANDED_OVER) and _is_only_user(pod, claim):
            return self._hand_over(pod, plan, claim)
        plan.failed = True
        self._note(plan, device, ready=False)
        return f"claim {claim.key}: device {device.device} failed: condition {condition} holds"

    def _keep(
        self, pod: PodInfo, plan: _Plan, claim: ResourceClaim, allocation: AllocationResult
    ) -> None:
        """Keep others from a GPU that is there already, but not yet said to be handed over."""
        if claim.key in plan.kept or not hands_over(allocation) or not _is_only_user(pod, claim):
            return
        kept = self._handovers.keep(pod, claim, plan.node, plan.known)
        if kept is not None:
            plan.kept[claim.key] = kept

    def _give_back(self, plan: _Plan, *claims: str) -> None:
        for key in claims:
            kept = plan.kept.pop(key, None)
            if kept is not None:
                self._handovers.give_back(kept)

    def _hand_over(self, pod: PodInfo, plan: _Plan, claim: ResourceClaim) -> bool | str:
        """Give a claim the GPU that was attached for it, once the node's driver publishes it."""
        self._give_back(plan, claim.key)
        try:
            taken = self._handovers.take(pod, claim, plan.node)
        except AllocationError as exc:
            plan.failed = True
            return str(exc)
        if taken is None:
            return False
        uid = claim.metadata.uid
        plan.replaced[claim.key] = ReserveClaim(
            claim.key, uid, pod.key, pod.uid, self._stamped(taken.allocation), replaces=True
        )
        plan.claims = [(one, here or one.metadata.uid == uid) for one, here in plan.claims]
        return True

    def _missing(self, pod: PodInfo, plan: _Plan) -> str:
        """Say which devices are not ready."""
        devices = list(self._unready(pod, plan))
        if not devices:
            return ""
        specs = self._ledger.devices.specs(plan.node.node)
        return missing_text(devices, plan.node.name, specs)

    def _unready(self, pod: PodInfo, plan: _Plan) -> Iterator[AllocatedDevice]:
        for key, allocation in plan.allocations:
            claim = self._claim(pod, key)
            if isinstance(claim, ResourceClaim) and claim.key not in plan.replaced:
                yield from unready(claim, allocation)

    def _note(self, plan: _Plan, device: AllocatedDevice, ready: bool) -> None:
        if device.binding_conditions:
            held = HeldDevice(id_of(device), None, plan.node.name)
            self._ledger.usage.note_readiness(held, ready)

    # Undoing ---------------------------------------------------------------------------------

    def undo(self, pod: PodInfo) -> None:
        """Release what was written for a pod, and deallocate what its cycle allocated.

        Devices that failed, or were late, are deallocated whoever allocated them.
        """
        plan = self._written.pop(pod.uid, None)
        if plan is None:
            return
        self._give_back(plan, *plan.kept)
        if self._handle.now >= plan.deadline:
            for device in list(self._unready(pod, plan)):
                plan.failed = True
                self._note(plan, device, ready=False)
        for claim, allocated_here in plan.claims:
            known = claim.status.allocation
            deallocate = allocated_here or (
                plan.failed and known is not None and has_conditions(known)
            )
            uid = claim.metadata.uid
            self._release(ReleaseClaim(claim.key, uid, pod.uid, deallocate=deallocate))

    def _release(self, write: ReleaseClaim, tries: int = _RELEASES) -> None:
        """Write a release, and retry if that fails: nothing else releases it."""

        def answered(error: ClusterError | None) -> None:
            if error is not None and not isinstance(error, NotFound) and tries > 1:
                self._release(write, tries - 1)

        self._handle.submit(write, answered)

    def forget(self, pod: PodInfo) -> None:
        """Stop tracking a pod that is bound."""
        plan = self._written.pop(pod.uid, None)
        if plan is not None:
            self._give_back(plan, *plan.kept)


def _is_only_user(pod: PodInfo, claim: ResourceClaim) -> bool:
    return all(user.uid == pod.uid for user in claim.status.reserved_for)


def _is_used(request: str, allocation: InFlightAllocation) -> bool:
    return any(choice.wanted.name == request for choice in allocation.choices)
