"""Server-side apply: field ownership, and removal of fields that are no longer applied.

Conflicts are not detected: the last manager to apply a field owns it, as with ``force``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from bayplan.cluster.patches import MERGE_KEYS, merge_patch, strategic_patch

__all__ = ["apply"]

Content = dict[str, Any]
Path = tuple[str, ...]

_NOT_OWNED = {"apiVersion", "kind"}
_IDENTITY = {"name", "namespace", "uid", "resourceVersion", "managedFields", "creationTimestamp"}


def apply(
    current: Content, wanted: Content, manager: str, stamp: str, typed_lists: bool
) -> Content:
    """Return an object with a manager's configuration applied.

    :param typed_lists: whether to merge lists by their items' keys, as for built-in kinds.
    """
    wanted = {**wanted, "metadata": _without(wanted.get("metadata", {}), ("managedFields",))}
    entries = current.get("metadata", {}).get("managedFields") or []
    own = next((e for e in entries if _is_of(e, manager)), None)
    fields = _fields(wanted, typed_lists)
    result: Content = (strategic_patch if typed_lists else merge_patch)(current, wanted)
    if own is not None:
        others = [e.get("fieldsV1", {}) for e in entries if e is not own]
        kept = {path for tree in (fields, *others) for path in _leaves(tree)}
        for path in _leaves(own.get("fieldsV1", {})):
            if path not in kept:
                result = _removed(result, path)
    entry = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": wanted.get("apiVersion", ""),
        "time": own["time"] if own is not None and own.get("fieldsV1") == fields else stamp,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    left = [e for e in entries if e is not own]
    return {**result, "metadata": {**result["metadata"], "managedFields": [*left, entry]}}


def _is_of(entry: Mapping[str, Any], manager: str) -> bool:
    return entry.get("manager") == manager and entry.get("operation") == "Apply"


def _without(content: Mapping[str, Any], names: tuple[str, ...]) -> Content:
    return {key: value for key, value in content.items() if key not in names}


def _fields(content: Content, typed_lists: bool, depth: int = 0, at: str = "") -> Content:
    """Return the fields that a configuration sets, in the notation of managedFields."""
    tree: Content = {}
    for key, value in content.items():
        if depth == 0 and key in _NOT_OWNED:
            continue
        if depth == 1 and at == "metadata" and key in _IDENTITY:
            continue
        if isinstance(value, dict) and value:
            tree[f"f:{key}"] = _fields(value, typed_lists, depth + 1, key)
        elif isinstance(value, list) and typed_lists and _keyed(key, value):
            items = {}
            for item in value:
                mark = json.dumps({MERGE_KEYS[key]: item[MERGE_KEYS[key]]}, separators=(",", ":"))
                items[f"k:{mark}"] = {".": {}, **_fields(item, typed_lists, depth + 1, key)}
            tree[f"f:{key}"] = items
        else:
            tree[f"f:{key}"] = {}
    return tree


def _keyed(field: str, items: list[Any]) -> bool:
    key = MERGE_KEYS.get(field)
    return key is not None and all(isinstance(item, dict) and key in item for item in items)


def _leaves(tree: Mapping[str, Any], prefix: Path = ()) -> Iterator[Path]:
    for step, below in tree.items():
        if below and step != ".":
            yield from _leaves(below, (*prefix, step))
        else:
            yield (*prefix, step)


def _removed(content: Any, path: Path) -> Any:
    """Return content without the field at a path of managedFields."""
    step, rest = path[0], path[1:]
    if step.startswith("f:") and isinstance(content, dict):
        name = step[2:]
        if name not in content:
            return content
        if not rest:
            return {key: value for key, value in content.items() if key != name}
        return {**content, name: _removed(content[name], rest)}
    if step.startswith("k:") and isinstance(content, list):
        mark = json.loads(step[2:])
        found = [item for item in content if mark.items() <= item.items()]
        if rest == (".",):
            return [item for item in content if item not in found]
        return [_removed(item, rest) if item in found else item for item in content]
    return content
