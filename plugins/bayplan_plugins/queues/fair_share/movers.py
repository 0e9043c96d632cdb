"""Pods on the move: those that leave their nodes, and those that come once they have left."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan import Handle, PodInfo
from bayplan.dialects.reading import timestamp

__all__ = ["Movers"]

_STUCK_AFTER = 60.0
"""Seconds beyond its grace period after which a pod that has not ended counts as stuck."""


class Movers:
    """Knows which pods of the snapshot are about to leave, and where moved ones will be."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._nodes: dict[str, tuple[PodInfo, str]] = {}

    def add(self, moves: Mapping[str, str]) -> None:
        """Keep the nodes where pods, by key, will be once they are evicted."""
        placed = self._handle.snapshot.placed
        for key, node in moves.items():
            pod = placed[key][0].pod
            meta = msgspec.structs.replace(pod.metadata, name=f"{pod.metadata.name}-moved")
            self._nodes[key] = (PodInfo(msgspec.structs.replace(pod, metadata=meta)), node)

    def leaving(self) -> list[PodInfo]:
        """Return the pods that are terminating and not stuck."""
        placed = self._handle.snapshot.placed.values()
        return [pod for pod, _ in placed if pod.terminating and not self._is_stuck(pod)]

    def coming(self) -> list[tuple[PodInfo, str]]:
        """Return stand-ins for moved pods that have not left yet, with their new nodes."""
        placed = self._handle.snapshot.placed
        self._nodes = {key: pair for key, pair in self._nodes.items() if key in placed}
        return [pair for key, pair in self._nodes.items() if placed[key][0].terminating]

    def _is_stuck(self, pod: PodInfo) -> bool:
        meta = pod.pod.metadata
        grace = meta.deletion_grace_period_seconds or 0
        due = timestamp(meta.deletion_timestamp) + grace + _STUCK_AFTER
        return self._handle.unix_time > due
