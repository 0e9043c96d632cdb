"""CustomResourceDefinitions: resources that come and go at run time.

Objects are stored as they come: schemas are neither checked nor used for pruning and defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.api import KINDS, Kind
from bayplan.cluster.apiserver.history import Change
from bayplan.cluster.apiserver.resources import Column, Resource, make_type
from bayplan.cluster.apiserver.status import Cause, invalid
from bayplan.cluster.apiserver.store import ServedCluster

__all__ = ["CustomResources", "check_definition"]

Content = dict[str, Any]

_PLURAL = "customresourcedefinitions"


def check_definition(content: Content) -> None:
    """Refuse a definition that nothing could be served from.

    :raises ApiError: 422, for such a definition.
    """
    spec, name = content.get("spec"), content["metadata"].get("name", "")
    causes: list[Cause] = []
    spec = spec if isinstance(spec, dict) else {}
    names = spec.get("names")
    names = names if isinstance(names, dict) else {}
    for field, value in (
        ("spec.group", spec.get("group")),
        ("spec.names.plural", names.get("plural")),
        ("spec.names.kind", names.get("kind")),
    ):
        if not isinstance(value, str) or not value:
            causes.append(Cause("FieldValueRequired", "Required value", field))
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        text = 'Unsupported value: supported values: "Cluster", "Namespaced"'
        causes.append(Cause("FieldValueNotSupported", text, "spec.scope"))
    versions = spec.get("versions")
    versions = versions if isinstance(versions, list) else []
    named = all(isinstance(v, dict) and isinstance(v.get("name"), str) for v in versions)
    if not named or sum(bool(v.get("storage")) for v in versions) != 1:
        text = "Invalid value: must have exactly one version marked as storage version"
        causes.append(Cause("FieldValueInvalid", text, "spec.versions"))
    columns = [c for v in versions if named for c in v.get("additionalPrinterColumns") or ()]
    if not all(isinstance(c, dict) and {"name", "jsonPath", "type"} <= c.keys() for c in columns):
        text = "Required value: name, type and jsonPath"
        causes.append(Cause("FieldValueRequired", text, "spec.versions.additionalPrinterColumns"))
    if not causes and name != f"{names['plural']}.{spec['group']}":
        text = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        causes.append(Cause("FieldValueInvalid", text, "metadata.name"))
    if causes:
        raise invalid("apiextensions.k8s.io", "CustomResourceDefinition", name, causes)


class CustomResources:
    """Serves what definitions define, from their creation to their deletion."""

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
        spec = content["spec"]
        resources = self._cluster.resources
        old = resources.named(spec["group"], spec["names"]["plural"])
        made = _resource(spec, old)
        resources.add(made)
        name = content["metadata"]["name"]
        self._cluster.clock.call_later(0, lambda: self._established(crds, name))

    def _established(self, crds: Resource, name: str) -> None:
        record = self._cluster.records(crds).get(name)
        if record is None:
            return
        content, stamp = record.content, self._cluster.timestamp()
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
        stored = [v["name"] for v in content["spec"]["versions"] if v.get("storage")]
        names = content["spec"]["names"]
        status = {
            "conditions": (content.get("status") or {}).get("conditions") or conditions,
            "acceptedNames": {"singular": names["kind"].lower(), "listKind": f"{names['kind']}List"}
            | names,
            "storedVersions": stored,
        }
        if content.get("status") != status:
            self._cluster.store_content(crds, name, {**content, "status": status})

    def _withdraw(self, content: Content) -> None:
        spec = content["spec"]
        resource = self._cluster.resources.named(spec["group"], spec["names"]["plural"])
        if resource is not None:
            self._cluster.forget(resource)


def _resource(spec: Mapping[str, Any], old: Resource | None) -> Resource:
    """Return what a definition defines; kinds that bayplan reads keep their types."""
    group, names = spec["group"], spec["names"]
    kind: Kind | None = KINDS.get((group, names["kind"]))
    served = [v for v in spec["versions"] if v.get("served", True)]
    stored = next(v for v in spec["versions"] if v.get("storage"))
    versions = [stored["name"], *(v["name"] for v in served if v is not stored)]
    if kind is not None:
        type_ = kind.type
    else:
        type_ = old.type if old is not None else make_type(names["kind"])
    return Resource(
        group,
        names["plural"],
        names["kind"],
        tuple(versions),
        type_,
        namespaced=spec["scope"] == "Namespaced",
        status="status" in (stored.get("subresources") or {}),
        custom=True,
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        singular=names.get("singular") or names["kind"].lower(),
        columns=_columns(stored),
        selectable=tuple(
            field["jsonPath"].lstrip(".") for field in stored.get("selectableFields") or ()
        ),
        known=kind,
    )


def _columns(version: Mapping[str, Any]) -> tuple[Column, ...]:
    made = [
        Column(c["name"], c["jsonPath"], c.get("type", "string"), bool(c.get("priority")))
        for c in version.get("additionalPrinterColumns") or ()
    ]
    if made and not any(column.type == "date" for column in made):
        return tuple(made)
    return tuple(made) or (Column("Age", ".metadata.creationTimestamp", "date"),)
