"""delete and deletecollection: graceful, guarded, and with what becomes of owned objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from bayplan.api import Namespace
from bayplan.cluster.apiserver.calls import Call
from bayplan.cluster.apiserver.history import Record
from bayplan.cluster.apiserver.lifecycle import FOREGROUND
from bayplan.cluster.apiserver.reads import find, list_page
from bayplan.cluster.apiserver.status import conflict, forbidden, success
from bayplan.cluster.apiserver.store import ServedCluster

__all__ = ["delete", "delete_all"]

Content = dict[str, Any]

_KEPT_NAMESPACES = ("default", "kube-public", "kube-system")


def delete(cluster: ServedCluster, call: Call, options: Any) -> Content | Record:
    """Delete an object; return it while it is still there, else a Status.

    :raises ApiError: when it is refused.
    """
    resource, record = call.resource, find(cluster, call)
    options = options if isinstance(options, dict) else {}
    if resource.type is Namespace and call.name in _KEPT_NAMESPACES:
        text = f'namespaces "{call.name}" is forbidden: this namespace may not be deleted'
        raise forbidden(text, "", "namespaces", call.name)
    _check_preconditions(call, record, options.get("preconditions") or {})
    if call.dry_run or options.get("dryRun"):
        return record
    grace = options.get("gracePeriodSeconds")
    if grace is None and call.params.get("gracePeriodSeconds"):
        grace = call.number("gracePeriodSeconds")
    policy = options.get("propagationPolicy") or call.params.get("propagationPolicy", "")
    if policy == "Orphan":
        _orphan(cluster, record)
    elif policy == "Foreground" and FOREGROUND not in record.obj.metadata.finalizers:
        meta = record.obj.metadata
        marked = replace(meta, finalizers=(*meta.finalizers, FOREGROUND))
        cluster.update(replace(record.obj, metadata=marked))
    cluster.delete(resource.type, record.key, grace)
    left = cluster.records(resource).get(record.key)
    if left is not None:
        return left
    details = {
        "name": call.name,
        "group": resource.group,
        "kind": resource.plural,
        "uid": record.obj.metadata.uid,
    }
    return success({key: value for key, value in details.items() if value})


def _orphan(cluster: ServedCluster, owner: Record) -> None:
    """Let everything that an object owns belong to nobody."""
    uid = owner.obj.metadata.uid
    for resource in cluster.resources.all():
        for record in list(cluster.records(resource).values()):
            meta = record.obj.metadata
            left = tuple(r for r in meta.owner_references if r.uid != uid)
            if left != meta.owner_references:
                cluster.update(replace(record.obj, metadata=replace(meta, owner_references=left)))


def _check_preconditions(call: Call, record: Record, wanted: Mapping[str, Any]) -> None:
    meta, resource = record.obj.metadata, call.resource
    texts = (
        ("uid", "UID", meta.uid),
        ("resourceVersion", "ResourceVersion", meta.resource_version),
    )
    for key, text, value in texts:
        if wanted.get(key) and wanted[key] != value:
            why = (
                f"Precondition failed: {text} in precondition: {wanted[key]}, "
                f"{text} in object meta: {value}"
            )
            raise conflict(resource.group, resource.plural, call.name, why)


def delete_all(cluster: ServedCluster, call: Call, options: Any) -> list[Record]:
    """Delete every object that a call selects; return them.

    :raises ApiError: when it is refused.
    """
    records = list_page(cluster, call).records
    for record in records:
        one = _single(call, record)
        delete(cluster, one, options)
    return records


def _single(call: Call, record: Record) -> Call:
    meta = record.obj.metadata
    return Call(
        "delete",
        call.resource,
        call.group,
        call.version,
        {k: v for k, v in call.params.items() if k in ("gracePeriodSeconds", "dryRun")},
        meta.namespace,
        meta.name,
    )
