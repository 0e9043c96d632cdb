"""A cluster for a scheduler that only looks on, for the page."""

from __future__ import annotations

import logging

from bayplan.cluster.protocol import Done, WatchEvent, WatchHandler, Write
from bayplan.cluster.wrapped import WrappedCluster
from bayplan.errors import ClusterError

__all__ = ["ShadowCluster"]

_log = logging.getLogger("bayplan.page")


class ShadowCluster(WrappedCluster):
    """Shows a cluster, and keeps from it what goes wrong: it takes no writes, and no exceptions."""

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
