"""delete and deletecollection: graceful, guarded, and with what becomes of owned objects."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from bayplan.api import Namespace
from bayplan.cluster.apiserver.bodies import DeleteOptions, Preconditions, read_body
from bayplan.cluster.apiserver.calls import Call
from bayplan.cluster.apiserver.history import Record
from bayplan.cluster.apiserver.lifecycle import FOREGROUND
from bayplan.cluster.apiserver.reads import find, list_page
from bayplan.cluster.apiserver.status import conflict, forbidden, success
from bayplan.cluster.apiserver.store import ServedCluster

__all__ = ["delete", "delete_all"]

Content = dict[str, Any]

_KEPT_NAMESPACES = ("default", "kube-public", "kube-system")


def delete(cluster: ServedCluster, call: Call, body: Any) -> Content | Record:
    """Delete an object; return it while it is still there, else a Status.

    :raises ApiError: when it is refused.
    """
    resource, record = call.resource, find(cluster, call)
    options = read_body(DeleteOptions, body)
    if resource.type is Namespace and call.name in _KEPT_NAMESPACES:
        text = f'namespaces "{call.name}" is forbidden: this namespace may not be deleted'
        raise forbidden(text, "", "namespaces", call.name)
    _check_preconditions(call, record, options.preconditions or Preconditions())
    if call.dry_run or options.dry_run:
        return record
    grace: float | None = options.grace_period_seconds
    if grace is None and call.params.get("gracePeriodSeconds"):
        grace = call.number("gracePeriodSeconds")
    policy = options.propagation_policy or call.params.get("propagationPolicy", "")
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


def _check_preconditions(call: Call, record: Record, wanted: Preconditions) -> None:
    meta, resource = record.obj.metadata, call.resource
    texts = (
        (wanted.uid, "UID", meta.uid),
        (wanted.resource_version, "ResourceVersion", meta.resource_version),
    )
    for given, text, value in texts:
        if given and given != value:
            why = (
                f"Precondition failed: {text} in precondition: {given}, "
                f"{text} in object meta: {value}"
            )
            raise conflict(resource.group, resource.plural, call.name, why)


def delete_all(cluster: ServedCluster, call: Call, body: Any) -> list[Record]:
    """Delete every object that a call selects; return them.

    :raises ApiError: when it is refused.
    """
    records = list_page(cluster, call).records
    for record in records:
        one = _single(call, record)
        delete(cluster, one, body)
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
