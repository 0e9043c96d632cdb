"""JSON patch, JSON merge patch and strategic merge patch.

None of them changes its input.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from bayplan.cluster.api_errors import ApiError, bad_request
from bayplan.inputs.limits import BODY

__all__ = ["MERGE_KEYS", "as_go", "json_patch", "merge_patch", "not_a", "strategic_patch"]

MERGE_KEYS: Mapping[str, str] = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "ownerReferences": "uid",
    "topologySpreadConstraints": "topologyKey",
    "schedulingGates": "name",
    "resourceClaims": "name",
    "resourceClaimStatuses": "name",
    "reservedFor": "uid",
    "addresses": "type",
    "podIPs": "ip",
    "hostIPs": "ip",
    "secrets": "name",
}
"""The merge keys of lists. Other lists are replaced as a whole."""
_PRIMITIVE = frozenset({"finalizers"})
"""Lists of strings to which a patch adds."""
_DIRECTIVE = "$patch"
_DELETE_PRIMITIVE = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"
_RETAIN = "$retainKeys"
_MOST_OPERATIONS = 10_000


# JSON merge patch (RFC 7396) -------------------------------------------------------------------


def merge_patch(target: Any, patch: Any) -> Any:
    """Return the target with a JSON merge patch applied."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


# Strategic merge patch ---------------------------------------------------------------------------


def strategic_patch(target: Any, patch: Any) -> Any:
    """Return the target with a strategic merge patch applied.

    :raises ApiError: 400, for an invalid directive or list item.
    """
    if not isinstance(patch, dict):
        return patch
    directive = patch.get(_DIRECTIVE)
    if directive == "replace":
        return {k: _fresh(v) for k, v in patch.items() if k != _DIRECTIVE}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        shown = f"map[{_DIRECTIVE}:{directive}]"
        raise ApiError(500, "", f"unknown patch type: {directive} in map: {shown}")
    result = dict(target) if isinstance(target, dict) else {}
    if _RETAIN in patch:
        kept = set(patch[_RETAIN])
        result = {key: value for key, value in result.items() if key in kept}
    for key, value in patch.items():
        if key in (_DIRECTIVE, _RETAIN) or key.startswith(_ORDER):
            continue
        if key.startswith(_DELETE_PRIMITIVE):
            field = key.removeprefix(_DELETE_PRIMITIVE)
            result[field] = [item for item in result.get(field, ()) if item not in value]
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _list(key, result.get(key), value)
        else:
            result[key] = strategic_patch(result.get(key), value)
    for key, order in patch.items():
        if key.startswith(_ORDER):
            field = key.removeprefix(_ORDER)
            if isinstance(result.get(field), list):
                result[field] = _ordered(field, result[field], order)
    return result


