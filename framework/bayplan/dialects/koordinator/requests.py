"""Koordinator: what a pod may request of devices, and what that is of each GPU.

Names and rules as in koordinator-sh/koordinator v1.8 (pkg/scheduler/plugins/deviceshare/utils.go,
devicehandler_gpu.go). Amounts are whole units: percent of a GPU, bytes of memory, or a count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

__all__ = [
    "DEVICE_TYPES",
    "FPGA",
    "GPU",
    "GPU_CORE",
    "GPU_MEMORY",
    "GPU_MEMORY_RATIO",
    "NPU_CORE",
    "OWN_RESOURCES",
    "RDMA",
    "Amounts",
    "PerGpu",
    "combination_of",
    "converted",
    "device_requests",
    "per_gpu",
    "with_memory",
]

Amounts = Mapping[str, int]
"""Amounts of resources by name."""
GPU, RDMA, FPGA = "gpu", "rdma", "fpga"
DEVICE_TYPES = (GPU, RDMA, FPGA)
_OWN = "koordinator.sh/"
GPU_CORE = f"{_OWN}gpu-core"
GPU_MEMORY = f"{_OWN}gpu-memory"
GPU_MEMORY_RATIO = f"{_OWN}gpu-memory-ratio"
_GPU, _SHARED = f"{_OWN}gpu", f"{_OWN}gpu.shared"
_RDMA, _FPGA = f"{_OWN}rdma", f"{_OWN}fpga"
NPU_CORE = "huawei.com/npu-core"
_NPU_CPU, _NPU_DVPP = "huawei.com/npu-cpu", "huawei.com/npu-dvpp"
_NAMES: Mapping[str, str] = {
    "nvidia.com/gpu": "NvidiaGPU",
    "amd.com/gpu": "AMDGPU",
    "dcu.com/gpu": "HygonDCU",
    _GPU: "KoordGPU",
    _SHARED: "GPUShared",
    GPU_CORE: "GPUCore",
    GPU_MEMORY: "GPUMemory",
    GPU_MEMORY_RATIO: "GPUMemoryRatio",
    NPU_CORE: "HuaweiNPUCore",
    _NPU_CPU: "HuaweiNPUCPU",
    _NPU_DVPP: "HuaweiNPUDVPP",
    _RDMA: "RDMA",
    _FPGA: "FPGA",
}
"""Koordinator's names of the resources in sets."""
OWN_RESOURCES = frozenset(name for name in _NAMES if not name.endswith(".com/gpu"))
"""Resources that mean Koordinator wherever they are requested."""
_WHOLE_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu")
_TYPES: Mapping[str, str] = dict.fromkeys(_NAMES, GPU) | {_RDMA: RDMA, _FPGA: FPGA}
_PERCENT = 100


class PerGpu(msgspec.Struct, frozen=True):
    """What a request is of each of ``count`` GPUs; ``shared`` GPUs are not taken whole."""

    amounts: tuple[tuple[str, int], ...]
    count: int
    shared: bool


def device_requests(requests: Amounts) -> dict[str, dict[str, int]]:
    """Return what a pod requests of each type of device, in Koordinator's resources.

    :param requests: all that the pod requests; only resources of devices count.
    :raises ValueError: for resources that do not go together, or amounts that no GPU can have.
    """
    by_type: dict[str, dict[str, int]] = {}
    for name, amount in requests.items():
        if name in _TYPES and amount:
            by_type.setdefault(_TYPES[name], {})[name] = amount
    return {
        kind: converted(by_type[kind], combination_of(by_type[kind]))
        for kind in DEVICE_TYPES
        if kind in by_type
    }


def combination_of(requests: Amounts) -> frozenset[str]:
    """Return Koordinator's names of the requested resources.

    :raises ValueError: for resources that do not go together, or amounts that no GPU can have.
    """
    if not requests:
        raise ValueError("expected a request for a device, got none")
    unknown = sorted(set(requests) - set(_NAMES))
    if unknown:
        raise ValueError(f"{unknown[0]} is not a resource of Koordinator's devices")
    for name in (_GPU, _RDMA, _FPGA):
        _check_percent(name, requests)
    combination = frozenset(_NAMES[name] for name in requests)
    check = _SETS.get(combination)
    if check is None:
        how = "together" if len(requests) > 1 else "alone"
        raise ValueError(f"{', '.join(sorted(requests))} cannot be requested {how}")
    check(requests)
    return combination


def converted(requests: Amounts, combination: frozenset[str]) -> dict[str, int]:
    """Return a request for one type of device in resources that devices have.

    Whole GPUs become 100 percent each of compute and memory. Empty if the resources do not go
    together.
    """
    if combination not in _SETS:
        return {}
    for name in _WHOLE_GPUS:
        if _NAMES[name] in combination:
            return _both(_PERCENT * requests[name])
    if "KoordGPU" in combination:
        return _both(requests[_GPU])
    return {name: requests[name] for name in _NAMES if _NAMES[name] in combination}


