"""The garbage collector of the embedded cluster, for Kueue's Workloads: they end with their job."""

from __future__ import annotations

from bayplan.api import KueueWorkload
from bayplan.api.object_key import object_key
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import WatchEvent, WatchType

__all__ = ["WorkloadGarbage"]


class WorkloadGarbage:
    """Deletes the Workloads of a job that is gone, or of a group whose last pod is."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._of_owner: dict[str, dict[str, None]] = {}
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Note a Workload, or delete that of an object that was deleted."""
        obj = event.obj
        gone = event.type is WatchType.DELETED
        if isinstance(obj, KueueWorkload):
            for owner in obj.metadata.owner_references:
                if gone:
                    self._of_owner.get(owner.uid, {}).pop(object_key(obj), None)
                else:
                    self._of_owner.setdefault(owner.uid, {})[object_key(obj)] = None
        elif obj is not None and gone:
            for key in self._of_owner.pop(obj.metadata.uid, ()):
                self._lost(key)

    def _lost(self, key: str) -> None:
        """Delete a Workload, an owner of which is gone, if it was the last one."""
        found = self._cluster.get(KueueWorkload, key)
        if found is None:
            return
        owners = found.metadata.owner_references
        if not any(key in self._of_owner.get(one.uid, ()) for one in owners):
            self._cluster.delete(KueueWorkload, key)
