"""The GPUs that a node's device plugin registers, for HAMi and for Volcano's vGPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from bayplan.api import Node
from bayplan.api.gpu_shares import MEBIBYTE, OfferedGpu, PartitionProfile
from bayplan.topology.machine.readers.hami import SCORE, read_scores
from bayplan.topology.machine.readers.hami_register import CORDON, RegisteredGpu, cordoned_uuids
from bayplan_plugins.gpus.vendors.hami.device import MIG, PERCENT

__all__ = ["HANDSHAKE_SECONDS", "handshake_problem", "registered_gpus"]

HANDSHAKE_SECONDS = 300.0
"""How long a device plugin may take to answer a scheduler's handshake."""
_WHOLE = 100
_ASKED = "Requesting_"
_GONE = "Deleted_"
_ALIVE = "Reported"
_REQUEST = re.compile(r"Requesting_(\d{4}(?:\.\d\d?){2} \d\d?(?::\d\d?){2})", re.ASCII)
_TIME = "%Y.%m.%d %H:%M:%S"


def registered_gpus(
    node: Node,
    register: str,
    read: Callable[[str], list[RegisteredGpu]],
    count: str,
    handshake: str,
    now: float,
) -> tuple[OfferedGpu, ...] | str | None:
    """Return the GPUs of a node, None without a register, or what is wrong with it.

    :param register: the annotation that registers them, which ``read`` parses.
    :param count: the resource that the device plugin offers.
    :param handshake: the annotation by which scheduler and device plugin talk.
    :param now: the time in seconds since 1970.
    """
    annotations = node.metadata.annotations
    text = annotations.get(register)
    if text is None:
        return None
    try:
        registered = read(text)
    except ValueError as exc:
        return f"annotation {register}: {exc}"
    try:
        scores = read_scores(annotations[SCORE]) if SCORE in annotations else {}
    except ValueError as exc:
        return f"annotation {SCORE}: {exc}"
    twice = _twice([entry.uuid for entry in registered])
    if twice:
        return f"annotation {register}: expected different ids, got {twice[:40]} twice"
    alive = _serves(node, count) and not _left(annotations.get(handshake, ""), now)
    cordoned = cordoned_uuids(annotations.get(CORDON, ""))
    indices = [entry.index for entry in registered]
    if len(set(indices)) < len(indices):
        indices = list(range(len(registered)))
    gpus = [
        _gpu(entry, index, alive, entry.uuid in cordoned, scores.get(entry.uuid, {}))
        for entry, index in zip(registered, indices, strict=True)
    ]
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def _gpu(
    entry: RegisteredGpu, index: int, alive: bool, cordoned: bool, scores: Mapping[str, int]
) -> OfferedGpu:
    return OfferedGpu(
        index,
        entry.uuid,
        entry.model,
        (entry.cores or _WHOLE) * PERCENT,
        max(entry.memory * MEBIBYTE, _of_partitions(entry.profiles) if entry.mode == MIG else 0),
        entry.slots or 1,
        entry.numa,
        entry.healthy and alive,
        cordoned,
        entry.mode,
        entry.profiles,
        detail=tuple(sorted(scores.items())),
    )


def _of_partitions(profiles: Sequence[PartitionProfile]) -> int:
    """Return the memory of a GPU full of partitions: their sizes are rounded up."""
    placed = [one for one in profiles if one.starts]
    slices = max((max(one.starts) + one.size for one in placed), default=0)
    return max((-(-one.memory // one.size) * slices for one in placed), default=0)


def handshake_problem(text: str) -> str:
    """Return what is wrong with a node's handshake, "" if nothing is; then nobody is gone by it."""
    if not text or text.startswith((_ALIVE, _GONE)) or _asked(text) is not None:
        return ""
    return f'expected "{_ALIVE}", "{_ASKED}" or "{_GONE}" with a time, got "{text[:60]}"'


def _asked(handshake: str) -> datetime | None:
    """Return when a scheduler asked; None if none did, or for a time that cannot be read."""
    found = _REQUEST.fullmatch(handshake)
    if found is None:
        return None
    try:
        return datetime.strptime(found[1], _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None


def _twice(names: Sequence[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""


def _serves(node: Node, count: str) -> bool:
    """Tell whether the kubelet still counts devices: it counts none once their plugin is gone."""
    offered = node.status.allocatable.get(count)
    return offered is None or offered.units > 0


def _left(handshake: str, now: float) -> bool:
    """Tell whether a device plugin is gone, by its handshake with HAMi's scheduler."""
    if handshake.startswith(_GONE):
        return True
    asked = _asked(handshake)
    return asked is not None and now - asked.timestamp() > HANDSHAKE_SECONDS
