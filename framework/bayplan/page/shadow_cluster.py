"""A cluster for a scheduler that only looks on, for the page."""

from __future__ import annotations

import logging

from bayplan.cluster.protocol import Cluster, Done, WatchEvent, WatchHandler, Write
from bayplan.errors import ClusterError

__all__ = ["ShadowCluster"]

_log = logging.getLogger("bayplan.page")


class ShadowCluster:
    """Shows a cluster, and keeps from it what goes wrong: it takes no writes, and no exceptions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def now(self) -> float:
        """The cluster's time in seconds."""
        return self._cluster.now

    @property
    def unix_time(self) -> float:
        """The cluster's time in seconds since 1970."""
        return self._cluster.unix_time

    @property
    def in_order(self) -> bool:
        """Whether an object is always delivered before what it owns."""
        return self._cluster.in_order

    def watch(self, handler: WatchHandler) -> None:
        """Deliver all events; one that the handler cannot take is logged."""

        def guarded(event: WatchEvent) -> None:
            try:
                handler(event)
            except Exception:
                _log.exception("the page is not up to date")

        self._cluster.watch(guarded)

    def submit(self, write: Write, done: Done | None = None) -> None:
        """Refuse a write."""
        if done is not None:
            done(ClusterError("this scheduler only looks on"))
