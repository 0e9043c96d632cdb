"""Pods on the move: those that leave their nodes, and those that come once they have left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from bayplan import Handle, PodInfo
from bayplan.snapshot import Snapshot
from bayplan_plugins.queues.leaving import leaving_pods

__all__ = ["Movers", "arrive"]


class Movers:
    """Knows which pods of the snapshot are about to leave, and where moved ones will be."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._nodes: dict[str, tuple[PodInfo, str]] = {}

    def add(self, moves: Mapping[str, str]) -> None:
        """Keep the nodes where pods, by key, will be once they are evicted."""
        placed = self._handle.snapshot.placed
        self._nodes = {key: pair for key, pair in self._nodes.items() if key in placed}
        for key, node in moves.items():
            info = placed[key][0]
            meta = msgspec.structs.replace(info.pod.metadata, name=f"{info.name}-moved")
            moved = info.changed(msgspec.structs.replace(info.pod, metadata=meta))
            self._nodes[key] = moved, node

    def leaving(self) -> list[tuple[PodInfo, str]]:
        """Return the pods that are terminating and not stuck, with their nodes."""
        return leaving_pods(self._handle)

    def coming(self) -> list[tuple[PodInfo, str]]:
        """Return stand-ins for moved pods that have not left yet, with their new nodes."""
        placed = self._handle.snapshot.placed
        return [p for key, p in self._nodes.items() if key in placed and placed[key][0].terminating]


def arrive(
    snapshot: Snapshot, leaving: Iterable[PodInfo], coming: Iterable[tuple[PodInfo, str]]
) -> None:
    """Take leaving pods off their nodes and put coming ones on theirs, within a trial."""
    for pod in leaving:
        snapshot.remove_pod(pod.key)
    for pod, node in coming:
        snapshot.add_pod(pod, node)
