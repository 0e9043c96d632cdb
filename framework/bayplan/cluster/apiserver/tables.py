"""Tables: what ``kubectl get`` prints, made by the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bayplan.cluster.apiserver import cells
from bayplan.cluster.apiserver.cells import NONE
from bayplan.cluster.apiserver.history import Record
from bayplan.cluster.apiserver.jsonpath import find_path
from bayplan.cluster.apiserver.resources import Column, Resource
from bayplan.cluster.apiserver.selectors import at_path

__all__ = ["table"]

Content = Mapping[str, Any]
Cell = Callable[[Content, datetime], Any]


@dataclass(frozen=True)
class _Field:
    name: str
    cell: Cell
    wide: bool = False
    type: str = "string"


def _at(path: str, default: Any = NONE) -> Cell:
    def cell(content: Content, _: datetime) -> Any:
        value = at_path(content, path)
        return default if value is None or value == "" else value

    return cell


def _of(read: Callable[[Content], Any]) -> Cell:
    return lambda content, _: read(content)


def _age(path: str = "metadata.creationTimestamp") -> Cell:
    return lambda content, now: cells.age(at_path(content, path), now)


def _share(part: str, whole: str) -> Cell:
    return lambda content, _: f"{at_path(content, part) or 0}/{at_path(content, whole) or 0}"


def _address(kind: str) -> Cell:
    def cell(content: Content, _: datetime) -> Any:
        found = at_path(content, "status.addresses") or ()
        return next((a.get("address") for a in found if a.get("type") == kind), NONE)

    return cell


def _object(content: Content, _: datetime) -> str:
    involved = content.get("involvedObject") or {}
    return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"


def _last_seen(content: Content, now: datetime) -> str:
    series = at_path(content, "series.lastObservedTime")
    fields = ("lastTimestamp", "eventTime", "firstTimestamp")
    stamp = series or next((content[f] for f in fields if content.get(f)), None)
    return cells.age(stamp or at_path(content, "metadata.creationTimestamp"), now)


def _job_state(content: Content) -> str:
    for condition in at_path(content, "status.conditions") or ():
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            return str(condition["type"])
    return "Suspended" if at_path(content, "spec.suspend") else "Running"


def _job_time(content: Content, now: datetime) -> str:
    start, end = at_path(content, "status.startTime"), at_path(content, "status.completionTime")
    if start is None:
        return ""
    return cells.age(start, datetime.fromisoformat(end) if end else now)


def _job_share(content: Content) -> str:
    spec = content.get("spec", {})
    total = spec.get("completions") or spec.get("parallelism") or 1
    return f"{at_path(content, 'status.succeeded') or 0}/{total}"


_AGE = _Field("Age", _age())
_PHASE = _Field("Status", _at("status.phase"))
_FIELDS: Mapping[str, tuple[_Field, ...]] = {
    "pods": (
        _Field("Ready", _of(cells.ready_containers)),
        _Field("Status", _of(cells.pod_state)),
        _Field("Restarts", _of(cells.restarts)),
        _AGE,
        _Field("IP", _at("status.podIP"), wide=True),
        _Field("Node", _at("spec.nodeName"), wide=True),
        _Field("Nominated Node", _at("status.nominatedNodeName"), wide=True),
        _Field("Readiness Gates", _at("status.none"), wide=True),
    ),
    "nodes": (
        _Field("Status", _of(cells.node_state)),
        _Field("Roles", _of(cells.roles)),
        _AGE,
        _Field("Version", _at("status.nodeInfo.kubeletVersion", "")),
        _Field("Internal-IP", _address("InternalIP"), wide=True),
        _Field("External-IP", _address("ExternalIP"), wide=True),
        _Field("OS-Image", _at("status.nodeInfo.osImage", "<unknown>"), wide=True),
    ),
    "namespaces": (_PHASE, _AGE),
    "services": (
        _Field("Type", _at("spec.type", "ClusterIP")),
        _Field("Cluster-IP", _at("spec.clusterIP")),
        _AGE,
    ),
    "configmaps": (_Field("Data", _of(lambda c: len(c.get("data") or ())), type="integer"), _AGE),
    "deployments.apps": (
        _Field("Ready", _share("status.readyReplicas", "spec.replicas")),
        _Field("Up-to-date", _at("status.updatedReplicas", 0), type="integer"),
        _Field("Available", _at("status.availableReplicas", 0), type="integer"),
        _AGE,
    ),
    "replicasets.apps": (
        _Field("Desired", _at("spec.replicas", 1), type="integer"),
        _Field("Current", _at("status.replicas", 0), type="integer"),
        _Field("Ready", _at("status.readyReplicas", 0), type="integer"),
        _AGE,
    ),
    "statefulsets.apps": (
        _Field("Ready", _share("status.readyReplicas", "spec.replicas")),
        _AGE,
    ),
    "jobs.batch": (
        _Field("Status", _of(_job_state)),
        _Field("Completions", _of(_job_share)),
        _Field("Duration", _job_time),
        _AGE,
    ),
    "poddisruptionbudgets.policy": (
        _Field("Min Available", _at("spec.minAvailable", "N/A")),
        _Field("Max Unavailable", _at("spec.maxUnavailable", "N/A")),
        _Field("Allowed Disruptions", _at("status.disruptionsAllowed", 0), type="integer"),
        _AGE,
    ),
    "priorityclasses.scheduling.k8s.io": (
        _Field("Value", _at("value", 0), type="integer"),
        _Field("Global-Default", _at("globalDefault", False), type="boolean"),
        _AGE,
    ),
    "leases.coordination.k8s.io": (_Field("Holder", _at("spec.holderIdentity", "")), _AGE),
    "resourceclaims.resource.k8s.io": (_Field("State", _of(cells.claim_state)), _AGE),
    "resourceslices.resource.k8s.io": (
        _Field("Node", _at("spec.nodeName", "<unset>")),
        _Field("Driver", _at("spec.driver")),
        _Field("Pool", _at("spec.pool.name")),
        _AGE,
    ),
    "customresourcedefinitions.apiextensions.k8s.io": (
        _Field("Created At", _at("metadata.creationTimestamp")),
    ),
}
_EVENTS = (
    _Field("Last Seen", _last_seen),
    _Field("Type", _at("type", "")),
    _Field("Reason", _at("reason", "")),
    _Field("Object", _object),
    _Field("Subobject", _at("involvedObject.fieldPath", ""), wide=True),
    _Field("Source", _at("source.component", ""), wide=True),
    _Field("Message", _at("message", "")),
    _Field("First Seen", _age("firstTimestamp"), wide=True),
    _Field("Count", _at("count", 1), wide=True),
    _Field("Name", _at("metadata.name"), wide=True),
)
_NAME = _Field("Name", _at("metadata.name"))
_POD_GROUP = (_Field("Min Member", _at("spec.minMember")), _PHASE, _AGE)


def _fields(resource: Resource) -> tuple[_Field, ...]:
    full = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    if full == "events":
        return _EVENTS
    if resource.columns:
        return (_NAME, *(_custom(column) for column in resource.columns))
    if resource.custom and resource.kind == "PodGroup":
        return (_NAME, *_POD_GROUP)
    return (_NAME, *_FIELDS.get(full, (_AGE,)))


def _custom(column: Column) -> _Field:
    def cell(content: Content, now: datetime) -> Any:
        value = find_path(content, column.path)
        if column.type == "date":
            return cells.age(value, now) if value else ""
        return "" if value is None else value

    kind = "string" if column.type == "date" else column.type
    return _Field(column.name, cell, column.wide, kind)


def table(
    resource: Resource,
    records: list[Record],
    meta: Mapping[str, Any],
    now: datetime,
    include: str = "",
) -> dict[str, Any]:
    """Return the table of some objects.

    :param include: what rows hold of their objects: None, Object, or (by default) Metadata.
    """
    fields = _fields(resource)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": dict(meta),
        "columnDefinitions": [
            {
                "name": field.name,
                "type": field.type,
                "format": "name" if field is _NAME else "",
                "description": "",
                "priority": int(field.wide),
            }
            for field in fields
        ],
        "rows": [
            {
                "cells": [field.cell(record.content, now) for field in fields],
                "object": _included(record, include),
            }
            for record in records
        ],
    }


def _included(record: Record, include: str) -> Any:
    if include == "None":
        return None
    if include == "Object":
        return record.content
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": record.content["metadata"],
    }
