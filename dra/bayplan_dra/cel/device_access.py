"""How an expression reads the device: one dictionary access for each attribute or capacity."""

from __future__ import annotations

from typing import Any

from bayplan_dra.cel import types as t
from bayplan_dra.cel.compiled import Compiled, Scope, compile_error, constant
from bayplan_dra.cel.frame import DEVICE, Frame, Run
from bayplan_dra.cel.syntax import FunctionCall, Identifier, Index, Literal, Node, Select
from bayplan_dra.cel.types import CelType
from bayplan_dra.cel.values import NONE, Optional, no_such_key

__all__ = ["DeviceAccess", "DeviceRead"]

DeviceRead = tuple[str, str]
"""Something that an expression reads of a device: ("attribute", name), ("capacity", name),
("domain", name of an attribute domain), ("driver", "") or ("shared", "")."""

_ATTRIBUTES = t.map_of(t.STRING, t.map_of(t.STRING, t.DYN))
_CAPACITY = t.map_of(t.STRING, t.map_of(t.STRING, t.QUANTITY))


class DeviceAccess:
    """Compiles what reads the variable ``device``, and tracks what is read.

    :param multiple_allocations: whether ``device.allowMultipleAllocations`` exists.
    """

    def __init__(self, scope: Scope, multiple_allocations: bool) -> None:
        self._scope = scope
        self._multiple_allocations = multiple_allocations
        self._reads: set[DeviceRead] = set()
        self._reads_all = False

    @property
    def reads(self) -> frozenset[DeviceRead] | None:
        """What the expression reads of a device; None for everything."""
        return None if self._reads_all else frozenset(self._reads)

    def whole(self) -> Compiled:
        """Read the device itself."""
        self._reads_all = True
        return Compiled(t.DEVICE, lambda f: f[DEVICE], 1)

    def select(self, node: Select) -> Compiled | None:
        """Read ``device.field`` or one attribute or capacity; None for anything else.

        :raises CompileError: for a field that devices do not have.
        """
        entry = self._entry_of(node)
        if entry is not None:
            return self._entry(*entry)
        return self._field(node) if self._is_device(node.operand) else None

    def index(self, node: Index) -> Compiled | None:
        """Read one attribute or capacity by ``[...]``; None for anything else."""
        entry = self._entry_of(node)
        return self._entry(*entry) if entry is not None else None

    def has(self, node: Select) -> Compiled | None:
        """Compile ``has(device...)``; None for a field of something else.

        :raises CompileError: for a field that devices do not have.
        """
        entry = self._entry_of(node)
        if entry is not None:
            return self._presence(entry[0], entry[1])
        if self._is_device(node.operand):
            self._field(node)
            return constant(t.BOOL, True)
        return None

    def contains(self, node: FunctionCall) -> Compiled | None:
        """Read ``"n" in device.attributes["d"]`` and ``"d" in device.attributes`` directly.

        None for anything else.
        """
        name, holder = node.args
        if not (isinstance(name, Literal) and isinstance(name.value, str)):
            return None
        text = name.value
        domain = self._domain_of(holder)
        if domain is not None:
            return self._presence(domain[0], f"{domain[1]}/{text}")
        if self._table_of(holder) == "attributes":
            self._reads.add(("domain", text))
            return Compiled(t.BOOL, lambda f: f[DEVICE].has_domain(text), 3)
        return None

    def _is_device(self, node: Node) -> bool:
        named = isinstance(node, Identifier) and node.name == "device"
        return named and "device" not in self._scope

    def _table_of(self, node: Node) -> str | None:
        """Return "attributes" or "capacity" where the node is that field of the device."""
        if isinstance(node, Select) and not node.optional and self._is_device(node.operand):
            return node.field if node.field in ("attributes", "capacity") else None
        return None

    def _domain_of(self, node: Node) -> tuple[str, str] | None:
        """Return (table, domain) for ``device.attributes["domain"]`` and the like."""
        if isinstance(node, Index) and not node.optional:
            table, key = self._table_of(node.operand), node.key
            if table is not None and isinstance(key, Literal) and isinstance(key.value, str):
                return table, key.value
        return None

    def _entry_of(self, node: Node) -> tuple[str, str, str, bool] | None:
        """Return (table, qualified name, identifier, optional) for one attribute or capacity."""
        if isinstance(node, Select):
            found, name = self._domain_of(node.operand), node.field
        elif isinstance(node, Index) and isinstance(node.key, Literal):
            found, name = self._domain_of(node.operand), node.key.value
        else:
            return None
        if found is None or not isinstance(name, str):
            return None
        return found[0], f"{found[1]}/{name}", name, node.optional

    def _entry(self, table: str, key: str, name: str, optional: bool) -> Compiled:
        """Read one attribute or capacity with a single access."""
        kind = t.DYN if table == "attributes" else t.QUANTITY
        self._reads.add(("attribute" if table == "attributes" else "capacity", key))
        if optional:
            return Compiled(t.optional_of(kind), _optional_entry(table, key), 3)
        return Compiled(kind, _required_entry(table, key, name), 3)

    def _presence(self, table: str, key: str) -> Compiled:
        """Tell whether one attribute or capacity is there."""
        if table == "attributes":
            self._reads.add(("attribute", key))
            return Compiled(t.BOOL, lambda f: f[DEVICE].has(key), 3)
        self._reads.add(("capacity", key))
        return Compiled(t.BOOL, lambda f: key in f[DEVICE].flat_capacity, 3)

    def _field(self, node: Select) -> Compiled:
        """Read a field of the device."""
        field = node.field
        known: dict[str, tuple[CelType, Run]] = {
            "driver": (t.STRING, lambda f: f[DEVICE].driver),
            "attributes": (_ATTRIBUTES, lambda f: f[DEVICE].attributes),
            "capacity": (_CAPACITY, lambda f: f[DEVICE].capacity),
        }
        if self._multiple_allocations:
            known["allowMultipleAllocations"] = (
                t.BOOL,
                lambda f: f[DEVICE].allow_multiple_allocations,
            )
        if field not in known:
            raise compile_error(node.at, f"undefined field '{field}'")
        if field == "driver":
            self._reads.add(("driver", ""))
        elif field == "allowMultipleAllocations":
            self._reads.add(("shared", ""))
        else:
            self._reads_all = True
        kind, run = known[field]
        if node.optional:
            return Compiled(t.optional_of(kind), lambda f: Optional(run(f), True), 2)
        return Compiled(kind, run, 2)


def _required_entry(table: str, key: str, name: str) -> Run:
    if table == "attributes":

        def attribute(f: Frame) -> Any:
            try:
                return f[DEVICE].flat[key]
            except KeyError:
                raise no_such_key(name) from None

        return attribute

    def capacity(f: Frame) -> Any:
        try:
            return f[DEVICE].flat_capacity[key]
        except KeyError:
            raise no_such_key(name) from None

    return capacity


def _optional_entry(table: str, key: str) -> Run:
    if table == "attributes":

        def attribute(f: Frame) -> Optional:
            try:
                return Optional(f[DEVICE].flat[key], True)
            except KeyError:
                return NONE

        return attribute

    def capacity(f: Frame) -> Optional:
        try:
            return Optional(f[DEVICE].flat_capacity[key], True)
        except KeyError:
            return NONE

    return capacity
