"""Creates the pods of a workload and waits until all have nodes, in a process of its own.

So that the scheduler's process spends its CPU time on scheduling only. It is called with a
kubeconfig and a workload as JSON, and answers with ``Times`` as JSON on standard output. Errors are
one line on standard error, with exit status 1.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bayplan.api import KINDS
from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import BayplanError, Gone, Transient
from bayplan_benchmarks.live_cluster.objects import Workload, pods
from bayplan_benchmarks.live_cluster.requests import at_once, collection, create, pages

__all__ = ["Times", "main"]

_POD = KINDS["", "Pod"]
_HAS_NODE = {"fieldSelector": "spec.nodeName!="}
_PATIENCE = 120.0
"""Seconds without a binding after which the workload is given up."""


class Times(msgspec.Struct, frozen=True, rename="camel"):
    """Seconds until all pods were created, and until all had nodes."""

    created: float
    bound: float


class _Named(msgspec.Struct):
    class Metadata(msgspec.Struct):
        name: str = ""

    metadata: Metadata


class _Frame(msgspec.Struct):
    type: str
    object: _Named


_read_frame = msgspec.json.Decoder(_Frame)


class _BoundPods:
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


async def _create(transport: Transport, workload: Workload) -> Times:
    bound = _BoundPods(transport, workload.namespace)
    tasks = [asyncio.create_task(bound.run()), asyncio.create_task(bound.following.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    started = time.perf_counter()
    await at_once(lambda pod: create(transport, pod, "v1"), pods(workload))
    created = time.perf_counter() - started
    waiting = asyncio.create_task(bound.all_of(workload.pods))
    await asyncio.wait((tasks[0], waiting), return_when=asyncio.FIRST_COMPLETED)
    for task in (tasks[0], waiting):
        if task.done():
            task.result()
    return Times(created, time.perf_counter() - started)


async def _run(kubeconfig: Path, workload: Workload) -> Times:
    transport = Transport(Credentials(kubeconfig))
    try:
        return await _create(transport, workload)
    finally:
        await transport.close()


def main() -> None:
    """Create the pods of a workload: KUBECONFIG WORKLOAD."""
    kubeconfig, workload = sys.argv[1:]
    try:
        times = asyncio.run(_run(Path(kubeconfig), msgspec.json.decode(workload, type=Workload)))
    except BayplanError as exc:
        sys.exit(str(exc))
    print(msgspec.json.encode(times).decode())


if __name__ == "__main__":
    main()
