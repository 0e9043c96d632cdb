"""DynamicResources: claims are allocated when their pod gets its node.

Filter asks, node by node, which devices the pod's claims would get there; Reserve decides, PreBind
writes (:mod:`.pre_bind`). Members of one gang may exchange devices that they were given in the same
cycle (:mod:`.gang_exchange`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Literal

import numpy as np
from msgspec.structs import replace
from pydantic import Field, field_validator

from bayplan import (
    NOTES,
    SKIP,
    Args,
    ClusterEvent,
    CycleState,
    Handle,
    NodeRow,
    NodeView,
    Normalize,
    Plugin,
    PodInfo,
    Preparation,
    Reads,
    Refusal,
    Reject,
    Remedy,
    Unit,
    hookimpl,
)
from bayplan.api import Namespace, ResourceClaim, ResourceClaimTemplate
from bayplan.api.node import Node
from bayplan.api.nodeselection import selects
from bayplan.cluster.protocol import ReleaseClaim
from bayplan.inputs.durations import parse_duration
from bayplan.plugin.decision import Decision
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn, IntColumn
from bayplan_dra.allocator import (
    TOPOLOGY,
    AllocationError,
    Choice,
    ClaimToAllocate,
    Reach,
    SelectorError,
    TimedOut,
    allocation_of,
    reach_of,
)
from bayplan_plugins.device_ledger.in_flight import InFlightAllocation
from bayplan_plugins.device_ledger.ledger import DeviceLedger
from bayplan_plugins.dynamic_resources.advice import advice, guarded_selectors
from bayplan_plugins.dynamic_resources.device_classes import served_by_classes
from bayplan_plugins.dynamic_resources.device_score import DeviceScores
from bayplan_plugins.dynamic_resources.gang_exchange import GangExchange
from bayplan_plugins.dynamic_resources.handover import Handovers
from bayplan_plugins.dynamic_resources.nearness import near_points
from bayplan_plugins.dynamic_resources.node_allocator import NodeAllocation, NodeAllocator
from bayplan_plugins.dynamic_resources.pod_claims import (
    NO_CLAIMS,
    PodClaims,
    claims_of,
    may_have_claims,
    why_waiting,
)
from bayplan_plugins.dynamic_resources.pre_bind import ClaimWriter

__all__ = ["DynamicResources", "DynamicResourcesArgs"]

_NOT_THERE = "resourceclaim not available on the node"
_PREFERENCE = 8
"""Points of a request's first alternative; each further one scores a point less."""
_MOST_BROKEN = 16
_MOST_NEAR = 256
_MOST_LOST = 8_000
_LESS_THAN_ONE = 0.99
"""Room lost counts among nodes where as many groups break."""


class DynamicResourcesArgs(Args):
    """Arguments of DynamicResources: those of kube-scheduler, and how devices are chosen.

    ``filterTimeout`` limits the search on one node, ``bindingTimeout`` the wait for devices to
    become ready. ``topologyLevels`` are the attributes that say which devices belong together, the
    most precious first (``*/name`` is that of any driver). ``strictReference`` takes the first
    devices that fit, in the order of Kubernetes' own allocator. ``selectorFailurePolicy`` says what
    becomes of a pod when a CEL selector fails on a device: ``Fail`` fails the attempt, as in
    Kubernetes, ``Ignore`` only does not select that device. ``cannotCoexist`` has groups of models
    of a fabric's GPUs that may not be attached to the same host; of several profiles, all count.
    """

    filter_timeout: str = "10s"
    binding_timeout: str = "600s"
    topology_levels: tuple[str, ...] = Field(default=TOPOLOGY, max_length=6)
    strict_reference: bool = False
    selector_failure_policy: Literal["Fail", "Ignore"] = "Fail"
    cannot_coexist: tuple[tuple[str, ...], ...] = Field(default=(), max_length=100)

    @field_validator("topology_levels")
    @classmethod
    def _are_qualified(cls, levels: tuple[str, ...]) -> tuple[str, ...]:
        for level in levels:
            if not all(level.partition("/")[::2]):
                raise ValueError(
                    f'"{level}" has no domain: expected such as "resource.kubernetes.io/pcieRoot", '
                    'or "*/nvlinkDomain" for that of any driver'
                )
        return levels

    @field_validator("filter_timeout", "binding_timeout")
    @classmethod
    def _is_duration(cls, text: str) -> str:
        parse_duration(text)
        return text


