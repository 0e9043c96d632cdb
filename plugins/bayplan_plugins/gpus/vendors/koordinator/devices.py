"""The devices of a node as its Device object describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec

from bayplan.api import KoordinatorDevice, Node
from bayplan.api.gpu_shares import WHOLE, OfferedGpu, Share
from bayplan.api.koordinator_device import KoordinatorDeviceInfo
from bayplan.api.resources import LARGEST_AMOUNT
from bayplan.dialects.koordinator.allocations import Allocation, Function
from bayplan.dialects.koordinator.hints import HOPPER_GROUPS, SCOPES, GpuGroups, gpu_groups
from bayplan.dialects.koordinator.requests import (
    DEVICE_TYPES,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    NPU_CORE,
    Amounts,
    with_memory,
)

__all__ = [
    "Device",
    "FunctionGroup",
    "Machine",
    "Scope",
    "allocation_of",
    "devices_of",
    "gpu_of",
    "share_of",
]

_DOMAIN = "node.koordinator.sh/"
_POLICY = f"{_DOMAIN}gpu-partition-policy"
_POLICIES = ("", "Honor", "Prefer")
_VENDOR = f"{_DOMAIN}gpu-vendor"
_MODEL = f"{_DOMAIN}gpu-model"
_WELL_PLANNED = f"{_DOMAIN}secondary-device-well-planned"
_HOPPER = ("H100", "H800", "H20")
_MOST_MINOR = 9_999
_FIRST_INDEX = {kind: place * (_MOST_MINOR + 1) for place, kind in enumerate(DEVICE_TYPES)}
_SHARERS = 10_000
"""How many pods may share a GPU: Koordinator sets no limit."""
_PER_PERCENT = WHOLE // 100


class Scope(msgspec.Struct, frozen=True):
    """A part of a node's topology with GPUs: the node, a NUMA node or a PCIe switch."""

    level: int
    minors: tuple[int, ...]
    parts: tuple[Scope, ...] = ()


class Machine(msgspec.Struct, frozen=True):
    """What holds for all devices of a node.

    ``groups`` are the groups of GPUs that may be taken together; with ``honor`` no others may be.
    ``topology`` is None where a GPU does not say where it is plugged in. ``model`` is
    "<vendor>-<model>", as templates are named after it. ``well_planned``: there are enough NICs for
    whatever GPUs are taken.
    """

    groups: GpuGroups | None = None
    honor: bool = False
    topology: Scope | None = None
    vendor: str = ""
    model: str = ""
    well_planned: bool = False


class FunctionGroup(msgspec.Struct, frozen=True):
    """Virtual functions of a device with common labels."""

    labels: tuple[tuple[str, str], ...]
    functions: tuple[Function, ...]


class Device(msgspec.Struct, frozen=True, dict=True):
    """One device. ``amounts`` is empty where it is not healthy."""

    kind: str
    minor: int
    machine: Machine
    amounts: tuple[tuple[str, int], ...] = ()
    uuid: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    numa: int | None = None
    pcie: str | None = None
    functions: tuple[FunctionGroup, ...] = ()

    @cached_property
    def total(self) -> Amounts:
        """``amounts`` by name; do not change it."""
        return dict(self.amounts)


def devices_of(found: KoordinatorDevice, node: Node) -> tuple[Device, ...]:
    """Return the devices of a node; types that Koordinator's scheduler does not know are left out.

    :raises ValueError: for a Device object that cannot be used, naming the place in it.
    """
    machine = _machine(found, node)
    devices = []
    seen: set[tuple[str, int]] = set()
    for place, info in enumerate(found.spec.devices):
        if info.type not in DEVICE_TYPES:
            continue
        where = f"Device {found.key}: $.spec.devices[{place}]"
        device = _device(info, machine, where)
        if (device.kind, device.minor) in seen:
            raise ValueError(
                f"{where}.minor: {device.minor} is not the only {device.kind} so named"
            )
        seen.add((device.kind, device.minor))
        devices.append(device)
    return tuple(sorted(devices, key=lambda one: (_FIRST_INDEX[one.kind], one.minor)))


def _device(info: KoordinatorDeviceInfo, machine: Machine, where: str) -> Device:
    minor = info.minor if info.minor is not None else 0
    if not 0 <= minor <= _MOST_MINOR:
        raise ValueError(f"{where}.minor: expected a number from 0 to {_MOST_MINOR}, got {minor}")
    amounts = sorted([(name, quantity.units) for name, quantity in info.resources.items()])
    for name, amount in amounts:
        if not 0 <= amount <= LARGEST_AMOUNT:
            raise ValueError(
                f'{where}.resources["{name}"]: expected an amount from 0 to 2^53, '
                f'got "{info.resources[name].text}"'
            )
    topology = info.topology
    return Device(
        info.type,
        minor,
        machine,
        tuple(amounts) if info.health else (),
        info.id,
        tuple(sorted(info.labels.items())),
        None if topology is None or topology.node_id < 0 else topology.node_id,
        None if topology is None else topology.pcie_id,
        _functions(info) if info.vf_groups else (),
    )


