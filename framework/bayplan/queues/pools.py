"""What a pool of nodes has: used, free, kept for growth, and out of service.

For every resource ``total = allocated + available + reserved + maintenance + failed``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import msgspec

from bayplan.api import ApiObject, ComputePool, ResourceClaim, ResourceSlice
from bayplan.api.dra import AllocatedDevice, DeviceTaintRule
from bayplan.api.node_state import NodeState, model_of, state_of
from bayplan.api.pools import reserved_part
from bayplan.queues.device_selection import DeviceSelector, selector_of
from bayplan.queues.devices import WHOLE, DeviceIndex, Key, ListedDevice, is_device
from bayplan.queues.gpus import gpus_offered, gpus_used, is_gpu_count
from bayplan.snapshot import NodeRow, Snapshot

__all__ = [
    "PoolAccount",
    "PoolAmounts",
    "PoolDevices",
    "account_of",
    "in_pool",
    "problems_of",
    "usable",
]

Obj = TypeVar("Obj", bound=ApiObject)


class PoolAmounts(msgspec.Struct):
    """Amounts of one resource, in its unit (CPU in milli-CPU, devices and GPUs in thousandths).

    ``allocated`` is what pods on the pool's nodes have, whether they came through the pool or not.
    ``reserved`` is the part of what is free that is kept for growth; ``maintenance`` and ``failed``
    are what nobody has of nodes that are out of service.
    """

    total: int = 0
    allocated: int = 0
    available: int = 0
    reserved: int = 0
    maintenance: int = 0
    failed: int = 0

    def add(
        self, offered: int, used: int, state: NodeState, maintenance: int = 0, failed: int = 0
    ) -> None:
        """Count what one node offers, and what its pods have of it.

        :param maintenance: devices that are out of service on a node that is not.
        :param failed: likewise, those that have failed.
        """
        # A node may offer less than its pods have, after devices have failed.
        free = max(0, offered - used)
        self.total += used + free
        self.allocated += used
        failed = free if state is NodeState.FAILED else min(failed, free)
        rest = free - failed
        maintenance = rest if state is NodeState.MAINTENANCE else min(maintenance, rest)
        self.failed += failed
        self.maintenance += maintenance
        self.available += rest - maintenance

    def reserve(self, part: float, unit: int = 1) -> None:
        """Keep a part of what is in service free, as far as it is, in whole units."""
        wanted = int((self.total - self.failed - self.maintenance) // unit * part) * unit
        self.reserved = min(wanted, self.available)
        self.available -= self.reserved


class PoolAccount(msgspec.Struct):
    """What a pool has, by resource; of devices also by model, as pairs of resource and model.

    ``usable`` is what its pods may request at most: what is in service without what is kept free,
    CPU in milli-CPU, anything else in its unit (devices of slices in devices).
    """

    nodes: list[str] = msgspec.field(default_factory=list)
    amounts: dict[str, PoolAmounts] = msgspec.field(default_factory=dict)
    models: dict[tuple[str, str], PoolAmounts] = msgspec.field(default_factory=dict)
    usable: dict[str, float] = msgspec.field(default_factory=dict)


class _Devices(msgspec.Struct, frozen=True):
    """The devices of one node by key: what it offers, and what becomes of that."""

    key: Key
    offered: int
    used: int
    maintenance: int
    failed: int


class PoolDevices:
    """The devices of a snapshot, and what claims hold of them.

    What is known of a node is kept until its devices change. Nothing is read before the first
    question: a cluster may have devices and no pools.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._version = 0
        self._known: dict[str, tuple[DeviceSelector | None, Sequence[_Devices]]] = {}
        self._listed: dict[str, tuple[DeviceSelector | None, Sequence[ListedDevice]]] = {}

    @property
    def version(self) -> int:
        """Changes with the devices, and not with what claims hold."""
        _ = self._index
        return self._version

    @cached_property
    def _index(self) -> DeviceIndex:
        index = DeviceIndex()
        self._follow(ResourceSlice, index.put)
        self._follow(DeviceTaintRule, index.put_rule)
        self._follow(ResourceClaim, index.put_claim)
        return index

    def _follow(self, type_: type[Obj], put: Callable[[Obj, bool], set[str]]) -> None:
        def changed(old: Obj | None, new: Obj | None) -> None:
            obj = old if new is None else new
            assert obj is not None, "a change is of something"
            nodes = put(obj, new is None)
            for node in nodes:
                self._known.pop(node, None)
            if type_ is not ResourceClaim:
                self._version += 1
                for node in nodes:
                    self._listed.pop(node, None)

        for obj in self._snapshot.objects(type_).values():
            changed(None, obj)
        self._snapshot.on_object(type_, changed)

    def of(self, node: str, selector: DeviceSelector | None) -> Sequence[_Devices]:
        """Return what becomes of the devices of a node that its pool selects."""
        known = self._known.get(node)
        if known is not None and known[0] is selector:
            return known[1]
        offer, used = self._index.offer(node, selector), self._index.used(node, selector)
        found = [
            _Devices(
                key,
                offer.amounts.get(key, 0),
                used.get(key, 0),
                offer.maintenance.get(key, 0),
                offer.failed.get(key, 0),
            )
            for key in sorted({*offer.amounts, *used})
            if not key.outside
        ]
        self._known[node] = selector, found
        return found

    def listed(self, node: str, selector: DeviceSelector | None) -> Sequence[ListedDevice]:
        """Return the devices of a node that its pool selects; the same object until they change."""
        known = self._listed.get(node)
        if known is None or known[0] is not selector:
            known = self._listed[node] = selector, self._index.listed(node, selector)
        return known[1]

    def held(
        self, result: AllocatedDevice, nodes: Container[str], selector: DeviceSelector | None
    ) -> tuple[str, int] | None:
        """Return what an allocated device takes of a pool: its driver, and its amount.

        :param nodes: the nodes of the pool.
        :returns: None for a device of another node, or that the pool does not select.
        """
        node = self._index.node_of(result)
        key, amount = self._index.held(result, selector)
        if key.outside or (node and node not in nodes):
            return None
        return key.resource, amount


