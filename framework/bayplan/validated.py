"""What a person typed, checked by a pydantic model: errors say where, and in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import pydantic

from bayplan.errors import InputError, did_you_mean
from bayplan.yamlfile import Document

__all__ = ["validated"]

Model = TypeVar("Model", bound=pydantic.BaseModel)


def validated(
    model: type[Model],
    content: Any,
    document: Document,
    at: tuple[str | int, ...] = (),
    plugin: str = "",
) -> Model:
    """Check a parsed value against a pydantic model.

    :param at: the value's path in the document.
    :param plugin: the plugin whose arguments they are, for the message.
    :raises InputError: naming file, line, column, path and what was expected.
    """
    try:
        return model.model_validate(content)
    except pydantic.ValidationError as exc:
        error = exc.errors()[0]
    loc = tuple(error["loc"])
    path = ".".join(str(step) for step in (*at, *loc))
    text = _PLAIN.get(error["type"], error["msg"].removeprefix("Value error, "))
    if error["type"] == "extra_forbidden":
        known = _field_names(model, loc[:-1])
        text = f'"{loc[-1]}" is not known here{did_you_mean(str(loc[-1]), known)}'
    elif error["type"] == "missing":
        text = f'the required field "{loc[-1]}" is missing'
    owner = f'plugin "{plugin}": ' if plugin else ""
    raise InputError(f"{owner}{path}: {text}", document.where((*at, *loc)))


_PLAIN = {
    "bool_type": "expected true or false",
    "dataclass_type": "expected a mapping",
    "dict_type": "expected a mapping",
    "finite_number": "expected a finite number",
    "int_from_float": "expected an integer",
    "int_parsing": "expected an integer",
    "int_type": "expected an integer",
    "list_type": "expected a list",
    "model_attributes_type": "expected a mapping",
    "model_type": "expected a mapping",
    "string_type": "expected a string",
    "too_short": "expected one entry or more",
    "tuple_type": "expected a list",
}
"""Pydantic's words for what a person typed wrong, without its Python terms."""


def _field_names(model: type[Any], loc: tuple[str | int, ...]) -> list[str]:
    """Return the field names that are known at a path inside a model."""
    schema = model.model_json_schema()
    node: Any = schema
    for step in loc:
        node = _deref(node, schema)
        if isinstance(step, int):
            node = node.get("items", {})
        elif step in node.get("properties", {}):
            node = node["properties"][step]
        else:
            node = node.get("additionalProperties", {})
    node = _deref(node, schema)
    return sorted(node.get("properties", {})) if isinstance(node, dict) else []


def _deref(node: Any, schema: Mapping[str, Any]) -> Any:
    for branch in node.get("anyOf", ()) if isinstance(node, dict) else ():
        if "$ref" in branch or "properties" in branch:
            node = branch
    while isinstance(node, dict) and "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return node
