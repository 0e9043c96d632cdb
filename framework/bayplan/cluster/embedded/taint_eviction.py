"""The taint eviction controller, as k8s.io/kubernetes pkg/controller/tainteviction."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from bayplan.api import Node, Pod, PodCondition, Taint, Toleration
from bayplan.api.tolerations import tolerated
from bayplan.cluster.embedded.admission import with_condition, with_tolerations
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import Event, WatchEvent, WatchType

__all__ = ["TaintEviction"]

_COMPONENT = "taint-eviction-controller"
_REASON = "TaintManagerEviction"


class _PlannedEviction(msgspec.Struct, frozen=True):
    """A scheduled eviction: the pod's uid, when the toleration started, and when to evict."""

    uid: str
    start: float
    at: float


class TaintEviction:
    """Evicts pods from nodes with NoExecute taints once their tolerations expire."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._taints: dict[str, tuple[Taint, ...]] = {}
        self._pods: dict[str, dict[str, None]] = {}
        self._nodes: dict[str, str] = {}
        self._planned: dict[str, _PlannedEviction] = {}
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Plan evictions for a node whose taints changed, or for a pod that was bound."""
        obj, gone = event.obj, event.type is WatchType.DELETED
        if isinstance(obj, Node):
            self._node_changed(obj, gone)
        elif isinstance(obj, Pod):
            self._pod_changed(obj, gone)

    def _node_changed(self, node: Node, gone: bool) -> None:
        name = node.metadata.name
        found = tuple(t for t in node.spec.taints if t.effect == "NoExecute" and not gone)
        if found == self._taints.get(name, ()):
            return
        self._taints[name] = found
        for key in list(self._pods.get(name, ())):
            self._look_at(key, found)

    def _pod_changed(self, pod: Pod, gone: bool) -> None:
        before = self._nodes.get(pod.key)
        if gone:
            self._planned.pop(pod.key, None)
            self._nodes.pop(pod.key, None)
            self._pods.get(before or "", {}).pop(pod.key, None)
        elif pod.spec.node_name and before != pod.spec.node_name:
            self._nodes[pod.key] = pod.spec.node_name
            self._pods.setdefault(pod.spec.node_name, {})[pod.key] = None
        taints = self._taints.get(pod.spec.node_name, ())
        if taints and not gone:
            self._look_at(pod.key, taints)

    def _look_at(self, key: str, taints: tuple[Taint, ...]) -> None:
        pod = self._cluster.get(Pod, key)
        if pod is None or pod.metadata.deletion_timestamp is not None:
            return
        seconds = tolerated_for(pod, taints)
        planned = self._planned.get(key)
        if planned is not None and planned.uid != pod.metadata.uid:
            planned = None
        if seconds is None:
            if planned is not None:
                del self._planned[key]
                self._record_event(pod, f"Cancelling deletion of Pod {key}")
            return
        start = planned.start if planned is not None else self._cluster.now
        wanted = _PlannedEviction(pod.metadata.uid, start, start + seconds)
        if wanted != planned:
            self._planned[key] = wanted
            self._cluster.clock.call_at(wanted.at, lambda: self._evict(key, wanted))

    def _evict(self, key: str, planned: _PlannedEviction) -> None:
        if self._planned.get(key) != planned:
            return
        del self._planned[key]
        pod = self._cluster.get(Pod, key)
        if pod is None or pod.metadata.uid != planned.uid:
            return
        if pod.metadata.deletion_timestamp is not None:
            return
        self._record_event(pod, f"Marking for deletion Pod {key}")
        condition = PodCondition(
            "DisruptionTarget",
            "True",
            "DeletionByTaintManager",
            "Taint manager: deleting due to NoExecute taint",
            self._cluster.timestamp(),
        )
        self._cluster.update(with_condition(pod, condition))
        self._cluster.delete(Pod, key)

    def _record_event(self, pod: Pod, message: str) -> None:
        event = Event(pod.key, "Normal", _REASON, message, pod.spec.node_name, component=_COMPONENT)
        self._cluster.submit(event)


def tolerated_for(pod: Pod, taints: Iterable[Taint]) -> float | None:
    """Return for how many seconds a pod tolerates NoExecute taints, None for forever."""
    seconds: list[int] = []
    # Without an API server nothing has added the default tolerations yet.
    tolerations = with_tolerations(pod).spec.tolerations
    for taint in taints:
        bearing = [one for one in tolerations if tolerated(taint, (one,))]
        if not bearing:
            return 0.0
        seconds += _limits(bearing)
    return float(max(0, min(seconds))) if seconds else None


def _limits(tolerations: Iterable[Toleration]) -> list[int]:
    return [one.toleration_seconds for one in tolerations if one.toleration_seconds is not None]
