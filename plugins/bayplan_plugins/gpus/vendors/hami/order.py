"""In which order GPUs and nodes are tried (HAMi, pkg/scheduler/policy)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bayplan.dialects.hami.policies import Weights
from bayplan.dialects.hami.requests import UNSET_PERCENTAGE, ContainerRequest
from bayplan_plugins.gpus.vendors.hami.device import Device

__all__ = [
    "FULLEST",
    "Rank",
    "device_rank",
    "device_score",
    "in_order",
    "node_score",
    "preference",
]

_WEIGHT = np.float32(10)
FULLEST = 30.0
"""The score of a node whose GPUs are full."""
_SORT_KEYS = ("binpack", "spread", "numa")
Rank = Callable[[Device, float], tuple[float, ...]]
"""The sort key of a GPU and its score; the GPU with the largest is tried first."""


def device_score(device: Device, requests: Iterable[ContainerRequest], weights: Weights) -> float:
    """Return how full a GPU would be, 10 for each of slots, compute and memory times its weight.

    HAMi computes in 32 bits, which decides what counts as equal.
    """
    if not (device.count and device.cores and device.memory):
        return 0.0
    slots, cores, memory = device.used, device.used_cores, device.used_memory
    for request in requests:
        if request.type.lower() not in device.type.lower():
            continue
        slots += 1
        cores += request.cores
        if request.percentage not in (0, UNSET_PERCENTAGE):
            memory += device.memory * request.percentage // 100
        else:
            memory += request.memory
    parts = (
        np.float32(weights.slot) * (np.float32(slots) / np.float32(device.count)),
        np.float32(weights.core) * (np.float32(cores) / np.float32(device.cores)),
        np.float32(weights.memory) * (np.float32(memory) / np.float32(device.memory)),
    )
    return float(_WEIGHT * (parts[0] + parts[1] + parts[2]))


def node_score(devices: Sequence[Device]) -> float:
    """Return how full the GPUs of a node are, 10 each for slots, compute and memory."""
    count = sum(device.count for device in devices)
    cores = sum(device.cores for device in devices)
    memory = sum(device.memory for device in devices)
    if not (count and cores and memory):
        return 0.0
    return 10.0 * (
        sum(device.used for device in devices) / count
        + sum(device.used_cores for device in devices) / cores
        + sum(device.used_memory for device in devices) / memory
    )


def preference(score: float, policy: str) -> float:
    """Return how much a node with a score is preferred: the fullest most, or the emptiest."""
    return max(0.0, FULLEST - score) if policy == "spread" else score


def device_rank(policy: Sequence[str], numa_bind: bool) -> Rank:
    """Return the sort key of a GPU and its score; the GPU with the largest key is tried first.

    :param policy: the words of the GPU policy, as written.
    :param numa_bind: keep the GPUs of a NUMA node together.
    """
    if len(policy) > 1 or tuple(policy) == ("numa",):
        return _chain(policy, numa_bind)
    if tuple(policy) == ("mutex",):
        return lambda device, _: (-device.used, device.numa)
    sign = 1.0 if tuple(policy) == ("binpack",) else -1.0
    if numa_bind:
        return lambda device, score: (-sign * device.numa, sign * score)
    return lambda device, score: (sign * score, device.numa)


def _chain(policy: Sequence[str], numa_bind: bool) -> Rank:
    """Return the sort key of several policies: of those that sort, each breaks the ties before."""
    keys = [word for word in policy if word in _SORT_KEYS] or ["spread"]
    if numa_bind and keys[0] != "numa":
        keys = ["numa", *(key for key in keys if key != "numa")]

    def rank(device: Device, score: float) -> tuple[float, ...]:
        values = {"binpack": score, "spread": -score, "numa": float(device.numa)}
        return (*(values[key] for key in keys), float(device.index))

    return rank


def in_order(
    devices: Sequence[Device],
    requests: Sequence[ContainerRequest],
    weights: Weights,
    rank: Rank,
) -> list[Device]:
    """Return GPUs in HAMi's order: the last one is tried first."""
    return sorted(devices, key=lambda device: rank(device, device_score(device, requests, weights)))
