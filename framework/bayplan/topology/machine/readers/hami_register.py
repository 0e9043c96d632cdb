"""What the device plugins of HAMi and of Volcano's vGPU register about a node's GPUs.

Both write one annotation: JSON, or an older list of fields (Project-HAMi/HAMi, pkg/device;
volcano-sh/volcano, pkg/scheduler/api/devices/nvidia/vgpu).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from bayplan.api.gpu_shares import MEBIBYTE, PartitionProfile
from bayplan.inputs.jsontext import parse_json
from bayplan.inputs.limits import ANNOTATION

__all__ = [
    "CORDON",
    "HANDSHAKE",
    "MOST_AMOUNT",
    "REGISTER",
    "VOLCANO_HANDSHAKE",
    "VOLCANO_REGISTER",
    "RegisteredGpu",
    "cordoned_uuids",
    "read_register",
    "read_volcano_register",
]

REGISTER = "hami.io/node-nvidia-register"
HANDSHAKE = "hami.io/node-handshake"
CORDON = "hami.io/device-cordon"
"""The annotation with the UUIDs, separated by commas, of devices that new pods must not get."""
VOLCANO_REGISTER = "volcano.sh/node-vgpu-register"
VOLCANO_HANDSHAKE = "volcano.sh/node-vgpu-handshake"

MOST_AMOUNT = 2**31 - 1
"""HAMi counts in 32 bits."""
_MOST_GPUS = 256
_MOST_PROFILES = 64
_MOST_STARTS = 64
_PERCENT = 10
"""Thousandths of a GPU in a percent of it."""
_HEALTH = {"true": True, "false": False}
_SEPARATORS = frozenset(",:;")
_INTEGER = re.compile(r"-?\d{1,9}", re.ASCII)

_Forms: TypeAlias = Mapping[int, Callable[[Sequence[str]], "RegisteredGpu"]]
"""How to parse a device of the older form, by the number of its fields."""


class RegisteredGpu(msgspec.Struct, frozen=True):
    """A GPU as a device plugin registers it.

    ``slots`` is how many containers may share it, ``memory`` its MiB, ``cores`` its percent of
    compute; each 0 if it is not stated.
    """

    uuid: str
    index: int
    model: str = ""
    numa: int | None = None
    healthy: bool = True
    slots: int = 0
    memory: int = 0
    cores: int = 0
    mode: str = ""
    profiles: tuple[PartitionProfile, ...] = ()


def cordoned_uuids(text: str) -> frozenset[str]:
    """Return the UUIDs that the annotation ``CORDON`` names."""
    return frozenset(word.strip() for word in text.split(",") if word.strip())


def read_register(text: str) -> list[RegisteredGpu]:
    """Parse HAMi's register: JSON, or the older list of fields.

    HAMi omits fields that are 0, false or empty from the JSON.

    :raises ValueError: for anything else.
    """
    return _read(text, _HAMI)


def read_volcano_register(text: str) -> list[RegisteredGpu]:
    """Parse the register of Volcano's vGPU: its own list of fields, or HAMi's JSON.

    :raises ValueError: for anything else.
    """
    return _read(text, _VOLCANO)


def _read(text: str, forms: _Forms) -> list[RegisteredGpu]:
    ANNOTATION.check_size(text)
    if not text.lstrip().startswith("["):
        return _older_form(text, forms)
    entries = parse_json(text, ANNOTATION)
    if len(entries) > _MOST_GPUS:
        raise ValueError(f"expected {_MOST_GPUS} devices or fewer, got {len(entries)}")
    return [_device(entry, f"[{place}]") for place, entry in enumerate(entries)]


def _device(entry: Any, where: str) -> RegisteredGpu:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        raise ValueError(f"{where}: expected a device with an id")
    numa = _integer(entry, "numa", where)
    return RegisteredGpu(
        _uuid(entry["id"], where),
        _whole(entry, "index", where),
        _text(entry, "type", where),
        numa if numa >= 0 else None,
        _truth(entry, "health", where),
        _whole(entry, "count", where),
        _whole(entry, "devmem", where),
        _whole(entry, "devcore", where),
        _text(entry, "mode", where),
        _profiles(entry.get("migProfiles"), f"{where}.migProfiles"),
    )


def _uuid(text: str, where: str) -> str:
    if not text or _SEPARATORS & set(text):
        raise ValueError(f'{where}: expected an id without , : or ;, got "{text[:40]}"')
    return text


def _whole(entry: Mapping[str, Any], name: str, where: str) -> int:
    """Return a number of 0 or more that an object holds, 0 if it does not name it."""
    value = entry.get(name, 0)
    if type(value) is not int or not 0 <= value <= MOST_AMOUNT:
        raise ValueError(f"{where}.{name}: expected a whole number from 0 to {MOST_AMOUNT}")
    return value


def _integer(entry: Mapping[str, Any], name: str, where: str) -> int:
    """Return an integer that an object holds, 0 if it does not name it."""
    value = entry.get(name, 0)
    if type(value) is not int or abs(value) > MOST_AMOUNT:
        raise ValueError(f"{where}.{name}: expected an integer of 32 bits")
    return value


def _text(entry: Mapping[str, Any], name: str, where: str) -> str:
    value = entry.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{where}.{name}: expected a text")
    return value


def _truth(entry: Mapping[str, Any], name: str, where: str) -> bool:
    value = entry.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"{where}.{name}: expected true or false")
    return value


# Partitions ---------------------------------------------------------------------------------


def _profiles(entries: Any, where: str) -> tuple[PartitionProfile, ...]:
    if entries is None:
        return ()
    if not isinstance(entries, list) or len(entries) > _MOST_PROFILES:
        raise ValueError(f"{where}: expected a list of {_MOST_PROFILES} profiles or fewer")
    found = [_profile(entry, f"{where}[{place}]") for place, entry in enumerate(entries)]
    names = [profile.name for profile in found]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'{where}: expected different profiles, got "{twice[:40]}" twice')
    return tuple(found)


def _profile(entry: Any, where: str) -> PartitionProfile:
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}: expected a profile with a name")
    placements = entry.get("placements", [])
    if not isinstance(placements, list) or len(placements) > _MOST_STARTS:
        raise ValueError(f"{where}.placements: expected a list of {_MOST_STARTS} or fewer")
    found = [_placement(one, f"{where}.placements[{n}]") for n, one in enumerate(placements)]
    sizes = {size for _, size in found}
    if len(sizes) > 1:
        raise ValueError(f"{where}.placements: expected one size, got {sorted(sizes)}")
    return PartitionProfile(
        name,
        memory=_whole(entry, "memoryMB", where) * MEBIBYTE,
        compute=_whole(entry, "core", where) * _PERCENT,
        slices=_whole(entry, "sliceCount", where),
        starts=tuple(start for start, _ in found),
        size=sizes.pop() if sizes else 0,
    )


def _placement(entry: Any, where: str) -> tuple[int, int]:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: expected a start and a size")
    start, size = _whole(entry, "start", where), _whole(entry, "size", where)
    if not 0 < size <= _MOST_STARTS or start >= _MOST_STARTS:
        raise ValueError(f"{where}: expected a start below {_MOST_STARTS} and a size from 1 on")
    return start, size


# The older form -----------------------------------------------------------------------------


def _older_form(text: str, forms: _Forms) -> list[RegisteredGpu]:
    """Parse devices that end with a colon, their fields separated by commas."""
    parts = [part.strip().split(",") for part in text.split(":") if part.strip()]
    if not parts or any(len(part) not in forms for part in parts):
        raise ValueError("expected a JSON list of devices")
    if len(parts) > _MOST_GPUS:
        raise ValueError(f"expected {_MOST_GPUS} devices or fewer, got {len(parts)}")
    return [forms[len(part)](part) for part in parts]


def _hami(fields: Sequence[str]) -> RegisteredGpu:
    """Parse id, count, memory, cores, type, NUMA node, health, and maybe index and mode."""
    uuid, count, memory, cores, model, numa, health, *more = fields
    index = more[0] if more else "0"
    if health not in _HEALTH or not _INTEGER.fullmatch(numa):
        raise ValueError(f"{uuid[:40]!r}: expected a NUMA node, and true or false for its health")
    return RegisteredGpu(
        _uuid(uuid, "device"),
        _field(index, "index", uuid),
        model,
        int(numa) if int(numa) >= 0 else None,
        _HEALTH[health],
        _field(count, "count", uuid),
        _field(memory, "memory", uuid),
        _field(cores, "cores", uuid),
        more[1] if more else "",
    )


def _volcano(fields: Sequence[str]) -> RegisteredGpu:
    """Parse id, count, memory, type, health, and maybe mode: Volcano's form."""
    uuid, count, memory, model, health, *more = fields
    if health not in _HEALTH:
        raise ValueError(f'{uuid[:40]!r}: expected true or false for its health, got "{health}"')
    return RegisteredGpu(
        _uuid(uuid, "device"),
        0,
        model,
        None,
        _HEALTH[health],
        _field(count, "count", uuid),
        _field(memory, "memory", uuid),
        100,
        more[0] if more else "",
    )


_HAMI: _Forms = {7: _hami, 9: _hami}
_VOLCANO: _Forms = {5: _volcano, 6: _volcano}


def _field(text: str, name: str, uuid: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10) or int(text) > MOST_AMOUNT:
        raise ValueError(
            f"{uuid[:40]!r}: expected a whole number from 0 to {MOST_AMOUNT} for its {name}, "
            f'got "{text[:40]}"'
        )
    return int(text)
