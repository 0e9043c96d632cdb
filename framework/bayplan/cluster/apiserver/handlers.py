"""From a call to the bytes of its answer, watches apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bayplan.cluster.apiserver import subresources, writes
from bayplan.cluster.apiserver.calls import Call
from bayplan.cluster.apiserver.history import Record
from bayplan.cluster.apiserver.reads import Page, convert_for, encode_list, find, list_page
from bayplan.cluster.apiserver.status import ApiError, method_not_allowed
from bayplan.cluster.apiserver.store import ServedCluster

__all__ = ["answer"]


def answer(
    cluster: ServedCluster, call: Call, headers: Mapping[str, str], body: Any
) -> tuple[int, bytes]:
    """Carry out a call; return the HTTP status and the answer.

    :raises ApiError: when it is refused.
    """
    if call.subresource not in ("", "status"):
        return _sub(cluster, call, body)
    if call.verb == "get":
        return 200, _encoded(call, find(cluster, call))
    if call.verb == "list":
        return 200, encode_list(call, list_page(cluster, call))
    if call.verb == "create":
        return 201, _encoded(call, writes.create(cluster, call, body))
    if call.verb == "update":
        return 200, _encoded(call, writes.update(cluster, call, body))
    if call.verb == "patch":
        kind = headers.get("Content-Type", "").partition(";")[0].strip()
        return 200, _encoded(call, writes.patch(cluster, call, kind, body))
    if call.verb == "delete":
        left = writes.delete(cluster, call, body)
        return 200, _encoded(call, left) if isinstance(left, Record) else msgspec.json.encode(left)
    if call.verb == "deletecollection":
        gone = writes.delete_all(cluster, call, body)
        return 200, encode_list(call, Page(gone, cluster.version))
    raise method_not_allowed()


def _sub(cluster: ServedCluster, call: Call, body: Any) -> tuple[int, bytes]:
    pods = (call.resource.group, call.resource.plural) == ("", "pods")
    if pods and call.subresource == "binding" and call.verb == "create":
        return 201, msgspec.json.encode(subresources.bind(cluster, call, body))
    if pods and call.subresource == "eviction" and call.verb == "create":
        return 201, msgspec.json.encode(subresources.evict(cluster, call, body))
    if pods and call.subresource in ("binding", "eviction"):
        raise method_not_allowed()
    text = f"the server could not find the requested resource ({call.target})"
    raise ApiError(404, "NotFound", text)


def _encoded(call: Call, record: Record) -> bytes:
    return record.encoded(call.api_version, convert_for(call))
