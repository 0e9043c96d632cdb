"""What a pod asks of its GPUs besides their number, in bayplan's own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["GPUS", "GPU_RESOURCES", "GpuRequest", "NodeOrder", "named_gpus"]

GPUS = "bayplan.dev/gpus"
"""The annotation that names a pod's GPUs by index, such as "0,1,2,3"."""
GPU_RESOURCES = ("nvidia.com/gpu", "hami.io/gpu")
"""Resources whose units are whole GPUs of NVIDIA, as the device plugins of NVIDIA and HAMi do."""

NodeOrder = Literal["pack", "spread", "best-fit"]


def named_gpus(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """Return the GPUs that a pod's annotation names, in rising order; none for anything else."""
    parts = [part.strip() for part in annotations.get(GPUS, "").split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
        return ()
    return tuple(sorted({int(part) for part in parts}))


@dataclass(frozen=True)
class GpuRequest:
    """How a pod's GPUs are to be chosen.

    ``policy`` is "ring" or one of ``topology.policies.POLICIES``. ``prefer_nvlink`` and
    ``prefer_numa`` are tried first and given up where they cannot be had; ``require_nvlink``,
    ``require_numa`` and ``min_bandwidth`` (GB/s of all rings) are not. ``uuids``, ``not_uuids``,
    ``models`` and ``not_models`` name GPUs that may or may not be taken. Over the nodes of a job:
    ``node_order``, at most ``max_nodes``, at least ``min_gpus_per_node`` on each. ``problem`` says
    what is wrong, and keeps the pod pending.
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
        """Whether anything is asked of the job's nodes together."""
        return bool(self.node_order or self.max_nodes or self.min_gpus_per_node)
