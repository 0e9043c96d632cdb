"""CEL's static types, and when one is accepted where another is expected."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any, NamedTuple
from urllib.parse import SplitResult

from bayplan.api.quantity import Quantity
from bayplan_dra.cel.values import CelFormat, Optional, Semver, TypeName, Uint

__all__ = [
    "BOOL",
    "BYTES",
    "CIDR",
    "DEVICE",
    "DOUBLE",
    "DURATION",
    "DYN",
    "FORMAT",
    "INT",
    "IP",
    "NULL",
    "QUANTITY",
    "SEMVER",
    "STRING",
    "TIMESTAMP",
    "TYPE",
    "UINT",
    "URL",
    "A",
    "B",
    "CelType",
    "bind",
    "holds",
    "join",
    "list_of",
    "map_of",
    "optional_of",
    "resolve",
    "test_of",
]


class CelType(NamedTuple):
    """A type by name, with the types of its parts."""

    name: str
    parts: tuple[CelType, ...] = ()

    def __str__(self) -> str:
        inner = ", ".join(str(part) for part in self.parts)
        return f"{self.name}({inner})" if inner else self.name


DYN = CelType("dyn")
BOOL, INT, UINT, DOUBLE = CelType("bool"), CelType("int"), CelType("uint"), CelType("double")
STRING, BYTES, NULL, TYPE = (
    CelType("string"),
    CelType("bytes"),
    CelType("null"),
    CelType("type"),
)
TIMESTAMP, DURATION = CelType("timestamp"), CelType("duration")
QUANTITY, SEMVER = CelType("kubernetes.Quantity"), CelType("kubernetes.Semver")
IP, CIDR, FORMAT = CelType("net.IP"), CelType("net.CIDR"), CelType("kubernetes.NamedFormat")
URL, DEVICE = CelType("kubernetes.URL"), CelType("kubernetes.DRADevice")
A, B = CelType("?A"), CelType("?B")
"""Type parameters of functions."""


def list_of(item: CelType) -> CelType:
    """Return the type of lists of ``item``."""
    return CelType("list", (item,))


def map_of(key: CelType, value: CelType) -> CelType:
    """Return the type of maps."""
    return CelType("map", (key, value))


def optional_of(value: CelType) -> CelType:
    """Return the type of optional values."""
    return CelType("optional_type", (value,))


Bindings = dict[CelType, CelType]


def bind(expected: CelType, got: CelType, bindings: Bindings) -> bool:
    """Tell whether ``got`` is accepted for ``expected``; record type parameters in ``bindings``."""
    if expected in (A, B):
        known = bindings.get(expected)
        if known is None or known == DYN:
            bindings[expected] = got
            return True
        return bind(known, got, {}) or bind(got, known, {})
    if DYN in (expected, got):
        return True
    return (
        expected.name == got.name
        and len(expected.parts) == len(got.parts)
        and all(bind(e, g, bindings) for e, g in zip(expected.parts, got.parts, strict=True))
    )


def resolve(kind: CelType, bindings: Bindings) -> CelType:
    """Replace type parameters by their bindings; unbound ones by dyn."""
    if kind in (A, B):
        return bindings.get(kind, DYN)
    return CelType(kind.name, tuple(resolve(part, bindings) for part in kind.parts))


def join(left: CelType, right: CelType) -> CelType | None:
    """Return the common type of two values, None if they have none."""
    if left == right:
        return left
    if DYN in (left, right):
        return DYN
    if left.name == right.name and len(left.parts) == len(right.parts):
        parts = [join(a, b) for a, b in zip(left.parts, right.parts, strict=True)]
        if all(part is not None for part in parts):
            return CelType(left.name, tuple(part for part in parts if part is not None))
    return None


def _is(*classes: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in classes


_HOLDS: dict[str, Callable[[Any], bool]] = {
    "dyn": lambda value: True,
    "?A": lambda value: True,
    "?B": lambda value: True,
    "bool": _is(bool),
    "int": _is(int),
    "uint": _is(Uint),
    "double": _is(float),
    "string": _is(str),
    "bytes": _is(bytes),
    "null": _is(type(None)),
    "type": _is(TypeName),
    "timestamp": _is(datetime),
    "duration": _is(timedelta),
    "list": _is(tuple),
    "map": lambda value: isinstance(value, dict),
    "optional_type": _is(Optional),
    QUANTITY.name: _is(Quantity),
    SEMVER.name: _is(Semver),
    IP.name: _is(IPv4Address, IPv6Address),
    CIDR.name: _is(IPv4Interface, IPv6Interface),
    FORMAT.name: _is(CelFormat),
    URL.name: _is(SplitResult),
    DEVICE.name: lambda value: hasattr(value, "allow_multiple_allocations"),
}


def test_of(kind: CelType) -> Callable[[Any], bool]:
    """Return a function that tells whether a value at run time is of a type."""
    return _HOLDS[kind.name]


def holds(kind: CelType, value: Any) -> bool:
    """Tell whether a value at run time is of a type; what lists and maps hold does not count."""
    return _HOLDS[kind.name](value)
