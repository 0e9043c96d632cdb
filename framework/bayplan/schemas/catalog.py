"""The types of all kinds, loaded from the package's data on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path

import msgspec

__all__ = [
    "ListOf",
    "MapOf",
    "RecordField",
    "RecordType",
    "Scalar",
    "Type",
    "kinds_of",
    "record_of",
]

_FILES = ("kubernetes.json", "ecosystem.json")


class Scalar(msgspec.Struct, frozen=True):
    """A single value.

    :param name: string, integer, int32, int64, number, boolean, bytes, time, quantity,
        int-or-string, or any.
    """

    name: str


class ListOf(msgspec.Struct, frozen=True):
    """A list."""

    items: Type


class MapOf(msgspec.Struct, frozen=True):
    """A mapping with free keys."""

    values: Type


class RecordType(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A mapping with known fields, which are loaded on first use.

    :param name: the type's name with its package, such as ``core.v1.PodSpec``; empty for an inline
        type of a CRD.
    :param open: whether unknown fields are allowed and kept.
    """

    name: str
    load: Callable[[], dict[str, RecordField]]
    open: bool = False

    @cached_property
    def fields(self) -> dict[str, RecordField]:
        """The fields by name."""
        return self.load()


Type = Scalar | ListOf | MapOf | RecordType


class RecordField(msgspec.Struct, frozen=True):
    """A field of a record.

    :param strategy: what a strategic merge patch does with it: "", merge, replace, or retainKeys.
    :param merge_key: the field of its items that identifies them when a list is merged.
    """

    name: str
    type: Type
    required: bool = False
    strategy: str = ""
    merge_key: str = ""
    description: str = ""


def record_of(api_version: str, kind: str) -> RecordType | None:
    """Return the type of a kind, None if the kind is unknown.

    :param api_version: the version with its group, such as ``apps/v1``.
    """
    name = kinds_of(api_version).get(kind)
    return None if name is None else _record(name)


def kinds_of(api_version: str) -> Mapping[str, str]:
    """Return the type names of all kinds of a version, by kind.

    :param api_version: the version with its group, such as ``apps/v1``.
    """
    return _kinds().get(api_version, {})


class _SchemaFile(msgspec.Struct):
    kinds: dict[str, dict[str, str]]
    types: dict[str, dict[str, msgspec.Raw]]


@cache
def _files() -> tuple[_SchemaFile, ...]:
    folder = Path(__file__).parent
    decoder = msgspec.json.Decoder(_SchemaFile)
    return tuple(decoder.decode((folder / name).read_bytes()) for name in _FILES)


@cache
def _kinds() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for file in _files():
        for version, kinds in file.kinds.items():
            found[version] = {**found.get(version, {}), **kinds}
    return found


@cache
def _record(name: str) -> RecordType:
    return RecordType(name, lambda: _fields(name))


def _fields(name: str) -> dict[str, RecordField]:
    package, _, own = name.rpartition(".")
    for file in _files():
        raw = file.types.get(package, {}).get(own)
        if raw is not None:
            written = msgspec.json.decode(raw, type=dict[str, str])
            return {key: _field(key, text, package) for key, text in written.items()}
    raise LookupError(f"there is no type {name}")


def _field(name: str, text: str, package: str) -> RecordField:
    type_, *marks = text.split(" ")
    required = "required" in marks
    strategy, _, key = (marks[-1] if marks and marks[-1] != "required" else "").partition("=")
    return RecordField(name, _type(type_, package), required, strategy, key)


@cache
def _type(text: str, package: str) -> Type:
    if text.startswith("[]"):
        return ListOf(_type(text[2:], package))
    if text.startswith("{}"):
        return MapOf(_type(text[2:], package))
    if "." in text:
        return _record(text)
    return _record(f"{package}.{text}") if text[0].isupper() else Scalar(text)
