"""Values of CEL at run time, in addition to Python's own.

bool, int, float, str, bytes, None, tuple and dict stand for CEL's bool, int, double, string,
bytes, null, list and map; ``datetime`` and ``timedelta`` for timestamp and duration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any
from urllib.parse import SplitResult

import msgspec

from bayplan.api.dra_validation import SEMVER
from bayplan.api.quantity import Quantity
from bayplan_dra.cel.errors import EvaluationError

__all__ = [
    "NONE",
    "CelFormat",
    "DomainMap",
    "Optional",
    "Semver",
    "TypeName",
    "Uint",
    "equal",
    "go_type",
    "is_number",
    "no_such_key",
    "normalized_semver",
    "type_name",
]


class Uint(int):
    """An unsigned integer."""

    __slots__ = ()


class Optional(msgspec.Struct, frozen=True):
    """A value that may be missing."""

    value: Any = None
    present: bool = False


NONE = Optional()
"""The optional without a value."""


class TypeName(msgspec.Struct, frozen=True):
    """What ``type(x)`` returns."""

    name: str


class CelFormat(msgspec.Struct, frozen=True):
    """A named format of strings, such as ``dns1123Label``."""

    name: str


class DomainMap(dict[str, Mapping[str, Any]]):
    """Values by domain and identifier; an unknown domain reads as empty."""

    __slots__ = ()

    def __missing__(self, domain: str) -> Mapping[str, Any]:
        return _EMPTY


_EMPTY: Mapping[str, Any] = {}


class Semver:
    """A semantic version; comparisons ignore build metadata.

    :raises ValueError: for text that is no version.
    """

    __slots__ = ("_key", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        plain = _PLAIN.fullmatch(text)
        # A version without a pre-release comes after all of its pre-releases.
        self._key: tuple[Any, ...]
        if plain is not None:
            major, minor, patch = plain.groups()
            self._key = (int(major), int(minor), int(patch), True, ())
        else:
            self._key = _semver_key(text)

    @property
    def major(self) -> int:
        """The first number."""
        return int(self._key[0])

    @property
    def minor(self) -> int:
        """The second number."""
        return int(self._key[1])

    @property
    def patch(self) -> int:
        """The third number."""
        return int(self._key[2])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self._key == other._key

    def __lt__(self, other: Semver) -> bool:
        return self._key < other._key

    def __gt__(self, other: Semver) -> bool:
        return self._key > other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Semver({self.text!r})"


_PLAIN = re.compile(r"(0|[1-9]\d{0,17})\.(0|[1-9]\d{0,17})\.(0|[1-9]\d{0,17})", re.ASCII)
_LONGEST_VERSION = 256


def _semver_key(text: str) -> tuple[Any, ...]:
    """Return the key by which versions are ordered.

    :raises ValueError: for text that is no version.
    """
    match = SEMVER.fullmatch(text) if len(text) <= _LONGEST_VERSION else None
    if match is None:
        raise ValueError(f'"{text[:80]}" is not a semantic version')
    pre = tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in (match["pre"] or "").split(".")
        if part
    )
    return (*(int(match[n]) for n in (1, 2, 3)), not pre, pre)


_PARTIAL = re.compile(r"v?(\d{1,18})(?:\.(\d{1,18}))?(?:\.(\d{1,18}))?([-+].*)?", re.ASCII)


def normalized_semver(text: str) -> Semver:
    """Parse a version leniently: a leading "v", missing parts and leading zeros are allowed.

    :raises ValueError: for text that is no version.
    """
    match = _PARTIAL.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text[:80]}" is not a semantic version')
    numbers = ".".join(str(int(match[n] or 0)) for n in (1, 2, 3))
    return Semver(numbers + (match[4] or ""))


_NAMES: dict[type, tuple[str, str]] = {
    bool: ("bool", "types.Bool"),
    int: ("int", "types.Int"),
    Uint: ("uint", "types.Uint"),
    float: ("double", "types.Double"),
    str: ("string", "types.String"),
    bytes: ("bytes", "types.Bytes"),
    type(None): ("null_type", "types.Null"),
    tuple: ("list", "types.List"),
    dict: ("map", "types.Map"),
    DomainMap: ("map", "types.Map"),
    datetime: ("google.protobuf.Timestamp", "types.Timestamp"),
    timedelta: ("google.protobuf.Duration", "types.Duration"),
    Quantity: ("kubernetes.Quantity", "cel.Quantity"),
    Semver: ("kubernetes.Semver", "cel.Semver"),
    Optional: ("optional_type", "types.Optional"),
    TypeName: ("type", "types.Type"),
    CelFormat: ("kubernetes.NamedFormat", "cel.Format"),
    IPv4Address: ("net.IP", "cel.IP"),
    IPv6Address: ("net.IP", "cel.IP"),
    IPv4Interface: ("net.CIDR", "cel.CIDR"),
    IPv6Interface: ("net.CIDR", "cel.CIDR"),
    SplitResult: ("kubernetes.URL", "cel.URL"),
}


def type_name(value: Any) -> str:
    """Return the CEL name of a value's type."""
    return _NAMES[type(value)][0] if type(value) in _NAMES else "kubernetes.DRADevice"


def go_type(value: Any) -> str:
    """Return the type's name in the Go implementation, whose messages ours follow."""
    return _NAMES[type(value)][1] if type(value) in _NAMES else "types.Object"


def is_number(value: Any) -> bool:
    """Tell whether a value is an int, uint or double."""
    return type(value) in (int, float, Uint)


def equal(left: Any, right: Any) -> bool:
    """Compare as CEL's ``==`` at run time: values of different kinds are not equal."""
    if is_number(left):
        return is_number(right) and bool(left == right)
    if isinstance(left, tuple):
        return (
            isinstance(right, tuple)
            and len(left) == len(right)
            and all(equal(a, b) for a, b in zip(left, right, strict=True))
        )
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and len(left) == len(right)
            and all(key in right and equal(value, right[key]) for key, value in left.items())
        )
    if isinstance(left, Optional) and isinstance(right, Optional):
        return left.present == right.present and equal(left.value, right.value)
    if type_name(left) != type_name(right):
        return False
    return bool(left == right)


def no_such_key(key: object) -> EvaluationError:
    """Return the error for a missing key."""
    return EvaluationError(f"no such key: {key}")
