"""Keeps a node's ResourceSlices in step with its devices.

The node is the pool. Its slices are numbered: their ``generateName`` begins with the number. Slices
that are already right are not written. A change of a single slice keeps the pool's generation; any
other change raises it, so that schedulers wait until all slices are there. These are the rules of
Kubernetes' own publisher (k8s.io/dynamic-resource-allocation/resourceslice).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Protocol

import msgspec

from bayplan.api.dra import Device, DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec
from bayplan.api.meta import ObjectMeta, OwnerReference
from bayplan.errors import BayplanError, NotFound
from bayplan_dra.driver.publish.devices import NodeInventory

__all__ = ["Owner", "Publisher", "SliceApi", "SliceChange", "dropped_fields", "specs_of"]

_MOST_DEVICES = 64
"""Devices of a slice that has taints, counters or lists. Without these, 128 are allowed, but a
device that gets a taint should not move others to another slice."""
_MOST_COUNTER_SETS = 8
_LAST_GENERATION = 2**62


class SliceChange(Enum):
    """What happened to the slices of a node; ``STARTED``: changes are seen from now on."""

    STARTED = "STARTED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class SliceApi(Protocol):
    """The publisher's requests to the API server; errors are ``ClusterError``."""

    def slices(self, driver: str, node: str) -> list[ResourceSlice]:
        """Return the slices of a driver on a node."""

    def follow(self, driver: str, node: str) -> Iterator[SliceChange]:
        """Yield each change of the slices of a driver on a node, for a limited time."""

    def create(self, obj: ResourceSlice) -> ResourceSlice:
        """Create a slice; return it as stored."""

    def update(self, obj: ResourceSlice) -> ResourceSlice:
        """Replace a slice, unless it changed meanwhile; return it as stored."""

    def delete(self, obj: ResourceSlice) -> None:
        """Delete a slice, unless another one has its name now."""


class Owner(msgspec.Struct, frozen=True):
    """The node that owns the slices."""

    name: str
    uid: str


class Publisher(msgspec.Struct):
    """Publishes the devices of one node. Not safe for concurrent calls.

    :ivar warnings: what the last call could not publish, or the API server dropped.
    """

    api: SliceApi
    driver: str
    owner: Owner
    warnings: list[str] = msgspec.field(default_factory=list)
    _dropped: dict[int, list[str]] = msgspec.field(default_factory=dict)
    _stored: dict[int, tuple[Any, Any]] = msgspec.field(default_factory=dict)

    def publish(self, inventory: NodeInventory, taints: dict[str, tuple[DeviceTaint, ...]]) -> int:
        """Make the API server's slices match the inventory; return how many were written.

        :param taints: by device name.
        :raises BayplanError: for a device with an unknown counter.
        :raises ClusterError: when the API server refuses.
        """
        devices = [
            msgspec.structs.replace(one.device, taints=taints.get(one.name, ()))
            for one in inventory.devices.values()
        ]
        _check(devices, inventory)
        wanted = specs_of(self.driver, self.owner.name, devices, inventory)
        slices = self.api.slices(self.driver, self.owner.name)
        for orphan in (one for one in slices if not self._owns(one)):
            self._delete(orphan)
        existing = _by_number(one for one in slices if self._owns(one))
        self.warnings = [f"left out {text}" for text in inventory.left_out]
        for obsolete in _obsolete(existing, len(wanted)):
            self._delete(obsolete)
        kept = {number: found[0] for number, found in existing.items() if number < len(wanted)}
        kept.pop(-1, None)
        changed = [
            number
            for number, spec in enumerate(wanted)
            if number not in kept or not self._is_right(number, kept[number], spec)
        ]
        pools = {
            (one.spec.pool.generation, one.spec.pool.resource_slice_count) for one in kept.values()
        }
        agree = len(pools) == 1 and {count for _, count in pools} == {len(wanted)}
        generation = max((number for number, _ in pools), default=0)
        if generation >= _LAST_GENERATION:
            # There is no generation after it.
            for obj in kept.values():
                self._delete(obj)
            kept, generation, agree = {}, 0, False
        if not agree or len(changed) > 1 or not kept.keys() >= set(changed):
            generation += 1
            changed = list(range(len(wanted)))
        for number in changed:
            self._write(number, wanted[number], kept.get(number), generation, len(wanted))
        for number in sorted(self._dropped):
            self.warnings += self._dropped[number] if number < len(wanted) else ()
        return len(changed)

    def _owns(self, obj: ResourceSlice) -> bool:
        """Tell whether this node owns the slice, not an older node of that name."""
        return any(one.uid == self.owner.uid for one in obj.metadata.owner_references)

    def _is_right(self, number: int, obj: ResourceSlice, spec: ResourceSliceSpec) -> bool:
        """Tell whether a slice is as wanted, or as the API server stored it when it was written."""
        now, wanted = _content(obj.spec), _content(spec)
        return bool(now == wanted or self._stored.get(number) == (wanted, now))

    def withdraw(self) -> None:
        """Delete the node's slices."""
        for obj in self.api.slices(self.driver, self.owner.name):
            self._delete(obj)

    def _delete(self, obj: ResourceSlice) -> None:
        try:
            self.api.delete(obj)
        except NotFound:
            return

    def _write(
        self,
        number: int,
        spec: ResourceSliceSpec,
        old: ResourceSlice | None,
        generation: int,
        count: int,
    ) -> None:
        pool = ResourcePool(self.owner.name, generation, count)
        spec = msgspec.structs.replace(spec, pool=pool)
        if old is not None:
            stored = self.api.update(msgspec.structs.replace(old, spec=spec))
        else:
            reference = OwnerReference(
                api_version="v1",
                kind="Node",
                name=self.owner.name,
                uid=self.owner.uid,
                controller=True,
            )
            prefix = f"{number:05x}-{self.driver}-{self.owner.name}-"
            meta = ObjectMeta(generate_name=prefix, owner_references=(reference,))
            stored = self.api.create(ResourceSlice(spec, meta))
        self._stored[number] = (_content(spec), _content(stored.spec))
        self._dropped[number] = dropped_fields(spec, stored.spec)


