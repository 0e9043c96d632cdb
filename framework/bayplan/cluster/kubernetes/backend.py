"""The cluster behind a Kubernetes API server, as a scheduler's backend."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bayplan.cluster.kubernetes.object_cache import ObjectCache
from bayplan.cluster.kubernetes.writer import Writer
from bayplan.cluster.protocol import Done, WatchHandler, Write

__all__ = ["KubernetesCluster"]


class KubernetesCluster:
    """A backend, as ``protocol.Cluster`` asks for it, in one asyncio loop.

    :param writer: carries out writes; None for a dry run, in which every write succeeds.
    :param clock: returns the seconds of a monotonic clock; None for the loop's, from 0.
    """

    def __init__(
        self,
        cache: ObjectCache,
        writer: Writer | None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.cache = cache
        self._writer = writer
        self._clock = clock or _since_now()

    @property
    def now(self) -> float:
        """Seconds of a monotonic clock."""
        return self._clock()

    @property
    def unix_time(self) -> float:
        """Seconds since 1970 by this machine's clock."""
        return time.time()

    @property
    def in_order(self) -> bool:
        """Whether an object is always delivered before what it owns."""
        return False

    def watch(self, handler: WatchHandler) -> None:
        """Deliver all objects as ADDED at the next ``cache.deliver``, then every change."""
        self.cache.watch(handler)

    @property
    def writes(self) -> bool:
        """Whether writes are carried out; a dry run carries out none."""
        return self._writer is not None

    @property
    def writing(self) -> int:
        """The number of writes that the API server has not answered, without events."""
        return self._writer.waiting if self._writer is not None else 0

    def submit(self, write: Write, done: Done | None = None) -> None:
        """Carry out a write in the background, and call ``done`` from the loop."""
        if self._writer is not None:
            self._writer.submit(write, done)
        elif done is not None:
            asyncio.get_running_loop().call_soon(done, None)


def _since_now() -> Callable[[], float]:
    clock = asyncio.get_running_loop().time
    start = clock()
    return lambda: clock() - start