def per_gpu(requests: Amounts) -> PerGpu:
    """Divide a converted request among GPUs.

    ``gpu.shared`` is the number of GPUs; without it, a memory ratio that is a multiple of 100.
    """
    ratio = requests.get(GPU_MEMORY_RATIO, 0)
    count = requests.get(_SHARED, 0)
    if count < 1:
        count = ratio // _PERCENT if ratio > _PERCENT and ratio % _PERCENT == 0 else 1
    amounts = {
        name: requests[name] // count
        for name in (GPU_CORE, NPU_CORE, _NPU_CPU, _NPU_DVPP)
        if name in requests
    }
    if GPU_MEMORY_RATIO in requests:
        amounts[GPU_MEMORY_RATIO] = ratio // count
        shared = amounts[GPU_MEMORY_RATIO] < _PERCENT
    else:
        shared = GPU_MEMORY in requests
        if shared:
            amounts[GPU_MEMORY] = requests[GPU_MEMORY] // count
    return PerGpu(tuple(sorted(amounts.items())), count, shared)


def with_memory(amounts: Amounts, total: Amounts) -> dict[str, int]:
    """Add the memory in bytes to a GPU's amounts that name it in percent, or the other way round.

    :param total: what the GPU has in all.
    :raises ValueError: for a GPU without memory, as one that is not healthy has none.
    """
    if not any(total.values()):
        raise ValueError("no healthy GPU has this minor number")
    filled = dict(amounts)
    if GPU_MEMORY in filled and GPU_MEMORY_RATIO in filled:
        return filled
    memory = total.get(GPU_MEMORY, 0)
    if GPU_MEMORY not in filled:
        filled[GPU_MEMORY] = filled.get(GPU_MEMORY_RATIO, 0) * memory // _PERCENT
        return filled
    if memory <= 0:
        raise ValueError("the GPU does not say how much memory it has")
    filled[GPU_MEMORY_RATIO] = filled[GPU_MEMORY] * _PERCENT // memory
    return filled


def _both(percent: int) -> dict[str, int]:
    return {GPU_CORE: percent, GPU_MEMORY_RATIO: percent}


def _check_percent(name: str, requests: Amounts) -> None:
    amount = requests.get(name, 0)
    if amount > _PERCENT and amount % _PERCENT:
        raise ValueError(f"{name}: expected up to 100, or a multiple of 100, got {amount}")


def _anything(requests: Amounts) -> None:
    """Allow any amounts."""


def _percentages(requests: Amounts) -> None:
    _check_percent(GPU_CORE, requests)
    _check_percent(GPU_MEMORY_RATIO, requests)


def _shares(requests: Amounts) -> None:
    gpus = requests[_SHARED]
    if gpus < 1:
        raise ValueError(f"{_SHARED}: expected 1 or more, got {gpus}")
    for name in (GPU_CORE, GPU_MEMORY_RATIO):
        amount = requests.get(name, 0)
        if amount % gpus or amount // gpus > _PERCENT:
            raise ValueError(
                f"{name}: expected up to 100 for each of {gpus} shared GPUs, all alike, "
                f"got {amount} in all"
            )


def _npu_shares(requests: Amounts) -> None:
    if requests[_SHARED] != 1:
        raise ValueError(f"{_SHARED}: expected 1 for an NPU, got {requests[_SHARED]}")
    if requests.get(_NPU_DVPP, 0) > _PERCENT:
        raise ValueError(f"{_NPU_DVPP}: expected up to 100, got {requests[_NPU_DVPP]}")


_SETS: Mapping[frozenset[str], Callable[[Amounts], None]] = {
    frozenset(names.split()): check
    for check, sets in {
        _anything: ("NvidiaGPU", "AMDGPU", "HygonDCU", "KoordGPU", "FPGA", "RDMA"),
        _percentages: (
            "GPUMemory",
            "GPUMemoryRatio",
            "GPUCore GPUMemory",
            "GPUCore GPUMemoryRatio",
            "HuaweiNPUCore GPUMemoryRatio",
        ),
        _shares: (
            "GPUShared GPUMemory",
            "GPUShared GPUMemoryRatio",
            "GPUShared GPUCore GPUMemory",
            "GPUShared GPUCore GPUMemoryRatio",
        ),
        _npu_shares: (
            "GPUShared HuaweiNPUCore HuaweiNPUCPU GPUMemory",
            "GPUShared HuaweiNPUCore HuaweiNPUCPU HuaweiNPUDVPP GPUMemory",
        ),
    }.items()
    for names in sets
}
"""The sets of resources that can be requested together, and what their amounts have to be."""
