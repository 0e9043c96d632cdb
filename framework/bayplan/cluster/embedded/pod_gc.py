"""The pod garbage collector, as k8s.io/kubernetes pkg/controller/podgc."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import Node, Pod, PodCondition
from bayplan.cluster.embedded.admission import with_condition
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import WatchEvent, WatchType

__all__ = ["PodGarbageCollector"]

_QUARANTINE = 40.0
"""Seconds from the deletion of a node to that of its pods."""


class PodGarbageCollector:
    """Deletes the pods of deleted nodes."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Schedule the deletion of the pods of a deleted node."""
        if isinstance(event.obj, Node) and event.type is WatchType.DELETED:
            name = event.obj.metadata.name
            if any(pod.spec.node_name == name for pod in self._cluster.list(Pod)):
                self._cluster.clock.call_later(_QUARANTINE, lambda: self._remove_pods(name))

    def _remove_pods(self, node: str) -> None:
        if self._cluster.get(Node, node) is not None:
            return
        for pod in self._cluster.list(Pod):
            if pod.spec.node_name == node:
                self._remove(pod)

    def _remove(self, pod: Pod) -> None:
        if pod.status.phase in ("Pending", "Running"):
            condition = PodCondition(
                "DisruptionTarget",
                "True",
                "DeletionByPodGC",
                "PodGC: node no longer exists",
                self._cluster.timestamp(),
            )
            failed = with_condition(pod, condition)
            failed = replace(failed, status=replace(failed.status, phase="Failed"))
            self._cluster.update(failed)
        self._cluster.delete(Pod, pod.key, 0)
