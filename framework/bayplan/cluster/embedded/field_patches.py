"""Single fields of typed objects, set by their JSON pointers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from bayplan.api import ApiObject
from bayplan.api.objects import DecodeError, decode_part
from bayplan.errors import Conflict

__all__ = ["with_fields"]

Obj = TypeVar("Obj", bound=ApiObject)


def with_fields(obj: Obj, fields: Mapping[str, Any]) -> Obj:
    """Return an object with fields set, by JSON pointer (RFC 6901); None removes a field.

    :raises Conflict: when a pointer leads nowhere, or the value is not one that the field takes.
    """
    content = msgspec.to_builtins(obj, enc_hook=lambda quantity: quantity.text)
    for pointer, value in fields.items():
        _set(content, pointer, value)
    try:
        return decode_part(type(obj), content)
    except DecodeError as exc:
        raise Conflict(f"{type(obj).__name__} {obj.metadata.name}: {exc}") from None


def _set(content: Any, pointer: str, value: Any) -> None:
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    at = content
    for part in parents:
        if isinstance(at, list | tuple) and part.isdecimal() and int(part) < len(at):
            at = at[int(part)]
        elif isinstance(at, dict):
            # Typed objects leave out what has its default.
            at = at.setdefault(part, {})
        else:
            raise Conflict(f"there is nothing at {pointer}")
    if not isinstance(at, dict):
        raise Conflict(f"there is nothing at {pointer}")
    if value is None:
        at.pop(last, None)
    else:
        at[last] = value
