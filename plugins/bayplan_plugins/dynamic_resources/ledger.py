"""Who holds which devices: what the API says, what this scheduler has promised, what a trial frees.

The ledger follows slices, taint rules, classes and claims as they change, so that no cycle has to
look at all of them. In a trial of the snapshot the devices of pods that are taken out are free, if
their claims were made for them; that is how preemption frees devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from bayplan import PodInfo
from bayplan.api import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from bayplan.api.dra import (
    EXTENDED_RESOURCE_CLAIM,
    AllocationResult,
    Device,
    DeviceId,
    DeviceSelector,
)
from bayplan.api.node import Node
from bayplan.snapshot import Snapshot
from bayplan.snapshot.pods import SpecFacts
from bayplan_dra.allocator import (
    AllocatedState,
    Choice,
    ClaimToAllocate,
    DeviceTable,
    Held,
    Inventory,
    allocated_ids,
    prepare,
)
from bayplan_dra.allocator.pools import PoolKey
from bayplan_dra.allocator.shape import Shapes
from bayplan_dra.cel import CompileError, compile_selector

__all__ = ["DeviceLedger", "Flight", "extended_uid"]

_MOST_PROMISES = 4096
_MOST_NODES = 4
"""Pods whose promises are remembered, and the nodes for each of them."""
_SPARE = 8


@dataclass(eq=False)
class Flight:
    """An allocation that the API does not show yet: decided for a unit, on a node.

    ``pods`` are those that use the claim, by uid.
    """

    claim: ClaimToAllocate
    node: str
    unit: str
    choices: Sequence[Choice]
    allocation: AllocationResult
    pods: dict[str, PodInfo] = field(default_factory=dict)

    @property
    def held(self) -> list[Held]:
        """The devices that are held; those with admin access are not."""
        return [
            Held(choice.device.id, choice.consumed)
            for choice in self.choices
            if not choice.wanted.admin
        ]


class DeviceLedger:
    """The devices of a cluster, and who has them. One for all profiles of a scheduler."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.inventory = Inventory()
        self.state = AllocatedState()
        self.flights: dict[str, Flight] = {}
        self._flights_of: dict[str, dict[str, None]] = {}
        self.class_version = 0
        self.shapes = Shapes()
        self.extended: dict[SpecFacts, object] = {}
        self._counts: dict[DeviceId, int] = {}
        self._held: dict[str, list[Held]] = {}
        self._since: dict[str, tuple[int, str]] = {}
        self._seen = 0
        self._consumers: dict[str, frozenset[str]] = {}
        self._claims_of: dict[str, dict[str, None]] = {}
        self._owners: dict[str, str] = {}
        self._freed: dict[str, None] = {}
        self._promises: dict[str, dict[str, Mapping[str, Sequence[Held]]]] = {}
        self._ghosts: dict[str, dict[str, Sequence[Held]]] = {}
        self._ghost_users: dict[str, int] = {}
        self._specs: dict[bytes, int] = {}
        self._spec_of: dict[str, int] = {}
        self._contents: dict[int, bytes] = {}
        self._spec_users: Counter[int] = Counter()
        self._spec_count = 0
        self._prepared: dict[int, ClaimToAllocate] = {}
        self._tables: dict[str, tuple[object, DeviceTable]] = {}
        self._devices_of: dict[str, tuple[DeviceTable, Mapping[DeviceId, Device]]] = {}
        self._versions: dict[str, int] = {}
        self._version = 0
        self._by_resource: dict[str, DeviceClass] | None = None
        self._outside: dict[str, frozenset[DeviceId]] = {}
        self._listeners: list[Callable[[Iterable[str] | None], None]] = []
        for type_, listener in (
            (ResourceSlice, self._on_slice),
            (DeviceTaintRule, self._on_rule),
            (DeviceClass, self._on_class),
            (ResourceClaim, self._on_claim),
        ):
            snapshot.on_object(type_, listener)  # type: ignore[arg-type]
            for obj in snapshot.objects(type_).values():
                listener(None, obj)  # type: ignore[arg-type]
        snapshot.on_pod(self._on_pod)
        for pod, node in snapshot.placed.values():
            self._on_pod(pod, node, True)

    # Objects ---------------------------------------------------------------------------------

    def _on_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        if new is not None:
            touched = self.inventory.set_slice(new)
        else:
            assert old is not None
            touched = self.inventory.delete_slice(old.metadata.name)
        self._touch(touched)

    def _on_rule(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        if new is not None:
            self.inventory.set_rule(new)
        elif old is not None:
            self.inventory.delete_rule(old.metadata.name)
        self._touch(None)

    def _on_class(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        self.class_version += 1
        self._prepared.clear()
        self._tables.clear()
        self.extended.clear()
        self._by_resource = None
        self._touch(None)
        for selector in new.spec.selectors if new is not None else ():
            # What is wrong with it, the pods are told that use the class.
            with suppress(CompileError):
                self._compile(selector)

    def _compile(self, selector: DeviceSelector) -> None:
        """Compile a selector before the first pod waits for it."""
        features = self.inventory.features
        if selector.cel is not None:
            lists, shared = features.list_attributes, features.consumable_capacity
            compile_selector(selector.cel.expression, shared, lists)

    def _on_claim(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._claim_gone(old)
        if new is None:
            return
        uid = new.metadata.uid
        for owner in new.metadata.owner_references:
            if owner.kind == "Pod":
                self._owners[uid] = owner.uid
        self._note_order(new)
        self._set_consumers(uid, frozenset(r.uid for r in new.status.reserved_for))
        held = allocated_ids(new)
        self._replace_extended(new)
        flight = self.flights.get(uid)
        if flight is not None and new.status.allocation is not None:
            self._landed(uid)
            if flight.held == held:
                # What was decided is now what the API says; nothing is to be counted anew.
                self._held[uid] = held
                return
            self._give(flight.held)
        before = self._held.get(uid, [])
        if held != before:
            if uid not in self._freed:
                self._give(before)
            self._freed.pop(uid, None)
            self._held[uid] = held
            self._hold(held)

    def _note_order(self, claim: ResourceClaim) -> None:
        """Remember which allocation the API showed first."""
        uid = claim.metadata.uid
        if claim.status.allocation is None:
            self._since.pop(uid, None)
        elif uid not in self._since:
            self._seen += 1
            self._since[uid] = (self._seen, claim.key)

    def earlier_holder(self, claim: ResourceClaim) -> str:
        """Return the key of a claim that got one of this claim's devices before it, or ""."""
        uid = claim.metadata.uid
        mine = self._since.get(uid)
        held = {one.id for one in self._held.get(uid, ()) if one.consumed is None}
        if mine is None or all(self._counts.get(device, 0) < 2 for device in held):
            return ""
        for other, theirs in self._held.items():
            before = other != uid and self._since.get(other, mine) < mine
            if before and any(one.id in held for one in theirs):
                return self._since[other][1]
        return ""

    def _replace_extended(self, claim: ResourceClaim) -> None:
        """Let the claim made for a pod's extended resources take the place of its decision."""
        if EXTENDED_RESOURCE_CLAIM in claim.metadata.annotations and claim.status.allocation:
            for owner in claim.metadata.owner_references:
                flight = self._landed(extended_uid(owner.uid))
                if flight is not None:
                    self._give(flight.held)

    def _claim_gone(self, claim: ResourceClaim) -> None:
        uid = claim.metadata.uid
        self._since.pop(uid, None)
        held = self._held.pop(uid, [])
        if uid not in self._freed:
            self._give(held)
        self._freed.pop(uid, None)
        flight = self._landed(uid)
        if flight is not None:
            self._give(flight.held)
        self._set_consumers(uid, frozenset())
        self._forget_spec(uid)
        self._owners.pop(uid, None)

    def _set_consumers(self, uid: str, pods: frozenset[str]) -> None:
        before = self._consumers.get(uid, frozenset())
        if pods == before:
            return
        for pod in before - pods:
            claims = self._claims_of[pod]
            claims.pop(uid, None)
            if not claims:
                del self._claims_of[pod]
        for pod in pods - before:
            self._claims_of.setdefault(pod, {})[uid] = None
        if pods:
            self._consumers[uid] = pods
        else:
            self._consumers.pop(uid, None)

    # Pods ------------------------------------------------------------------------------------

    def _on_pod(self, pod: PodInfo, node: str, placed: bool) -> None:
        if not pod.facts.wants_devices:
            return
        uid = pod.uid
        claims = self._claims_of.get(uid)
        if placed:
            for claim in claims or ():
                if claim in self._freed:
                    del self._freed[claim]
                    self._hold(self._held[claim])
            if not pod.spec.node_name and claims is None and not self._flies(uid):
                self._hold_ghost(uid, self._promises.get(uid, {}).get(node, {}))
            return
        self._give_ghost(uid)
        if not self._snapshot.in_trial:
            # Its claim for extended resources has no object yet whose end would tell.
            flight = self._landed(extended_uid(uid))
            self._forget_spec(extended_uid(uid))
            if flight is not None:
                self._give(flight.held)
        else:
            for claim in claims or ():
                # Only a claim that was made for the pod goes with it, and frees its devices.
                gone = self._owners.get(claim) == uid and self._consumers[claim] == {uid}
                if gone and claim in self._held and claim not in self._freed:
                    self._freed[claim] = None
                    self._give(self._held[claim])

    def _flies(self, uid: str) -> bool:
        return uid in self._flights_of

    def _landed(self, claim: str) -> Flight | None:
        """Forget what was decided for a claim, because the API shows it, or it is off."""
        flight = self.flights.pop(claim, None)
        for pod in flight.pods if flight is not None else ():
            self._leave(pod, claim)
        return flight

    def _leave(self, pod: str, claim: str) -> None:
        claims = self._flights_of[pod]
        del claims[claim]
        if not claims:
            del self._flights_of[pod]

    def _hold_ghost(self, uid: str, promised: Mapping[str, Sequence[Held]]) -> None:
        """Hold what was promised to a pod; of a claim that several pods share, once."""
        if not promised:
            return
        self._ghosts[uid] = dict(promised)
        for claim, held in promised.items():
            count = self._ghost_users.get(claim, 0)
            self._ghost_users[claim] = count + 1
            if not count:
                self._hold(held)

    def _give_ghost(self, uid: str) -> None:
        for claim, held in self._ghosts.pop(uid, {}).items():
            self._ghost_users[claim] -= 1
            if not self._ghost_users[claim]:
                del self._ghost_users[claim]
                self._give(held)

    # Devices ---------------------------------------------------------------------------------

    def _hold(self, held: Iterable[Held]) -> None:
        for one in held:
            if one.consumed is not None:
                self.state.take((one,))
                continue
            count = self._counts.get(one.id, 0) + 1
            self._counts[one.id] = count
            if count == 1:
                self.state.devices.add(one.id)
        self._touch_devices(held)

    def _give(self, held: Iterable[Held]) -> None:
        for one in held:
            if one.consumed is not None:
                self.state.release((one,))
                continue
            count = self._counts[one.id] - 1
            if count:
                self._counts[one.id] = count
            else:
                del self._counts[one.id]
                self.state.devices.discard(one.id)
        self._touch_devices(held)

    def _touch_devices(self, held: Iterable[Held]) -> None:
        nodes: set[str] | None = set()
        for one in held:
            seen = self.inventory.nodes_of(PoolKey(one.id.driver, one.id.pool))
            nodes = None if nodes is None or seen is None else nodes | seen
        if nodes is None or nodes:
            self._touch(nodes)

    def _touch(self, nodes: set[str] | None) -> None:
        if nodes is None:
            self._version += 1
        else:
            for node in nodes:
                self._versions[node] = self._versions.get(node, 0) + 1
        self._snapshot.touch(nodes)
        for listener in self._listeners:
            listener(nodes)

    def on_devices(self, listener: Callable[[Iterable[str] | None], None]) -> None:
        """Have ``listener`` told of nodes whose devices, or who holds them, changed; None: any."""
        self._listeners.append(listener)

    def version(self, node: str) -> tuple[int, int]:
        """Return a number that changes whenever what the node can use changes."""
        return self._version, self._versions.get(node, 0)

    # Devices that are held without a claim ---------------------------------------------------

    def set_outside(self, node: str, devices: frozenset[DeviceId]) -> None:
        """Hold devices of a node that are in use without a claim, in the place of those before."""
        before = self._outside.get(node, frozenset())
        if devices == before:
            return
        self._outside[node] = before | devices
        self._hold([Held(one) for one in devices - before])
        self._outside[node] = devices
        self._give([Held(one) for one in before - devices])

    def is_claimed(self, device: DeviceId, node: str) -> bool:
        """Tell whether any claim holds a device of a node, or a share of it."""
        outside = device in self._outside.get(node, ())
        return device in self.state.shared or self._counts.get(device, 0) > outside

    # Asking ----------------------------------------------------------------------------------

    def table(self, node: Node) -> DeviceTable:
        """Return the devices that a node can use, as the allocator looks at them."""
        pools = self.inventory.pools(node)
        kept = self._tables.get(node.metadata.name)
        if kept is None or kept[0] is not pools:
            if kept is None:
                self._forget_nodes()
            made = DeviceTable(pools, self.inventory.features)
            kept = self._tables[node.metadata.name] = (pools, made)
        return kept[1]

    @property
    def nodes(self) -> Container[str]:
        """The names of the nodes that are there."""
        return self._snapshot.nodes.row_of.keys()

    def _forget_nodes(self) -> None:
        """Forget nodes that are gone, once they are more than those that are there."""
        present = self._snapshot.nodes.row_of
        if len(self._tables) + len(self._versions) <= 4 * len(present) + _SPARE:
            return
        for kept in (self._tables, self._devices_of, self._versions):
            for name in [name for name in kept if name not in present]:
                del kept[name]
        # A node that comes back must not seem to be as it was.
        self._version += 1

    def devices_of(self, node: Node) -> Mapping[DeviceId, Device]:
        """Return the devices that a node can use."""
        table = self.table(node)
        kept = self._devices_of.get(node.metadata.name)
        if kept is None or kept[0] is not table:
            devices = {device.id: device.spec for device in table.devices}
            kept = self._devices_of[node.metadata.name] = (table, devices)
        return kept[1]

    def device_class(self, name: str) -> DeviceClass | None:
        """Return a device class."""
        return self._snapshot.objects(DeviceClass).get(name)

    def spec_of(self, claim: ResourceClaim) -> int:
        """Return a number that claims share exactly if their specs are equal."""
        uid = claim.metadata.uid
        found = self._spec_of.get(uid)
        if found is None:
            content = msgspec.json.encode(claim.spec, enc_hook=lambda quantity: quantity.text)
            known = self._specs.get(content)
            if known is None:
                # Numbers are not used again: answers are kept under them.
                self._spec_count += 1
                known = self._specs[content] = self._spec_count
                self._contents[known] = content
            found = self._spec_of[uid] = known
            self._spec_users[found] += 1
        return found

    def _forget_spec(self, uid: str) -> None:
        spec = self._spec_of.pop(uid, None)
        if spec is None:
            return
        self._spec_users[spec] -= 1
        if not self._spec_users[spec]:
            del self._spec_users[spec], self._specs[self._contents.pop(spec)]
            self._prepared.pop(spec, None)

    def prepared(self, claim: ResourceClaim) -> ClaimToAllocate:
        """Return a claim ready to be allocated; what follows from its spec is kept.

        :raises AllocationError: when no node could serve it.
        """
        spec = self.spec_of(claim)
        known = self._prepared.get(spec)
        if known is None:
            known = self._prepared[spec] = prepare(
                claim, self.device_class, self.inventory.features
            )
        return ClaimToAllocate(claim, known.requests, known.constraints, known.config)

    def class_of_resource(self, resource: str) -> DeviceClass | None:
        """Return the class that serves an extended resource: the newest, then by name."""
        if self._by_resource is None:
            self._by_resource = {}
            for obj in sorted(
                self._snapshot.objects(DeviceClass).values(),
                key=lambda obj: obj.metadata.name,
                reverse=True,
            ):
                name = obj.spec.extended_resource_name
                rival = self._by_resource.get(name) if name is not None else None
                if name is not None and (rival is None or _age(obj) >= _age(rival)):
                    self._by_resource[name] = obj
        return self._by_resource.get(resource)

    def has_extended_resources(self) -> bool:
        """Tell whether any class serves an extended resource by a name of its own."""
        self.class_of_resource("")
        return bool(self._by_resource)

    # Deciding --------------------------------------------------------------------------------

    def take(self, flight: Flight, pod: PodInfo) -> None:
        """Count an allocation as decided, for a pod."""
        self._give_ghost(pod.uid)
        self.flights[flight.claim.claim.metadata.uid] = flight
        self.join(flight, pod)
        self._hold(flight.held)

    def join(self, flight: Flight, pod: PodInfo) -> None:
        """Let a pod use an allocation that was decided for another one."""
        flight.pods[pod.uid] = pod
        claims = self._flights_of.setdefault(pod.uid, {})
        claims[flight.claim.claim.metadata.uid] = None

    def flights_of(self, pod: PodInfo) -> list[Flight]:
        """Return what was decided for a pod and the API does not show yet."""
        return [self.flights[claim] for claim in self._flights_of.get(pod.uid, ())]

    def replace(self, flight: Flight) -> Flight | None:
        """Change what was decided for a claim; return what it was."""
        uid = flight.claim.claim.metadata.uid
        before = self.flights.get(uid)
        if before is None:
            return None
        self._give(before.held)
        flight.pods = before.pods
        self.flights[uid] = flight
        self._hold(flight.held)
        return before

    def leave(self, pod: PodInfo) -> list[Flight]:
        """Take a pod back from the allocations that were decided for it; return these."""
        left = self.flights_of(pod)
        for flight in left:
            del flight.pods[pod.uid]
            self._leave(pod.uid, flight.claim.claim.metadata.uid)
            if not flight.pods:
                del self.flights[flight.claim.claim.metadata.uid]
                self._give(flight.held)
        return left

    def drop_ghost(self, pod: PodInfo) -> None:
        """Free what was promised to a pod, because it is decided anew."""
        self._give_ghost(pod.uid)

    def promise(self, pod: PodInfo, node: str, held: Mapping[str, Sequence[Held]]) -> None:
        """Remember what a pod would get on a node, by claim: the node may be held for it."""
        nodes = self._promises.pop(pod.uid, {})
        nodes.pop(node, None)
        nodes[node] = held
        if len(nodes) > _MOST_NODES:
            del nodes[next(iter(nodes))]
        self._promises[pod.uid] = nodes
        if len(self._promises) > _MOST_PROMISES:
            del self._promises[next(iter(self._promises))]

    def fulfilled(self, pod: PodInfo) -> None:
        """Forget what was promised to a pod, because it has it."""
        self._promises.pop(pod.uid, None)

    def holders(self) -> list[tuple[str, list[Held]]]:
        """Return the claims that hold devices, by key, with what they hold."""
        return [
            (claim.key, held)
            for claim in self._snapshot.objects(ResourceClaim).values()
            if (held := self._held.get(claim.metadata.uid))
        ]


def extended_uid(pod_uid: str) -> str:
    """Return the uid of the claim for a pod's extended resources while it is only in memory."""
    return f"extended-{pod_uid}"


def _age(obj: DeviceClass) -> str:
    return obj.metadata.creation_timestamp or ""
