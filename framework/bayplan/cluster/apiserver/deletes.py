"""delete and deletecollection, with grace periods, preconditions and propagation."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from bayplan.api import Namespace
from bayplan.cluster.api_errors import bad_request, conflict, forbidden, success
from bayplan.cluster.apiserver.garbage_collector import FOREGROUND
from bayplan.cluster.apiserver.reads import find, list_page
from bayplan.cluster.apiserver.request_info import RequestInfo
from bayplan.cluster.apiserver.request_kinds import DeleteOptions, Preconditions, read_body
from bayplan.cluster.apiserver.request_options import check_deletion, check_options
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.watch_cache import StoredObject
from bayplan.cluster.patches import not_a

__all__ = ["check_preconditions", "delete", "delete_all"]

Content = dict[str, Any]

_KEPT_NAMESPACES = ("default", "kube-public", "kube-system")


def delete(cluster: ServedCluster, info: RequestInfo, body: Any) -> Content | StoredObject:
    """Delete an object; return it while it still exists, else a Status.

    :raises ApiError: when it is refused.
    """
    resource, record = info.resource, find(cluster, info)
    options = _options(info, body)
    if resource.type is Namespace and info.name in _KEPT_NAMESPACES:
        text = f'namespaces "{info.name}" is forbidden: this namespace may not be deleted'
        raise forbidden(text, "", "namespaces", info.name)
    check_preconditions(info, record, options.preconditions or Preconditions())
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


def _options(info: RequestInfo, body: Any) -> DeleteOptions:
    """Return the options of a deletion.

    :raises ApiError: 400 or 422, when they are invalid.
    """
    if body is not None and not isinstance(body, dict):
        raise bad_request(f"couldn't get version/kind; json parse error: {not_a('struct', body)}")
    body = body or {}
    kind = body.get("kind")
    if kind not in (None, "", "DeleteOptions"):
        raise bad_request(f'no kind "{kind}" is registered for version "{body.get("apiVersion")}"')
    options = read_body(DeleteOptions, body)
    for value in options.dry_run or ():
        check_options("delete", {"dryRun": value})
    policy = options.propagation_policy or info.params.get("propagationPolicy", "")
    check_deletion(policy, options.orphan_dependents)
    return options


def _orphan(cluster: ServedCluster, owner: StoredObject) -> None:
    """Orphan the objects that an object owns."""
    uid = owner.obj.metadata.uid
    for resource in cluster.resources.all():
        for record in list(cluster.records(resource).values()):
            meta = record.obj.metadata
            left = tuple(r for r in meta.owner_references if r.uid != uid)
            if left != meta.owner_references:
                cluster.update(replace(record.obj, metadata=replace(meta, owner_references=left)))


def check_preconditions(info: RequestInfo, record: StoredObject, wanted: Preconditions) -> None:
    """Refuse to delete another object than the client knows.

    :raises ApiError: 409.
    """
    meta, resource = record.obj.metadata, info.resource
    why = ""
    if wanted.uid and wanted.uid != meta.uid:
        why = (
            f"the UID in the precondition ({wanted.uid}) does not match the UID in record "
            f"({meta.uid}). The object might have been deleted and then recreated"
        )
    elif wanted.resource_version and wanted.resource_version != meta.resource_version:
        why = (
            f"the ResourceVersion in the precondition ({wanted.resource_version}) does not match "
            f"the ResourceVersion in record ({meta.resource_version}). The object might have been "
            "modified"
        )
    if why:
        raise conflict(resource.group, resource.kind, info.name, why)


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
