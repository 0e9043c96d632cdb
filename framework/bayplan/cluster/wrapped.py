"""A cluster on top of another one: what it does not change is the other's."""

from __future__ import annotations

from bayplan.cluster.protocol import Cluster, Done, WatchHandler, Write

__all__ = ["WrappedCluster"]


class WrappedCluster:
    """Passes everything on to a cluster; subclasses change what is delivered, or written."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def now(self) -> float:
        """The cluster's time in seconds."""
        return self._cluster.now

    @property
    def unix_time(self) -> float:
        """The time in seconds since 1970."""
        return self._cluster.unix_time

    @property
    def in_order(self) -> bool:
        """Whether an object is always delivered before what it owns."""
        return self._cluster.in_order

    @property
    def writes(self) -> bool:
        """Whether writes are carried out."""
        return self._cluster.writes

    def watch(self, handler: WatchHandler) -> None:
        """Deliver all objects as ADDED, then every change."""
        self._cluster.watch(handler)

    def submit(self, write: Write, done: Done | None = None) -> None:
        """Carry out a write."""
        self._cluster.submit(write, done)
