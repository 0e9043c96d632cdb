"""What pods ask for of shared GPUs in KAI's form, and what that counts as in queues."""

from __future__ import annotations

from bayplan import PodInfo
from bayplan.dialects.kai.shares import (
    ASKING_ANNOTATIONS,
    MEMORY_LABEL,
    SHARE_ANNOTATIONS,
    GpuShareRequest,
    gpu_memory_of,
    gpu_share_of,
)
from bayplan.snapshot import Snapshot

__all__ = ["GpuSizes", "known_share", "says_shares", "word_of_kai"]

_MOST_REQUESTS = 20_000
_SHARES = frozenset(SHARE_ANNOTATIONS)
_requests: dict[tuple[object, ...], GpuShareRequest | str | None] = {}


def says_shares(pod: PodInfo) -> bool:
    """Tell whether a pod has any annotation about shares in KAI's form."""
    return not _SHARES.isdisjoint(pod.pod.metadata.annotations)


def known_share(pod: PodInfo) -> GpuShareRequest | str | None:
    """Return what a pod's annotations ask for, read once for equal pods; a text is wrong."""
    if not says_shares(pod):
        return None
    annotations = pod.pod.metadata.annotations
    key = (pod.facts, *map(annotations.get, SHARE_ANNOTATIONS))
    if key not in _requests:
        if len(_requests) >= _MOST_REQUESTS:
            _requests.clear()
        _requests[key] = gpu_share_of(pod.pod)
    return _requests[key]


def word_of_kai(pod: PodInfo) -> str:
    """Return the annotation by which a pod asks for shares in KAI's form; "" without one."""
    annotations = pod.pod.metadata.annotations
    return next((name for name in ASKING_ANNOTATIONS if name in annotations), "")


class GpuSizes:
    """The sizes of the GPUs in a cluster, and what pods count as by them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._seen = -1
        self._sizes: dict[str, int] = {}
        self._bounds = (0, 0)
        self._basis = 0

    def basis(self) -> int:
        """Return a number that changes when pods may count as more or less than before."""
        self._read()
        return self._basis

    def gpus_of(self, pod: PodInfo, least: bool = False) -> float:
        """Return how many GPUs the shares of a pod count as.

        A pod on a node counts by the size of its GPUs. Memory that a pending pod asks for counts
        by the smallest GPU of the cluster, or with ``least`` by the biggest.
        """
        request = known_share(pod)
        if not isinstance(request, GpuShareRequest):
            return 0.0
        if not request.memory:
            return request.devices * request.fraction
        placed = self._snapshot.placed.get(pod.key)
        row = self._snapshot.nodes.row_of.get(placed[1]) if placed is not None else None
        if row is not None:
            gpu = gpu_memory_of(self._snapshot.nodes.nodes[row].metadata.labels)
        else:
            self._read()
            gpu = self._bounds[least]
        return request.devices * request.part_of(gpu) if gpu else 0.0

    def _read(self) -> None:
        """Read the labels of nodes again if any has changed."""
        table = self._snapshot.nodes
        if table.label_version == self._seen:
            return
        self._seen = table.label_version
        column = table.label(MEMORY_LABEL)
        known = [gpu_memory_of({MEMORY_LABEL: text}) for text in column.values]
        rows = zip(table.names, column.codes.tolist(), strict=True)
        sizes = {name: known[code] for name, code in rows if code >= 0}
        bounds = min(sizes.values(), default=0), max(sizes.values(), default=0)
        before = self._sizes
        if bounds != self._bounds or any(before[n] != sizes[n] for n in before.keys() & sizes):
            self._basis += 1
        self._sizes, self._bounds = sizes, bounds
