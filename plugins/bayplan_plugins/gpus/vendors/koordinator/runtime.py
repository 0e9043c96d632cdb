"""What tells device plugins which devices a pod got.

Names as in koordinator-sh/koordinator v1.8
(pkg/scheduler/plugins/deviceshare/device_plugin_adapter.go).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import msgspec

from bayplan.dialects.koordinator.allocations import (
    ALLOCATED,
    BIND_TIME,
    GPU_MINORS,
    Allocation,
    allocated_text,
)
from bayplan.dialects.koordinator.requests import GPU, GPU_CORE, GPU_MEMORY

__all__ = ["PARTICULAR_VENDORS", "Recorded", "check", "gpu_minors", "tell"]

_ISOLATION = "koordinator.sh/gpu-isolation-provider"
_HAMI_CORE = "HAMi-core"
_HAMI_NODE = "hami.io/vgpu-node"
_HUAWEI_TIME = "predicate-time"
_HUAWEI_DEVICES = "huawei.com/npu-core"
_HUAWEI_310P = "huawei.com/Ascend310P"
_OF_310P = "huawei-Ascend-310P3-300I-DUO"
"""The model whose device plugin reads an annotation of its own."""
_CAMBRICON_ASSIGNED = "CAMBRICON_DSMLU_ASSIGHED"  # spelled so by the device plugin
_CAMBRICON_PROFILE = "CAMBRICON_DSMLU_PROFILE"
_CAMBRICON_UNIT = 256 * 2**20
_METAX_DEVICES = "metax-tech.com/gpu-devices-allocated"
_METAX_UNIT = 2**20


class Recorded(msgspec.Struct, frozen=True):
    """What is written for a pod: its annotations and labels."""

    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class _Binding(msgspec.Struct, frozen=True):
    """The GPUs of a pod that is bound; ``now`` is in seconds since 1970.

    ``model`` is that of the node's GPUs, ``<vendor>-<model>``.
    """

    now: float
    gpus: Sequence[Allocation]
    model: str = ""

    @property
    def nanoseconds(self) -> str:
        return str(round(self.now * 10**9))


def tell(
    labels: Mapping[str, str],
    node: str,
    vendor: str,
    model: str,
    allocations: Sequence[Allocation],
    now: float,
) -> Recorded:
    """Return what tells the device plugins of a node which devices a pod got.

    :param labels: those of the pod.
    :param vendor: of the node's GPUs, "" if it is not known.
    :param model: theirs, ``<vendor>-<model>``.
    :param now: the time in seconds since 1970.
    :raises ValueError: for devices that the vendor's plugin cannot give out so.
    """
    gpus = [one for one in allocations if one.kind == GPU]
    binding = _Binding(now, gpus, model)
    reported = Recorded({ALLOCATED: allocated_text(allocations), BIND_TIME: binding.nanoseconds})
    if not gpus:
        return reported
    reported.annotations[GPU_MINORS] = gpu_minors(gpus)
    if labels.get(_ISOLATION) == _HAMI_CORE:
        reported.labels[_HAMI_NODE] = node
    adapter = _VENDORS.get(vendor)
    if adapter is not None:
        reported.annotations.update(adapter(binding))
    return reported


def check(vendor: str, allocations: Sequence[Allocation]) -> None:
    """Check that a vendor's device plugin can give out GPUs so.

    :raises ValueError: if it cannot.
    """
    gpus = [one for one in allocations if one.kind == GPU]
    if gpus and vendor in _VENDORS:
        _VENDORS[vendor](_Binding(0.0, gpus))


def gpu_minors(gpus: Sequence[Allocation]) -> str:
    """Return the minors of GPUs, as the environment of a container may name them."""
    return ",".join(str(one.minor) for one in gpus)


def _huawei(binding: _Binding) -> dict[str, str]:
    if binding.model == _OF_310P:
        named = ",".join(f"Ascend310P-{one.minor}" for one in binding.gpus)
        return {_HUAWEI_TIME: binding.nanoseconds, _HUAWEI_310P: named}
    first = binding.gpus[0]
    part = f"{first.minor}-{first.template}"
    devices = part if first.template else gpu_minors(binding.gpus)
    return {_HUAWEI_TIME: binding.nanoseconds, _HUAWEI_DEVICES: devices}


def _cambricon(binding: _Binding) -> dict[str, str]:
    if len(binding.gpus) > 1:
        raise ValueError("Cambricon's device plugin cannot share several GPUs with one pod")
    first = binding.gpus[0]
    core, units = _parts(first, _CAMBRICON_UNIT, "Cambricon")
    return {_CAMBRICON_ASSIGNED: "false", _CAMBRICON_PROFILE: f"{first.minor}_{core}_{units}"}


def _metax(binding: _Binding) -> dict[str, str]:
    devices = []
    for one in binding.gpus:
        core, units = _parts(one, _METAX_UNIT, "MetaX")
        devices.append({"uuid": one.uuid, "compute": core, "vRam": units})
    return {_METAX_DEVICES: json.dumps([devices], separators=(",", ":"))}


def _parts(gpu: Allocation, unit: int, vendor: str) -> tuple[int, int]:
    """Return a GPU's percent of compute, and its units of memory."""
    amounts = dict(gpu.amounts)
    if GPU_CORE not in amounts:
        raise ValueError(f"{vendor}'s device plugin needs an amount of {GPU_CORE}")
    if amounts.get(GPU_MEMORY, 0) < unit:
        raise ValueError(
            f"{vendor}'s device plugin gives out {GPU_MEMORY} in units of {unit // 2**20} MiB"
        )
    return amounts[GPU_CORE], amounts[GPU_MEMORY] // unit


_VENDORS: Mapping[str, Callable[[_Binding], dict[str, str]]] = {
    "huawei": _huawei,
    "cambricon": _cambricon,
    "metax": _metax,
}
PARTICULAR_VENDORS = frozenset(_VENDORS)
"""Vendors whose device plugins cannot give out all that GPUs have."""
