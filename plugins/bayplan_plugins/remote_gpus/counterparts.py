"""Where the clients and workers of each workload are."""

from __future__ import annotations

from collections.abc import Mapping

from bayplan import PodInfo
from bayplan.dialects.tensor_fusion import Side, side_of, workload_of
from bayplan.snapshot import Snapshot

__all__ = ["Counterparts", "Workload", "workload_key"]

Workload = tuple[str, str]
"""A namespace and the name of a workload."""
_NONE: Mapping[str, tuple[PodInfo, str]] = {}
_OTHER: Mapping[Side, Side] = {"client": "worker", "worker": "client"}


class Counterparts:
    """The placed clients and workers of all workloads. All profiles of a scheduler share one.

    Follows pods as they come and go, also in trials.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._placed: dict[tuple[Workload, Side], dict[str, tuple[PodInfo, str]]] = {}
        snapshot.on_pod(self._on_pod)
        for pod, node in snapshot.placed.values():
            self._on_pod(pod, node, True)

    def _on_pod(self, pod: PodInfo, node: str, placed: bool) -> None:
        side = side_of(pod.pod)
        if side is None:
            return
        known = self._placed.setdefault((workload_key(pod), side), {})
        if placed:
            known[pod.key] = (pod, node)
        else:
            known.pop(pod.key, None)
            if not known:
                del self._placed[workload_key(pod), side]

    def of(self, pod: PodInfo) -> Mapping[str, tuple[PodInfo, str]]:
        """Return the placed workers of a client, or the placed clients of a worker, by key."""
        side = side_of(pod.pod)
        if side is None:
            return _NONE
        return self._placed.get((workload_key(pod), _OTHER[side]), _NONE)


def workload_key(pod: PodInfo) -> Workload:
    """Return the workload of a client or worker."""
    return pod.namespace, workload_of(pod.pod)
