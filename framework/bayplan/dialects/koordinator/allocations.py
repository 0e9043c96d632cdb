"""Koordinator: the annotation that says which devices a pod got.

Format as in koordinator-sh/koordinator v1.8 (apis/extension/device_share.go)::

    {"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": "50"}, "id": "GPU-..",
              "extension": {"vfs": [{"minor": 1, "busID": "0000:09:00.3"}],
                            "gpuSharedResourceTemplate": "vir01"}}]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from bayplan.api.koordinator_device import VirtualFunction
from bayplan.api.meta import ApiStruct
from bayplan.api.objects import DecodeError, decode_part
from bayplan.api.quantity import Quantity
from bayplan.api.resources import LARGEST_AMOUNT
from bayplan.dialects.koordinator.requests import DEVICE_TYPES, GPU_MEMORY
from bayplan.inputs.jsontext import parse_json
from bayplan.inputs.limits import ANNOTATION

__all__ = [
    "ALLOCATED",
    "BIND_TIME",
    "GPU_MINORS",
    "LOCK_SECONDS",
    "VENDOR_LOCKS",
    "Allocation",
    "Function",
    "allocated_text",
    "allocations_of",
]

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
"""The annotation of a pod that names its devices."""
BIND_TIME = "scheduling.koordinator.sh/bind-timestamp"
"""The annotation of a pod that says when it got them, in nanoseconds since 1970."""
GPU_MINORS = "scheduling.koordinator.sh/gpu-minors"
"""The annotation of a pod that lists the minors of its GPUs."""
VENDOR_LOCKS: Mapping[str, str] = {
    "cambricon": "cambricon.com/dsmlu.lock",
    "metax": "hami.io/mutex.lock",
}
"""By the vendor of a node's GPUs, the node annotation that a pod has until it is served."""
LOCK_SECONDS = 300.0
"""How old a lock is that was left behind."""
_MOST_MINOR = 2**31 - 1
_LONGEST_KEPT = 4096
_MOST_KEPT = 4096
_UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class _Extension(ApiStruct, frozen=True):
    vfs: tuple[VirtualFunction, ...] = ()
    template: str = msgspec.field(default="", name="gpuSharedResourceTemplate")


class _Allocation(ApiStruct, frozen=True):
    minor: int
    resources: dict[str, Quantity] = msgspec.field(default_factory=dict)
    id: str = ""
    extension: _Extension = _Extension()


class Function(msgspec.Struct, frozen=True, order=True):
    """A virtual function of a device."""

    bus: str
    minor: int = 0


class Allocation(msgspec.Struct, frozen=True, gc=False):
    """What a pod got of one device: amounts by resource, sorted, and virtual functions.

    ``template`` names the template after which a part of an NPU was cut.
    """

    kind: str
    minor: int
    amounts: tuple[tuple[str, int], ...]
    uuid: str = ""
    functions: tuple[Function, ...] = ()
    template: str = ""


def allocations_of(annotations: Mapping[str, str]) -> tuple[Allocation, ...]:
    """Return the devices that a pod's annotation names; empty without the annotation.

    :raises ValueError: for an annotation that cannot be read, naming the place in it.
    """
    text = annotations.get(ALLOCATED, "")
    if not text:
        return ()
    known = _recent.get(text)
    if known is not None:
        return known
    try:
        return _remember(text, _read(parse_json(text, ANNOTATION)))
    except DecodeError as exc:
        raise ValueError(f"annotation {ALLOCATED}: {exc.path}: {exc.message}") from None
    except ValueError as exc:
        raise ValueError(f"annotation {ALLOCATED}: {exc}") from None


def allocated_text(allocations: Iterable[Allocation]) -> str:
    """Return the annotation for devices, as Koordinator would write it."""
    content: dict[str, list[dict[str, Any]]] = {}
    for one in allocations:
        entry: dict[str, Any] = {
            "minor": one.minor,
            "resources": _resources(one.amounts),
        }
        if one.uuid:
            entry["id"] = one.uuid
        extension = _extension(one)
        if extension:
            entry["extension"] = extension
        content.setdefault(one.kind, []).append(entry)
    return _encode(dict(sorted(content.items()))).decode()


_encode = msgspec.json.Encoder().encode
_recent: dict[str, tuple[Allocation, ...]] = {}


def _remember(text: str, found: tuple[Allocation, ...]) -> tuple[Allocation, ...]:
    """Keep what a text says: a pod is seen again with every change of its status."""
    if len(text) <= _LONGEST_KEPT:
        if len(_recent) >= _MOST_KEPT:
            _recent.clear()
        _recent[text] = found
    return found


def _extension(one: Allocation) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if one.functions:
        # As Go does, a minor number of 0 is left out.
        found["vfs"] = [
            ({"minor": function.minor} if function.minor else {}) | {"busID": function.bus}
            for function in one.functions
        ]
    if one.template:
        found["gpuSharedResourceTemplate"] = one.template
    return found


@lru_cache(4096)
def _resources(amounts: tuple[tuple[str, int], ...]) -> Mapping[str, str]:
    return {name: _quantity(name, amount) for name, amount in sorted(amounts)}


def _quantity(name: str, amount: int) -> str:
    if name != GPU_MEMORY:
        return str(amount)
    place = 0
    while amount and amount % 1024 == 0 and place + 1 < len(_UNITS):
        amount, place = amount // 1024, place + 1
    return f"{amount}{_UNITS[place]}"


def _read(content: Any) -> tuple[Allocation, ...]:
    if not isinstance(content, dict):
        raise ValueError("expected a JSON object")
    found: list[Allocation] = []
    for kind, entries in sorted(content.items()):
        if kind not in DEVICE_TYPES:
            raise ValueError(f'expected one of {", ".join(DEVICE_TYPES)}, got "{kind[:40]}"')
        if not isinstance(entries, list):
            raise ValueError(f"$.{kind}: expected a list")
        seen: set[int] = set()
        for place, entry in enumerate(entries):
            one = _one(kind, f"$.{kind}[{place}]", entry)
            if one.minor in seen:
                raise ValueError(f"$.{kind}[{place}]: the device {one.minor} is named twice")
            seen.add(one.minor)
            found.append(one)
    return tuple(found)


def _one(kind: str, where: str, entry: Any) -> Allocation:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: expected a mapping")
    try:
        read = decode_part(_Allocation, entry)
    except DecodeError as exc:
        raise DecodeError(exc.message, f"{where}{exc.path.removeprefix('$')}") from None
    if not 0 <= read.minor <= _MOST_MINOR:
        raise ValueError(f"{where}.minor: expected a number from 0 to {_MOST_MINOR}")
    for name, quantity in read.resources.items():
        if not 0 <= quantity.units <= LARGEST_AMOUNT:
            raise ValueError(
                f'{where}.resources["{name[:60]}"]: expected an amount from 0 to 2^53, '
                f'got "{quantity.text}"'
            )
    amounts = sorted((name, quantity.units) for name, quantity in read.resources.items())
    functions = tuple(Function(one.bus_id, one.minor) for one in read.extension.vfs)
    if any(not one.bus for one in functions):
        raise ValueError(f"{where}.extension.vfs: expected a busID of each virtual function")
    return Allocation(kind, read.minor, tuple(amounts), read.id, functions, read.extension.template)
