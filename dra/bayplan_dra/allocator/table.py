"""The devices that a search chooses from, by index, with all that the search needs to know.

Sets of devices are integers with one bit per device, so that a constraint is an ``&`` and a count
is ``bit_count``. A table holds the devices that one node can use (or several nodes that share
devices), and stays valid until these change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bayplan_dra.allocator.attributes import Value, attribute_values
from bayplan_dra.allocator.capacity import consumption
from bayplan_dra.allocator.host import Host, HostLimits
from bayplan_dra.allocator.model import (
    AllocatedState,
    Amount,
    DeviceId,
    Features,
    Interrupt,
    PoolDevice,
    TimedOut,
)
from bayplan_dra.allocator.pools import Pool
from bayplan_dra.allocator.reach import Reach, reach_of
from bayplan_dra.allocator.requests import SelectorError, Wanted
from bayplan_dra.allocator.room import DividedDevices, division_of
from bayplan_dra.allocator.usage import CounterKey, Usage, counter_needs

__all__ = [
    "TOPOLOGY",
    "AttributeIndex",
    "DeviceTable",
    "FilteredDevices",
    "Group",
    "Turn",
    "bits",
]

TOPOLOGY = (
    "*/nvlinkDomain",
    "*/nvlinkGroup8",
    "*/nvlinkGroup4",
    "*/nvlinkGroup2",
    "resource.kubernetes.io/pcieRoot",
    "resource.kubernetes.io/numaNode",
)
"""The attributes that say which devices belong together, the most precious first."""
_OFTEN = 64
"""Devices after which the interrupt is asked."""


class AttributeIndex(NamedTuple):
    """One attribute over all devices.

    :ivar values: the values of each device.
    :ivar masks: the devices with each value.
    :ivar present: the devices that have the attribute.
    """

    values: Sequence[frozenset[Value]]
    masks: Mapping[Value, int]
    present: int


class Turn(NamedTuple):
    """When a device is tried; smaller is earlier.

    :ivar failures: how often it failed to get ready.
    :ivar freed: the order in which devices became free: the first would be detached next.
    """

    reach: Reach
    failures: int
    freed: int


class Group(NamedTuple):
    """Devices that belong together at one level of the topology; 0 is the most precious.

    A ``partition`` group is what one piece of hardware is divided into: using any of its devices
    costs as much as breaking it. A group with a ``reach`` holds the devices that are as near as
    that; it is never whole or broken.
    """

    level: int
    mask: int
    partition: bool
    reach: Reach = Reach.LOCAL


class FilteredDevices(msgspec.Struct, frozen=True):
    """The devices of a table that a request can have, whatever is in use; one bit each.

    :ivar usable: the devices of pools that are complete and valid.
    :ivar of_class: of these, those that match the class's selectors.
    :ivar matching: of these, those that match the request's selectors.
    :ivar tolerated: of these, those without a taint that blocks the request.
    :ivar capable: the matching devices that offer the requested capacity.
    :ivar consumed: what a share of each device consumes, by device and capacity name.
    :ivar failures: what a selector that fails on a device says, by device. Such a device does
        not match.
    """

    usable: int
    of_class: int
    matching: int
    tolerated: int
    capable: int
    consumed: Mapping[int, Mapping[str, Amount]]
    failures: Mapping[int, str]


class DeviceTable:
    """Devices of some pools in order, each once.

    :param limits: what may be attached to the host whose table it is.
    :param model_of: returns the model of a device, as the limits name it.
    :ivar host: the host that has limits, if there is one.
    :ivar index: the number of each device.
    :ivar usable: the devices of pools that are complete and valid, one bit each.
    :ivar all: all devices, one bit each.
    :ivar needs: what each device takes from counters.
    :ivar consumers: the devices that take from each counter, with the amount.
    :ivar divided: the hardware that is divided into devices, one for each counter set.
    :ivar shareable: the devices that claims can share, one bit each.
    :ivar reaches: how near each device is.
    :ivar all_local: whether all devices are in the host itself.
    :ivar classes: a cache of :class:`.equivalence.EquivalenceClasses`.
    """

    def __init__(
        self,
        pools: Iterable[Pool],
        features: Features,
        limits: HostLimits | None = None,
        model_of: Callable[[PoolDevice], str] = lambda _: "",
    ) -> None:
        self.features = features
        self.pools = tuple(pools)
        self.devices: list[PoolDevice] = []
        self.index: dict[DeviceId, int] = {}
        self.usable = 0
        for pool in self.pools:
            for device in pool.devices:
                if device.id in self.index:
                    continue
                self.index[device.id] = len(self.devices)
                if not pool.incomplete and not pool.invalid:
                    self.usable |= 1 << len(self.devices)
                self.devices.append(device)
        self.all = (1 << len(self.devices)) - 1
        self.needs: list[Mapping[CounterKey, Amount]] = [counter_needs(d) for d in self.devices]
        self.reaches = tuple(reach_of(device) for device in self.devices)
        self.all_local = not any(self.reaches)
        self.divided = tuple(self._divided())
        self.host: Host | None = None
        if limits is not None:
            ids = [device.id for device in self.devices]
            models = [model_of(device) for device in self.devices]
            self.host = Host(limits, ids, self.reaches, models)
            self.needs = [{**own, **self.host.needs(n)} for n, own in enumerate(self.needs)]
        self.consumers: dict[CounterKey, list[tuple[int, Amount]]] = {}
        for number, needs in enumerate(self.needs):
            for key, amount in needs.items():
                self.consumers.setdefault(key, []).append((number, amount))
        self.shareable = 0
        if features.consumable_capacity:
            for number, device in enumerate(self.devices):
                if device.spec.allow_multiple_allocations:
                    self.shareable |= 1 << number
        self._attributes: dict[str, AttributeIndex] = {}
        self._groups: dict[Sequence[str], tuple[Group, ...]] = {}
        self._filtered: dict[Wanted, FilteredDevices] = {}
        self.classes: dict[object, int] = {}

    def __len__(self) -> int:
        return len(self.devices)

    def usage(self, state: AllocatedState) -> Usage:
        """Return what is left of counters, capacity and the host's limits."""
        usage = Usage.of(state, self.pools)
        if self.host is not None:
            usage.counters.update(self.host.left(state))
        return usage

    def blocked(self, state: AllocatedState) -> int:
        """Return the devices that may not be attached to the host now, one bit each."""
        return self.host.blocked(state) if self.host is not None else 0

    def in_use(self, state: AllocatedState) -> int:
        """Return the devices that are held exclusively, or by shares that are no longer allowed."""
        mask = 0
        held = state.devices
        for number, device in enumerate(self.devices):
            if device.id in held:
                mask |= 1 << number
        if state.shared:
            for number in bits(self.all & ~self.shareable):
                if self.devices[number].id in state.shared:
                    mask |= 1 << number
        return mask

    def shared_in_use(self, state: AllocatedState) -> int:
        """Return the devices of which shares are held, one bit each."""
        mask = 0
        for number in bits(self.shareable):
            if self.devices[number].id in state.shared:
                mask |= 1 << number
        return mask

    def turns(self, state: AllocatedState) -> Sequence[Turn]:
        """Return whose turn it is among equal devices; empty where all devices are local."""
        if self.all_local:
            return ()
        turns = []
        for reach, device in zip(self.reaches, self.devices, strict=True):
            failures = state.failures.get(device.id, 0)
            near = Reach.DOUBTFUL if failures else reach
            turns.append(Turn(near, failures, state.freed.get(device.id, 0)))
        return turns

    def doubtful(self, state: AllocatedState) -> Iterable[Group]:
        """Return the group of the devices that failed to get ready, if there are any."""
        mask = 0
        for number, device in enumerate(self.devices if state.failures else ()):
            if device.id in state.failures:
                mask |= 1 << number
        return (Group(0, mask, partition=False, reach=Reach.DOUBTFUL),) if mask else ()

    def attribute(self, name: str) -> AttributeIndex:
        """Return one attribute over all devices, by its full name."""
        found = self._attributes.get(name)
        if found is None:
            values = [attribute_values(device.attribute(name)) for device in self.devices]
            masks: dict[Value, int] = {}
            present = 0
            for number, own in enumerate(values):
                if own:
                    present |= 1 << number
                for value in sorted(own, key=str):
                    masks[value] = masks.get(value, 0) | 1 << number
            found = self._attributes[name] = AttributeIndex(values, masks, present)
        return found

    def groups(self, levels: Sequence[str]) -> tuple[Group, ...]:
        """Return the groups of devices: partitions of one device, then the levels in order.

        :param levels: attributes; ``*/name`` is that of any driver. The first value of a list
            counts.
        """
        found = self._groups.get(levels)
        if found is None:
            found = self._groups[levels] = tuple(self._make_groups(levels))
        return found

    def _divided(self) -> Iterable[DividedDevices]:
        totals: dict[object, dict[CounterKey, Amount]] = {}
        for pool in self.pools:
            for counter_set, counters in pool.counters.items():
                own = totals.setdefault((pool.key, counter_set), {})
                own |= {(pool.key, counter_set, name): n for name, n in counters.items()}
        by_set: dict[object, dict[int, None]] = {}
        for number, needs in enumerate(self.needs):
            for pool_key, counter_set, _ in needs:
                by_set.setdefault((pool_key, counter_set), {})[number] = None
        for key, numbers in by_set.items():
            yield division_of(numbers, self.needs, totals.get(key, {}))

    def _make_groups(self, levels: Sequence[str]) -> Iterable[Group]:
        for divided in self.divided:
            yield Group(0, divided.mask, partition=True)
        for number in bits(self.shareable):
            yield Group(0, 1 << number, partition=True)
        for reach in (Reach.ATTACHED, Reach.COMING, Reach.POOLED):
            near = sum(1 << number for number, own in enumerate(self.reaches) if own is reach)
            if near:
                yield Group(0, near, partition=False, reach=reach)
        for level, name in enumerate(levels, start=1):
            by_value: dict[object, int] = {}
            for number, device in enumerate(self.devices):
                value = _group_value(device, name)
                if value is not None:
                    by_value[value] = by_value.get(value, 0) | 1 << number
            for mask in by_value.values():
                yield Group(level, mask, partition=False)

    def filtered(
        self, wanted: Wanted, claim: str = "", interrupt: Interrupt | None = None
    ) -> FilteredDevices:
        """Return the devices that a request can have, whatever is in use.

        :param claim: the claim's label, for messages.
        :raises AllocationError: for an expression that does not compile.
        :raises TimedOut: when the interrupt says so.
        """
        found = self._filtered.get(wanted)
        if found is None:
            found = self._filtered[wanted] = self._filter(wanted, claim, interrupt)
        return found

    def _filter(self, wanted: Wanted, claim: str, interrupt: Interrupt | None) -> FilteredDevices:
        of_class = matching = tolerated = capable = 0
        consumed: dict[int, Mapping[str, Amount]] = {}
        failures: dict[int, str] = {}
        in_class, selected = wanted.selecting(self.features, claim, interrupt)
        for number in bits(self.usable):
            if number % _OFTEN == _OFTEN - 1 and interrupt is not None and interrupt():
                raise TimedOut(f"interrupted the selectors of claim {claim} at device {number}")
            device = self.devices[number]
            try:
                if not in_class(device):
                    continue
                of_class |= 1 << number
                if not selected(device):
                    continue
            except SelectorError as exc:
                failures[number] = exc.detail
                continue
            bit = 1 << number
            matching |= bit
            bound = bool(device.spec.binding_conditions) and not self.features.binding_conditions
            free_of_taints = not device.taints or not self.features.device_taints
            if not bound and (free_of_taints or wanted.tolerates(device)):
                tolerated |= bit
            takes: Mapping[str, Amount] | None = {}
            if self.features.consumable_capacity and (wanted.capacity or self.shareable & bit):
                takes = consumption(device.spec, wanted.capacity)
            if takes is not None:
                capable |= bit
                if self.shareable & bit:
                    consumed[number] = takes
        return FilteredDevices(
            self.usable, of_class, matching, tolerated, capable, consumed, failures
        )


def _group_value(device: PoolDevice, name: str) -> object:
    domain, _, identifier = name.rpartition("/")
    if domain == "*":
        attribute = device.attribute(f"{device.id.driver}/{identifier}")
        prefix: object = device.id.driver
    else:
        attribute, prefix = device.attribute(name), None
    if attribute is None:
        return None
    if attribute.integers:
        return prefix, attribute.integers[0]
    if attribute.strings:
        return prefix, attribute.strings[0]
    if attribute.integer is not None:
        return prefix, attribute.integer
    return (prefix, attribute.string) if attribute.string is not None else None


def bits(mask: int) -> Iterable[int]:
    """Yield the numbers of the devices in a set, in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
