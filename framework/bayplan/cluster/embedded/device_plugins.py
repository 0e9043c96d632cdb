"""The virtual device plugins of shared GPUs: they give bound pods their devices at once."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import Node, Pod
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import WatchEvent, WatchType
from bayplan.dialects.hami.node_lock import read_lock
from bayplan.dialects.hami.systems import HAMI, VOLCANO
from bayplan.dialects.koordinator.allocations import ALLOCATED, VENDOR_LOCKS

__all__ = ["VirtualDevicePlugins"]

_ALLOCATING = "allocating"
_SUCCESS = "success"


class VirtualDevicePlugins:
    """What device plugins of shared GPUs tell the API server, on all nodes of a cluster."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Give a pod its devices that has just been bound, then release its node's lock."""
        pod = event.obj
        if not isinstance(pod, Pod) or not pod.spec.node_name or event.type is WatchType.DELETED:
            return
        for names in (HAMI.annotations, VOLCANO.annotations):
            if pod.metadata.annotations.get(names.phase) == _ALLOCATING:
                self._allocate(pod.key, names.phase)
                if names.lock:
                    self._release(pod, names.lock)
        if ALLOCATED in pod.metadata.annotations:
            for lock in VENDOR_LOCKS.values():
                self._release(pod, lock)

    def _allocate(self, key: str, phase: str) -> None:
        pod = self._cluster.get(Pod, key)
        if pod is not None and pod.metadata.annotations.get(phase) == _ALLOCATING:
            annotations = {**pod.metadata.annotations, phase: _SUCCESS}
            meta = replace(pod.metadata, annotations=annotations)
            self._cluster.update(replace(pod, metadata=meta))

    def _release(self, pod: Pod, lock: str) -> None:
        node = self._cluster.get(Node, pod.spec.node_name)
        text = node.metadata.annotations.get(lock) if node is not None else None
        if node is not None and text is not None and read_lock(text).pod == pod.key:
            others = {k: v for k, v in node.metadata.annotations.items() if k != lock}
            self._cluster.update(replace(node, metadata=replace(node.metadata, annotations=others)))
