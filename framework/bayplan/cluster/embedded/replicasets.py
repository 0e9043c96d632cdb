"""The ReplicaSet controller, as k8s.io/kubernetes pkg/controller/replicaset."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from bayplan.api import Pod, ReplicaSet
from bayplan.api.workloads import ReplicaSetStatus
from bayplan.cluster.embedded.children import (
    Children,
    PodOverrides,
    alive,
    available_at,
    is_ready,
    template_of,
)
from bayplan.cluster.embedded.store import MemoryCluster

__all__ = ["ReplicaSetController"]

_COMPONENT = "replicaset-controller"
_COST = "controller.kubernetes.io/pod-deletion-cost"


class ReplicaSetController:
    """Keeps the wanted number of pods of each ReplicaSet, and its status."""

    def __init__(self, cluster: MemoryCluster, children: Children) -> None:
        self._cluster = cluster
        self._children = children

    def reconcile(self, owner: ReplicaSet) -> float | None:
        """Reconcile a ReplicaSet; return when to do so again, None for never."""
        pods = self._children.pods(owner)
        living = [pod for pod in pods if alive(pod)]
        missing = owner.spec.replicas - len(living)
        if missing > 0:
            template = template_of(self._cluster, owner)
            marks = PodOverrides(generate_name=f"{owner.metadata.name}-")
            for _ in range(missing):
                pod = self._children.make(owner, template, marks)
                if pod is None:
                    break
                living.append(pod)
                self._record_event(owner, "SuccessfulCreate", f"Created pod: {pod.metadata.name}")
        elif missing < 0:
            for pod in _least_needed(living)[:-missing]:
                living.remove(pod)
                self._children.delete(pod)
                self._record_event(owner, "SuccessfulDelete", f"Deleted pod: {pod.metadata.name}")
        return self._count(
            owner, living, sum(p.metadata.deletion_timestamp is not None for p in pods)
        )

    def _count(self, owner: ReplicaSet, pods: list[Pod], ending: int) -> float | None:
        """Write the status; return when the next pod becomes available."""
        now = self._cluster.now
        times = [available_at(self._cluster, pod, owner.spec.min_ready_seconds) for pod in pods]
        ready = sum(is_ready(pod) for pod in pods)
        wanted = owner.spec.template.metadata.labels.items()
        status = ReplicaSetStatus(
            replicas=len(pods),
            fully_labeled_replicas=sum(wanted <= p.metadata.labels.items() for p in pods) or None,
            ready_replicas=ready or None,
            available_replicas=sum(at is not None and at <= now for at in times) or None,
            terminating_replicas=ending or None,
            observed_generation=self._cluster.generation_of(owner),
        )
        if status != owner.status:
            self._cluster.update(replace(owner, status=status))
        return min((at for at in times if at is not None and at > now), default=None)

    def _record_event(self, owner: ReplicaSet, reason: str, message: str) -> None:
        self._cluster.record_event(owner, _COMPONENT, reason, message)


def _least_needed(pods: list[Pod]) -> list[Pod]:
    """Sort pods by deletion order, first to go first (ActivePodsWithRanks of pkg/controller)."""
    crowd = Counter(pod.spec.node_name for pod in pods)

    def rank(item: tuple[int, Pod]) -> tuple[bool, bool, bool, int, int, int]:
        age, pod = item
        return (
            bool(pod.spec.node_name),
            pod.status.phase == "Running",
            is_ready(pod),
            _cost(pod),
            -crowd[pod.spec.node_name],
            -age,
        )

    return [pod for _, pod in sorted(enumerate(pods), key=rank)]


def _cost(pod: Pod) -> int:
    try:
        return int(pod.metadata.annotations.get(_COST, "0"))
    except ValueError:
        return 0
