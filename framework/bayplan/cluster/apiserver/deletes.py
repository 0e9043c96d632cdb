"""delete and deletecollection, with grace periods, preconditions and propagation."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from bayplan.api import Namespace
from bayplan.cluster.apiserver.api_errors import conflict, forbidden, success
from bayplan.cluster.apiserver.garbage_collector import FOREGROUND
from bayplan.cluster.apiserver.reads import find, list_page
from bayplan.cluster.apiserver.request_info import RequestInfo
from bayplan.cluster.apiserver.request_kinds import DeleteOptions, Preconditions, read_body
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.watch_cache import StoredObject

__all__ = ["delete", "delete_all"]

Content = dict[str, Any]

_KEPT_NAMESPACES = ("default", "kube-public", "kube-system")


def delete(cluster: ServedCluster, info: RequestInfo, body: Any) -> Content | StoredObject:
    """Delete an object; return it while it still exists, else a Status.

    :raises ApiError: when it is refused.
    """
    resource, record = info.resource, find(cluster, info)
    options = read_body(DeleteOptions, body)
    if resource.type is Namespace and info.name in _KEPT_NAMESPACES:
        text = f'namespaces "{info.name}" is forbidden: this namespace may not be deleted'
        raise forbidden(text, "", "namespaces", info.name)
    _check_preconditions(info, record, options.preconditions or Preconditions())
    if info.dry_run or options.dry_run:
        return record
    grace: float | None = options.grace_period_seconds
    if grace is None and info.params.get("gracePeriodSeconds"):
        grace = info.number("gracePeriodSeconds")
    policy = options.propagation_policy or info.params.get("propagationPolicy", "")
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
        "name": info.name,
        "group": resource.group,
        "kind": resource.plural,
        "uid": record.obj.metadata.uid,
    }
    return success({key: value for key, value in details.items() if value})


def _orphan(cluster: ServedCluster, owner: StoredObject) -> None:
    """Orphan the objects that an object owns."""
    uid = owner.obj.metadata.uid
    for resource in cluster.resources.all():
        for record in list(cluster.records(resource).values()):
            meta = record.obj.metadata
            left = tuple(r for r in meta.owner_references if r.uid != uid)
            if left != meta.owner_references:
                cluster.update(replace(record.obj, metadata=replace(meta, owner_references=left)))


def _check_preconditions(info: RequestInfo, record: StoredObject, wanted: Preconditions) -> None:
    meta, resource = record.obj.metadata, info.resource
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
            raise conflict(resource.group, resource.plural, info.name, why)


def delete_all(cluster: ServedCluster, info: RequestInfo, body: Any) -> list[StoredObject]:
    """Delete all objects that a request selects; return them as a list.

    :raises ApiError: when it is refused.
    """
    records = list_page(cluster, info).records
    for record in records:
        one = _single(info, record)
        delete(cluster, one, body)
    return records


def _single(info: RequestInfo, record: StoredObject) -> RequestInfo:
    meta = record.obj.metadata
    return RequestInfo(
        "delete",
        info.resource,
        info.group,
        info.version,
        {k: v for k, v in info.params.items() if k in ("gracePeriodSeconds", "dryRun")},
        meta.namespace,
        meta.name,
    )
