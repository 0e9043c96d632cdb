"""A GPU in HAMi's units: MiB of memory, percent of compute."""

from __future__ import annotations

import msgspec

from bayplan.api.gpu_shares import MEBIBYTE, GpuUse, OfferedGpu, Partition, PartitionProfile

__all__ = ["MIG", "PERCENT", "Device", "device_of"]

PERCENT = 10
"""Thousandths of a GPU in a percent of it."""
MIG = "mig"
_UNKNOWN_NUMA = -1


class Device(msgspec.Struct):
    """A GPU, and what is taken of it so far; shares are added while a pod is tried on it.

    ``pair_scores`` are those of HAMi's register, by UUID.
    """

    uuid: str
    index: int
    type: str
    count: int
    memory: int
    cores: int
    used: int = 0
    used_memory: int = 0
    used_cores: int = 0
    numa: int = _UNKNOWN_NUMA
    healthy: bool = True
    cordoned: bool = False
    mode: str = ""
    profiles: tuple[PartitionProfile, ...] = ()
    partitions: list[Partition] = msgspec.field(default_factory=list)
    pair_scores: tuple[tuple[str, int], ...] = ()


def device_of(gpu: OfferedGpu, use: GpuUse) -> Device:
    """Return a GPU with what is taken of it; parts of a MiB or a percent count as taken."""
    return Device(
        gpu.uuid,
        gpu.index,
        gpu.model,
        gpu.slots,
        gpu.memory // MEBIBYTE,
        gpu.compute // PERCENT,
        use.slots,
        -(-use.memory // MEBIBYTE),
        -(-use.compute // PERCENT),
        _UNKNOWN_NUMA if gpu.numa is None else gpu.numa,
        gpu.healthy,
        gpu.cordoned,
        gpu.mode,
        gpu.profiles,
        list(use.partitions),
        gpu.detail if isinstance(gpu.detail, tuple) else (),
    )
