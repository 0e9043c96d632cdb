"""Keep the JSON fields that typed objects do not have."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from msgspec.structs import FieldInfo, fields

from bayplan.api.quantity import Quantity

__all__ = ["overlay", "plain"]

Content = dict[str, Any]


def plain(value: Any) -> Any:
    """Convert typed values to JSON values."""
    # Not to_builtins, which keeps tuples.
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_quantity))


def _quantity(value: Any) -> Any:
    if isinstance(value, Quantity):
        return value.text
    raise NotImplementedError(type(value).__name__)


def overlay(content: Content, before: msgspec.Struct, after: msgspec.Struct) -> Content:
    """Return ``content`` with the fields that differ between two typed states of it.

    Fields that the types do not have stay. Nothing is changed in place; unchanged parts are
    shared with the result.
    """
    changed: Content = {}
    for info in _fields(type(after)):
        old, new = getattr(before, info.name), getattr(after, info.name)
        if old is new or old == new:
            continue
        name = info.encode_name
        if isinstance(new, msgspec.Struct) and type(old) is type(new):
            part = content.get(name)
            changed[name] = overlay(part if isinstance(part, dict) else {}, old, new)
        elif _marked(old) and _marked(new):
            changed[name] = _items(content.get(name), old, new)
        else:
            changed[name] = plain(new)
    if not changed:
        return content
    merged = {**content, **changed}
    return {key: value for key, value in merged.items() if key not in changed or _present(value)}


def _present(value: Any) -> bool:
    return value is not None and value != "" and value != [] and value != ()


def _marked(value: Any) -> bool:
    """Return whether a list holds structs with names or types of their own."""
    return isinstance(value, tuple) and all(_mark(item) for item in value)


def _mark(item: Any) -> str:
    mark = getattr(item, "name", "") or getattr(item, "type", "") or getattr(item, "uid", "")
    return mark if isinstance(mark, str) else ""


def _items(content: Any, old: tuple[Any, ...], new: tuple[Any, ...]) -> list[Any]:
    """Return the items of a list; known ones keep their untyped fields."""
    known: dict[str, tuple[Content, Any]] = {}
    if isinstance(content, list) and len(content) == len(old):
        known = {_mark(o): (c, o) for c, o in zip(content, old, strict=True)}
    result = []
    for item in new:
        found = known.get(_mark(item))
        if found is None or type(found[1]) is not type(item):
            result.append(plain(item))
        else:
            result.append(overlay(found[0], found[1], item))
    return result


@cache
def _fields(type_: type[msgspec.Struct]) -> tuple[FieldInfo, ...]:
    return fields(type_)
