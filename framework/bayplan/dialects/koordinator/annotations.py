"""Koordinator: annotations that hold JSON; ``null`` is as good as no annotation.

Its components are in Go: ``null`` leaves the defaults, and is how an empty list is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from bayplan.api.objects import DecodeError, decode_part
from bayplan.inputs.jsontext import parse_json
from bayplan.inputs.limits import ANNOTATION

__all__ = ["list_in", "mapping_in", "part_of"]

_UNKNOWN = re.compile("Object contains unknown field `(.*)`")

Part = TypeVar("Part", bound=msgspec.Struct)


def mapping_in(annotations: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return the JSON object in an annotation; empty without the annotation or with ``null``.

    :raises ValueError: for anything else, naming the annotation.
    """
    content = _content(annotations, name)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"annotation {name}: expected a JSON object")
    return content


def list_in(annotations: Mapping[str, str], name: str) -> list[Any]:
    """Return the JSON list in an annotation; empty without the annotation or with ``null``.

    :raises ValueError: for anything else, naming the annotation.
    """
    content = _content(annotations, name)
    if content is None:
        return []
    if not isinstance(content, list):
        raise ValueError(f"annotation {name}: expected a JSON list")
    return content


def _content(annotations: Mapping[str, str], name: str) -> Any:
    """Return what an annotation holds, None without it."""
    if name not in annotations:
        return None
    try:
        return parse_json(annotations[name], ANNOTATION)
    except ValueError as exc:
        raise ValueError(f"annotation {name}: {exc}") from None


def part_of(type_: type[Part], name: str, where: str, content: Any) -> Part:
    """Decode a part of an annotation's content.

    :param where: the path of the part, for messages.
    :raises ValueError: for a part of another type, naming the annotation and the path.
    """
    if not isinstance(content, dict):
        raise ValueError(f"annotation {name}: {where}: expected a mapping")
    try:
        return decode_part(type_, content)
    except DecodeError as exc:
        path = f"{where}{exc.path.removeprefix('$')}"
        message = _UNKNOWN.sub(r'"\1" is not supported', exc.message)
        raise ValueError(f"annotation {name}: {path}: {message}") from None
