"""Requests to the API server that a run sends beside the scheduler: many of a kind at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import TypeVar

import msgspec

from bayplan.api import ApiObject, Kind, kind_of
from bayplan.cluster.kubernetes.resources import WatchedResource
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import AlreadyExists, ClusterError, NotFound, Transient

__all__ = ["Page", "at_once", "collection", "create", "delete", "pages", "served_version"]

T = TypeVar("T")

_AT_ONCE = 32
_ATTEMPTS = 8
_LONGEST_WAIT = 5.0
_PAGE = 500


class _Name(msgspec.Struct):
    name: str


class _Item(msgspec.Struct):
    metadata: _Name


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[_Item] | None = None


class Page(msgspec.Struct):
    """The names in a part of a list, and the version of the list."""

    names: list[str]
    version: str


async def served_version(transport: Transport, kind: Kind) -> str:
    """Return the newest version of a kind that the server serves and bayplan knows, "" for none.

    :raises ClusterError: when the server cannot be asked.
    """
    for version in kind.versions:
        resource = WatchedResource(kind, version)
        with suppress(NotFound):
            await transport.request("GET", resource.collection, query={"limit": "1"})
            return version
    return ""


def collection(kind: Kind, version: str, namespace: str = "") -> str:
    """Return the path of the objects of a kind, in a namespace or in the cluster."""
    resource = WatchedResource(kind, version)
    if not namespace:
        return resource.collection
    return f"{resource.root}/namespaces/{namespace}/{kind.plural}"


async def create(transport: Transport, obj: ApiObject, version: str) -> None:
    """Create an object.

    :raises ClusterError: when the server refuses it, or does not answer again and again.
    """
    kind = kind_of(obj)
    content = msgspec.to_builtins(obj, enc_hook=lambda quantity: quantity.text)
    content["apiVersion"] = f"{kind.group}/{version}" if kind.group else version
    content["kind"] = kind.name
    path = collection(kind, version, obj.metadata.namespace)
    # An attempt without an answer may have created it.
    with suppress(AlreadyExists):
        await _patiently(transport, "POST", path, msgspec.json.encode(content))


async def delete(transport: Transport, path: str) -> None:
    """Delete an object without a grace period; one that is gone is deleted.

    :raises ClusterError: when the server refuses it, or does not answer again and again.
    """
    with suppress(NotFound):
        await _patiently(transport, "DELETE", path, None, {"gracePeriodSeconds": "0"})


async def _patiently(
    transport: Transport,
    method: str,
    path: str,
    body: bytes | None,
    query: Mapping[str, str] | None = None,
) -> None:
    """Send a request again while it may work later."""
    for attempt in range(_ATTEMPTS):
        try:
            await transport.request(method, path, body, query=query)
            return
        except Transient as exc:
            if attempt == _ATTEMPTS - 1:
                raise
            wait = exc.retry_after or 0.1 * 2**attempt
            await asyncio.sleep(min(wait, _LONGEST_WAIT))


async def pages(transport: Transport, path: str, query: Mapping[str, str]) -> AsyncIterator[Page]:
    """Yield the names in a collection.

    :raises ClusterError: when the server refuses it.
    """
    wanted = {"limit": str(_PAGE), **query}
    while True:
        content = await transport.request("GET", path, query=wanted)
        try:
            found = msgspec.json.decode(content, type=_List)
        except msgspec.DecodeError as exc:
            raise ClusterError(f"GET {path}: the answer is no list: {exc}") from None
        names = [item.metadata.name for item in found.items or ()]
        yield Page(names, found.metadata.resource_version)
        if not found.metadata.continue_:
            return
        wanted["continue"] = found.metadata.continue_


async def at_once(action: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """Do something with every item, with many at a time; the first error ends it.

    :raises Exception: what the action raises first.
    """
    left = iter(items)

    async def work() -> None:
        for item in left:
            await action(item)

    workers = [asyncio.create_task(work()) for _ in range(_AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
