"""Values that the real server cannot decode: quantities, times, bytes, and numbers too large."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from bayplan.api.quantity import is_quantity
from bayplan.schemas.catalog import ListOf, MapOf, RecordType, Scalar, Type

__all__ = ["decoding_problems", "untyped"]

_MICRO = frozenset({"acquireTime", "renewTime", "eventTime", "lastObservedTime"})
"""Times with microseconds (meta/v1 MicroTime)."""
_QUANTITY = re.compile(r"([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)")
_QUANTITY_TEXT = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)", re.ASCII)
_LAYOUT = "2006-01-02T15:04:05Z07:00"
_MICRO_LAYOUT = "2006-01-02T15:04:05.000000Z07:00"
_SIMPLE = ("any", "boolean", "int64", "integer", "number", "string")


def decoding_problems(type_: Type, value: Any, owner: str = "", field: str = "") -> Iterator[str]:
    """Yield the decoder's messages about a value whose JSON types are right.

    :param owner: the Go type that holds it.
    :param field: the path to it, without indices.
    """
    if value is None:
        return
    if isinstance(type_, Scalar):
        if type_.name not in _SIMPLE:
            yield from _scalar(type_.name, value, owner, field)
    elif isinstance(type_, ListOf):
        if isinstance(value, list) and not _is_simple(type_.items):
            for item in value:
                yield from decoding_problems(type_.items, item, owner, field)
    elif isinstance(value, dict):
        yield from _fields(type_, value, owner, field)


def _fields(
    type_: RecordType | MapOf, value: dict[str, Any], owner: str, field: str
) -> Iterator[str]:
    if isinstance(type_, MapOf):
        if not _is_simple(type_.values):
            for item in value.values():
                yield from decoding_problems(type_.values, item, owner, field)
        return
    checked, name = _checked(type_), type_.name.rpartition(".")[2]
    for key, item in value.items():
        own = checked.get(key)
        if own is not None:
            yield from decoding_problems(own, item, name, f"{field}.{key}".removeprefix("."))


@lru_cache(maxsize=1024)
def _checked(record: RecordType) -> dict[str, Type]:
    """Return the types of the fields that may hold more than texts and plain numbers."""
    types = {name: field.type for name, field in record.fields.items()}
    return {name: type_ for name, type_ in types.items() if not _is_plain(type_)}


def _is_plain(type_: Type) -> bool:
    if isinstance(type_, ListOf):
        return _is_simple(type_.items)
    return _is_simple(type_.values if isinstance(type_, MapOf) else type_)


def _is_simple(type_: Type) -> bool:
    return isinstance(type_, Scalar) and type_.name in _SIMPLE


def _scalar(kind: str, value: Any, owner: str, field: str) -> Iterator[str]:
    if kind == "quantity":
        yield from _quantity(value)
    elif kind == "time" and isinstance(value, str):
        yield from _time(value, field.rpartition(".")[2] in _MICRO)
    elif kind == "time":
        yield f"json: cannot unmarshal {_named(value)} into Go value of type string"
    elif kind == "bytes" and isinstance(value, str):
        yield from _bytes(value)
    elif kind == "int32" and isinstance(value, int):
        if not -(2**31) <= value < 2**31:
            yield _number(value, owner, field)
    elif kind == "int-or-string" and isinstance(value, float):
        yield _number(value, owner, field)


def _named(value: Any) -> str:
    return {dict: "object", list: "array", bool: "bool"}.get(type(value), "number")


def _number(value: Any, owner: str, field: str) -> str:
    where = f"{owner}.{field}"
    return f"json: cannot unmarshal number {value} into Go struct field {where} of type int32"


def _quantity(value: Any) -> Iterator[str]:
    text = value if isinstance(value, str) else None
    if text is None and isinstance(value, int | float) and not isinstance(value, bool):
        return
    text = text.strip() if text is not None else None
    if text is None or not _QUANTITY.fullmatch(text) or text.count(".") > 1:
        yield f"quantities must match the regular expression '{_QUANTITY_TEXT}'"
    elif not is_quantity(text) and not re.fullmatch(r"[+-]?[0-9.]+([eE][+-]?\d+)?", text):
        yield "unable to parse quantity's suffix"


def _time(text: str, micro: bool) -> Iterator[str]:
    if (_MICRO_TIME if micro else _TIME).fullmatch(text):
        return
    layout = _MICRO_LAYOUT if micro else _LAYOUT
    rest, part = text, "2006"
    if micro and _TIME.fullmatch(text):
        rest, part = text[19:], ".000000"
    elif re.fullmatch(r"\d{4}-\d\d-\d\d.*", text):
        rest, part = text[10:], "T"
    yield f'parsing time "{text}" as "{layout}": cannot parse "{rest}" as "{part}"'


def _bytes(text: str) -> Iterator[str]:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        found = re.match(r"[A-Za-z0-9+/]*", text)
        place = found.end() if found is not None else 0
        yield f"illegal base64 data at input byte {place}"


# Server-side apply -------------------------------------------------------------------------------

_EXPECTED = {
    "boolean": (bool,),
    "int32": (int, float),
    "int64": (int, float),
    "integer": (int, float),
    "number": (int, float),
    "string": (str,),
}


def untyped(type_: Type, value: Any, path: str = "") -> Iterator[str]:
    """Yield what structured-merge-diff says of values of other types, and of repeated keys."""
    if value is None:
        return
    if isinstance(type_, Scalar):
        if type_.name in _EXPECTED and type(value) not in _EXPECTED[type_.name]:
            numeric = int in _EXPECTED[type_.name]
            expected = "numeric (int or float)" if numeric else type_.name
            yield f"{path}: expected {expected}, got {_as_value(value)}"
    elif isinstance(type_, ListOf):
        if not isinstance(value, list):
            yield f"{path}: expected list, got {_as_value(value)}"
            return
        for index, item in enumerate(value):
            yield from untyped(type_.items, item, f"{path}[{index}]")
    elif not isinstance(value, dict):
        yield f"{path}: expected map, got {_as_value(value)}"
    else:
        for key, item in value.items():
            if isinstance(type_, MapOf):
                yield from untyped(type_.values, item, f"{path}.{key}")
            elif key in type_.fields:
                own = type_.fields[key]
                yield from _repeated(own.merge_key, item, f"{path}.{key}")
                yield from untyped(own.type, item, f"{path}.{key}")


def _repeated(key: str, value: Any, path: str) -> Iterator[str]:
    marks = [item.get(key) for item in value if isinstance(item, dict)] if key and value else []
    for mark in dict.fromkeys(mark for mark in marks if mark is not None and marks.count(mark) > 1):
        yield f'{path}: duplicate entries for key [{key}="{mark}"]'


def _as_value(value: Any) -> str:
    if isinstance(value, str):
        return "string"
    shown = str(value).lower() if isinstance(value, bool) else value
    return f"&value.valueUnstructured{{Value:{shown}}}"
