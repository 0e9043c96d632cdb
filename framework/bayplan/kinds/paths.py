"""Paths through objects: what they lead to, and the places of fields."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from bayplan.kinds.kind import When

__all__ = ["Content", "Steps", "at", "condition_of", "holds", "look", "pointer_of", "pointer_to"]

Content = Mapping[str, Any]
Steps = tuple[str | int, ...]
_OF_OBJECT = ("spec.", "status.", "metadata.")


def pointer_of(path: str, steps: Steps) -> str:
    """Return the JSON pointer of a path, which leads from an entry unless it names the object's."""
    start = () if path.startswith(_OF_OBJECT) else steps
    return pointer_to((*start, *path.removeprefix("./").split(".")))


def pointer_to(steps: Steps) -> str:
    """Return the JSON pointer of a place."""
    tokens = (str(one).replace("~", "~0").replace("/", "~1") for one in steps)
    return "".join(f"/{token}" for token in tokens)


def holds(when: When, entry: Content, content: Content) -> bool:
    """Tell whether a condition holds of an object, or of one of its entries."""
    if when.annotation:
        of = entry if when.path.startswith("./") else content
        value = (at(of, "metadata.annotations") or {}).get(when.path.removeprefix("./"))
    else:
        value = look(entry, content, when.path)
    if isinstance(value, bool) and when.value:
        value = str(value).lower()
    return (value == when.value if when.value else bool(value)) is not when.negated


def look(entry: Content, content: Content, path: str) -> Any:
    """Return what a path leads to, from the object or from one of its entries; None if nothing."""
    if not path:
        return None
    if path.startswith("./"):
        return at(entry, path[2:])
    return at(content if path.startswith(_OF_OBJECT) else entry, path)


def at(content: Any, path: str) -> Any:
    """Return what a path leads to from some JSON; None if nothing, 0 for no such condition."""
    for name, condition in _steps(path):
        # JSON has no other mappings, and the test of an abstract one takes five times as long.
        if not isinstance(content, dict):
            return 0 if condition else None
        content = content.get(name)
        if condition:
            content = int(condition_of(content, condition) is not None)
    return content


@lru_cache(maxsize=4096)
def _steps(path: str) -> tuple[tuple[str, str], ...]:
    """Return the keys of a path, each with the condition of a list that it names."""
    parts = (step.partition("[") for step in path.split("."))
    return tuple((name, condition.rstrip("]")) for name, _, condition in parts)


def condition_of(conditions: Any, *types: str) -> Content | None:
    """Return the first condition of one of some types that is true."""
    found = conditions if isinstance(conditions, (list, tuple)) else ()
    return next(
        (
            one
            for one in found
            if isinstance(one, Mapping) and one.get("type") in types and one.get("status") == "True"
        ),
        None,
    )
