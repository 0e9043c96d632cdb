"""Pools: the slices that make them up, and the devices in them that a node can use.

While a pool is being updated, only the slices of its highest generation count. It is complete when
there are as many of them as each of them says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from bayplan.api.dra import Device, DeviceTaint, DeviceTaintRule, ResourceSlice
from bayplan.api.node import Node
from bayplan.api.nodeselection import selects
from bayplan_dra.allocator.model import Amount, DeviceId, Features, PoolDevice

__all__ = ["Inventory", "Pool", "PoolKey"]


class PoolKey(NamedTuple):
    """A pool's driver and name."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


class Pool(msgspec.Struct):
    """A pool as one node sees it.

    :ivar incomplete: whether it is being updated.
    :ivar invalid: why it is invalid; "" if it is valid.
    :ivar devices: the devices that the node can use, in the order of the slices.
    :ivar counters: what the devices of the pool share, by counter set and counter.
    :ivar consumers: all devices of the pool that consume counters, on any node.
    """

    key: PoolKey
    generation: int
    incomplete: bool = False
    invalid: str = ""
    devices: list[PoolDevice] = msgspec.field(default_factory=list)
    counters: dict[str, dict[str, Amount]] = msgspec.field(default_factory=dict)
    consumers: dict[DeviceId, Device] = msgspec.field(default_factory=dict)

    @property
    def binds(self) -> bool:
        """Whether any device has conditions to meet before a pod is bound."""
        return any(device.spec.binding_conditions for device in self.devices)