def in_pool(pool: ComputePool, labels: Mapping[str, str]) -> bool:
    """Tell whether a node with these labels is in a pool; one without nodeSelector has all."""
    return pool.spec.node_selector.items() <= labels.items()


def account_of(pool: ComputePool, snapshot: Snapshot) -> PoolAccount:
    """Return what a pool's nodes have in the snapshot."""
    account = PoolAccount()
    devices, selector = snapshot.shared(PoolDevices, PoolDevices), selector_of(pool)
    part = reserved_part(pool.spec.capacity) or 0.0
    in_service: dict[str, int] = {}
    for row in snapshot.view():
        if not in_pool(pool, row.labels):
            continue
        account.nodes.append(row.name)
        state = state_of(row.node)
        for resource in row.node.status.allocatable or row.node.status.capacity:
            offered, used = row.allocatable(resource), row.used(resource)
            if is_gpu_count(resource):
                counted = gpus_offered(row.node, resource, offered), gpus_used(row, resource)
                _count(account, row, resource, *counted, state)
            else:
                _count(account, row, resource, offered, used, state)
            if state is NodeState.IN_SERVICE:
                in_service[resource] = in_service.get(resource, 0) + offered
        found = devices.of(row.name, selector)
        _count_devices(account, found, state)
        for one in found if state is NodeState.IN_SERVICE else ():
            resource, rest = one.key.resource, one.offered - one.maintenance - one.failed
            in_service[resource] = in_service.get(resource, 0) + rest
    kept = {name: 0.0 if name == "pods" else part for name in account.amounts}
    for resource, amounts in account.amounts.items():
        amounts.reserve(kept[resource], _unit(resource))
    for (resource, _), amounts in account.models.items():
        amounts.reserve(kept[resource], _unit(resource))
    account.usable = {
        name: usable(most, kept[name], WHOLE if is_device(name) else 1)
        for name, most in in_service.items()
    }
    return account


def usable(most: int, kept: float, unit: int = 1) -> float:
    """Return what pods may have of what is in service, without what is kept free for growth.

    :param most: what is in service, in parts of which ``unit`` make one.
    :param kept: the part that is kept free, in whole units.
    """
    return most / unit - int(most // unit * kept)


def _unit(resource: str) -> int:
    return WHOLE if is_device(resource) or is_gpu_count(resource) else 1


def _count_devices(account: PoolAccount, found: Iterable[_Devices], state: NodeState) -> None:
    """Count the devices of a node in a state."""
    for one in found:
        parts = (one.offered, one.used, state, one.maintenance, one.failed)
        resource, model, _ = one.key
        account.amounts.setdefault(resource, PoolAmounts()).add(*parts)
        if model:
            account.models.setdefault((resource, model), PoolAmounts()).add(*parts)


def _count(
    account: PoolAccount, row: NodeRow, resource: str, offered: int, used: int, state: NodeState
) -> None:
    account.amounts.setdefault(resource, PoolAmounts()).add(offered, used, state)
    model = model_of(row.node, resource)
    if model:
        account.models.setdefault((resource, model), PoolAmounts()).add(offered, used, state)


def problems_of(pools: Iterable[ComputePool], snapshot: Snapshot) -> dict[str, str]:
    """Return what is wrong with pools, by name; such a pool takes no jobs.

    Of two pools that have a node, that whose name comes later is wrong.
    """
    owner: dict[str, ComputePool] = {}
    problems: dict[str, str] = {}
    for pool in sorted(pools, key=lambda pool: pool.metadata.name):
        name, selector = pool.metadata.name, selector_of(pool)
        if selector is not None and selector.problem:
            problems[name] = f"spec.deviceSelector does not compile: {selector.problem}"
        for row in snapshot.view():
            if in_pool(pool, row.labels):
                other = owner.setdefault(row.name, pool)
                if other is not pool:
                    problems.setdefault(name, _overlap(pool, other, row.name))
    return problems


def _overlap(pool: ComputePool, owner: ComputePool, node: str) -> str:
    """Return the text for a pool that has a node of another one."""
    text = f'node {node} is in pool "{owner.metadata.name}" already'
    if not pool.spec.node_selector:
        return f"{text}; without spec.nodeSelector it has all nodes"
    if not owner.spec.node_selector:
        return f"{text}, which has all nodes, as it has no spec.nodeSelector"
    return text
