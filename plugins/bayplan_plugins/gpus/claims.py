"""Which devices of ResourceSlices are GPUs of a machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from bayplan.api.dra import Device, DeviceAttribute, DeviceId
from bayplan.topology.machine.model import Machine
from bayplan_dra.allocator.pools import Pool

__all__ = ["gpu_of_device", "gpus_by_name", "gpus_of_devices"]

_BUS_ID = "resource.kubernetes.io/pciBusID"


def gpus_of_devices(pools: Iterable[Pool], machine: Machine) -> dict[DeviceId, int]:
    """Return, for each device that is a GPU or a part of one, the GPU's index."""
    found: dict[DeviceId, int] = {}
    for pool in pools:
        for device in pool.devices:
            gpu = gpu_of_device(device.spec, device.id.driver, machine)
            if gpu is not None:
                found[device.id] = gpu
    return found


def gpus_by_name(pools: Iterable[Pool]) -> dict[DeviceId, int]:
    """Return the same where no machine is described: by index, or by the number in the name.

    Drivers name GPUs ``gpu-0`` and their partitions ``gpu-0-...``.
    """
    found: dict[DeviceId, int] = {}
    for pool in pools:
        for device in pool.devices:
            match = re.match(r"gpu-?(\d{1,4})(?:\D|$)", device.spec.name)
            if match:
                found[device.id] = int(match[1])
    return found


def gpu_of_device(device: Device, driver: str, machine: Machine) -> int | None:
    """Return the index of a device's GPU: by bus id, uuid, index, or the number in its name.

    A MIG device is part of the GPU that its ``parentUUID`` names. None for a device that is no GPU,
    such as a NIC.
    """
    values = {
        name.removeprefix(f"{driver}/"): attribute for name, attribute in device.attributes.items()
    }
    parent = _text(values, "parentUUID")
    bus, uuid = _text(values, _BUS_ID).lower(), parent or _text(values, "uuid")
    for gpu in machine.gpus:
        if (uuid and uuid == gpu.uuid) or (bus and not parent and bus == gpu.bus_id):
            return gpu.index
    kind = _text(values, "type")
    if parent or (kind and "gpu" not in kind.lower()):
        return None
    index = values.get("index")
    if index is not None and index.integer is not None:
        return index.integer if 0 <= index.integer < len(machine) else None
    match = re.fullmatch(r"gpu-?(\d+)", device.name)
    return int(match[1]) if match and int(match[1]) < len(machine) else None


def _text(values: Mapping[str, DeviceAttribute], name: str) -> str:
    found = values.get(name)
    return (found.string or "") if found is not None else ""
