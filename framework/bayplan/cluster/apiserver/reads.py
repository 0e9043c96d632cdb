"""get and list, with selectors and pages."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from bayplan.cluster.api_errors import (
    ApiError,
    bad_request,
    expired,
    not_found,
    too_large_version,
)
from bayplan.cluster.apiserver.conversion import new_event
from bayplan.cluster.apiserver.request_info import RequestInfo
from bayplan.cluster.apiserver.selectors import Predicate, field_predicate, label_predicate
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.watch_cache import Convert, StoredObject

__all__ = [
    "Page",
    "convert_for",
    "encode_list",
    "find",
    "list_meta",
    "list_page",
    "selection",
    "with_items",
]

_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can "
    "start a new list without the continue parameter."
)


class _Token(msgspec.Struct):
    """The content of a continue token: the listed version and the last key sent."""

    version: int
    after: str


class Page(msgspec.Struct, frozen=True):
    """A page of a list, at a resource version."""

    records: list[StoredObject]
    version: int
    token: str = ""
    remaining: int | None = None


def convert_for(info: RequestInfo) -> Convert | None:
    """Return the conversion of stored objects to a request's version, None when none is needed."""
    if info.group == "events.k8s.io":
        return new_event
    return info.resource.outgoing(info.version)


def find(cluster: ServedCluster, info: RequestInfo) -> StoredObject:
    """Return the object that a request names.

    :raises ApiError: 404, when there is none.
    """
    resource = info.resource
    record = cluster.records(resource).get(resource.key(info.namespace, info.name))
    if record is None:
        raise not_found(resource.group, resource.plural, info.name)
    return record


def selection(info: RequestInfo) -> Predicate | None:
    """Return a predicate for the objects that a request selects, None for all.

    :raises ApiError: 400, for an invalid selector.
    """
    labels = label_predicate(info.params.get("labelSelector", ""))
    fields = field_predicate(info.params.get("fieldSelector", ""), info.resource)
    name, namespace = info.name, info.namespace

    def matches(content: Any) -> bool:
        meta = content["metadata"]
        return (
            (not namespace or meta["namespace"] == namespace)
            and (not name or meta["name"] == name)
            and (labels is None or labels(content))
            and (fields is None or fields(content))
        )

    return matches if labels or fields or name or namespace else None


def list_page(cluster: ServedCluster, info: RequestInfo) -> Page:
    """Return the page that a list request asks for.

    :raises ApiError: 400 for invalid parameters, 410 or 504 for an unavailable version.
    """
    matches = selection(info)
    limit = info.number("limit")
    after = ""
    if info.params.get("continue"):
        token = _read_token(info.params["continue"])
        after, version = token.after, token.version
        try:
            state = cluster.state_at(info.resource, version)
        except ApiError:
            raise expired(_TOO_OLD) from None
    else:
        version = _wanted_version(cluster, info, limit)
        state = cluster.state_at(info.resource, version)
    keys = sorted(state)
    records = [state[key] for key in keys if key > after]
    if matches is not None:
        records = [record for record in records if matches(record.content)]
    if not limit or len(records) <= limit:
        return Page(records, version)
    last = records[limit - 1].key
    selective = info.params.get("labelSelector") or info.params.get("fieldSelector")
    left = None if selective else len(records) - limit
    return Page(records[:limit], version, _write_token(_Token(version, last)), left)


def _wanted_version(cluster: ServedCluster, info: RequestInfo, limit: int) -> int:
    """Return the version to list: the current one, unless the request asks for an exact one."""
    text, match = (
        info.params.get("resourceVersion", ""),
        info.params.get("resourceVersionMatch", ""),
    )
    if not text or text == "0":
        return cluster.version
    if not text.isdecimal():
        raise bad_request(f'invalid resource version "{text}"')
    wanted = int(text)
    if wanted > cluster.version:
        raise too_large_version(wanted, cluster.version)
    exact = match == "Exact" or (not match and limit > 0)
    return wanted if exact else cluster.version


def _write_token(token: _Token) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode()


def _read_token(text: str) -> _Token:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=_Token)
    except (msgspec.DecodeError, binascii.Error, ValueError):
        raise bad_request("continue key is not valid") from None


def list_meta(page: Page) -> dict[str, Any]:
    """Return the metadata of a list."""
    meta: dict[str, Any] = {"resourceVersion": str(page.version)}
    if page.token:
        meta["continue"] = page.token
        if page.remaining is not None:
            meta["remainingItemCount"] = page.remaining
    return meta


def encode_list(info: RequestInfo, page: Page) -> Iterator[bytes]:
    """Yield the JSON of a list, a part for each object."""
    meta = list_meta(page)
    head = {"kind": f"{info.resource.kind}List", "apiVersion": info.api_version, "metadata": meta}
    convert = convert_for(info)
    items = (record.encoded(info.api_version, convert) for record in page.records)
    return with_items(head, "items", items)


def with_items(head: dict[str, Any], field: str, items: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the JSON of an object with a field that holds a list of encoded items."""
    yield b'%s,"%s":[' % (msgspec.json.encode(head)[:-1], field.encode())
    for number, item in enumerate(items):
        if number:
            yield b","
        yield item
    yield b"]}"
