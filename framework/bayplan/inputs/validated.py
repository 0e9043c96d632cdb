"""Checks of user input against pydantic models; errors name the position, in plain words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pydantic
from pydantic_core import ErrorDetails

from bayplan.errors import InputError, did_you_mean
from bayplan.inputs.documents import Document

__all__ = ["checked", "validated"]

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
    :param plugin: the plugin whose arguments are checked, for the message.
    :raises InputError: naming file, line, column, path and what was expected.
    """
    return checked(model, content, lambda path: document.where((*at, *path)), at, plugin)


def checked(
    model: type[Model],
    content: Any,
    where: Callable[[tuple[str | int, ...]], str],
    at: tuple[str | int, ...] = (),
    plugin: str = "",
) -> Model:
    """Check a value as ``validated`` does; ``where`` tells the place of a path inside it.

    :raises InputError: naming that place, the path and what was expected.
    """
    try:
        return model.model_validate(content)
    except pydantic.ValidationError as exc:
        errors = exc.errors()
    # A missing field is often present, but misspelt.
    error = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    loc = tuple(step for step in error["loc"] if step != "[key]")
    path = ".".join(str(step) for step in (*at, *loc))
    owner = f'plugin "{plugin}": ' if plugin else ""
    place = f"{path}: " if path else ""
    raise InputError(f"{owner}{place}{_text(model, content, error)}", where(loc))


def _text(model: type[Any], content: Any, error: ErrorDetails) -> str:
    """Return an error in plain words."""
    loc = error["loc"]
    if error["type"] == "extra_forbidden":
        known = set(_field_names(model, loc[:-1])) - _keys(content, loc[:-1])
        return f'"{loc[-1]}" is not known here{did_you_mean(str(loc[-1]), known)}'
    if error["type"] == "missing":
        if isinstance(loc[-1], int):
            return "an entry is missing"
        return f'the required field "{loc[-1]}" is missing'
    if error["type"] in ("literal_error", "enum"):
        given, expected = error["input"], error["ctx"]["expected"]
        words = [word for pair in _QUOTED.findall(expected) for word in pair if word]
        return f"expected {expected}{did_you_mean(given, words) if isinstance(given, str) else ''}"
    plain = _PLAIN.get(error["type"])
    if plain is None:
        return error["msg"].removeprefix("Value error, ")
    return plain.format_map(error.get("ctx", {}))


_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_PLAIN = {
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "dataclass_type": "expected a mapping",
    "dict_type": "expected a mapping",
    "finite_number": "expected a finite number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "int_from_float": "expected an integer",
    "int_parsing": "expected an integer",
    "int_type": "expected an integer",
    "list_type": "expected a list",
    "model_attributes_type": "expected a mapping",
    "model_type": "expected a mapping",
    "recursion_loop": "contains itself",
    "string_too_long": "expected at most {max_length} characters",
    "string_too_short": "expected {min_length} or more characters",
    "string_type": "expected a string",
    "too_long": "expected at most {max_length} entries",
    "too_short": "expected {min_length} or more entries",
    "tuple_type": "expected a list",
}
"""Pydantic's messages for wrong input, without Python terms."""


def _keys(content: Any, loc: tuple[str | int, ...]) -> set[str]:
    """Return the keys that exist at a path; a misspelt key does not stand for any of them."""
    try:
        for step in loc:
            content = content[step]
        return set(content)
    except (LookupError, TypeError):
        return set()


def _field_names(model: type[Any], loc: tuple[str | int, ...]) -> list[str]:
    """Return the field names of a model at a path, sorted."""
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
