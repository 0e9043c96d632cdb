"""Request handlers: from a request to its answer, except for watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from bayplan.cluster.api_errors import ApiError, method_not_allowed
from bayplan.cluster.apiserver import subresources, writes
from bayplan.cluster.apiserver.deletes import delete, delete_all
from bayplan.cluster.apiserver.field_validation import subresource_kind
from bayplan.cluster.apiserver.reads import (
    Page,
    convert_for,
    encode_list,
    find,
    list_meta,
    list_page,
    with_items,
)
from bayplan.cluster.apiserver.request_info import RequestInfo
from bayplan.cluster.apiserver.resources import SCALED
from bayplan.cluster.apiserver.scale import scale
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.tables import rows, table
from bayplan.cluster.apiserver.watch_cache import StoredObject
from bayplan.schemas import record_of

__all__ = ["answer", "table_of", "wants_table"]

_NO_CONTAINERS = {
    "attach": "nobody can attach to a pod",
    "ephemeralcontainers": "pods take no ephemeral containers",
    "exec": "pods have no exec",
    "log": "pods have no log",
    "portforward": "pods have no portforward",
    "proxy": "pods have no proxy",
}


def wants_table(accept: str) -> bool:
    """Return whether a client accepts a Table.

    :raises ApiError: 406, when it accepts no format that is served.
    """
    kinds = [part.strip() for part in accept.split(",")] if accept else ["*/*"]
    for kind in kinds:
        media, *parameters = [piece.strip() for piece in kind.split(";")]
        if media not in ("application/json", "application/*", "*/*"):
            continue
        form = next((p.removeprefix("as=") for p in parameters if p.startswith("as=")), "")
        if form in ("", "Table"):
            return form == "Table"
    text = "only the following media types are accepted: application/json"
    raise ApiError(406, "NotAcceptable", text)


def table_of(cluster: ServedCluster, info: RequestInfo) -> Callable[[StoredObject], bytes]:
    """Return a function that renders one object as a Table."""

    def encode(record: StoredObject) -> bytes:
        meta = {"resourceVersion": str(record.version)}
        return b"".join(_table(cluster, info, [record], meta))

    return encode


def _table(
    cluster: ServedCluster, info: RequestInfo, records: list[StoredObject], meta: Mapping[str, Any]
) -> Iterator[bytes]:
    include = info.params.get("includeObject", "")
    made = rows(info.resource, records, cluster.wall_time(), include)
    return with_items(table(info.resource, meta), "rows", map(msgspec.json.encode, made))


def answer(
    cluster: ServedCluster, info: RequestInfo, headers: Mapping[str, str], body: Any
) -> tuple[int, bytes | Iterator[bytes]]:
    """Carry out a request; return the HTTP status and the body of its answer, or its parts.

    :raises ApiError: when it is refused.
    """
    content_type = headers.get("Content-Type", "").partition(";")[0].strip()
    as_table = wants_table(headers.get("Accept", ""))
    if info.verb in ("create", "update", "patch"):
        cluster.check_space()
    if info.subresource and not (info.subresource == "status" and info.resource.status):
        return _sub(cluster, info, content_type, body)
    if info.verb == "list":
        page = list_page(cluster, info)
        if as_table:
            return 200, _table(cluster, info, page.records, list_meta(page))
        return 200, encode_list(info, page)
    if info.verb == "deletecollection":
        gone = delete_all(cluster, info, body)
        return 200, encode_list(info, Page(gone, cluster.version))
    code, found = _single(cluster, info, content_type, body)
    if not isinstance(found, StoredObject):
        return code, msgspec.json.encode(found)
    if as_table:
        return code, table_of(cluster, info)(found)
    return code, found.encoded(info.api_version, convert_for(info))


def _single(
    cluster: ServedCluster, info: RequestInfo, content_type: str, body: Any
) -> tuple[int, StoredObject | dict[str, Any]]:
    if info.verb == "get":
        return 200, find(cluster, info)
    if info.verb == "create" and not info.subresource:
        return 201, writes.create(cluster, info, body)
    if info.verb == "update":
        record, made = writes.update(cluster, info, body)
        return 201 if made else 200, record
    if info.verb == "patch":
        record, made = writes.patch(cluster, info, content_type, body)
        return 201 if made else 200, record
    if info.verb == "delete" and not info.subresource:
        return 200, delete(cluster, info, body)
    raise method_not_allowed()


def _sub(
    cluster: ServedCluster, info: RequestInfo, content_type: str, body: Any
) -> tuple[int, bytes]:
    resource, sub = info.resource, info.subresource
    kind = subresource_kind(sub)
    if kind is not None and info.verb in ("create", "update"):
        body = info.fields.decoded(*kind, record_of(*kind), body)
    if (resource.group, resource.plural) == ("", "pods"):
        if sub in ("binding", "eviction") and info.verb != "create":
            raise method_not_allowed()
        if sub == "binding":
            return 201, msgspec.json.encode(subresources.bind(cluster, info, body))
        if sub == "eviction":
            return 201, msgspec.json.encode(subresources.evict(cluster, info, body))
        if sub in _NO_CONTAINERS:
            text = f"this cluster runs no containers, therefore {_NO_CONTAINERS[sub]}"
            raise ApiError(405, "MethodNotAllowed", text, {"name": info.name, "kind": "pods"})
    if (resource.group, resource.plural, sub) == ("", "serviceaccounts", "token"):
        text = "this cluster issues no tokens: its kubeconfig holds the only one"
        raise ApiError(405, "MethodNotAllowed", text, {"name": info.name, "kind": resource.plural})
    if resource.group == "apps" and resource.plural in SCALED and sub == "scale":
        return 200, msgspec.json.encode(scale(cluster, info, content_type, body))
    text = f"the server could not find the requested resource ({info.target})"
    details = {"group": resource.group, "kind": resource.plural}
    raise ApiError(404, "NotFound", text, details)
