"""Backends: where objects live and writes go, behind one protocol."""

from bayplan.cluster.clock import VirtualClock
from bayplan.cluster.memory import MemoryCluster
from bayplan.cluster.protocol import (
    Bind,
    Cluster,
    Event,
    Evict,
    PatchPodStatus,
    WatchEvent,
    WatchType,
    Write,
)

__all__ = [
    "Bind",
    "Cluster",
    "Event",
    "Evict",
    "MemoryCluster",
    "PatchPodStatus",
    "VirtualClock",
    "WatchEvent",
    "WatchType",
    "Write",
]
