"""The virtual kubelet of the embedded cluster: starts bound pods and ends them in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from bayplan.api import Pod, PodCondition
from bayplan.cluster.protocol import WatchEvent, WatchType
from bayplan.durations import DURATION_ANNOTATION, parse_duration
from bayplan.errors import ClusterError, InputError

if TYPE_CHECKING:
    from bayplan.cluster.memory import MemoryCluster

__all__ = ["VirtualKubelet"]


class VirtualKubelet:
    """Runs the pods of all nodes of an embedded cluster."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._started: set[str] = set()
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Start a pod that has a node."""
        pod = event.obj
        if not isinstance(pod, Pod):
            return
        if event.type is WatchType.DELETED:
            self._started.discard(pod.metadata.uid)
        elif pod.spec.node_name and pod.metadata.uid not in self._started:
            self._started.add(pod.metadata.uid)
            if pod.status.phase == "Pending":
                self._start(pod.key)

    def _start(self, key: str) -> None:
        pod = self._cluster.get(Pod, key)
        if pod is None or pod.status.phase != "Pending":
            return
        stamp = self._cluster.timestamp()
        ready = PodCondition("Ready", "True", last_transition_time=stamp)
        status = replace(
            pod.status,
            phase="Running",
            start_time=stamp,
            conditions=(*pod.status.conditions, ready),
        )
        self._cluster.update(replace(pod, status=status))
        text = pod.metadata.annotations.get(DURATION_ANNOTATION)
        if text is not None:
            try:
                seconds = parse_duration(text)
            except ValueError as exc:
                raise InputError(f"annotation {DURATION_ANNOTATION}: {exc}", f"Pod {key}") from None
            uid = pod.metadata.uid
            self._cluster.clock.call_later(seconds, lambda: self._finish(key, uid))

    def _finish(self, key: str, uid: str) -> None:
        pod = self._cluster.get(Pod, key)
        if pod is None or pod.metadata.uid != uid or pod.metadata.deletion_timestamp is not None:
            return
        conditions = tuple(c for c in pod.status.conditions if c.type != "Ready")
        status = replace(pod.status, phase="Succeeded", conditions=conditions)
        try:
            self._cluster.update(replace(pod, status=status))
        except ClusterError:
            return