def _functions(info: KoordinatorDeviceInfo) -> tuple[FunctionGroup, ...]:
    return tuple(
        FunctionGroup(
            tuple(sorted(group.labels.items())),
            tuple(Function(one.bus_id, one.minor) for one in group.vfs),
        )
        for group in info.vf_groups
    )


def _machine(found: KoordinatorDevice, node: Node) -> Machine:
    # Koordinator's agent copies these labels from the node to its Device, later than they change.
    labels = {**found.metadata.labels, **node.metadata.labels}
    try:
        groups = gpu_groups(found.metadata.annotations)
    except ValueError as exc:
        raise ValueError(f"Device {found.key}: {exc}") from None
    if groups is None and labels.get(_MODEL) in _HOPPER:
        groups = HOPPER_GROUPS
    vendor, policy = labels.get(_VENDOR, ""), labels.get(_POLICY, "")
    if policy not in _POLICIES:
        raise ValueError(f'label {_POLICY}: expected Honor or Prefer, got "{policy[:60]}"')
    return Machine(
        groups,
        policy == "Honor",
        _topology([one for one in found.spec.devices if one.type == GPU]),
        vendor,
        f"{vendor}-{labels.get(_MODEL, '')}",
        labels.get(_WELL_PLANNED) == "true",
    )


def _topology(gpus: Sequence[KoordinatorDeviceInfo]) -> Scope | None:
    if not gpus or any(one.topology is None for one in gpus):
        return None
    places: dict[int, dict[str, list[int]]] = {}
    for one in gpus:
        if one.topology is not None:
            switches = places.setdefault(one.topology.node_id, {})
            switches.setdefault(one.topology.pcie_id, []).append(one.minor or 0)
    parts = []
    for _, switches in sorted(places.items()):
        inner = tuple(
            Scope(SCOPES["PCIe"], tuple(sorted(minors))) for _, minors in sorted(switches.items())
        )
        minors = tuple(sorted(minor for scope in inner for minor in scope.minors))
        parts.append(Scope(SCOPES["NUMANode"], minors, inner))
    everything = tuple(sorted(minor for scope in parts for minor in scope.minors))
    return Scope(SCOPES["Node"], everything, tuple(parts))


def gpu_of(device: Device) -> OfferedGpu:
    """Return a device as a GPU; what is not counted in compute and memory is in its detail."""
    amounts = dict(device.amounts)
    return OfferedGpu(
        _FIRST_INDEX[device.kind] + device.minor,
        device.uuid,
        device.machine.model.strip("-") if device.kind == GPU else "",
        _compute(amounts, amounts) if device.kind == GPU else 0,
        amounts.get(GPU_MEMORY, 0),
        slots=_SHARERS,
        numa=device.numa,
        healthy=bool(amounts),
        kind=device.kind,
        detail=device,
    )


def share_of(allocation: Allocation, device: Device | None) -> Share:
    """Return what a pod got of a device as a share of its GPU.

    :param device: None for a device that is gone.
    """
    amounts = dict(allocation.amounts)
    total = device.total if device is not None else {}
    return Share(
        _FIRST_INDEX[allocation.kind] + allocation.minor,
        _compute(amounts, total),
        amounts.get(GPU_MEMORY, 0),
        detail=allocation,
    )


def allocation_of(share: Share, gpu: OfferedGpu | None) -> Allocation | None:
    """Return what a share of a GPU is in Koordinator's words; None for a GPU that is gone.

    A share that was not given in these words is so much compute and memory of a GPU.
    """
    if isinstance(share.detail, Allocation):
        return share.detail
    if gpu is None or not isinstance(gpu.detail, Device):
        return None
    device = gpu.detail
    amounts = {GPU_CORE: share.compute // _PER_PERCENT, GPU_MEMORY: share.memory}
    filled = with_memory(amounts, device.total)
    return Allocation(device.kind, device.minor, tuple(sorted(filled.items())), device.uuid)


def _compute(amounts: Mapping[str, int], total: Amounts) -> int:
    """Return compute in thousandths of a GPU: of an NPU, the part of its cores, rounded up."""
    if GPU_CORE in amounts or not total.get(NPU_CORE):
        return amounts.get(GPU_CORE, 0) * _PER_PERCENT
    return -(-amounts.get(NPU_CORE, 0) * WHOLE // total[NPU_CORE])
