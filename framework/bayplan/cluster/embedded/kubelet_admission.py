"""Kubelet admission: a pod starts only if its node has enough resources.

Independent schedulers may overcommit a node. The API server accepts every binding; the kubelet
rejects the last pods (k8s.io/kubernetes pkg/kubelet/lifecycle).
"""

from __future__ import annotations

from collections import Counter

from bayplan.api import Node, Pod, pod_requests
from bayplan.api.resources import amount_of

__all__ = ["KubeletAdmission"]

_PODS = "pods"


class KubeletAdmission:
    """Tracks what admitted pods use on each node: milli-CPU for cpu, units otherwise."""

    def __init__(self) -> None:
        self._used: dict[str, Counter[str]] = {}
        self._admitted: dict[str, tuple[str, dict[str, int]]] = {}

    def refusal(self, pod: Pod, node: Node) -> tuple[str, str] | None:
        """Admit a pod and return None, or return the reason and message of its rejection."""
        if pod.metadata.uid in self._admitted:
            return None
        needs = {**pod_requests(pod.spec).effective, _PODS: 1}
        used = self._used.setdefault(node.metadata.name, Counter())
        offered = node.status.allocatable or node.status.capacity
        for resource, amount in needs.items():
            quantity = offered.get(resource)
            capacity = amount_of(resource, quantity) if quantity is not None else 0
            if quantity is None and (resource == _PODS or "/" in resource):
                # The kubelet ignores extended resources that its node does not have.
                continue
            if used[resource] + amount > capacity:
                return (
                    f"OutOf{resource}",
                    f"Pod was rejected: Node didn't have enough resource: {resource}, requested: "
                    f"{amount}, used: {used[resource]}, capacity: {capacity}",
                )
        self._take(pod, needs)
        return None

    def count(self, pod: Pod) -> None:
        """Track a pod that already runs."""
        if pod.metadata.uid not in self._admitted:
            self._take(pod, {**pod_requests(pod.spec).effective, _PODS: 1})

    def release(self, uid: str) -> None:
        """Release the resources of a finished or deleted pod."""
        admitted = self._admitted.pop(uid, None)
        if admitted is not None:
            self._used[admitted[0]].subtract(admitted[1])

    def _take(self, pod: Pod, needs: dict[str, int]) -> None:
        self._used.setdefault(pod.spec.node_name, Counter()).update(needs)
        self._admitted[pod.metadata.uid] = (pod.spec.node_name, needs)
