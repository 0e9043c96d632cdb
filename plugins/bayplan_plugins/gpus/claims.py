"""Which GPUs are held by resource claims, so that nobody gets them as ``nvidia.com/gpu``."""

from __future__ import annotations

import re
from collections.abc import Callable

from bayplan.api import ResourceClaim, ResourceSlice
from bayplan.api.dra import Device, DeviceId
from bayplan.snapshot import Snapshot
from bayplan.topology.machine import Machine

__all__ = ["claimed_gpus", "gpu_of_device"]

_BUS_ID = "resource.kubernetes.io/pciBusID"


def claimed_gpus(
    snapshot: Snapshot, machine_of: Callable[[str], Machine | None]
) -> dict[str, frozenset[int]]:
    """Return, by node, the indices of GPUs that allocated claims hold."""
    wanted = {
        DeviceId(one.driver, one.pool, one.device)
        for claim in snapshot.objects(ResourceClaim).values()
        if claim.status.allocation is not None
        for one in claim.status.allocation.devices.results
    }
    found: dict[str, set[int]] = {}
    for obj in snapshot.objects(ResourceSlice).values() if wanted else ():
        node = obj.spec.node_name
        machine = machine_of(node) if node else None
        for device in obj.spec.devices if machine is not None else ():
            if DeviceId(obj.spec.driver, obj.spec.pool.name, device.name) in wanted:
                assert machine is not None
                gpu = gpu_of_device(device, obj.spec.driver, machine)
                if gpu is not None:
                    found.setdefault(node, set()).add(gpu)
    return {node: frozenset(gpus) for node, gpus in found.items()}


def gpu_of_device(device: Device, driver: str, machine: Machine) -> int | None:
    """Return the index of the GPU that a device is: by bus id, uuid, index, or its name's number.

    None for a device that is no GPU, such as a NIC.
    """
    values = {
        name.removeprefix(f"{driver}/"): attribute for name, attribute in device.attributes.items()
    }
    kind = values.get("type")
    if kind is not None and kind.string is not None and "gpu" not in kind.string.lower():
        return None
    bus, uuid, index = values.get(_BUS_ID), values.get("uuid"), values.get("index")
    for gpu in machine.gpus:
        if bus is not None and bus.string and bus.string.lower() == gpu.bus_id:
            return gpu.index
        if uuid is not None and uuid.string and uuid.string == gpu.uuid:
            return gpu.index
    if index is not None and index.integer is not None:
        return index.integer if 0 <= index.integer < len(machine) else None
    match = re.fullmatch(r"gpu-?(\d+)", device.name)
    return int(match[1]) if match and int(match[1]) < len(machine) else None
