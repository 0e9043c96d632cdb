"""What is left of a node's devices while devices are chosen for one pod."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from bayplan.api.gpu_shares import WHOLE, GpuUse
from bayplan.api.selectors import Selector
from bayplan.dialects.koordinator.allocations import Allocation
from bayplan.dialects.koordinator.requests import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    Amounts,
)
from bayplan_plugins.gpus.vendors.adapter import GpusInUse
from bayplan_plugins.gpus.vendors.koordinator.devices import Device, Machine, share_of

__all__ = ["Inventory", "inventory_of"]

_PERCENT = 100


class Inventory(msgspec.Struct, frozen=True):
    """Devices by type and minor, what is left of each, and which of their functions are taken.

    ``used`` are devices of which anything is taken. ``offered`` are those that may be chosen.
    """

    machine: Machine
    devices: Mapping[str, Mapping[int, Device]]
    free: Mapping[str, Mapping[int, Amounts]]
    used: Mapping[str, frozenset[int]]
    taken: Mapping[tuple[str, int], frozenset[str]]
    offered: Mapping[str, frozenset[int]]

    def total(self, kind: str, minor: int) -> Amounts:
        """Return what a device has in all; nothing if it is not healthy."""
        return self.devices[kind][minor].total

    def fits(self, kind: str, minor: int, amounts: Amounts) -> bool:
        """Tell whether a device may be chosen, and has these amounts left.

        Memory is limited in bytes and in percent, whatever the pod's words are: a few bytes are 0
        percent, but with them nobody has the whole GPU.
        """
        total = self.devices[kind][minor].total
        if minor not in self.offered[kind] or not total:
            return False
        left = self.free[kind][minor]
        if any(left.get(name, 0) < amount for name, amount in amounts.items()):
            return False
        memory = total.get(GPU_MEMORY, 0)
        ratio, size = amounts.get(GPU_MEMORY_RATIO), amounts.get(GPU_MEMORY)
        if ratio is not None and size is None:
            return left.get(GPU_MEMORY, 0) >= ratio * memory // _PERCENT
        if ratio is None and size is not None and memory > 0:
            return left.get(GPU_MEMORY_RATIO, 0) >= size * _PERCENT // memory
        return True

    def only(self, selectors: Mapping[str, Selector | None]) -> Inventory:
        """Return the inventory with only the devices that the selectors select."""
        offered = dict(self.offered)
        for kind, selector in selectors.items():
            if selector is not None and kind in offered:
                offered[kind] = frozenset(
                    minor
                    for minor in offered[kind]
                    if selector.matches(dict(self.devices[kind][minor].labels))
                )
        return replace(self, offered=offered)


def inventory_of(node: GpusInUse) -> Inventory:
    """Return what is left of a node's devices."""
    devices: dict[str, dict[int, Device]] = {}
    free: dict[str, dict[int, Amounts]] = {}
    used: dict[str, set[int]] = {}
    taken: dict[tuple[str, int], frozenset[str]] = {}
    offered: dict[str, set[int]] = {}
    machine = Machine()
    for gpu, use in zip(node.gpus, node.used, strict=True):
        device = gpu.detail
        if not isinstance(device, Device):
            continue
        machine = device.machine
        kind, minor = device.kind, device.minor
        devices.setdefault(kind, {})[minor] = device
        own = offered.setdefault(kind, set())
        if not gpu.cordoned:
            own.add(minor)
        held = [one for one in use.details if isinstance(one, Allocation)]
        free.setdefault(kind, {})[minor] = _left(device, use, held)
        used.setdefault(kind, set())
        if not use.idle or held:
            used[kind].add(minor)
        buses = frozenset(function.bus for one in held for function in one.functions)
        if buses:
            taken[kind, minor] = buses
    return Inventory(
        machine,
        devices,
        free,
        {kind: frozenset(minors) for kind, minors in used.items()},
        taken,
        {kind: frozenset(minors) for kind, minors in offered.items()},
    )


def _left(device: Device, use: GpuUse, held: list[Allocation]) -> Amounts:
    """Return what is left of a device.

    Shares that were not given in Koordinator's words, such as whole GPUs by their index, count by
    their compute and memory.
    """
    if not held and use.idle:
        return device.total
    left = dict(device.total)
    compute, memory = use.compute, use.memory
    for one in held:
        for name, amount in one.amounts:
            left[name] = left.get(name, 0) - amount
        share = share_of(one, device)
        compute, memory = compute - share.compute, memory - share.memory
    if device.kind == GPU and compute > 0:
        left[GPU_CORE] = left.get(GPU_CORE, 0) - -(-compute * _PERCENT // WHOLE)
    if memory > 0:
        total = device.total.get(GPU_MEMORY, 0)
        left[GPU_MEMORY] = left.get(GPU_MEMORY, 0) - memory
        left[GPU_MEMORY_RATIO] = left.get(GPU_MEMORY_RATIO, 0) - -(
            -memory * _PERCENT // max(1, total)
        )
    return {name: max(0, amount) for name, amount in left.items()}
