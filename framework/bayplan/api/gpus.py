"""What a pod requests of its GPUs besides their number, in bayplan's own terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

__all__ = ["GPUS", "GPU_RESOURCES", "GpuRequest", "NodeOrder", "named_gpus"]

GPUS = "bayplan.dev/gpus"
"""The annotation with the indices of a pod's GPUs, such as "0,1,2,3"."""
GPU_RESOURCES = ("nvidia.com/gpu", "hami.io/gpu")
"""Resources that count whole NVIDIA GPUs, by the device plugins of NVIDIA and HAMi."""

NodeOrder = Literal["pack", "spread", "best-fit"]


def named_gpus(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """Return the GPU indices of a pod's annotation in rising order; empty if it is malformed."""
    parts = [part.strip() for part in annotations.get(GPUS, "").split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
        return ()
    return tuple(sorted({int(part) for part in parts}))


class GpuRequest(msgspec.Struct, frozen=True, cache_hash=True):
    """How to choose a pod's GPUs.

    ``policy`` is "ring" or a name in ``topology.machine.policies.POLICIES``. ``prefer_nvlink`` and
    ``prefer_numa`` are tried first and given up if they cannot be met; ``require_nvlink``,
    ``require_numa`` and ``min_bandwidth`` (GB/s, all rings together) are not given up. ``uuids``
    and ``models`` name the only GPUs allowed, ``not_uuids`` and ``not_models`` those that are not.
    For the nodes of a job: their order, at most ``max_nodes``, at least ``min_gpus_per_node`` on
    each. ``problem`` says what is wrong with the request; it keeps the pod pending.
    """

    policy: str = "ring"
    prefer_nvlink: bool = False
    prefer_numa: bool = False
    require_nvlink: bool = False
    require_numa: bool = False
    min_bandwidth: float = 0.0
    uuids: frozenset[str] = frozenset()
    not_uuids: frozenset[str] = frozenset()
    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    node_order: NodeOrder | None = None
    max_nodes: int | None = None
    min_gpus_per_node: int | None = None
    problem: str = ""

    @property
    def spans_nodes(self) -> bool:
        """Whether the request restricts or orders the nodes of a job."""
        return bool(self.node_order or self.max_nodes or self.min_gpus_per_node)
