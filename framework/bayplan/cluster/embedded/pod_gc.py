"""The pod garbage collector, as k8s.io/kubernetes pkg/controller/podgc."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import Node, Pod, PodCondition
from bayplan.api.node_state import is_out_of_service
from bayplan.cluster.embedded.admission import with_condition
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import WatchEvent, WatchType

__all__ = ["PodGarbageCollector"]

_QUARANTINE = 40.0
"""Seconds from the deletion of a node to that of its pods."""
_PERIOD = 20.0
"""Seconds from one collection to the next."""


class PodGarbageCollector:
    """Deletes the pods of deleted nodes, and terminating pods of nodes out of service."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._waiting = False
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Schedule the deletion of the pods that no kubelet will end."""
        obj = event.obj
        if isinstance(obj, Node) and event.type is WatchType.DELETED:
            name = obj.metadata.name
            if any(pod.spec.node_name == name for pod in self._cluster.list(Pod)):
                self._cluster.clock.call_later(_QUARANTINE, lambda: self._remove_pods(name))
        elif isinstance(obj, Node):
            self._collect_later(obj)
        elif isinstance(obj, Pod) and obj.metadata.deletion_timestamp is not None:
            self._collect_later(self._cluster.get(Node, obj.spec.node_name))
        elif event.type is WatchType.RESYNC:
            for node in self._cluster.list(Node):
                self._collect_later(node)

    def _collect_later(self, node: Node | None) -> None:
        if node is not None and is_out_of_service(node) and not self._waiting:
            self._waiting = True
            clock = self._cluster.clock
            clock.call_later(_PERIOD - clock.now % _PERIOD, self._collect)

    def _collect(self) -> None:
        """Delete the terminating pods of all nodes that are out of service."""
        self._waiting = False
        nodes = {n.metadata.name for n in self._cluster.list(Node) if is_out_of_service(n)}
        for pod in self._cluster.list(Pod):
            if pod.spec.node_name in nodes and pod.metadata.deletion_timestamp is not None:
                self._remove(pod)

    def _remove_pods(self, node: str) -> None:
        if self._cluster.get(Node, node) is not None:
            return
        condition = PodCondition(
            "DisruptionTarget",
            "True",
            "DeletionByPodGC",
            "PodGC: node no longer exists",
            self._cluster.timestamp(),
        )
        for pod in self._cluster.list(Pod):
            if pod.spec.node_name == node:
                self._remove(pod, condition)

    def _remove(self, pod: Pod, condition: PodCondition | None = None) -> None:
        """Fail a pod that runs, and delete it by force."""
        if pod.status.phase in ("Pending", "Running"):
            failed = with_condition(pod, condition) if condition is not None else pod
            failed = replace(failed, status=replace(failed.status, phase="Failed"))
            self._cluster.update(failed)
        self._cluster.delete(Pod, pod.key, 0)
