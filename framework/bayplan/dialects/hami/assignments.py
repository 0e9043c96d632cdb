"""The annotations that say which devices a pod's containers got.

A device is ``UUID,type,MiB,percent:``; HAMi ends each container with ``;``, Volcano puts ``;``
between containers. Containers without a device are empty, init containers come first. MIG
partitions are named in JSON beside it (HAMi, pkg/device/nvidia/mig_allocations.go).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api.gpu_shares import Partition
from bayplan.inputs.jsontext import parse_json
from bayplan.inputs.limits import ANNOTATION

__all__ = [
    "Assigned",
    "assignments_text",
    "partitions_text",
    "read_assignments",
    "read_partitions",
    "with_partitions",
]

_MOST = 2**31 - 1
_MOST_CONTAINERS = 1000
_MOST_DEVICES = 256
_RUNTIME = ("migUUID", "gpuInstanceID", "computeInstanceID")


class Assigned(msgspec.Struct, frozen=True):
    """A device that a container got, with the MiB and the percent of compute that it may use."""

    uuid: str
    type: str
    memory: int
    cores: int
    partition: Partition | None = None


def assignments_text(containers: Iterable[Sequence[Assigned]], ended: bool = True) -> str:
    """Return the annotation for the devices of a pod's containers.

    :param ended: end each container with ``;`` (HAMi); else separate them (Volcano).
    """
    parts = [
        "".join(f"{one.uuid},{one.type},{one.memory},{one.cores}:" for one in devices)
        for devices in containers
    ]
    return "".join(f"{part};" for part in parts) if ended else ";".join(parts)


def read_assignments(text: str, containers: int) -> tuple[tuple[Assigned, ...], ...]:
    """Return the devices of each of a pod's containers.

    :param containers: how many the pod has; missing ones at the end have no devices.
    :raises ValueError: for anything but what ``assignments_text`` writes, naming the place.
    """
    ANNOTATION.check_size(text)
    parts = text.split(";")
    if parts[-1] == "" and len(parts) > containers:
        parts.pop()
    if len(parts) > min(containers, _MOST_CONTAINERS):
        raise ValueError(f"expected devices of {containers} containers, got {len(parts)}")
    found = [_container(part, f"container {place}") for place, part in enumerate(parts)]
    return (*found, *([()] * (containers - len(found))))


def _container(text: str, where: str) -> tuple[Assigned, ...]:
    if not text:
        return ()
    devices = text.split(":")
    if devices.pop():
        raise ValueError(f'{where}: expected ":" at the end, got "{text[-40:]}"')
    if len(devices) > _MOST_DEVICES:
        raise ValueError(f"{where}: expected {_MOST_DEVICES} devices or fewer")
    return tuple(_assigned(one, f"{where}, device {place}") for place, one in enumerate(devices))


def _assigned(text: str, where: str) -> Assigned:
    fields = text.split(",")
    if len(fields) != 4 or not fields[0] or not fields[1]:
        raise ValueError(f'{where}: expected "uuid,type,MiB,percent", got "{text[:60]}"')
    uuid, type_, memory, cores = fields
    return Assigned(uuid, type_, _number(memory, where, "MiB"), _number(cores, where, "percent"))


def _number(text: str, where: str, unit: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10) or int(text) > _MOST:
        raise ValueError(f'{where}: expected {unit} from 0 to {_MOST}, got "{text[:40]}"')
    return int(text)


# Partitions ---------------------------------------------------------------------------------


def partitions_text(containers: Iterable[Sequence[Assigned]]) -> str:
    """Return the annotation that names the partitions of a pod's devices; "" without any."""
    found = [
        {
            "containerIndex": container,
            "deviceIndex": device,
            "gpuUUID": one.uuid,
            "profile": one.partition.profile,
            "placement": {"start": one.partition.start, "size": one.partition.size},
        }
        for container, devices in enumerate(containers)
        for device, one in enumerate(devices)
        if one.partition is not None
    ]
    return msgspec.json.encode(found).decode() if found else ""


def read_partitions(text: str) -> dict[tuple[int, int], tuple[str, Partition]]:
    """Return the UUID of the GPU and the partition by container and device of that container.

    :raises ValueError: for an entry that is incomplete, or twice the same device.
    """
    content = parse_json(text, ANNOTATION)
    if not isinstance(content, list):
        raise ValueError("expected a list of partitions")
    found: dict[tuple[int, int], tuple[str, Partition]] = {}
    for place, entry in enumerate(content):
        where = f"[{place}]"
        if not isinstance(entry, dict):
            raise ValueError(f"{where}: expected a partition")
        key = _index(entry, "containerIndex", where), _index(entry, "deviceIndex", where)
        if key in found:
            raise ValueError(f"{where}: expected container {key[0]}, device {key[1]} only once")
        uuid, profile = _text(entry, "gpuUUID", where), _text(entry, "profile", where)
        found[key] = uuid, _partition(entry.get("placement"), profile, f"{where}.placement")
        known = [name for name in _RUNTIME if entry.get(name) not in (None, "")]
        if known and len(known) < len(_RUNTIME):
            raise ValueError(f"{where}: expected {', '.join(_RUNTIME)}, or none of them")
    return found


def with_partitions(
    containers: Sequence[Sequence[Assigned]],
    partitions: dict[tuple[int, int], tuple[str, Partition]],
) -> tuple[tuple[Assigned, ...], ...]:
    """Return devices with their partitions.

    :raises ValueError: for a partition of a device that the pod does not have.
    """
    found = [list(devices) for devices in containers]
    for (container, device), (uuid, partition) in partitions.items():
        if container >= len(found) or device >= len(found[container]):
            raise ValueError(f"container {container}, device {device}: the pod has no such device")
        own = found[container][device]
        if own.uuid != uuid:
            raise ValueError(
                f"container {container}, device {device}: expected a partition of "
                f"{own.uuid[:40]}, got one of {uuid[:40]}"
            )
        found[container][device] = replace(own, partition=partition)
    return tuple(map(tuple, found))


def _partition(entry: Any, profile: str, where: str) -> Partition:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: expected a start and a size")
    start, size = _index(entry, "start", where), _index(entry, "size", where)
    if not size:
        raise ValueError(f"{where}.size: expected 1 or more")
    return Partition(profile, start, size)


def _index(entry: dict[str, Any], name: str, where: str) -> int:
    value = entry.get(name, 0)
    if type(value) is not int or not 0 <= value < 1000:
        raise ValueError(f"{where}.{name}: expected a whole number from 0 to 999")
    return value


def _text(entry: dict[str, Any], name: str, where: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}.{name}: expected a text")
    return value
