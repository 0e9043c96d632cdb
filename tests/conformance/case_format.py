"""What the parts of a case may say: an absent field has its default, an unknown one is an error.

A part in the words of a test of another system is a ``Part``; one that is an object of an API is
read by ``ApiFields``, which leaves no field of it aside either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from bayplan.schemas import field_problems
from bayplan.schemas.catalog import ListOf, RecordField, RecordType, Type, record_of

__all__ = [
    "ApiFields",
    "Common",
    "Number",
    "Part",
    "UnknownFieldError",
    "api_spelling",
    "checked",
    "complete",
    "fields_of",
]

Number = int | float
_SECTIONS = ("spec", "metadata", "status")
_NO: Mapping[str, Any] = {}


class UnknownFieldError(Exception):
    """A case says something that nobody reads, or not what its format asks for."""


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a case. A field without a value has the zero value that its API gives it."""


class Common(Part, kw_only=True):
    """What tells where a case comes from, which changes nothing."""

    id: str = ""
    system: str = ""
    name: str = ""
    kind: str = ""
    file: str = ""
    func: str = ""
    line: int = 0
    procedure: str = ""
    tags: list[str] = []
    asserts: int = 0


def complete(format_: type[Part], case: Mapping[str, Any], nulls: bool = False) -> dict[str, Any]:
    """Return a case with all fields of its format.

    :param nulls: whether a null differs from an absent value.
    :raises UnknownFieldError: for a field that the format does not have, and for a value of another
        type than the format's.
    """
    try:
        read = msgspec.convert(case if nulls else _without_nulls(case), format_)
    except msgspec.ValidationError as exc:
        name = case.get("id") or case.get("name") or ""
        raise UnknownFieldError(f"{format_.__name__} {name}: {exc}") from None
    found: dict[str, Any] = msgspec.to_builtins(read)
    return found


def _without_nulls(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {key: _without_nulls(one) for key, one in part.items() if one is not None}
    return [_without_nulls(one) for one in part] if isinstance(part, list) else part


class ApiFields:
    """The fields of an object of an API in a case, where some have short forms.

    The others have the API's names, in its spelling or with underscores.
    """

    def __init__(self, api_version: str, kind: str, content: Mapping[str, Any]) -> None:
        self._kind = (api_version, kind)
        self._left = {name: value for name, value in content.items() if value is not None}
        self._name = str(content.get("name", ""))

    def take(self, name: str, default: Any = None) -> Any:
        """Return a field with a short form; the default when it is absent or null."""
        return self._left.pop(name, default)

    def object(
        self, spec: Mapping[str, Any], metadata: Mapping[str, Any], status: Mapping[str, Any] = _NO
    ) -> dict[str, Any]:
        """Return the object: what the short forms say, and each field that is left in its section.

        :raises UnknownFieldError: for a field that the API does not have.
        """
        parts = {"metadata": dict(metadata), "spec": dict(spec), "status": dict(status)}
        for name, value in self._left.items():
            spelt = api_spelling(name)
            known = (one for one in _SECTIONS if spelt in fields_of(*self._kind, one))
            section = next(known, None)
            if section is None:
                raise UnknownFieldError(f"{self._kind[1]} {self._name}: nobody reads {name}")
            parts[section][spelt] = value
        content = {name: _without_nulls(part) for name, part in parts.items() if part}
        return checked(*self._kind, content)


def api_spelling(name: str) -> str:
    """Return a name as Kubernetes' APIs spell it: ``stop_policy`` is ``stopPolicy``."""
    return re.sub(r"(?<=[a-z0-9])_([a-z])", lambda found: found[1].upper(), name)


def fields_of(api_version: str, kind: str, *steps: str) -> Mapping[str, RecordField]:
    """Return the fields of a part of a kind; none where the part has no fields of its own."""
    type_: Type | None = record_of(api_version, kind)
    assert type_ is not None, f"{api_version} {kind} is a known kind"
    for step in steps:
        field = type_.fields.get(step) if isinstance(type_, RecordType) else None
        type_ = field.type if field is not None else None
        if isinstance(type_, ListOf):
            type_ = type_.items
    return type_.fields if isinstance(type_, RecordType) else {}


def checked(api_version: str, kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object, with its kind, that has only fields of its API.

    :raises UnknownFieldError: for any other field, and for a value of another type.
    """
    whole = {"apiVersion": api_version, "kind": kind, **content}
    problems = field_problems(api_version, kind, whole)
    if problems:
        name = (content.get("metadata") or {}).get("name", "")
        told = "; ".join(f"{one.path}: {one.message}" for one in problems)
        raise UnknownFieldError(f"{kind} {name}: {told}")
    return whole
