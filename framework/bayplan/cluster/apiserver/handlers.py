"""From a call to the bytes of its answer, watches apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bayplan.cluster.apiserver import subresources, writes
from bayplan.cluster.apiserver.calls import Call
from bayplan.cluster.apiserver.deletes import delete, delete_all
from bayplan.cluster.apiserver.fieldvalidation import subresource_kind
from bayplan.cluster.apiserver.history import Record
from bayplan.cluster.apiserver.reads import (
    Page,
    convert_for,
    encode_list,
    find,
    list_meta,
    list_page,
)
from bayplan.cluster.apiserver.resources import SCALED
from bayplan.cluster.apiserver.scale import scale
from bayplan.cluster.apiserver.status import ApiError, method_not_allowed
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.tables import table
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
    """Return whether a client wants a table.

    :raises ApiError: 406, where it takes nothing that is served.
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


def table_of(cluster: ServedCluster, call: Call) -> Callable[[Record], bytes]:
    """Return what makes a table of one object."""

    def encode(record: Record) -> bytes:
        meta = {"resourceVersion": str(record.version)}
        return _table(cluster, call, [record], meta)

    return encode


def _table(
    cluster: ServedCluster, call: Call, records: list[Record], meta: Mapping[str, Any]
) -> bytes:
    include = call.params.get("includeObject", "")
    return msgspec.json.encode(table(call.resource, records, meta, cluster.wall_time(), include))


def answer(
    cluster: ServedCluster, call: Call, headers: Mapping[str, str], body: Any
) -> tuple[int, bytes]:
    """Carry out a call; return the HTTP status and the answer.

    :raises ApiError: when it is refused.
    """
    content_type = headers.get("Content-Type", "").partition(";")[0].strip()
    as_table = wants_table(headers.get("Accept", ""))
    if call.subresource and not (call.subresource == "status" and call.resource.status):
        return _sub(cluster, call, content_type, body)
    if call.verb == "list":
        page = list_page(cluster, call)
        if as_table:
            return 200, _table(cluster, call, page.records, list_meta(page))
        return 200, encode_list(call, page)
    if call.verb == "deletecollection":
        gone = delete_all(cluster, call, body)
        return 200, encode_list(call, Page(gone, cluster.version))
    code, found = _single(cluster, call, content_type, body)
    if not isinstance(found, Record):
        return code, msgspec.json.encode(found)
    if as_table:
        return code, table_of(cluster, call)(found)
    return code, found.encoded(call.api_version, convert_for(call))


def _single(
    cluster: ServedCluster, call: Call, content_type: str, body: Any
) -> tuple[int, Record | dict[str, Any]]:
    if call.verb == "get":
        return 200, find(cluster, call)
    if call.verb == "create" and not call.subresource:
        return 201, writes.create(cluster, call, body)
    if call.verb == "update":
        return 200, writes.update(cluster, call, body)
    if call.verb == "patch":
        record, made = writes.patch(cluster, call, content_type, body)
        return 201 if made else 200, record
    if call.verb == "delete" and not call.subresource:
        return 200, delete(cluster, call, body)
    raise method_not_allowed()


def _sub(cluster: ServedCluster, call: Call, content_type: str, body: Any) -> tuple[int, bytes]:
    resource, sub = call.resource, call.subresource
    kind = subresource_kind(sub)
    if kind is not None and call.verb in ("create", "update"):
        body = call.fields.decoded(*kind, record_of(*kind), body)
    if (resource.group, resource.plural) == ("", "pods"):
        if sub in ("binding", "eviction") and call.verb != "create":
            raise method_not_allowed()
        if sub == "binding":
            return 201, msgspec.json.encode(subresources.bind(cluster, call, body))
        if sub == "eviction":
            return 201, msgspec.json.encode(subresources.evict(cluster, call, body))
        if sub in _NO_CONTAINERS:
            text = f"this cluster runs no containers, therefore {_NO_CONTAINERS[sub]}"
            raise ApiError(405, "MethodNotAllowed", text, {"name": call.name, "kind": "pods"})
    if (resource.group, resource.plural, sub) == ("", "serviceaccounts", "token"):
        text = "this cluster issues no tokens: its kubeconfig holds the only one"
        raise ApiError(405, "MethodNotAllowed", text, {"name": call.name, "kind": resource.plural})
    if resource.group == "apps" and resource.plural in SCALED and sub == "scale":
        return 200, msgspec.json.encode(scale(cluster, call, content_type, body))
    text = f"the server could not find the requested resource ({call.target})"
    details = {"group": resource.group, "kind": resource.plural}
    raise ApiError(404, "NotFound", text, details)