class DynamicResources(Plugin[DynamicResourcesArgs]):
    """Allocate devices for resource claims."""

    Args = DynamicResourcesArgs
    reads = Reads.NODE | Reads.PODS
    normalize_scores = Normalize.MAX
    requeue_on = ClusterEvent.NODE | ClusterEvent.POD_REMOVED | ClusterEvent.OBJECT_CHANGED
    gate_reads = frozenset({Namespace, ResourceClaim, ResourceClaimTemplate})

    def __init__(self, args: DynamicResourcesArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._ledger = handle.snapshot.shared(DeviceLedger, DeviceLedger)
        ledger = self._ledger
        if ledger.devices.hosts.keep_apart(args.cannot_coexist):
            ledger.devices.forget_tables()
        self._allocator = NodeAllocator(
            ledger.devices,
            ledger.state,
            args.topology_levels,
            args.strict_reference,
            parse_duration(args.filter_timeout),
            args.selector_failure_policy == "Ignore",
        )
        self._scores = DeviceScores(handle, ledger.devices)
        self.writer = ClaimWriter(
            handle,
            ledger,
            Handovers(ledger, self._allocator),
            parse_duration(args.binding_timeout),
        )
        self._gang = GangExchange(
            handle, ledger, self._allocator, self._scores, self.writer.is_written
        )

    def _claims(self, pod: PodInfo) -> PodClaims:
        if not may_have_claims(pod, self._ledger):
            return NO_CLAIMS
        return claims_of(pod, self.handle.snapshot, self._ledger)

    # Before the cycle ------------------------------------------------------------------------

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods with claims or extended resources, which claims may stand for."""
        return pod.facts.wants_devices

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        """Wait until all claims of the pod exist."""
        if not pod.spec.resource_claims:
            return None
        return why_waiting(pod, self.handle.snapshot)

    @hookimpl
    def serves(self, pod: PodInfo) -> frozenset[str]:
        """Serve the resources that stand for device classes."""
        return served_by_classes(pod.requests, self.handle.snapshot)

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by the specs of the open claims and by the allocations of the others.

        Members of a gang differ from other pods where they may exchange devices.
        """
        claims = self._claims(pod)
        if not claims:
            return None
        self._ledger.usage.read_unclaimed()
        helped = partial(self._only_exchange_helps, pod, claims)
        return claims.key, self._gang.sign(pod, claims.key, helped)

    def _only_exchange_helps(self, pod: PodInfo, claims: PodClaims, node: NodeRow) -> bool:
        open_claims = self._open(claims, node)
        if not open_claims:
            return False
        found = self._allocate(pod, claims, node, open_claims)
        refused = found.choices is None and found.error is None
        return refused and self._gang.is_possible(pod, open_claims, node)

    @hookimpl
    def prepare(self) -> bool:
        """Read the devices of nodes whose slices are new, some at a time."""
        return self._ledger.devices.read()

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods without claims; refuse those whose claims no node can serve."""
        claims = self._claims(pod)
        if not claims:
            return SKIP
        self._ledger.usage.read_unclaimed()
        return claims.problem or None

    # Which nodes -----------------------------------------------------------------------------

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes that cannot use the allocated claims, or cannot serve the others."""
        claims = self._claims(pod)
        masks: dict[Refusal, BoolColumn] = {}
        for index, node in enumerate(nodes):
            refusal = self._refusal(pod, claims, node)
            if refusal is not None:
                if refusal not in masks:
                    masks[refusal] = np.zeros(len(nodes), dtype=np.bool_)
                masks[refusal][index] = True
        for refusal, mask in masks.items():
            yield Reject(mask, refusal.reasons[0], refusal.resolvable, refusal.error)

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> Refusal | None:
        """Say why one node is refused."""
        return self._refusal(pod, self._claims(pod), node)

    def _refusal(self, pod: PodInfo, claims: PodClaims, node: NodeRow) -> Refusal | None:
        for _, selector in claims.fixed:
            if selector is not None and not selects(selector, node.node):
                return Refusal((_NOT_THERE,), resolvable=False)
        open_claims = self._open(claims, node)
        if not open_claims:
            return None
        found = self._allocate(pod, claims, node, open_claims)
        if found.error is not None:
            reason = f"cannot allocate all claims ({found.reason})"
            return Refusal((reason,), resolvable=False, error=True)
        if found.choices is not None or self._gang.is_possible(pod, open_claims, node):
            return None
        if found.timed_out:
            reason = f"timed out trying to allocate devices: {found.reason}"
            return Refusal((reason,), resolvable=False)
        return Refusal((f"cannot allocate all claims ({found.reason})",), not found.unresolvable)

    def _open(self, claims: PodClaims, node: NodeRow) -> list[ClaimToAllocate]:
        """Return the claims to allocate on a node; its device plugins serve their resources."""
        found = list(claims.open)
        extended = claims.extended
        if extended is not None:
            served = [name for name in extended.resources if node.allocatable(name)]
            if len(served) < len(extended.resources):
                found.append(extended.without(served))
        return found

    def _allocate(
        self,
        pod: PodInfo,
        claims: PodClaims,
        node: NodeRow,
        open_claims: Sequence[ClaimToAllocate],
    ) -> NodeAllocation:
        """Return what the claims get on a node; a plugin's ``device_score`` may decide."""
        key = (claims.key, len(open_claims), tuple(len(c.requests) for c in open_claims))
        plain = self._allocator.allocate(key, open_claims, node.node)
        if plain.choices is None or self.args.strict_reference:
            return plain
        choices = [choice for own in plain.choices for choice in own]
        opinion = self._scores.opinion(pod, node, choices)
        if opinion is None:
            return plain
        score = self._scores.scorer(pod, node)
        scored = self._allocator.allocate((key, pod.uid), open_claims, node.node, score)
        return replace(scored, chosen_by=opinion.plugin)

    @hookimpl
    def slots(self, pod: PodInfo, nodes: NodeView) -> IntColumn:
        """Divide the free devices by what one pod requests."""
        claims = self._claims(pod)
        bound = np.full(len(nodes), np.iinfo(np.int64).max, dtype=np.int64)
        shared = {wanted.resource_claim_name for wanted in pod.spec.resource_claims} - {None}
        for index, node in enumerate(nodes):
            for claim in self._open(claims, node):
                if claim.claim.metadata.name not in shared:
                    bound[index] = min(bound[index], self._slots(claim, node.node))
        return bound

    def _slots(self, claim: ClaimToAllocate, node: Node) -> int:
        """Return an upper bound of the claims of this spec that a node can serve at once."""
        table = self._ledger.devices.table(node)
        busy = table.in_use(self._ledger.state)
        needs: dict[int, int] = {}
        for request in claim.requests:
            if request.prioritized or request.ways[0].count is None or request.ways[0].admin:
                continue
            way = request.ways[0]
            try:
                filtered = table.filtered(way, claim.label, self._allocator.deadline())
            except (AllocationError, TimedOut):
                return 0
            mask = filtered.tolerated & filtered.capable & ~busy
            if not mask & table.shareable:
                needs[mask] = needs.get(mask, 0) + (way.count or 0)
        most = np.iinfo(np.int64).max
        counts = [mask.bit_count() // count for mask, count in needs.items() if count]
        return int(min(counts, default=most))

    # Which node is best ----------------------------------------------------------------------

    @hookimpl
    def pre_score(self, pod: PodInfo) -> object:
        """Skip pods without claims to allocate."""
        claims = self._claims(pod)
        return None if claims.open or claims.extended else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Prefer nodes that serve better alternatives; without any, nodes that stay whole."""
        claims = self._claims(pod)
        return np.array([self._points(pod, claims, node) for node in nodes], dtype=np.float64)

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        """Score one node."""
        return self._points(pod, self._claims(pod), node)

    def _points(self, pod: PodInfo, claims: PodClaims, node: NodeRow) -> float:
        open_claims = self._open(claims, node)
        if not open_claims:
            return 0.0
        found = self._allocate(pod, claims, node, open_claims)
        if found.choices is None:
            return 0.0
        preferred = float(sum(_PREFERENCE - index for index in found.preferences))
        lost = min(found.lost / _MOST_LOST, _LESS_THAN_ONE)
        whole = float(max(0, _MOST_BROKEN - found.broken - lost))
        if not self._ledger.devices.attaches:
            return preferred or whole
        failures = self._ledger.state.failures
        chosen = [
            Reach.DOUBTFUL if failures.get(choice.device.id) else reach_of(choice.device)
            for own in found.choices
            for choice in own
        ]
        near = near_points(chosen, failures.get(node.name, 0))
        return _MOST_NEAR * preferred + near + whole

    # On the node -----------------------------------------------------------------------------

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow, state: CycleState) -> str | None:
        """Decide which devices the pod's claims get."""
        if not pod.facts.wants_devices:
            return None
        self._ledger.trial_holds.withdraw(pod.uid)
        claims = self._claims(pod)
        if not claims:
            return None
        if claims.problem:
            return claims.problem
        for claim, _ in claims.fixed:
            shared = self._ledger.in_flight.get(claim.metadata.uid)
            if shared is not None:
                self._ledger.in_flight.join(shared, pod)
        open_claims = self._open(claims, node)
        notes: list[str] = []
        if open_claims:
            found = self._allocate(pod, claims, node, open_claims)
            choices = found.choices
            if choices is None:
                choices = self._gang.exchange(pod, open_claims, node)
            elif found.chosen_by:
                notes.append(f"{found.chosen_by} chose the devices")
            elif found.broken:
                notes.append(f"that breaks {found.broken} of the node's groups that were whole")
            if choices is None:
                return f"cannot allocate all claims ({found.reason})"
            for ready, own in zip(open_claims, choices, strict=True):
                self._ledger.decide(self._in_flight(ready, own, node.node, pod), pod)
                notes.append(_note(ready, own))
        held = {one.uid: one.held for one in self._ledger.in_flight.of(pod)}
        self._ledger.trial_holds.remember(pod.uid, node.name, held)
        notes += [_shared_note(claim, self._ledger) for claim, _ in claims.fixed]
        state[NOTES] = tuple(reversed(notes))
        return None

    def _in_flight(
        self, claim: ClaimToAllocate, choices: Sequence[Choice], node: Node, pod: PodInfo
    ) -> InFlightAllocation:
        features = self._ledger.devices.features
        repeat = self.args.strict_reference
        allocation = allocation_of(claim, choices, node, features, repeat)
        unit = pod.gang or pod.key
        return InFlightAllocation(claim, node.metadata.name, unit, choices, allocation)

    @hookimpl
    def unreserve(self, pod: PodInfo) -> None:
        """Release the devices, and undo what was written."""
        if pod.facts.wants_devices:
            self._ledger.in_flight.leave(pod)
            self.writer.undo(pod)

    # Binding ---------------------------------------------------------------------------------

    @hookimpl
    def pre_bind(self, pod: PodInfo, node: NodeRow) -> Preparation | None:
        """Write the allocations and reserve the claims; wait until their devices are ready."""
        if not pod.facts.wants_devices:
            return None
        claims = self._claims(pod)
        return self.writer.prepare(pod, claims, node) if claims else None

    @hookimpl
    def post_bind(self, pod: PodInfo) -> None:
        """Drop what was remembered for the pod: it is bound."""
        if pod.facts.wants_devices:
            self.writer.forget(pod)
            self._ledger.trial_holds.forget(pod.uid)

    # When no node is left --------------------------------------------------------------------

    @hookimpl
    def post_filter(self, unit: Unit, decision: Decision) -> str | None:
        """Deallocate a claim whose allocation keeps its pod, its only user, off every node."""
        nothing = None if unit.gang is not None else self._nothing_deallocated(unit.pods[0])
        if "DynamicResources" not in decision.refused_by:
            return nothing
        for pod in unit.pods:
            own = decision.pods.get(pod.key)
            if own is None or not any(reason == _NOT_THERE for _, reason, _ in own.refused):
                continue
            for claim, _ in self._claims(pod).fixed:
                users = {reference.uid for reference in claim.status.reserved_for}
                if claim.status.allocation is not None and users <= {pod.uid}:
                    write = ReleaseClaim(claim.key, claim.metadata.uid, pod.uid, deallocate=True)
                    self.handle.submit(write)
                    return f"deallocation of ResourceClaim {claim.key} completed"
        return nothing

    def _nothing_deallocated(self, pod: PodInfo) -> str:
        """Return kube-scheduler's words for a pod for which there is no claim to deallocate."""
        claims = self._claims(pod)
        if claims and not claims.problem:
            return "still not schedulable"
        return "no new claims to deallocate"

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Suggest the smallest change that would let a node serve the claims."""
        claims = self._claims(pod)
        failing: list[tuple[str, SelectorError]] = []
        for node in nodes:
            open_claims = self._open(claims, node)
            if not open_claims or self._refusal(pod, claims, node) is None:
                continue
            error = self._allocate(pod, claims, node, open_claims).error
            if error is not None:
                failing.append((node.name, error))
            else:
                yield from advice(self._allocator, self._ledger, open_claims, node)
        yield from guarded_selectors(failing)


def _note(claim: ClaimToAllocate, choices: Sequence[Choice]) -> str:
    given = _by_request((choice.wanted.name, choice.device.id.device) for choice in choices)
    return f"claim {claim.label} gets {given}"


def _shared_note(claim: ResourceClaim, ledger: DeviceLedger) -> str:
    decided = ledger.in_flight.get(claim.metadata.uid)
    allocation = decided.allocation if decided is not None else claim.status.allocation
    results = allocation.devices.results if allocation is not None else ()
    return f"claim {claim.metadata.name} has {_by_request((r.request, r.device) for r in results)}"


def _by_request(pairs: Iterable[tuple[str, str]]) -> str:
    found: dict[str, list[str]] = {}
    for request, device in pairs:
        found.setdefault(request, []).append(device)
    return "; ".join(f"{request}: {', '.join(devices)}" for request, devices in found.items())
