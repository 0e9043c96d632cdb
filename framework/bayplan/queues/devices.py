"""Devices of ResourceSlices as amounts: which node has them, what they are, whether they work.

A device counts 1000. Partitions of one device, which consume its shared counters, count as the
largest part that they take of any counter, so that a device and all its partitions are one device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bayplan.api.dra import (
    AllocatedDevice,
    Device,
    DeviceId,
    DeviceTaint,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from bayplan.queues.device_selection import DeviceSelector
from bayplan.queues.gpus import is_gpu_count

__all__ = [
    "WHOLE",
    "DeviceIndex",
    "Key",
    "ListedDevice",
    "Offer",
    "in_thousandths",
    "is_device",
]

WHOLE = 1000
"""What a device counts."""
_UNUSABLE = ("NoSchedule", "NoExecute")
_MODEL_ATTRIBUTES = ("productName", "model", "type")


class Key(NamedTuple):
    """A resource and a model. The resource of a device is its driver.

    ``outside``: these devices are not those of their node's pool, because it does not select them.
    """

    resource: str
    model: str
    outside: bool = False


def is_device(resource: str) -> bool:
    """Tell whether a resource is the driver of devices, whose amounts are in thousandths."""
    return "." in resource and "/" not in resource


def in_thousandths(resource: str) -> bool:
    """Tell whether amounts of a pool are in thousandths: of cores, of devices and of GPUs."""
    return resource == "cpu" or is_device(resource) or is_gpu_count(resource)


class ListedDevice(NamedTuple):
    """A device as its slice lists it: its driver, its amount, and whether it is in service."""

    driver: str
    device: Device
    amount: int
    in_service: bool


class Offer(msgspec.Struct):
    """What a node offers by key, and which parts of that are out of service."""

    amounts: dict[Key, int] = msgspec.field(default_factory=dict)
    maintenance: dict[Key, int] = msgspec.field(default_factory=dict)
    failed: dict[Key, int] = msgspec.field(default_factory=dict)

    def add(self, other: Offer) -> None:
        """Add what another offer has."""
        for own, more in (
            (self.amounts, other.amounts),
            (self.maintenance, other.maintenance),
            (self.failed, other.failed),
        ):
            for key, amount in more.items():
                own[key] = own.get(key, 0) + amount


class _Unit(msgspec.Struct, frozen=True):
    """A device: its node ("" for one that several reach), key, amount and taints."""

    node: str
    key: Key
    amount: int
    device: Device
    whole: str
    """The counter set that it is a part of, "" for a device of its own."""


class _Whole(msgspec.Struct):
    """A device with all its partitions: what is held of it, and which parts are out of service.

    ``usable`` says whether any part is in service; otherwise the rest, too, is of no use.
    """

    key: Key
    amount: int
    held: int = 0
    maintenance: int = 0
    failed: int = 0
    usable: bool = False

    def add_to(self, offer: Offer) -> None:
        """Add it to what its node offers; what is held counts as in service."""
        free = max(0, self.amount - self.held)
        failed = free if not self.usable and not self.maintenance else min(free, self.failed)
        rest = free - failed
        parts = (self.amount, min(rest, self.maintenance) if self.usable else rest, failed)
        totals = (offer.amounts, offer.maintenance, offer.failed)
        for total, part in zip(totals, parts, strict=True):
            if part or total is offer.amounts:
                total[self.key] = total.get(self.key, 0) + part


class DeviceIndex:
    """The devices of all slices. Slices of an outdated generation of their pool do not count."""

    def __init__(self) -> None:
        self._slices: dict[tuple[str, str], dict[str, ResourceSlice]] = defaultdict(dict)
        self._rules: dict[str, DeviceTaintRule] = {}
        self._units: dict[DeviceId, _Unit] = {}
        self._pools: dict[tuple[str, str], list[DeviceId]] = {}
        self._of_node: dict[str, set[DeviceId]] = defaultdict(set)
        self._claims: dict[str, Sequence[DeviceId]] = {}
        self._held: dict[DeviceId, dict[str, list[AllocatedDevice]]] = defaultdict(dict)

    def put(self, slice_: ResourceSlice, deleted: bool = False) -> set[str]:
        """Take in a slice; return the nodes whose devices may have changed."""
        spec = slice_.spec
        pool = (spec.driver, spec.pool.name)
        if deleted:
            self._slices[pool].pop(slice_.metadata.name, None)
        else:
            self._slices[pool][slice_.metadata.name] = slice_
        changed = {self._forget(device) for device in self._pools.pop(pool, ())}
        units = _units_of(self._slices[pool].values())
        self._pools[pool] = list(units)
        for device, unit in units.items():
            self._units[device] = unit
            self._of_node[unit.node].add(device)
            changed.add(unit.node)
        return changed

    def put_rule(self, rule: DeviceTaintRule, deleted: bool = False) -> set[str]:
        """Take in a rule that taints devices; return the nodes with devices."""
        if deleted:
            self._rules.pop(rule.metadata.name, None)
        else:
            self._rules[rule.metadata.name] = rule
        return {node for node, found in self._of_node.items() if found}

    def _forget(self, device: DeviceId) -> str:
        unit = self._units.pop(device)
        self._of_node[unit.node].discard(device)
        return unit.node

    def put_claim(self, claim: ResourceClaim, deleted: bool = False) -> set[str]:
        """Take in a claim; return the nodes whose devices it holds, or held before."""
        before = self._claims.pop(claim.key, ())
        for device in before:
            self._held[device].pop(claim.key, None)
            if not self._held[device]:
                del self._held[device]
        allocation = None if deleted else claim.status.allocation
        held: dict[DeviceId, list[AllocatedDevice]] = defaultdict(list)
        for result in allocation.devices.results if allocation is not None else ():
            held[DeviceId(result.driver, result.pool, result.device)].append(result)
        if held:
            self._claims[claim.key] = list(held)
        for device, results in held.items():
            self._held[device][claim.key] = results
        units = (self._units.get(device) for device in {*before, *held})
        return {unit.node for unit in units if unit is not None}

    def offer(self, node: str, selector: DeviceSelector | None = None) -> Offer:
        """Return what the devices of a node amount to.

        :param selector: what the node's pool selects; None for all devices.
        """
        wholes: dict[tuple[str, str, str, str], _Whole] = {}
        for device in sorted(self._of_node.get(node, ())):
            unit = self._units[device]
            name = (device.driver, device.pool, unit.whole, "" if unit.whole else device.device)
            if name not in wholes:
                amount = WHOLE if unit.whole else unit.amount
                wholes[name] = _Whole(self._key(device, selector), amount)
            whole, held = wholes[name], self._held_of(device)
            whole.held += held
            out = self._out_of_service(device, unit.device.taints)
            whole.usable |= not out
            if out == "failed":
                whole.failed += max(0, unit.amount - held)
            elif out:
                whole.maintenance += max(0, unit.amount - held)
        offer = Offer()
        for whole in wholes.values():
            whole.add_to(offer)
        return offer

    def listed(self, node: str, selector: DeviceSelector | None = None) -> list[ListedDevice]:
        """Return the devices of a node that its pool selects."""
        found = []
        for device in sorted(self._of_node.get(node, ())):
            if not self._key(device, selector).outside:
                unit = self._units[device]
                in_service = not self._out_of_service(device, unit.device.taints)
                found.append(ListedDevice(device.driver, unit.device, unit.amount, in_service))
        return found

    def node_of(self, result: AllocatedDevice) -> str:
        """Return the node of an allocated device, "" for one of several nodes or of no slice."""
        unit = self._units.get(DeviceId(result.driver, result.pool, result.device))
        return unit.node if unit is not None else ""

    def used(self, node: str, selector: DeviceSelector | None = None) -> dict[Key, int]:
        """Return what claims hold of the devices of a node, by key."""
        found: dict[Key, int] = defaultdict(int)
        for device in self._of_node.get(node, ()):
            if device in self._held:
                found[self._key(device, selector)] += self._held_of(device)
        return found

    def _held_of(self, device: DeviceId) -> int:
        claims = self._held.get(device, {}).values()
        return sum(self.held(result)[1] for results in claims for result in results)

    def _key(self, device: DeviceId, selector: DeviceSelector | None) -> Key:
        unit = self._units.get(device)
        if selector is None:
            return unit.key if unit is not None else Key(device.driver, "")
        if unit is None:
            return Key(device.driver, "", outside=True)
        return unit.key._replace(outside=not selector.selects(device.driver, unit.device))

    def _out_of_service(self, device: DeviceId, own: Iterable[DeviceTaint]) -> str:
        # A driver taints what is broken; an administrator's rule takes out what is maintained.
        if any(taint.effect in _UNUSABLE for taint in own):
            return "failed"
        for rule in self._rules.values():
            if rule.spec.taint.effect in _UNUSABLE and _selects(rule, device):
                return "maintenance"
        return ""

    def held(
        self, result: AllocatedDevice, selector: DeviceSelector | None = None
    ) -> tuple[Key, int]:
        """Return key and amount of an allocated device, 0 for one that is only administered."""
        device = DeviceId(result.driver, result.pool, result.device)
        unit = self._units.get(device)
        key = self._key(device, selector)
        if result.admin_access:
            return key, 0
        if result.share_id is None or unit is None:
            return key, unit.amount if unit is not None else WHOLE
        parts = [
            int(WHOLE * amount.amount / offered.value.amount)
            for name, amount in result.consumed_capacity.items()
            if (offered := unit.device.capacity.get(name)) is not None and offered.value.amount
        ]
        return key, min(WHOLE, max(parts, default=WHOLE))


def _selects(rule: DeviceTaintRule, device: DeviceId) -> bool:
    selector = rule.spec.device_selector
    if selector is None:
        return False
    wanted = (selector.driver, selector.pool, selector.device)
    return all(one is None or one == own for one, own in zip(wanted, device, strict=True))


def _units_of(slices: Iterable[ResourceSlice]) -> dict[DeviceId, _Unit]:
    known = list(slices)
    newest = max((one.spec.pool.generation for one in known), default=0)
    current = [one.spec for one in known if one.spec.pool.generation == newest]
    counters = {
        (one.name, name): counter.value.amount
        for spec in current
        for one in spec.shared_counters
        for name, counter in one.counters.items()
    }
    found = {}
    for spec in current:
        for device in spec.devices:
            parts = [
                (int(WHOLE * used.value.amount / whole), consumption.counter_set)
                for consumption in device.consumes_counters
                for name, used in consumption.counters.items()
                if (whole := counters.get((consumption.counter_set, name)))
            ]
            amount, whole_name = max(parts, default=(WHOLE, ""))
            key = Key(spec.driver, _model(device))
            name = DeviceId(spec.driver, spec.pool.name, device.name)
            node = spec.node_name or device.node_name
            found[name] = _Unit(node, key, min(WHOLE, amount), device, whole_name)
    return found


def _model(device: Device) -> str:
    attributes: Mapping[str, str | None] = {
        name.rpartition("/")[2]: attribute.string for name, attribute in device.attributes.items()
    }
    return next((text for name in _MODEL_ATTRIBUTES if (text := attributes.get(name))), "")
