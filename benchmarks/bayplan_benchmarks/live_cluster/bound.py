"""Which pods of a run have nodes, as the API server reports them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from bayplan.api import KINDS
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import BayplanError, Gone, Transient
from bayplan_benchmarks.live_cluster.requests import collection, pages

__all__ = ["BoundPods"]

_POD = KINDS["", "Pod"]
_HAS_NODE = {"fieldSelector": "spec.nodeName!="}
_PATIENCE = 120.0
"""Seconds without a binding after which the workload is given up."""


class _Named(msgspec.Struct):
    class Metadata(msgspec.Struct):
        name: str = ""

    metadata: Metadata


class _Frame(msgspec.Struct):
    type: str
    object: _Named


_read_frame = msgspec.json.Decoder(_Frame)


class BoundPods:
    """Follows the pods of a namespace that have nodes."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._transport = transport
        self._path = collection(_POD, "v1", namespace)
        self._names: set[str] = set()
        self._changed = asyncio.Event()
        self.following = asyncio.Event()
        """Set when the first watch has begun."""

    async def run(self) -> None:
        """Follow until cancelled.

        :raises ClusterError: when the server refuses it.
        """
        while True:
            version = ""
            try:
                async for page in pages(self._transport, self._path, _HAS_NODE):
                    self._add(page.names)
                    version = page.version
                await self._watch({**_HAS_NODE, "watch": "1", "resourceVersion": version})
            except (Gone, Transient):
                await asyncio.sleep(0.5)

    async def _watch(self, query: Mapping[str, str]) -> None:
        async for line in self._transport.lines(self._path, query, self.following.set):
            frame = _read_frame.decode(line)
            if frame.type == "ERROR":
                return
            if frame.type == "ADDED":
                self._add([frame.object.metadata.name])

    def _add(self, names: list[str]) -> None:
        self._names.update(names)
        self._changed.set()

    async def all_of(self, count: int) -> None:
        """Wait until so many pods have nodes.

        :raises BayplanError: when none gets one for too long.
        """
        while len(self._names) < count:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), _PATIENCE)
            except TimeoutError:
                left = count - len(self._names)
                raise BayplanError(
                    f"{left} of {count} pods have no node, and none got one in {_PATIENCE:g} s"
                ) from None
