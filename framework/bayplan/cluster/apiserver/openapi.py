"""OpenAPI documents: the fields of all kinds, for kubectl and other clients.

They are generated from the types that manifests are checked by. Only CRDs have descriptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from bayplan.cluster.apiserver.resources import Resource, Resources
from bayplan.schemas.catalog import ListOf, MapOf, RecordField, RecordType, Scalar, Type, record_of

__all__ = ["openapi_index", "openapi_v2", "openapi_v3", "schema_name"]

Content = dict[str, Any]

_SCALARS: dict[str, Content] = {
    "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "boolean": {"type": "boolean"},
    "bytes": {"type": "string", "format": "byte"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "string": {"type": "string"},
    "time": {"type": "string", "format": "date-time"},
}
_NAMED: dict[str, tuple[str, Content, Content]] = {
    # scalar: (name of its schema, the schema in version 3, the schema in version 2)
    "quantity": (
        "Quantity",
        {"oneOf": [{"type": "string"}, {"type": "number"}]},
        {"type": "string"},
    ),
    "int-or-string": (
        "IntOrString",
        {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
        {"type": "string", "format": "int-or-string"},
    ),
}
_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force")
_GVK = "x-kubernetes-group-version-kind"


def openapi_index(group_versions: Iterable[tuple[str, str]]) -> Content:
    """Return the index of the version 3 documents, one for each (group, version)."""
    paths = [f"apis/{group}/{v}" if group else f"api/{v}" for group, v in group_versions]
    return {"paths": {p: {"serverRelativeURL": f"/openapi/v3/{p}"} for p in paths}}


def openapi_v3(resources: Resources, path: str, version: str) -> Content | None:
    """Return the version 3 document of a (group, version), None when it is not served.

    :param path: such as ``apis/apps/v1``.
    :param version: the server's version.
    """
    steps = path.split("/")
    group, group_version = ("", steps[-1]) if steps[0] == "api" else (steps[1], steps[-1])
    served = resources.served(group, group_version)
    if not served:
        return None
    writer = _Writer("#/components/schemas/", 1)
    writer.add(resource_type(resource, group, group_version) for _, resource in served)
    return {
        "openapi": "3.0.0",
        "info": {"title": "bayplan", "version": version},
        "paths": dict(_paths(group, group_version, served)),
        "components": {"schemas": writer.schemas | _kinds(served, group, group_version, writer)},
    }


def openapi_v2(resources: Resources, version: str) -> Content:
    """Return the version 2 document, which holds all groups."""
    writer = _Writer("#/definitions/", 2)
    definitions: Content = {}
    paths: Content = {}
    for group, versions in resources.groups().items():
        for group_version in versions:
            served = resources.served(group, group_version)
            writer.add(resource_type(resource, group, group_version) for _, resource in served)
            for name, schema in _kinds(served, group, group_version, writer).items():
                known = definitions.setdefault(name, schema)
                known[_GVK] = known[_GVK] + [k for k in schema[_GVK] if k not in known[_GVK]]
            paths |= dict(_paths(group, group_version, served, swagger=True))
    return {
        "swagger": "2.0",
        "info": {"title": "bayplan", "version": version},
        "paths": paths,
        "definitions": writer.schemas | definitions,
    }


def resource_type(resource: Resource, group: str, version: str) -> RecordType:
    """Return the type of a resource's objects, open to any field when it is unknown."""
    api_version = f"{group}/{version}" if group else version
    own = resource.schemas.get(version)
    return own or record_of(api_version, resource.kind) or _unknown(resource.kind)


def _unknown(kind: str) -> RecordType:
    return RecordType(kind, dict, open=True)


def schema_name(record: RecordType, group: str, version: str) -> str:
    """Return the name of a kind's schema; kinds of CRDs have no package."""
    return record.name if "." in record.name else f"{group}.{version}.{record.name}".lstrip(".")


