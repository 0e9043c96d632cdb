"""Custom resources against the OpenAPI schema of their definition.

``x-kubernetes-validations`` are not evaluated: no definition here has any.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import re2

from bayplan.cluster.api_errors import Cause
from bayplan.cluster.apiserver.validation.formats import (
    duplicate,
    required,
    too_long,
    too_many,
    unsupported,
    wrong,
)

__all__ = ["definition_problems", "schema_problems"]

Content = Mapping[str, Any]

_TYPES: Mapping[str, tuple[type, ...]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}
_NAMES = {bool: "boolean", dict: "object", float: "number", int: "integer", list: "array"}
_EITHER = "x-kubernetes-int-or-string"
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_LIST_TYPE, _LIST_KEYS = "x-kubernetes-list-type", "x-kubernetes-list-map-keys"


def schema_problems(schema: Content, value: Any, path: str = "") -> Iterator[Cause]:
    """Yield where a value differs from a schema.

    :param path: the path to the value, empty for the whole object.
    """
    if value is None:
        if not schema.get("nullable"):
            yield _type_error("null", str(schema.get("type", "")), path)
        return
    wanted = str(schema.get("type") or "")
    if schema.get(_EITHER):
        if type(value) not in (int, str):
            yield _type_error(_named(value), "integer,string", path)
            return
    elif wanted in _TYPES and not _fits(value, wanted):
        yield _type_error(_named(value), wanted, path)
        return
    known = schema.get("enum")
    if isinstance(known, list) and value not in known:
        yield unsupported(path, value, (str(one) for one in known))
    if isinstance(value, dict):
        yield from _object(schema, value, path)
    elif isinstance(value, list):
        yield from _list(schema, value, path)
    elif isinstance(value, str):
        yield from _text(schema, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number(schema, value, path)
    yield from _combined(schema, value, path)


def _fits(value: Any, wanted: str) -> bool:
    if wanted == "integer" and isinstance(value, float):
        return value.is_integer()
    return type(value) in _TYPES[wanted]


def _named(value: Any) -> str:
    return _NAMES.get(type(value), "string")


def _type_error(found: str, wanted: str, path: str) -> Cause:
    made = wrong(path, found, f'{path} in body must be of type {wanted}: "{found}"')
    return Cause("FieldValueTypeInvalid", made.message, path)


def _object(schema: Content, value: dict[str, Any], path: str) -> Iterator[Cause]:
    for name in schema.get("required") or ():
        if value.get(name) is None:
            yield required(f"{path}.{name}".removeprefix("."))
    most, least = schema.get("maxProperties"), schema.get("minProperties")
    if most is not None and len(value) > most:
        yield too_many(path, len(value), most)
    if least is not None and len(value) < least:
        yield wrong(path, len(value), f"{path} in body should have at least {least} properties")
    properties = schema.get("properties") or {}
    others = schema.get("additionalProperties")
    for key, item in value.items():
        below = properties.get(key, others)
        # A missing field is the schema's default, and null stands for a missing one.
        if isinstance(below, dict) and (item is not None or below.get("nullable") is False):
            yield from schema_problems(below, item, f"{path}.{key}".removeprefix("."))


def _list(schema: Content, value: list[Any], path: str) -> Iterator[Cause]:
    most, least = schema.get("maxItems"), schema.get("minItems")
    if most is not None and len(value) > most:
        yield too_many(path, len(value), most)
    if least is not None and len(value) < least:
        yield wrong(path, len(value), f"{path} in body should have at least {least} items")
    items = schema.get("items")
    if isinstance(items, dict):
        for index, item in enumerate(value):
            yield from schema_problems(items, item, f"{path}[{index}]")
    yield from _repeated(schema, value, path)


def _repeated(schema: Content, value: list[Any], path: str) -> Iterator[Cause]:
    kind, keys = schema.get(_LIST_TYPE), schema.get(_LIST_KEYS) or ()
    if kind not in ("set", "map"):
        return
    seen: list[Any] = []
    for index, item in enumerate(value):
        mark = item
        if kind == "map":
            mark = {k: item[k] for k in keys if k in item} if isinstance(item, dict) else item
        if mark in seen:
            yield duplicate(f"{path}[{index}]", mark)
        seen.append(mark)


def _text(schema: Content, value: str, path: str) -> Iterator[Cause]:
    most, least, pattern = (schema.get(name) for name in ("maxLength", "minLength", "pattern"))
    if most is not None and len(value) > most:
        yield too_long(path, most)
    if least is not None and len(value) < least:
        yield wrong(path, value, f"{path} in body should be at least {least} chars long")
    # A pattern is a client's: RE2, which the real server uses too, takes linear time.
    if isinstance(pattern, str) and not _search(pattern, value):
        yield wrong(path, value, f"{path} in body should match '{pattern}'")
    if not _is_of(str(schema.get("format") or ""), value):
        kind = schema["format"]
        yield wrong(path, value, f'{path} in body must be of type {kind}: "{value}"')


def _search(pattern: str, value: str) -> bool:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.search(pattern, value, options=options) is not None
    except re2.error:
        return True


def _is_of(kind: str, value: str) -> bool:
    if kind not in ("date-time", "date"):
        return True
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return kind == "date" or re.match(r"\d{4}-\d\d-\d\dT", value) is not None


def _number(schema: Content, value: float, path: str) -> Iterator[Cause]:
    low, high, step = (schema.get(name) for name in ("minimum", "maximum", "multipleOf"))
    if low is not None and (value <= low if schema.get("exclusiveMinimum") else value < low):
        than = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
        yield wrong(path, value, f"{path} in body should be {than} {low}")
    if high is not None and (value >= high if schema.get("exclusiveMaximum") else value > high):
        than = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
        yield wrong(path, value, f"{path} in body should be {than} {high}")
    if step and value % step:
        yield wrong(path, value, f"{path} in body should be a multiple of {step}")
    bits = {"int32": 31, "int64": 63}.get(str(schema.get("format")))
    if bits is not None and not -(2**bits) <= value < 2**bits:
        kind = schema["format"]
        why = f"Checked value must be of type integer with format {kind} in {path}"
        yield wrong("<nil>", "", why)


def _combined(schema: Content, value: Any, path: str) -> Iterator[Cause]:
    def fitting(schemas: Iterable[Any]) -> int:
        found = (one for one in schemas if isinstance(one, dict))
        return sum(not any(_partial(one, value)) for one in found)

    one_of, any_of = schema.get("oneOf"), schema.get("anyOf")
    if one_of and (count := fitting(one_of)) != 1:
        found = f"Found {count} valid alternatives" if count else "Found none valid"
        why = f'"{path}" must validate one and only one schema (oneOf). {found}'
        yield wrong("<nil>", "", why)
    if any_of and not schema.get(_EITHER) and not fitting(any_of):
        why = f'"{path}" must validate at least one schema (anyOf)'
        yield wrong("<nil>", "", why)
    denied = schema.get("not")
    if isinstance(denied, dict) and fitting([denied]):
        yield wrong("<nil>", "", f'"{path}" must not validate the schema (not)')
    for one in schema.get("allOf") or ():
        yield from schema_problems({"nullable": True, **one}, value, path)


def _partial(schema: Content, value: Any) -> Iterator[Cause]:
    """Yield the problems of a value and a schema that has no type of its own."""
    return schema_problems({"nullable": True, **schema}, value, "")


# Definitions -------------------------------------------------------------------------------------


def definition_problems(content: Content) -> Iterator[Cause]:
    """Yield what is wrong with the schemas of a CustomResourceDefinition."""
    versions = content["spec"].get("versions") or ()
    names = [version.get("name") for version in versions]
    if len(set(names)) != len(names):
        yield wrong("spec.versions", names, "must contain unique version names")
    for index, version in enumerate(versions):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        path = f"spec.versions[{index}].schema.openAPIV3Schema"
        if not isinstance(schema, dict):
            yield required(path)
            continue
        if len(versions) == 1:
            path = "spec.validation.openAPIV3Schema"
        if not schema.get("type"):
            yield required(f"{path}.type", "must not be empty at the root")
        elif schema["type"] != "object":
            yield wrong(f"{path}.type", schema["type"], "must be object at the root")
        yield from _structure(schema, path)


def _structure(schema: Content, path: str) -> Iterator[Cause]:
    """Yield where a schema is not structural: every field has a type."""
    kind = schema.get("type")
    if kind and kind not in _TYPES:
        yield unsupported(f"{path}.type", kind, sorted(_TYPES))
    for name, below in (schema.get("properties") or {}).items():
        yield from _field(below, f"{path}.properties[{name}]", "specified object fields")
    if isinstance(schema.get("items"), dict):
        yield from _field(schema["items"], f"{path}.items", "specified array items")
    others = schema.get("additionalProperties")
    if isinstance(others, dict):
        yield from _field(others, f"{path}.additionalProperties", "specified object fields")


def _field(schema: Any, path: str, what: str) -> Iterator[Cause]:
    if not isinstance(schema, dict):
        return
    if not schema.get("type") and not schema.get(_EITHER) and not schema.get(_PRESERVE):
        yield required(f"{path}.type", f"must not be empty for {what}")
    yield from _structure(schema, path)
