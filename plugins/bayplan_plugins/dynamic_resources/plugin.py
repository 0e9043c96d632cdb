"""DynamicResources: claims are allocated when their pod gets its node.

Filter asks, node by node, which devices the pod's claims would get there; Reserve decides it,
PreBind writes it. Members of one gang that were given devices in the same cycle may exchange them:
where a member finds nothing, all members on the node are solved together.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
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
from bayplan.api import ResourceClaim
from bayplan.api.dra import AllocatedDevice, AllocationResult
from bayplan.api.node import Node
from bayplan.api.nodeselection import selects
from bayplan.cluster.protocol import CreateClaim, ReleaseClaim, ReserveClaim, Write
from bayplan.errors import ClusterError, NotFound
from bayplan.inputs.durations import parse_duration
from bayplan.plugin.decision import Decision
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn, IntColumn
from bayplan_dra.allocator import (
    TOPOLOGY,
    AllocationError,
    Choice,
    ClaimToAllocate,
    Score,
    allocation_of,
)
from bayplan_plugins.dynamic_resources.advice import advice
from bayplan_plugins.dynamic_resources.ledger import DeviceLedger, Flight
from bayplan_plugins.dynamic_resources.node_allocator import Answer, NodeSolver
from bayplan_plugins.dynamic_resources.pod_claims import (
    NO_CLAIMS,
    PodClaims,
    claims_of,
    why_waiting,
)

__all__ = ["DynamicResources", "DynamicResourcesArgs"]

_NOT_THERE = "resourceclaim not available on the node"
_PREFERENCE = 8
"""Points of the first alternative of a request; each further one has a point less."""
_MOST_BROKEN = 16
_RELEASES = 5
"""How often a release is tried."""


class DynamicResourcesArgs(Args):
    """Arguments of DynamicResources: those of kube-scheduler, and how devices are chosen.

    ``filterTimeout`` is the time for one node; ``bindingTimeout`` that for devices to become
    ready. ``topologyLevels`` are the attributes that say which devices belong together, the most
    precious first (``*/name`` is that of any driver). ``strictReference`` takes the first devices
    that fit, in the order of Kubernetes' own allocator.
    """

    filter_timeout: str = "10s"
    binding_timeout: str = "600s"
    topology_levels: tuple[str, ...] = Field(default=TOPOLOGY, max_length=6)
    strict_reference: bool = False

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


@dataclass(frozen=True, slots=True)
class _Opinion:
    """What a plugin thinks of a choice of devices."""

    points: float
    plugin: str


class DynamicResources(Plugin[DynamicResourcesArgs]):
    """Allocate devices for resource claims."""

    Args = DynamicResourcesArgs
    reads = Reads.NODE | Reads.PODS
    normalize_scores = Normalize.MAX
    requeue_on = ClusterEvent.NODE | ClusterEvent.POD_REMOVED | ClusterEvent.OBJECT_CHANGED

    def __init__(self, args: DynamicResourcesArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._ledger = handle.snapshot.shared(DeviceLedger, DeviceLedger)
        timeout = parse_duration(args.filter_timeout)
        levels = args.topology_levels
        self._solver = NodeSolver(self._ledger, levels, args.strict_reference, timeout)
        self._written: dict[str, list[tuple[ResourceClaim, bool]]] = {}

    def _claims(self, pod: PodInfo) -> PodClaims:
        if not pod.facts.wants_devices:
            return NO_CLAIMS
        return claims_of(pod, self.handle.snapshot, self._ledger)

    # Before the cycle ------------------------------------------------------------------------

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        """Wait until all claims of the pod exist."""
        if not pod.spec.resource_claims:
            return None
        return why_waiting(pod, self.handle.snapshot)

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Pods whose open claims have equal specs get the same answer from every node."""
        return self._claims(pod).key

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods without claims; refuse those whose claims no node can serve."""
        claims = self._claims(pod)
        if not claims:
            return SKIP
        return claims.problem or None

    # Which nodes -----------------------------------------------------------------------------

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes that cannot reach allocated claims, or cannot serve the others."""
        claims = self._claims(pod)
        masks: dict[tuple[str, bool], BoolColumn] = {}
        for index, node in enumerate(nodes):
            refusal = self._refusal(pod, claims, node)
            if refusal is not None:
                key = (refusal.reasons[0], refusal.resolvable)
                if key not in masks:
                    masks[key] = np.zeros(len(nodes), dtype=np.bool_)
                masks[key][index] = True
        for (reason, resolvable), mask in masks.items():
            yield Reject(mask, reason, resolvable)

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
        answer = self._answer(pod, claims, node, open_claims)
        if answer.choices is not None or self._joint(pod, open_claims, node) is not None:
            return None
        if answer.timed_out:
            reason = f"timed out trying to allocate devices: {answer.reason}"
            return Refusal((reason,), resolvable=False)
        return Refusal((f"cannot allocate all claims ({answer.reason})",), not answer.hopeless)

    def _open(self, claims: PodClaims, node: NodeRow) -> list[ClaimToAllocate]:
        """Return the claims to allocate on a node; a device plugin there serves its resources."""
        found = list(claims.open)
        extended = claims.extended
        if extended is not None:
            served = [name for name in extended.resources if node.allocatable(name)]
            if len(served) < len(extended.resources):
                found.append(extended.without(served))
        return found

    def _answer(
        self,
        pod: PodInfo,
        claims: PodClaims,
        node: NodeRow,
        open_claims: Sequence[ClaimToAllocate],
    ) -> Answer:
        key = (claims.key, len(open_claims), tuple(len(c.requests) for c in open_claims))
        plain = self._solver.answer(key, open_claims, node.node)
        if plain.choices is None or self.args.strict_reference:
            return plain
        opinion = self._opinion(pod, node, _flat(plain.choices))
        if opinion is None:
            return plain
        scored = (key, pod.uid)
        answer = self._solver.answer(scored, open_claims, node.node, self._score_of(pod, node))
        return replace(answer, chosen_by=opinion.plugin)

    def _opinion(self, pod: PodInfo, node: NodeRow, choices: Sequence[Choice]) -> _Opinion | None:
        """Return how plugins score a choice of devices; None where none of them cares."""
        calls = self.handle.hook("device_score")
        if not calls:
            return None
        devices = self._ledger.devices_of(node.node)
        chosen = [(choice.wanted.name, choice.device.id) for choice in choices]
        for call in calls:
            points = call(pod, node, chosen, devices)
            if points is not None:
                return _Opinion(float(points), getattr(call, "name", "a plugin"))
        return None

    def _score_of(self, pod: PodInfo, node: NodeRow) -> Score:
        def score(choices: Sequence[Choice]) -> float:
            opinion = self._opinion(pod, node, choices)
            return opinion.points if opinion is not None else 0.0

        return score

    @hookimpl
    def slots(self, pod: PodInfo, nodes: NodeView) -> IntColumn:
        """Divide the devices that can be had by what one pod asks for."""
        claims = self._claims(pod)
        bound = np.full(len(nodes), np.iinfo(np.int64).max, dtype=np.int64)
        shared = {wanted.resource_claim_name for wanted in pod.spec.resource_claims} - {None}
        for index, node in enumerate(nodes):
            for claim in self._open(claims, node):
                if claim.claim.metadata.name not in shared:
                    bound[index] = min(bound[index], self._slots(claim, node.node))
        return bound

    def _slots(self, claim: ClaimToAllocate, node: Node) -> int:
        table = self._ledger.table(node)
        busy = table.in_use(self._ledger.state)
        needs: dict[int, int] = {}
        for request in claim.requests:
            if request.prioritized or request.ways[0].count is None or request.ways[0].admin:
                continue
            way = request.ways[0]
            try:
                filtered = table.filtered(way, claim.title)
            except AllocationError:
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
        """Prefer nodes that give better alternatives; without any, those that stay whole."""
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
        answer = self._answer(pod, claims, node, open_claims)
        if answer.choices is None:
            return 0.0
        if answer.preferences:
            return float(sum(_PREFERENCE - index for index in answer.preferences))
        return float(max(0, _MOST_BROKEN - answer.broken))

    # On the node -----------------------------------------------------------------------------

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow, state: CycleState) -> str | None:
        """Decide which devices the pod's claims get."""
        if not pod.facts.wants_devices:
            return None
        self._ledger.drop_ghost(pod)
        claims = self._claims(pod)
        if not claims:
            return None
        if claims.problem:
            return claims.problem
        for claim, _ in claims.fixed:
            flight = self._ledger.flights.get(claim.metadata.uid)
            if flight is not None:
                self._ledger.join(flight, pod)
        open_claims = self._open(claims, node)
        notes: list[str] = []
        if open_claims:
            answer = self._answer(pod, claims, node, open_claims)
            choices = answer.choices
            if choices is None:
                choices = self._exchange(pod, open_claims, node)
            elif answer.chosen_by:
                notes.append(f"{answer.chosen_by} chose the devices")
            elif answer.broken:
                notes.append(f"that breaks {answer.broken} of the node's groups that were whole")
            if choices is None:
                return f"cannot allocate all claims ({answer.reason})"
            for ready, own in zip(open_claims, choices, strict=True):
                self._ledger.take(self._flight(ready, own, node.node, pod), pod)
                notes.append(_note(ready, own))
        held = {f.claim.claim.metadata.uid: f.held for f in self._ledger.flights_of(pod)}
        self._ledger.promise(pod, node.name, held)
        notes += [_shared_note(claim, self._ledger) for claim, _ in claims.fixed]
        state[NOTES] = tuple(reversed(notes))
        return None

    def _flight(
        self, claim: ClaimToAllocate, choices: Sequence[Choice], node: Node, pod: PodInfo
    ) -> Flight:
        features = self._ledger.inventory.features
        repeat = self.args.strict_reference
        allocation = allocation_of(claim, choices, node, features, repeat)
        return Flight(claim, node.metadata.name, pod.gang or pod.key, choices, allocation)

    @hookimpl
    def unreserve(self, pod: PodInfo) -> None:
        """Give the devices back; take what was written of them back, too."""
        if not pod.facts.wants_devices:
            return
        self._ledger.leave(pod)
        for claim, ours in self._written.pop(pod.uid, ()):
            meta = claim.metadata
            self._release(ReleaseClaim(claim.key, meta.uid, pod.uid, deallocate=ours))

    def _release(self, write: ReleaseClaim, tries: int = _RELEASES) -> None:
        """Write a release, and again where that fails: nobody else would do it."""

        def answered(error: ClusterError | None) -> None:
            if error is not None and not isinstance(error, NotFound) and tries > 1:
                self._release(write, tries - 1)

        self.handle.submit(write, answered)

    # Members of a gang together --------------------------------------------------------------

    def _mates(self, pod: PodInfo, node: NodeRow) -> list[Flight]:
        """Return the allocations of the pod's gang that this one may exchange devices with."""
        if pod.gang is None:
            return []
        own = [f for f in self._ledger.flights.values() if f.unit == pod.gang and f.pods]
        own = [f for f in own if self._may_change(f)]
        pools = self._ledger.inventory.pools(node.node)
        local = all(self._ledger.inventory.nodes_of(pool.key) is not None for pool in pools)
        return [f for f in own if f.node == node.name] if local else own

    def _may_change(self, flight: Flight) -> bool:
        """Tell whether nothing is written yet, and all pods that use the claim are on its node."""
        placed = self.handle.snapshot.placed
        return all(
            uid not in self._written and placed.get(pod.key, (pod, ""))[1] == flight.node
            for uid, pod in flight.pods.items()
        )

    def _joint(
        self, pod: PodInfo, claims: Sequence[ClaimToAllocate], node: NodeRow
    ) -> tuple[list[Flight], Answer] | None:
        """Solve the pod's claims together with those of its mates; None where that fails, too."""
        mates = self._mates(pod, node)
        rows = self.handle.snapshot.nodes
        if not mates or any(mate.node not in rows.row_of for mate in mates):
            return None
        state = self._ledger.state.copy()
        for mate in mates:
            state.release(mate.held)
        tasks = [(m.claim, rows.nodes[rows.row_of[m.node]]) for m in mates]
        tasks += [(claim, node.node) for claim in claims]
        answer = self._solver.together(tasks, state)
        if answer.choices is None or self._forbidden(pod, node, mates, answer.choices):
            return None
        return mates, answer

    def _forbidden(
        self,
        pod: PodInfo,
        node: NodeRow,
        mates: Sequence[Flight],
        choices: Sequence[Sequence[Choice]],
    ) -> bool:
        """Tell whether a plugin forbids what the pod or one of its mates would get."""
        parts: list[tuple[PodInfo, NodeRow, Sequence[Choice]]]
        parts = [(pod, node, _flat(choices[len(mates) :]))]
        for mate, own in zip(mates, choices, strict=False):
            row = NodeRow(node.table, node.table.row_of[mate.node])
            parts += [(user, row, own) for user in mate.pods.values()]
        opinions = (self._opinion(*part) for part in parts)
        return any(one is not None and one.points == -math.inf for one in opinions)

    def _exchange(
        self, pod: PodInfo, claims: Sequence[ClaimToAllocate], node: NodeRow
    ) -> Sequence[Sequence[Choice]] | None:
        """Give mates other devices, so that the pod gets its own; undone with the trial."""
        joint = self._joint(pod, claims, node)
        if joint is None:
            return None
        mates, answer = joint
        assert answer.choices is not None
        rows = self.handle.snapshot.nodes
        for mate, choices in zip(mates, answer.choices, strict=False):
            where = rows.nodes[rows.row_of[mate.node]]
            features = self._ledger.inventory.features
            allocation = allocation_of(mate.claim, choices, where, features)
            changed = Flight(mate.claim, mate.node, mate.unit, choices, allocation)
            before = self._ledger.replace(changed)
            if before is not None:
                self.handle.snapshot.on_rollback(partial(self._put_back, before))
        return answer.choices[len(mates) :]

    def _put_back(self, flight: Flight) -> None:
        self._ledger.replace(flight)

    # Binding ---------------------------------------------------------------------------------

    @hookimpl
    def pre_bind(self, pod: PodInfo) -> Preparation | None:
        """Write the allocations and reserve the claims; wait until their devices are ready."""
        if not pod.facts.wants_devices:
            return None
        claims = self._claims(pod)
        flights = {f.claim.claim.metadata.uid: f for f in self._ledger.flights_of(pod)}
        writes: list[Write] = []
        allocations: list[tuple[str, AllocationResult]] = []
        written: list[tuple[ResourceClaim, bool]] = []
        for claim in [claim for claim, _ in claims.fixed] + [c.claim for c in claims.open]:
            flight = flights.get(claim.metadata.uid)
            allocation = flight.allocation if flight is not None else None
            known = allocation or claim.status.allocation
            if known is not None:
                allocations.append((claim.key, known))
            uid = claim.metadata.uid
            writes.append(ReserveClaim(claim.key, uid, pod.key, pod.uid, allocation))
            written.append((claim, flight is not None))
        if claims.extended is not None:
            flight = flights.get(claims.extended.claim.claim.metadata.uid)
            if flight is not None:
                mappings = [m for m in claims.extended.mappings if _is_used(m.request_name, flight)]
                claim, allocation = flight.claim.claim, flight.allocation
                writes.append(CreateClaim(pod.key, pod.uid, claim, allocation, mappings))
                allocations.append(("", allocation))
        if not writes:
            return None
        self._written[pod.uid] = written
        return Preparation(
            writes,
            lambda: self._are_ready(pod, allocations),
            parse_duration(self.args.binding_timeout),
        )

    def _are_ready(
        self, pod: PodInfo, allocations: Sequence[tuple[str, AllocationResult]]
    ) -> bool | str:
        """Tell whether the API shows the allocations, and all binding conditions hold.

        A text says that a device failed, or that somebody else gave it away just before: the API
        server takes any allocation, but all who watch see them in one order, and the first one
        counts. The key "" stands for the claim that is made for the pod's extended resources.
        """
        for key, allocation in allocations:
            if not key:
                status = pod.pod.status.extended_resource_claim_status
                if status is None:
                    return False
                key = f"{pod.namespace}/{status.resource_claim_name}"
            claim = self.handle.snapshot.objects(ResourceClaim).get(key)
            if claim is None:
                return f"resource claim {key} is gone"
            known = claim.status.allocation
            if known is None or known.devices.results != allocation.devices.results:
                return False
            rival = self._ledger.earlier_holder(claim)
            if rival:
                return f"claim {key}: a device of it was given to claim {rival} just before"
            for device in allocation.devices.results:
                held = _conditions(claim, device)
                for name in device.binding_failure_conditions:
                    if held.get(name) == "True":
                        return f"claim {key}: device {device.device} failed: condition {name} holds"
                if any(held.get(name) != "True" for name in device.binding_conditions):
                    return False
        return True

    @hookimpl
    def post_bind(self, pod: PodInfo) -> None:
        """Forget what was promised: the pod has it."""
        if not pod.facts.wants_devices:
            return
        self._written.pop(pod.uid, None)
        self._ledger.fulfilled(pod)

    # When no node is left --------------------------------------------------------------------

    @hookimpl
    def post_filter(self, unit: Unit, decision: Decision) -> str | None:
        """Take an allocation back that keeps its own pod, and nobody else, from a node."""
        if "DynamicResources" not in decision.refused_by:
            return None
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
        return None

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Suggest the smallest change that would let a node serve the claims."""
        claims = self._claims(pod)
        for node in nodes:
            open_claims = self._open(claims, node)
            if open_claims and self._refusal(pod, claims, node) is not None:
                yield from advice(self._solver, self._ledger, open_claims, node)


def _flat(choices: Sequence[Sequence[Choice]]) -> list[Choice]:
    return [choice for own in choices for choice in own]


def _is_used(request: str, flight: Flight) -> bool:
    return any(choice.wanted.name == request for choice in flight.choices)


def _conditions(claim: ResourceClaim, device: AllocatedDevice) -> Mapping[str, str]:
    for status in claim.status.devices:
        if (status.driver, status.pool, status.device, status.share_id) == (
            device.driver,
            device.pool,
            device.device,
            device.share_id,
        ):
            return {condition.type: condition.status for condition in status.conditions}
    return {}


def _note(claim: ClaimToAllocate, choices: Sequence[Choice]) -> str:
    given = _by_request((choice.wanted.name, choice.device.id.device) for choice in choices)
    return f"claim {claim.label} gets {given}"


def _shared_note(claim: ResourceClaim, ledger: DeviceLedger) -> str:
    flight = ledger.flights.get(claim.metadata.uid)
    allocation = flight.allocation if flight is not None else claim.status.allocation
    results = allocation.devices.results if allocation is not None else ()
    return f"claim {claim.metadata.name} has {_by_request((r.request, r.device) for r in results)}"


def _by_request(pairs: Iterable[tuple[str, str]]) -> str:
    found: dict[str, list[str]] = {}
    for request, device in pairs:
        found.setdefault(request, []).append(device)
    return "; ".join(f"{request}: {', '.join(devices)}" for request, devices in found.items())
