"""The allocator's data: features, devices, what is allocated, and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import msgspec

from bayplan.api.dra import (
    Device,
    DeviceAttribute,
    DeviceId,
    DeviceTaint,
    ResourceClaim,
    ResourceSliceSpec,
)
from bayplan_dra.cel import CelDevice

__all__ = [
    "AllocatedState",
    "AllocationError",
    "Amount",
    "DeviceId",
    "Features",
    "HeldDevice",
    "Interrupt",
    "NodeError",
    "PoolDevice",
    "TimedOut",
    "allocated_ids",
]

Amount = int | Fraction
Interrupt = Callable[[], bool]
"""Tells whether to stop; called every few steps."""


class AllocationError(Exception):
    """The claims cannot be allocated on any node: something is wrong with them."""


class NodeError(Exception):
    """The claims cannot be allocated on this node: something is wrong with it."""


class TimedOut(NodeError):
    """The search on this node was interrupted or took too many steps."""

    @classmethod
    def after(cls, steps: int) -> TimedOut:
        """Return the error of a search that took too many steps."""
        return cls(f"gave up the search for devices after {steps} steps")

    @classmethod
    def interrupted(cls, steps: int) -> TimedOut:
        """Return the error of a search that was interrupted."""
        return cls(f"interrupted the search for devices after {steps} steps")


class Features(msgspec.Struct, frozen=True):
    """The feature gates of Kubernetes that the allocator knows; all are on by default."""

    admin_access: bool = True
    prioritized_list: bool = True
    partitionable_devices: bool = True
    device_taints: bool = True
    binding_conditions: bool = True
    consumable_capacity: bool = True
    list_attributes: bool = True


class PoolDevice(msgspec.Struct, eq=False, dict=True):
    """A device in its pool.

    :ivar taints: its own taints and those of DeviceTaintRules.
    :ivar lists: whether list attributes are allowed.
    """

    id: DeviceId
    spec: Device
    slice: ResourceSliceSpec
    taints: tuple[DeviceTaint, ...] = ()
    lists: bool = True

    @cached_property
    def view(self) -> CelDevice:
        """The device as CEL sees it.

        :raises EvaluationError: for an attribute that has no meaning.
        """
        return CelDevice(
            self.id.driver,
            self.spec.attributes,
            self.spec.capacity,
            self.spec.allow_multiple_allocations,
            self.lists,
        )

    def attribute(self, name: str) -> DeviceAttribute | None:
        """Return an attribute by its full name; the driver's own may lack the domain."""
        found = self.spec.attributes.get(name)
        if found is None:
            domain, _, identifier = name.rpartition("/")
            if domain == self.id.driver:
                found = self.spec.attributes.get(identifier)
        return found


@dataclass
class AllocatedState:
    """What is allocated in the whole cluster.

    :ivar devices: the devices that are held exclusively.
    :ivar shared: the devices of which shares are held, with the number of shares.
    :ivar capacity: what these shares consume, by device and capacity name.
    :ivar nodes: the node to which the claim of a device binds it, for devices with conditions.
    :ivar failures: how often a device failed to get ready since it last was; and by name, how
        often devices failed on a node.
    :ivar freed: the order in which devices became free; those not in it came first.
    """

    devices: set[DeviceId] = field(default_factory=set)
    shared: dict[DeviceId, int] = field(default_factory=dict)
    capacity: dict[DeviceId, dict[str, Amount]] = field(default_factory=dict)
    nodes: dict[DeviceId, str] = field(default_factory=dict)
    failures: dict[DeviceId | str, int] = field(default_factory=dict, compare=False)
    freed: dict[DeviceId, int] = field(default_factory=dict, compare=False)

    def copy(self) -> AllocatedState:
        """Return an independent copy."""
        capacity = {key: dict(amounts) for key, amounts in self.capacity.items()}
        return AllocatedState(
            set(self.devices),
            dict(self.shared),
            capacity,
            dict(self.nodes),
            self.failures,
            self.freed,
        )

    def take(self, claim_devices: Iterable[HeldDevice]) -> None:
        """Add allocated devices."""
        for held in claim_devices:
            if held.consumed is None:
                self.devices.add(held.id)
                if held.node:
                    self.nodes[held.id] = held.node
                continue
            self.shared[held.id] = self.shared.get(held.id, 0) + 1
            amounts = self.capacity.setdefault(held.id, {})
            for name, amount in held.consumed.items():
                amounts[name] = amounts.get(name, 0) + amount

    def release(self, claim_devices: Iterable[HeldDevice]) -> None:
        """Undo ``take``."""
        for held in claim_devices:
            if held.consumed is None:
                self.devices.discard(held.id)
                self.nodes.pop(held.id, None)
                continue
            self.shared[held.id] -= 1
            amounts = self.capacity[held.id]
            for name, amount in held.consumed.items():
                amounts[name] -= amount
                if not amounts[name]:
                    del amounts[name]
            if not self.shared[held.id]:
                del self.shared[held.id]
                if not amounts:
                    del self.capacity[held.id]


class HeldDevice(NamedTuple):
    """A device that a claim holds; exclusively, unless ``consumed`` says what its share takes.

    ``node`` is where a device with binding conditions will be used.
    """

    id: DeviceId
    consumed: Mapping[str, Amount] | None = None
    node: str = ""


def allocated_ids(claim: ResourceClaim) -> list[HeldDevice]:
    """Return the devices that a claim's allocation holds; admin access does not hold devices."""
    allocation = claim.status.allocation
    if allocation is None:
        return []
    held = []
    for one in allocation.devices.results:
        if one.admin_access:
            continue
        consumed = None
        if one.share_id is not None:
            consumed = {name: q.number for name, q in one.consumed_capacity.items()}
        bound = allocation.bound_node if one.binding_conditions else ""
        held.append(HeldDevice(DeviceId(one.driver, one.pool, one.device), consumed, bound))
    return held
