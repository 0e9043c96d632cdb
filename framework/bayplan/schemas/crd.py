"""The schema of a CustomResourceDefinition as a type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.schemas.catalog import ListOf, MapOf, RecordField, RecordType, Scalar, Type, record_of

__all__ = ["record_of_schema"]

_OPEN = "x-kubernetes-preserve-unknown-fields"
_EITHER = "x-kubernetes-int-or-string"
_EMBEDDED = "x-kubernetes-embedded-resource"
_SCALARS = ("boolean", "integer", "number", "string")


def record_of_schema(kind: str, schema: Mapping[str, Any]) -> RecordType:
    """Return the type of a kind from the ``openAPIV3Schema`` of its definition.

    It has apiVersion, kind and metadata even if the schema does not name them.
    """
    return RecordType(kind, lambda: {**_fields(schema), **_identity()}, bool(schema.get(_OPEN)))


def _identity() -> dict[str, RecordField]:
    config_map = record_of("v1", "ConfigMap")
    assert config_map is not None
    return {name: config_map.fields[name] for name in ("apiVersion", "kind", "metadata")}


def _fields(schema: Mapping[str, Any]) -> dict[str, RecordField]:
    required = schema.get("required") or ()
    own = schema.get("properties") or {}
    fields = {
        key: RecordField(
            key,
            _type(property_),
            key in required,
            description=str(property_.get("description", "")),
        )
        for key, property_ in own.items()
        if isinstance(property_, dict)
    }
    return {**_identity(), **fields} if schema.get(_EMBEDDED) else fields


def _type(schema: Mapping[str, Any]) -> Type:
    kind = schema.get("type")
    if schema.get(_EITHER):
        return Scalar("int-or-string")
    if kind == "array":
        return ListOf(_type(schema.get("items") or {}))
    values = schema.get("additionalProperties")
    if kind == "object" and "properties" not in schema and values:
        return MapOf(_type(values) if isinstance(values, dict) else Scalar("any"))
    if kind == "object":
        return RecordType("", lambda: _fields(schema), bool(schema.get(_OPEN)))
    return Scalar(kind if kind in _SCALARS else "any")