def specs_of(
    driver: str, node: str, devices: Sequence[Device], inventory: NodeInventory
) -> list[ResourceSliceSpec]:
    """Return the slices' specs: counters first, then devices; without any, one empty spec."""
    pool = ResourcePool(node)
    sets = inventory.counters
    found = [
        ResourceSliceSpec(driver, pool, node, shared_counters=sets[at : at + _MOST_COUNTER_SETS])
        for at in range(0, len(sets), _MOST_COUNTER_SETS)
    ]
    for at in range(0, len(devices), _MOST_DEVICES):
        part = tuple(devices[at : at + _MOST_DEVICES])
        found.append(ResourceSliceSpec(driver, pool, node, devices=part))
    return found or [ResourceSliceSpec(driver, pool, node)]


def dropped_fields(wanted: ResourceSliceSpec, stored: ResourceSliceSpec) -> list[str]:
    """Return messages about fields that the API server dropped because a feature is off."""
    kept = {device.name: device for device in stored.devices}
    gates = {
        "consumes_counters": "DRAPartitionableDevices",
        "taints": "DRADeviceTaints",
        "allow_multiple_allocations": "DRAConsumableCapacity",
    }
    found = []
    for name, gate in gates.items():
        lost = [
            device.name
            for device in wanted.devices
            if device.name in kept
            and getattr(device, name)
            and not getattr(kept[device.name], name)
        ]
        if lost:
            found.append(
                f"the API server dropped {name} of {', '.join(lost)}: is the feature {gate} on?"
            )
    if wanted.shared_counters and not stored.shared_counters:
        found.append(
            "the API server dropped sharedCounters: is the feature DRAPartitionableDevices on?"
        )
    return found


def _check(devices: Iterable[Device], inventory: NodeInventory) -> None:
    """Check that there are all counters that devices consume."""
    counters = {one.name: one.counters for one in inventory.counters}
    for device in devices:
        for use in device.consumes_counters:
            if not use.counters.keys() <= counters.get(use.counter_set, {}).keys():
                raise BayplanError(
                    f"device {device.name} consumes counters that {use.counter_set} does not have"
                )


def _by_number(slices: Iterable[ResourceSlice]) -> dict[int, list[ResourceSlice]]:
    """Return slices by the number that their names begin with; -1 for those without one."""
    found: dict[int, list[ResourceSlice]] = {}
    for obj in slices:
        head = obj.metadata.name.partition("-")[0]
        try:
            number = int(head, 16) if len(head) >= 5 else -1
        except ValueError:
            number = -1
        found.setdefault(number, []).append(obj)
    return found


def _obsolete(existing: dict[int, list[ResourceSlice]], count: int) -> list[ResourceSlice]:
    """Return the slices beyond the first ``count``, and duplicates."""
    found = []
    for number, slices in existing.items():
        slices.sort(key=lambda obj: (-obj.spec.pool.generation, obj.metadata.name))
        found += slices if not 0 <= number < count else slices[1:]
    return found


def _content(spec: ResourceSliceSpec) -> Any:
    """Return what a slice says apart from its pool; the API server sets the times of taints."""
    devices = tuple(
        msgspec.structs.replace(
            device,
            taints=tuple(
                msgspec.structs.replace(taint, time_added=None) for taint in device.taints
            ),
        )
        for device in spec.devices
    )
    return (spec.driver, spec.node_name, devices, spec.shared_counters)
