"""CustomResourceDefinitions: resources that are added and removed at run time.

Unknown fields are refused or pruned, and values are checked against the schema; defaults are not
set, and rules in CEL are not evaluated.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from bayplan.api import KINDS, Kind
from bayplan.api.meta import ApiStruct
from bayplan.cluster.api_errors import Cause, invalid
from bayplan.cluster.apiserver.resources import PrinterColumn, Resource, make_type
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.unknown_fields import plain
from bayplan.cluster.apiserver.validation.schemas import definition_problems
from bayplan.cluster.apiserver.watch_cache import Change
from bayplan.schemas.crd import record_of_schema

__all__ = ["CustomResources", "check_definition"]

Content = dict[str, Any]

_KIND = "CustomResourceDefinition"
_PLURAL = "customresourcedefinitions"


class _Names(ApiStruct, frozen=True):
    plural: str
    kind: str
    singular: str = ""
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


class _Column(ApiStruct, frozen=True):
    name: str
    type: str
    json_path: str
    priority: int = 0


class _Field(ApiStruct, frozen=True):
    json_path: str


class _Version(ApiStruct, frozen=True):
    name: str
    served: bool = True
    storage: bool = False
    subresources: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies empty defaults
    additional_printer_columns: tuple[_Column, ...] = ()
    selectable_fields: tuple[_Field, ...] = ()
    schema: dict[str, Any] = {}  # noqa: RUF012 - likewise


class _Spec(ApiStruct, frozen=True):
    group: str
    names: _Names
    scope: Literal["Namespaced", "Cluster"]
    versions: tuple[_Version, ...]

    @property
    def stored(self) -> _Version:
        return next(version for version in self.versions if version.storage)


class _Definition(ApiStruct, frozen=True):
    spec: _Spec


def check_definition(content: Content) -> None:
    """Validate a definition as far as it is used here.

    :raises ApiError: 422, when it is invalid.
    """
    name = str(content["metadata"].get("name", ""))
    try:
        spec = msgspec.convert(content, _Definition).spec
    except msgspec.ValidationError as exc:
        message, _, path = str(exc).partition(" - at ")
        cause = Cause("FieldValueInvalid", message, path.strip("`").removeprefix("$."))
        raise invalid("apiextensions.k8s.io", _KIND, name, [cause]) from None
    wrong_schemas = list(definition_problems(content))
    if wrong_schemas:
        raise invalid("apiextensions.k8s.io", _KIND, name, wrong_schemas)
    full = f"{spec.names.plural}.{spec.group}"
    if sum(version.storage for version in spec.versions) != 1:
        text = "Invalid value: must have exactly one version marked as storage version"
        cause = Cause("FieldValueInvalid", text, "spec.versions")
    elif name != full or not spec.names.kind:
        text = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        cause = Cause("FieldValueInvalid", text, "metadata.name")
    else:
        return
    raise invalid("apiextensions.k8s.io", _KIND, name, [cause])


class CustomResources:
    """Serves the resources of all definitions."""

    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster
        cluster.observe(self._changed)

    def _changed(self, resource: Resource, change: Change) -> None:
        if resource.plural != _PLURAL:
            return
        content = change.record.content
        if change.type == "DELETED":
            self._withdraw(content)
        elif change.before is None or change.before.content.get("spec") != content.get("spec"):
            self._serve(resource, content)

    def _serve(self, crds: Resource, content: Content) -> None:
        spec = msgspec.convert(content, _Definition).spec
        resources = self._cluster.resources
        old = resources.named(spec.group, spec.names.plural)
        resources.add(_resource(spec, old))
        name = content["metadata"]["name"]
        self._cluster.clock.call_later(0, lambda: self._established(crds, name, spec))

    def _established(self, crds: Resource, name: str, spec: _Spec) -> None:
        record = self._cluster.records(crds).get(name)
        if record is None:
            return
        stamp = self._cluster.timestamp()
        conditions = [
            {
                "type": kind,
                "status": "True",
                "lastTransitionTime": stamp,
                "reason": reason,
                "message": message,
            }
            for kind, reason, message in (
                ("NamesAccepted", "NoConflicts", "no conflicts found"),
                ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            )
        ]
        old = record.content.get("status")
        known = old.get("conditions") if isinstance(old, dict) else None
        names = {"singular": spec.names.kind.lower(), "listKind": f"{spec.names.kind}List"}
        status = {
            "conditions": known or conditions,
            "acceptedNames": names | plain(spec.names),
            "storedVersions": [spec.stored.name],
        }
        if old != status:
            self._cluster.store_content(crds, name, {**record.content, "status": status})

    def _withdraw(self, content: Content) -> None:
        spec = msgspec.convert(content, _Definition).spec
        resource = self._cluster.resources.named(spec.group, spec.names.plural)
        if resource is not None:
            self._cluster.forget(resource)


def _resource(spec: _Spec, old: Resource | None) -> Resource:
    """Return a definition's resource; kinds that bayplan reads keep their types."""
    names, stored = spec.names, spec.stored
    kind: Kind | None = KINDS.get((spec.group, names.kind))
    others = [v.name for v in spec.versions if v.served and v is not stored]
    if kind is not None:
        type_ = kind.type
    else:
        type_ = old.type if old is not None else make_type(names.kind)
    return Resource(
        spec.group,
        names.plural,
        names.kind,
        (stored.name, *others),
        type_,
        namespaced=spec.scope == "Namespaced",
        status="status" in stored.subresources,
        custom=True,
        short_names=names.short_names,
        categories=names.categories,
        singular=names.singular or names.kind.lower(),
        columns=tuple(
            PrinterColumn(c.name, c.json_path, c.type, bool(c.priority))
            for c in stored.additional_printer_columns
        )
        or (PrinterColumn("Age", ".metadata.creationTimestamp", "date"),),
        selectable=tuple(field.json_path.lstrip(".") for field in stored.selectable_fields),
        known=kind,
        schemas={
            version.name: record_of_schema(names.kind, version.schema["openAPIV3Schema"])
            for version in spec.versions
            if isinstance(version.schema.get("openAPIV3Schema"), dict)
        },
        open_api=stored.schema.get("openAPIV3Schema"),
    )