def _list(field: str, target: Any, patch: list[Any]) -> list[Any]:
    old = target if isinstance(target, list) else []
    if any(isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" for item in patch):
        return [
            _fresh({k: v for k, v in item.items() if k != _DIRECTIVE})
            for item in patch
            if not (isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" and len(item) == 1)
        ]
    if field in _PRIMITIVE:
        return [*old, *(item for item in patch if item not in old)]
    key = _merge_key(field, [*old, *patch])
    if key is None:
        return [_fresh(item) for item in patch]
    result = list(old)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            text = f"map: {as_go(item)} does not contain declared merge key: {key}"
            raise ApiError(500, "", text)
        places = [i for i, one in enumerate(result) if one.get(key) == item[key]]
        if item.get(_DIRECTIVE) == "delete":
            result = [one for i, one in enumerate(result) if i not in places]
        elif places:
            result[places[0]] = strategic_patch(result[places[0]], item)
        else:
            result.append(_fresh(item))
    return result


def _merge_key(field: str, items: list[Any]) -> str | None:
    if field == "ports":
        # Ports of containers and of services have different keys.
        held = any(isinstance(item, dict) and "containerPort" in item for item in items)
        return "containerPort" if held else "port"
    return MERGE_KEYS.get(field)


def _fresh(value: Any) -> Any:
    """Return an added value without nulls and directives."""
    if isinstance(value, dict):
        return strategic_patch({}, value)
    if isinstance(value, list):
        return [_fresh(item) for item in value]
    return value


def _ordered(field: str, items: list[Any], order: list[Any]) -> list[Any]:
    """Sort a list in a patch's order; items that it does not name keep their neighbors."""
    key = None if field in _PRIMITIVE else _merge_key(field, items)

    def mark(item: Any) -> Any:
        return item.get(key) if key is not None and isinstance(item, dict) else item

    places = {mark(item): place for place, item in enumerate(order)}
    named = sorted((i for i in items if mark(i) in places), key=lambda item: places[mark(item)])
    result: list[Any] = []
    for item in items:
        if mark(item) in places:
            if named:
                result.append(named.pop(0))
        else:
            result.append(item)
    return result


# JSON patch (RFC 6902) ---------------------------------------------------------------------------


def json_patch(target: Any, patch: Any) -> Any:
    """Return the target with a JSON patch applied.

    :raises ApiError: 400 for a patch that cannot be read, 422 for one that cannot be applied.
    """
    if not isinstance(patch, list):
        raise bad_request(f"error decoding patch: {not_a('[]handlers.jsonPatchOp', patch)}")
    if len(patch) > _MOST_OPERATIONS:
        text = (
            "Request entity too large: The allowed maximum operations in a JSON patch is "
            f"{_MOST_OPERATIONS}, got {len(patch)}"
        )
        raise ApiError(413, "RequestEntityTooLarge", text)
    document = copy.deepcopy(target)
    copied = 0
    for operation in patch:
        if isinstance(operation, dict) and operation.get("op") == "copy":
            # Copies of copies grow exponentially.
            copied += len(msgspec.json.encode(_at(document, str(operation.get("from", "")))))
            if copied > BODY.size:
                raise _refused()
        if operation is None:
            raise _refused()
        if not isinstance(operation, dict):
            raise bad_request(f"error decoding patch: {not_a('handlers.jsonPatchOp', operation)}")
        for field in ("op", "path"):
            if not isinstance(operation.get(field), str):
                raise _no_text(field, operation.get(field))
        document = _operate(document, operation)
    return document


def _operate(document: Any, operation: Mapping[str, Any]) -> Any:
    kind, path = operation.get("op"), operation["path"]
    if kind in ("move", "copy"):
        value = copy.deepcopy(_at(document, str(operation.get("from", ""))))
        if kind == "move":
            document = _remove(document, operation["from"])
        return _add(document, path, value)
    if kind == "test":
        try:
            found = _at(document, path)
        except ApiError:
            found = None
        if found != operation.get("value"):
            raise _refused()
        return document
    if kind == "remove":
        return _remove(document, path)
    value = copy.deepcopy(operation.get("value"))
    if kind == "add":
        return _add(document, path, value)
    if kind == "replace":
        return _replaced(document, path, value)
    raise _refused()


def _replaced(document: Any, path: str, value: Any) -> Any:
    """Replace a value; the real server adds a missing field of an object."""
    if not path:
        return value
    if isinstance(_parent(document, path)[0], list):
        document = _remove(document, path)
    return _add(document, path, value)


def not_a(expected: str, value: Any) -> str:
    """Return what Go's decoder says of a JSON value of another type."""
    found = {dict: "object", list: "array", str: "string", bool: "bool"}.get(type(value), "number")
    return f"json: cannot unmarshal {found} into Go value of type {expected}"


def _no_text(field: str, value: Any) -> ApiError:
    if value is None:
        return _refused()
    text = not_a("string", value).replace("Go value", f"Go struct field jsonPatchOp.{field}")
    return bad_request(f"error decoding patch: {text}")


def _refused() -> ApiError:
    # The real server does not say why.
    return ApiError(
        422, "Invalid", "the server rejected our request due to an error in our request"
    )


def _steps(path: str) -> list[str]:
    if path == "":
        return []
    if not path.startswith("/"):
        raise _refused()
    return [s.replace("~1", "/").replace("~0", "~") for s in path[1:].split("/")]


def _at(document: Any, path: str) -> Any:
    for step in _steps(path):
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list) and step.isdecimal() and int(step) < len(document):
            document = document[int(step)]
        else:
            raise _refused()
    return document


def _parent(document: Any, path: str) -> tuple[Any, str]:
    steps = _steps(path)
    head = "".join(f"/{s.replace('~', '~0').replace('/', '~1')}" for s in steps[:-1])
    return _at(document, head), steps[-1]


def _add(document: Any, path: str, value: Any) -> Any:
    if path == "":
        return value
    parent, step = _parent(document, path)
    if isinstance(parent, dict):
        parent[step] = value
    elif isinstance(parent, list) and step == "-":
        parent.append(value)
    elif isinstance(parent, list) and step.isdecimal() and int(step) <= len(parent):
        parent.insert(int(step), value)
    else:
        raise _refused()
    return document


def _remove(document: Any, path: str) -> Any:
    _at(document, path)
    parent, step = _parent(document, path)
    if isinstance(parent, dict):
        del parent[step]
    else:
        del parent[int(step)]
    return document


def as_go(value: Any) -> str:
    """Return a value as Go prints it."""
    if isinstance(value, dict):
        return "map[" + " ".join(f"{k}:{as_go(value[k])}" for k in sorted(value)) + "]"
    if isinstance(value, list):
        return "[" + " ".join(as_go(item) for item in value) + "]"
    if value is None:
        return "<nil>"
    return str(value).lower() if isinstance(value, bool) else str(value)
