"""The devices that each node can use, from ResourceSlices and device taint rules."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from bayplan.api import DeviceTaintRule, ResourceSlice
from bayplan.api.dra import Device, DeviceId
from bayplan.api.node import Node
from bayplan.snapshot import Snapshot
from bayplan_dra.allocator import DeviceTable, HeldDevice, Inventory
from bayplan_dra.allocator.equivalence import EquivalenceClasses
from bayplan_dra.allocator.pools import Pool, PoolKey
from bayplan_plugins.device_ledger.host_limits import FabricHosts

__all__ = ["NodeDevices"]

_SPARE = 8
_READ_AT_ONCE = 2048
"""Nodes whose devices are read in one go while there is nothing else to do."""


class NodeDevices:
    """The devices of a cluster by node, kept up to date with the snapshot.

    ``version`` tells whether a node's devices, or their holders, have changed since.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._inventory = Inventory()
        self.features = self._inventory.features
        self.hosts = FabricHosts()
        self.equivalence_classes = EquivalenceClasses()
        self._attaching: set[str] = set()
        self._tables: dict[str, tuple[object, DeviceTable]] = {}
        self._specs: dict[str, tuple[DeviceTable, Mapping[DeviceId, Device]]] = {}
        self._versions: dict[str, int] = {}
        self._version = 0
        self._unread: dict[str, None] = {}
        self._listeners: list[Callable[[Iterable[str] | None], None]] = []

    def __len__(self) -> int:
        """Return the number of nodes whose devices are cached."""
        return len(self._tables)

    # Changes ---------------------------------------------------------------------------------

    def on_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """Add, replace or delete a slice."""
        if new is not None:
            touched = self._inventory.set_slice(new)
            self._unread |= dict.fromkeys(touched or ())
            if self.hosts.learn(new):
                self.forget_tables()
            far = any(one.binding_conditions or one.binds_to_node for one in new.spec.devices)
            self._note_attaching(new.metadata.name, far)
        else:
            assert old is not None
            touched = self._inventory.delete_slice(old.metadata.name)
            for name in touched or ():
                self._unread.pop(name, None)
            self._note_attaching(old.metadata.name, False)
        self.touch(touched)

    def on_rule(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        """Add, replace or delete a device taint rule."""
        if new is not None:
            self._inventory.set_rule(new)
        elif old is not None:
            self._inventory.delete_rule(old.metadata.name)
        self.touch(None)

    def forget_tables(self) -> None:
        """Drop all cached tables, because a device class or the limits of hosts changed."""
        self._tables.clear()
        self.touch(None)

    def on_change(self, listener: Callable[[Iterable[str] | None], None]) -> None:
        """Call ``listener`` with the nodes whose devices or their holders changed; None: any."""
        self._listeners.append(listener)

    def touch(self, nodes: set[str] | None) -> None:
        """Mark what is known of nodes as stale; None for all nodes."""
        if nodes is None:
            self._version += 1
        else:
            for node in nodes:
                self._versions[node] = self._versions.get(node, 0) + 1
        self._snapshot.touch(nodes)
        for listener in self._listeners:
            listener(nodes)

    def touch_holders(self, held: Iterable[HeldDevice]) -> None:
        """Mark the nodes that can use these devices as stale, because their holders changed."""
        nodes: set[str] | None = set()
        for one in held:
            seen = self._inventory.nodes_of(PoolKey(one.id.driver, one.id.pool))
            nodes = None if nodes is None or seen is None else nodes | seen
        if nodes is None or nodes:
            self.touch(nodes)

    def _note_attaching(self, name: str, attaches: bool) -> None:
        """Record whether devices of a slice have to be attached."""
        before = self.attaches
        (self._attaching.add if attaches else self._attaching.discard)(name)
        if self.attaches != before:
            self.touch(None)

    def read(self) -> bool:
        """Read the devices of some nodes whose slices are new; return whether there are more."""
        if not self._unread:
            return False
        table = self._snapshot.nodes
        there = [name for name in self._unread if name in table.row_of]
        for name in there[:_READ_AT_ONCE]:
            del self._unread[name]
            self.table(table.nodes[table.row_of[name]])
        return len(there) > _READ_AT_ONCE

    # Questions -------------------------------------------------------------------------------

    def version(self, node: str) -> tuple[int, int]:
        """Return a value that changes whenever what the node can use changes."""
        return self._version, self._versions.get(node, 0)

    @property
    def attaches(self) -> bool:
        """Whether any device has to be attached to a node, or made ready on it, before its use."""
        return bool(self._attaching)

    @property
    def nodes(self) -> Container[str]:
        """The names of the nodes in the snapshot."""
        return self._snapshot.nodes.row_of.keys()

    def pools(self, node: Node) -> Sequence[Pool]:
        """Return the pools that a node can use."""
        return self._inventory.pools(node)

    def are_local(self, node: Node) -> bool:
        """Tell whether every pool that a node can use is for a limited set of nodes."""
        return all(self._inventory.nodes_of(p.key) is not None for p in self.pools(node))

    def are_anywhere(self, held: Iterable[HeldDevice]) -> bool:
        """Tell whether any of these devices is not for a limited set of nodes."""
        pools = {PoolKey(one.id.driver, one.id.pool) for one in held}
        return any(self._inventory.nodes_of(pool) is None for pool in pools)

    def table(self, node: Node) -> DeviceTable:
        """Return the devices that a node can use, in the allocator's form."""
        pools = self._inventory.pools(node)
        kept = self._tables.get(node.metadata.name)
        if kept is None or kept[0] is not pools:
            if kept is None:
                self._forget_nodes()
            limits = self.hosts.limits(node)
            made = DeviceTable(pools, self.features, limits, self.hosts.model_of)
            kept = self._tables[node.metadata.name] = (pools, made)
        return kept[1]

    def specs(self, node: Node) -> Mapping[DeviceId, Device]:
        """Return the specs of the devices that a node can use."""
        table = self.table(node)
        kept = self._specs.get(node.metadata.name)
        if kept is None or kept[0] is not table:
            specs = {device.id: device.spec for device in table.devices}
            kept = self._specs[node.metadata.name] = (table, specs)
        return kept[1]

    def _forget_nodes(self) -> None:
        """Drop nodes that are gone, once the cached ones far outnumber those that exist."""
        present = self._snapshot.nodes.row_of
        if len(self._tables) + len(self._versions) <= 4 * len(present) + _SPARE:
            return
        for kept in (self._tables, self._specs, self._versions):
            for name in [name for name in kept if name not in present]:
                del kept[name]
        # A node that comes back must not look unchanged.
        self._version += 1
