"""What the typed objects refuse (``bayplan.api``), as the API server's causes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bayplan.api.objects import DecodeError
from bayplan.cluster.api_errors import Cause
from bayplan.cluster.apiserver.validation.formats import (
    duplicate,
    required,
    too_long,
    too_many,
    unsupported,
    wrong,
)

__all__ = ["merged", "typed_causes"]

_STEP = re.compile(r'\.([^.\[]+)|\[(\d+)\]|\["([^"]*)"\]')
_MISSING = re.compile(r'the required field "(.*)" is missing')
_TWICE = re.compile(r'.* (?:named|is named twice) "(.*)"')
_ENUMERATION = re.compile(r'"(.*)" is not one of the allowed values \((.*)\)')
_CHOICE = re.compile(r'expected (?:one of )?(\w+(?:(?:, | or )\w+)*), got "(.*)"')
_MOST = re.compile(r"at most (\d+) .*, got \d+")
_ITEM = re.compile(r"((?:requests|firstAvailable|devices|sharedCounters)\[\d+\])\.name$")
"""Items of resource.k8s.io are duplicates as a whole, those of pods by their names."""


def typed_causes(error: DecodeError, content: Mapping[str, Any]) -> Iterator[Cause]:
    """Yield the causes of an error."""
    for path, message in error.problems:
        yield _cause(path, message, content)


def _cause(path: str, message: str, content: Mapping[str, Any]) -> Cause:
    field = re.sub(r'\["(.*?)"\]', r"[\1]", path).removeprefix("$").removeprefix(".")
    if found := _MISSING.fullmatch(message):
        return required(f"{field}.{found[1]}".removeprefix("."))
    if message in ("is required", "must not be empty"):
        return required(field)
    if found := _TWICE.fullmatch(message):
        return duplicate(_ITEM.sub(r"\1", field), found[1])
    value = _value_at(path, content)
    if found := _MOST.fullmatch(message):
        most = int(found[1])
        many = isinstance(value, list)
        return too_many(field, len(value), most) if many else too_long(field, most)
    if message.startswith("expected exactly one of") and "got none of them" in message:
        return required(field, message.removeprefix("expected "))
    if message == "expected one access mode or more":
        return required(field, "at least 1 access mode is required")
    if found := _ENUMERATION.fullmatch(message):
        return unsupported(field, found[1], found[2].split(", "))
    if found := _CHOICE.fullmatch(message):
        return unsupported(field, found[2], re.split(", | or ", found[1]))
    if "is not in spec.resourceClaims" in message:
        place = field.removesuffix(".name")
        return (
            Cause("FieldValueNotFound", f'Not found: "{value}"', place)
            if value
            else required(place)
        )
    return wrong(field, value, message)


def _value_at(path: str, content: Any) -> Any:
    for name, index, key in _STEP.findall(path):
        if index:
            many = isinstance(content, list) and int(index) < len(content)
            content = content[int(index)] if many else None
        else:
            content = content.get(name or key) if isinstance(content, dict) else None
    return content


def merged(causes: Iterable[Cause], typed: Iterable[Cause]) -> list[Cause]:
    """Return causes, with those of the typed object for the fields that have none yet."""
    found = list(causes)
    fields = {cause.field for cause in found}
    return [*found, *(cause for cause in typed if cause.field not in fields)]
