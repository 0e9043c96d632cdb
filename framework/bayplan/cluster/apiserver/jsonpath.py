"""JSON paths of printer columns, such as ``.spec.minMember`` or ``.items[0].name``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["find_path"]

_STEP = re.compile(
    r"\.?(?P<name>(?:\\.|[^.\[\\])+)"
    r"|\[\?\(@\.(?P<field>[^=!\s]+)\s*==\s*['\"](?P<value>[^'\"]*)['\"]\)\]"
    r"|\[(?P<index>-?\d+)\]"
    r"|\['(?P<quoted>[^']*)'\]"
    r"|\[\*\]"
)


def find_path(content: Any, path: str) -> Any:
    """Return the first value at a JSON path, None when there is none or the path is unsupported."""
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            return None
        content = _step(content, match)
        position = match.end()
    return content


def _step(content: Any, match: re.Match[str]) -> Any:
    name = match["name"] or match["quoted"]
    if name is not None:
        key = name.replace("\\.", ".")
        return content.get(key) if isinstance(content, Mapping) else None
    if not isinstance(content, list):
        return None
    if match["field"]:
        field, value = match["field"], match["value"]
        found = (item for item in content if isinstance(item, Mapping))
        return next((item for item in found if str(item.get(field)) == value), None)
    index = int(match["index"] or 0)
    return content[index] if -len(content) <= index < len(content) else None
