"""A card in HAMi's units: MiB of memory, percent of compute."""

from __future__ import annotations

from dataclasses import dataclass, field

from bayplan.api.cards import MEBIBYTE, Card, CardUse, Partition, PartitionProfile

__all__ = ["MIG", "PERCENT", "Device", "device_of"]

PERCENT = 10
"""Thousandths of a card in a percent of it."""
MIG = "mig"
_UNKNOWN_NUMA = -1


@dataclass(slots=True)
class Device:
    """A card, and what is taken of it so far; shares are added while a pod is tried on it.

    ``pair_scores`` are those of HAMi's register, by UUID.
    """

    uuid: str
    index: int
    type: str
    count: int
    memory: int
    cores: int
    used: int = 0
    used_memory: int = 0
    used_cores: int = 0
    numa: int = _UNKNOWN_NUMA
    healthy: bool = True
    cordoned: bool = False
    mode: str = ""
    profiles: tuple[PartitionProfile, ...] = ()
    partitions: list[Partition] = field(default_factory=list)
    pair_scores: tuple[tuple[str, int], ...] = ()


def device_of(card: Card, use: CardUse) -> Device:
    """Return a card with what is taken of it; parts of a MiB or a percent count as taken."""
    return Device(
        card.uuid,
        card.index,
        card.model,
        card.slots,
        card.memory // MEBIBYTE,
        card.compute // PERCENT,
        use.slots,
        -(-use.memory // MEBIBYTE),
        -(-use.compute // PERCENT),
        _UNKNOWN_NUMA if card.numa is None else card.numa,
        card.healthy,
        card.cordoned,
        card.mode,
        card.profiles,
        list(use.partitions),
        card.detail if isinstance(card.detail, tuple) else (),
    )