def _kinds(
    served: list[tuple[str, Resource]], group: str, version: str, writer: _Writer
) -> dict[str, Content]:
    """Return the schemas of kinds, with x-kubernetes-group-version-kind."""
    found: dict[str, Content] = {}
    for _, resource in served:
        record = resource_type(resource, group, version)
        mark = {"group": group, "version": version, "kind": resource.kind}
        schema = writer.record(record)
        found[schema_name(record, group, version)] = {**schema, _GVK: [mark]}
    return found


class _Writer:
    """Generates schemas from types.

    :param prefix: the prefix of references.
    :param column: the form of scalars: 1 for version 3, 2 for version 2.
    """

    def __init__(self, prefix: str, column: int) -> None:
        self.schemas: dict[str, Content] = {}
        self._prefix = prefix
        self._column = column

    def add(self, records: Iterable[RecordType]) -> None:
        """Add the schemas of all types inside kinds, without the kinds themselves."""
        for record in records:
            for field in record.fields.values():
                self._add(field.type)

    def _add(self, type_: Type) -> None:
        if isinstance(type_, ListOf):
            self._add(type_.items)
        elif isinstance(type_, MapOf):
            self._add(type_.values)
        elif isinstance(type_, Scalar):
            if type_.name in _NAMED:
                name, *forms = _NAMED[type_.name]
                self.schemas[name] = forms[self._column - 1]
        elif not type_.name:
            self.add([type_])
        elif type_.name not in self.schemas:
            self.schemas[type_.name] = {}
            self.schemas[type_.name] = self.record(type_)
            self.add([type_])

    def record(self, record: RecordType) -> Content:
        """Return the schema of a record."""
        schema: Content = {"type": "object"}
        required = [field.name for field in record.fields.values() if field.required]
        if required:
            schema["required"] = required
        if record.fields:
            schema["properties"] = {f.name: self._field(f) for f in record.fields.values()}
        if record.open:
            schema["x-kubernetes-preserve-unknown-fields"] = True
        return schema

    def _field(self, field: RecordField) -> Content:
        schema = self._type(field.type)
        more: Content = {}
        if field.description:
            more["description"] = field.description
        if field.strategy:
            more["x-kubernetes-patch-strategy"] = field.strategy
        if field.merge_key:
            more["x-kubernetes-patch-merge-key"] = field.merge_key
        if more and "$ref" in schema and self._column == 1:
            # Fields beside a reference are ignored.
            return {"allOf": [schema], **more}
        return {**schema, **more}

    def _type(self, type_: Type) -> Content:
        if isinstance(type_, ListOf):
            return {"type": "array", "items": self._type(type_.items)}
        if isinstance(type_, MapOf):
            return {"type": "object", "additionalProperties": self._type(type_.values)}
        if isinstance(type_, RecordType) and not type_.name:
            return self.record(type_)
        if isinstance(type_, RecordType):
            return {"$ref": f"{self._prefix}{type_.name}"}
        if type_.name in _NAMED:
            return {"$ref": f"{self._prefix}{_NAMED[type_.name][0]}"}
        return dict(_SCALARS[type_.name])


def _paths(
    group: str, version: str, served: list[tuple[str, Resource]], swagger: bool = False
) -> Iterator[tuple[str, Content]]:
    """Yield the operations on one object of each resource.

    Clients look up a resource's kind there, and whether the server validates fields.
    """
    prefix = f"/apis/{group}/{version}" if group else f"/api/{version}"
    for plural, resource in served:
        scope = "namespaces/{namespace}/" if resource.namespaced else ""
        kind = {"group": group, "version": version, "kind": resource.kind}
        yield (
            f"{prefix}/{scope}{plural}/{{name}}",
            {"get": _operation("get", kind, swagger), "patch": _operation("patch", kind, swagger)},
        )


def _operation(verb: str, kind: Content, swagger: bool) -> Content:
    names = _PARAMETERS if verb == "patch" else ()
    text: Content = {"type": "string", "uniqueItems": True}
    return {
        "parameters": [
            {"name": name, "in": "query", **(text if swagger else {"schema": text})}
            for name in names
        ],
        "x-kubernetes-action": verb,
        _GVK: kind,
        "responses": {"200": {"description": "OK"}},
    }