class Inventory:
    """All slices of a cluster, and the pools that each node sees.

    The pools of a node are cached until one of their slices changes.
    """

    def __init__(self, features: Features | None = None) -> None:
        self.features = features or Features()
        self._slices: dict[str, ResourceSlice] = {}
        self._by_pool: dict[PoolKey, dict[str, ResourceSlice]] = defaultdict(dict)
        self._local: dict[str, dict[str, ResourceSlice]] = defaultdict(dict)
        self._wide: dict[str, ResourceSlice] = {}
        self._rules: dict[str, DeviceTaintRule] = {}
        self._kept: dict[str, tuple[Node, list[Pool]]] = {}

    def __len__(self) -> int:
        return len(self._slices)

    # Changes ---------------------------------------------------------------------------------

    def set_slice(self, obj: ResourceSlice) -> set[str] | None:
        """Add or replace a slice; return the nodes that see a change, None for any node."""
        before = self.delete_slice(obj.metadata.name)
        spec = obj.spec
        name = obj.metadata.name
        self._slices[name] = obj
        self._by_pool[PoolKey(spec.driver, spec.pool.name)][name] = obj
        if spec.node_name and not spec.shared_counters:
            self._local[spec.node_name][name] = obj
        else:
            self._wide[name] = obj
        after = self._touched(obj)
        return None if before is None or after is None else before | after

    def delete_slice(self, name: str) -> set[str] | None:
        """Remove a slice; return the nodes that see a change, None for any node."""
        obj = self._slices.pop(name, None)
        if obj is None:
            return set()
        touched = self._touched(obj)
        key = PoolKey(obj.spec.driver, obj.spec.pool.name)
        del self._by_pool[key][name]
        if not self._by_pool[key]:
            del self._by_pool[key]
        self._wide.pop(name, None)
        self._local[obj.spec.node_name].pop(name, None)
        return touched

    def _touched(self, obj: ResourceSlice) -> set[str] | None:
        """Drop the cached pools of the nodes that see this slice's pool; return these nodes."""
        pool = self._by_pool[PoolKey(obj.spec.driver, obj.spec.pool.name)].values()
        nodes = {one.spec.node_name for one in (*pool, obj)}
        if "" in nodes:
            self._kept.clear()
            return None
        for node in nodes:
            self._kept.pop(node, None)
        return nodes

    def set_rule(self, rule: DeviceTaintRule) -> None:
        """Add or replace a taint rule."""
        self._rules[rule.metadata.name] = rule
        self._kept.clear()

    def delete_rule(self, name: str) -> None:
        """Remove a taint rule."""
        self._rules.pop(name, None)
        self._kept.clear()

    # Reading ---------------------------------------------------------------------------------

    def slices(self) -> Iterable[ResourceSlice]:
        """Return all slices."""
        return self._slices.values()

    def nodes_of(self, key: PoolKey) -> set[str] | None:
        """Return the nodes that may see a pool, None when that depends on labels."""
        nodes = {one.spec.node_name for one in self._by_pool.get(key, {}).values()}
        return None if "" in nodes else nodes

    def pools(self, node: Node) -> list[Pool]:
        """Return the pools that a node sees, in the order in which devices are tried.

        Pools are sorted by driver and name, those with binding conditions last; devices by slice
        name and their place in the slice. The list is the same object until something changes.
        """
        kept = self._kept.get(node.metadata.name)
        if kept is not None and kept[0] is node:
            return kept[1]
        found = self._gather(node)
        self._kept[node.metadata.name] = (node, found)
        return found

    def _gather(self, node: Node) -> list[Pool]:
        visible: dict[PoolKey, list[ResourceSlice]] = defaultdict(list)
        for obj in (*self._local.get(node.metadata.name, {}).values(), *self._wide.values()):
            if self._is_visible(obj, node):
                visible[PoolKey(obj.spec.driver, obj.spec.pool.name)].append(obj)
        found = [
            pool
            for key, slices in visible.items()
            if (pool := self._pool(key, slices, node)) is not None
        ]
        return sorted(found, key=lambda pool: (pool.binds, pool.key))

    def _is_visible(self, obj: ResourceSlice, node: Node) -> bool:
        spec = obj.spec
        split = spec.per_device_node_selection or bool(spec.shared_counters)
        if split and not self.features.partitionable_devices:
            return False
        if spec.shared_counters:
            return True
        if spec.node_name:
            return spec.node_name == node.metadata.name
        if spec.node_selector is not None:
            return selects(spec.node_selector, node)
        return spec.all_nodes or spec.per_device_node_selection

    def _pool(self, key: PoolKey, visible: list[ResourceSlice], node: Node) -> Pool | None:
        newest = max(obj.spec.pool.generation for obj in visible)
        mine = [obj for obj in visible if obj.spec.pool.generation == newest]
        everywhere = self._by_pool[key].values()
        pool = Pool(key, newest)
        wanted = mine[0].spec.pool.resource_slice_count
        if len(mine) < wanted:
            if any(obj.spec.pool.generation > newest for obj in everywhere):
                # This node sees only stale slices of the pool.
                return None
            present = sum(obj.spec.pool.generation == newest for obj in everywhere)
            pool.incomplete = present < wanted
        mine.sort(key=lambda obj: obj.metadata.name)
        current = [obj for obj in everywhere if obj.spec.pool.generation == newest]
        for obj in sorted(current, key=lambda obj: obj.metadata.name):
            self._read_counters(obj, pool)
        for obj in mine:
            self._read_devices(obj, pool, node)
        self._check(current, pool)
        return pool

    def _read_counters(self, obj: ResourceSlice, pool: Pool) -> None:
        for counters in obj.spec.shared_counters:
            if counters.name in pool.counters:
                pool.invalid = f'two counter sets are named "{counters.name}"'
            pool.counters[counters.name] = {
                name: counter.value.number for name, counter in counters.counters.items()
            }
        for device in obj.spec.devices:
            if device.consumes_counters:
                pool.consumers[DeviceId(*pool.key, device.name)] = device

    def _read_devices(self, obj: ResourceSlice, pool: Pool, node: Node) -> None:
        for device in obj.spec.devices:
            if obj.spec.per_device_node_selection and not _reaches(device, node):
                continue
            if device.consumes_counters and not self.features.partitionable_devices:
                continue
            identity = DeviceId(*pool.key, device.name)
            taints = (*device.taints, *self._ruled(identity))
            pool.devices.append(
                PoolDevice(identity, device, obj.spec, taints, self.features.list_attributes)
            )

    def _ruled(self, identity: DeviceId) -> Iterable[DeviceTaint]:
        for name in sorted(self._rules):
            spec = self._rules[name].spec
            chosen = spec.device_selector
            if chosen is None or (
                chosen.driver in (None, identity.driver)
                and chosen.pool in (None, identity.pool)
                and chosen.device in (None, identity.device)
            ):
                yield spec.taint

    def _check(self, slices: Iterable[ResourceSlice], pool: Pool) -> None:
        """Record what is wrong with a pool, in any of its slices."""
        seen: set[str] = set()
        for obj in slices:
            for device in obj.spec.devices:
                if device.name in seen:
                    pool.invalid = f'two devices are named "{device.name}"'
                seen.add(device.name)
                if not self.features.partitionable_devices:
                    continue
                for used in device.consumes_counters:
                    problem = _unknown_counter(used.counter_set, used.counters, pool.counters)
                    if problem:
                        pool.invalid = f'device "{device.name}" {problem}'


def _unknown_counter(
    counter_set: str, used: Mapping[str, object], known: Mapping[str, Mapping[str, Amount]]
) -> str:
    if counter_set not in known:
        return f'consumes counter set "{counter_set}", which the pool does not have'
    for name in used:
        if name not in known[counter_set]:
            return f'consumes counter "{name}", which counter set "{counter_set}" does not have'
    return ""


def _reaches(device: Device, node: Node) -> bool:
    if device.node_name:
        return device.node_name == node.metadata.name
    if device.node_selector is not None:
        return selects(device.node_selector, node)
    return device.all_nodes
