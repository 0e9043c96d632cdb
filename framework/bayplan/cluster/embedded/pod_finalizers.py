"""Finalizers of pods that controllers own: they go when the pod has ended, or is being deleted."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import Pod
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import WatchEvent, WatchType

__all__ = ["PodFinalizers"]

_OWNED = frozenset({"batch.kubernetes.io/job-tracking", "kueue.x-k8s.io/managed"})
"""Those with which the Job controller and Kueue keep pods until they are counted."""


class PodFinalizers:
    """Lets pods go that other clusters' controllers keep; finalizers of anybody else stay."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Remove the finalizers of a pod that was counted."""
        if event.type is WatchType.RESYNC:
            for pod in self._cluster.list(Pod):
                self._release(pod.key)
        elif isinstance(event.obj, Pod) and event.obj.metadata.finalizers:
            self._release(event.obj.key)

    def _release(self, key: str) -> None:
        pod = self._cluster.get(Pod, key)
        if pod is None or not _OWNED.intersection(pod.metadata.finalizers):
            return
        meta = pod.metadata
        if meta.deletion_timestamp is None and pod.status.phase not in ("Succeeded", "Failed"):
            return
        left = tuple(one for one in meta.finalizers if one not in _OWNED)
        self._cluster.update(replace(pod, metadata=replace(meta, finalizers=left)))
