"""The cards that a node's device plugin registers, for HAMi and for Volcano's vGPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from bayplan.api import Node
from bayplan.api.cards import MEBIBYTE, Card, PartitionProfile
from bayplan.topology.machine.readers.hami import SCORE, read_scores
from bayplan.topology.machine.readers.hami_register import CORDON, RegisteredGpu, cordoned_uuids
from bayplan_plugins.gpus.vendors.hami.device import MIG, PERCENT

__all__ = ["HANDSHAKE_SECONDS", "handshake_problem", "registered_cards"]

HANDSHAKE_SECONDS = 300.0
"""How long a device plugin may take to answer a scheduler's handshake."""
_WHOLE = 100
_ASKED = "Requesting_"
_GONE = "Deleted_"
_ALIVE = "Reported"
_REQUEST = re.compile(r"Requesting_(\d{4}(?:\.\d\d?){2} \d\d?(?::\d\d?){2})", re.ASCII)
_TIME = "%Y.%m.%d %H:%M:%S"


def registered_cards(
    node: Node,
    register: str,
    read: Callable[[str], list[RegisteredGpu]],
    count: str,
    handshake: str,
    now: float,
) -> tuple[Card, ...] | str | None:
    """Return the cards of a node, None without a register, or what is wrong with it.

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
        gpus = read(text)
    except ValueError as exc:
        return f"annotation {register}: {exc}"
    try:
        scores = read_scores(annotations[SCORE]) if SCORE in annotations else {}
    except ValueError as exc:
        return f"annotation {SCORE}: {exc}"
    twice = _twice([gpu.uuid for gpu in gpus])
    if twice:
        return f"annotation {register}: expected different ids, got {twice[:40]} twice"
    alive = _serves(node, count) and not _left(annotations.get(handshake, ""), now)
    cordoned = cordoned_uuids(annotations.get(CORDON, ""))
    indices = [gpu.index for gpu in gpus]
    if len(set(indices)) < len(indices):
        indices = list(range(len(gpus)))
    cards = [
        _card(gpu, index, alive, gpu.uuid in cordoned, scores.get(gpu.uuid, {}))
        for gpu, index in zip(gpus, indices, strict=True)
    ]
    return tuple(sorted(cards, key=lambda card: card.index))


def _card(
    gpu: RegisteredGpu, index: int, alive: bool, cordoned: bool, scores: Mapping[str, int]
) -> Card:
    return Card(
        index,
        gpu.uuid,
        gpu.model,
        (gpu.cores or _WHOLE) * PERCENT,
        max(gpu.memory * MEBIBYTE, _of_partitions(gpu.profiles) if gpu.mode == MIG else 0),
        gpu.slots or 1,
        gpu.numa,
        gpu.healthy and alive,
        cordoned,
        gpu.mode,
        gpu.profiles,
        detail=tuple(sorted(scores.items())),
    )


def _of_partitions(profiles: Sequence[PartitionProfile]) -> int:
    """Return the memory of a card full of partitions: their sizes are rounded up."""
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
