"""Finalizers of pods that controllers own: they go when the pod has ended, or is being deleted.

Kueue's on a pod of a group is left: whoever admits the group knows when it no longer counts.
"""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import Pod
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import WatchEvent, WatchType
from bayplan.dialects.kueue import POD_FINALIZER, group_of

__all__ = ["PodFinalizers"]

_TRACKING = "batch.kubernetes.io/job-tracking"
"""With it the Job controller keeps pods until they are counted."""


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
        if pod is None:
            return
        meta = pod.metadata
        if meta.deletion_timestamp is None and pod.status.phase not in ("Succeeded", "Failed"):
            return
        owned = (_TRACKING,) if group_of(meta) else (_TRACKING, POD_FINALIZER)
        left = tuple(one for one in meta.finalizers if one not in owned)
        if left == meta.finalizers:
            return
        self._cluster.update(replace(pod, metadata=replace(meta, finalizers=left)))
