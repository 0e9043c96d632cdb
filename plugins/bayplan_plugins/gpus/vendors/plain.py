"""Whole GPUs by an extended resource, on nodes that nothing else describes."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan import PodInfo
from bayplan.api import Node
from bayplan.api.gpu_shares import MEBIBYTE, WHOLE, GpuUse, OfferedGpu, Share
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.snapshot import Snapshot
from bayplan_plugins.gpus.resources import gpu_count
from bayplan_plugins.gpus.vendors.adapter import Choice, GpusInUse, ShareRequest, Written

__all__ = ["PlainAdapter"]

_MEMORY = "nvidia.com/gpu.memory"
_PRODUCT = "nvidia.com/gpu.product"
_MOST_GPUS = 64


class PlainAdapter:
    """The GPUs that a device plugin counts; it chooses among them by itself."""

    name = "plain"
    reads: frozenset[str] = frozenset()

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def request(self, pod: PodInfo) -> ShareRequest | None:
        """Return the whole GPUs that a pod requests."""
        count = gpu_count(pod.requests) if pod.facts.wants_devices else 0
        if not count:
            return None
        return ShareRequest(
            self.name, count, WHOLE, share=1.0, implicit=True, simple=True, counted=True
        )

    def gpus(self, node: Node) -> tuple[OfferedGpu, ...] | str | None:
        """Return as many GPUs as the node's device plugin counts."""
        offered = node.status.allocatable or node.status.capacity
        count = max((offered[name].units for name in GPU_RESOURCES if name in offered), default=0)
        if count <= 0:
            return None
        if count > _MOST_GPUS:
            return f"expected {_MOST_GPUS} GPUs or fewer, got {count}"
        labels = node.metadata.labels
        text = labels.get(_MEMORY, "")
        memory = int(text) * MEBIBYTE if text.isascii() and text.isdigit() and len(text) < 9 else 0
        model = labels.get(_PRODUCT, "")
        return tuple(OfferedGpu(index, model=model, memory=memory) for index in range(count))

    def held(self, pod: PodInfo, gpus: Sequence[OfferedGpu]) -> tuple[Share, ...] | str:
        """Return nothing: the device plugin tells nobody which GPUs it gave out."""
        return ()

    def choose(self, pod: PodInfo, request: ShareRequest, node: GpusInUse) -> Choice:
        """Guess the first GPUs that nobody uses."""
        free = [gpu for gpu, used in zip(node.gpus, node.used, strict=True) if _free(gpu, used)]
        if len(free) < request.gpus:
            return Choice(reason="Insufficient free GPUs")
        return Choice(tuple(whole_share(gpu) for gpu in free[: request.gpus]))

    def written(
        self, pod: PodInfo, node: Node, gpus: Sequence[OfferedGpu], own: Sequence[Share], now: float
    ) -> Written:
        """Return nothing to write."""
        return Written()


def whole_share(gpu: OfferedGpu) -> Share:
    """Return the share that is the whole GPU."""
    return Share(gpu.index, gpu.compute, gpu.memory, gpu.slots)


def _free(gpu: OfferedGpu, used: GpuUse) -> bool:
    return used.idle and gpu.usable
