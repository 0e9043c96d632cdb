"""Whole cards by an extended resource, on nodes that nothing else describes."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan import PodInfo
from bayplan.api import Node
from bayplan.api.cards import MEBIBYTE, WHOLE, Card, CardUse, Share
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.snapshot import Snapshot
from bayplan_plugins.gpus.resources import gpu_count
from bayplan_plugins.gpus.vendors.contract import CardRequest, Choice, NodeCards, Written

__all__ = ["PlainCards"]

_MEMORY = "nvidia.com/gpu.memory"
_PRODUCT = "nvidia.com/gpu.product"
_MOST_CARDS = 64


class PlainCards:
    """The cards that a device plugin counts; it chooses among them by itself."""

    name = "plain"
    reads: frozenset[str] = frozenset()

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def request(self, pod: PodInfo) -> CardRequest | None:
        """Return the whole cards that a pod requests."""
        count = gpu_count(pod.requests) if pod.facts.wants_devices else 0
        if not count:
            return None
        return CardRequest(
            self.name, count, WHOLE, share=1.0, implicit=True, simple=True, counted=True
        )

    def cards(self, node: Node) -> tuple[Card, ...] | str | None:
        """Return as many cards as the node's device plugin counts."""
        offered = node.status.allocatable or node.status.capacity
        count = max((offered[name].units for name in GPU_RESOURCES if name in offered), default=0)
        if count <= 0:
            return None
        if count > _MOST_CARDS:
            return f"expected {_MOST_CARDS} cards or fewer, got {count}"
        labels = node.metadata.labels
        text = labels.get(_MEMORY, "")
        memory = int(text) * MEBIBYTE if text.isascii() and text.isdigit() and len(text) < 9 else 0
        model = labels.get(_PRODUCT, "")
        return tuple(Card(index, model=model, memory=memory) for index in range(count))

    def held(self, pod: PodInfo, cards: Sequence[Card]) -> tuple[Share, ...] | str:
        """Return nothing: the device plugin tells nobody which cards it gave out."""
        return ()

    def choose(self, pod: PodInfo, request: CardRequest, node: NodeCards) -> Choice:
        """Guess the first cards that nobody uses."""
        free = [card for card, used in zip(node.cards, node.used, strict=True) if _free(card, used)]
        if len(free) < request.cards:
            return Choice(reason="Insufficient free GPUs")
        return Choice(tuple(whole_share(card) for card in free[: request.cards]))

    def written(
        self, pod: PodInfo, node: Node, cards: Sequence[Card], own: Sequence[Share], now: float
    ) -> Written:
        """Return nothing to write."""
        return Written()


def whole_share(card: Card) -> Share:
    """Return the share that is the whole card."""
    return Share(card.index, card.compute, card.memory, card.slots)


def _free(card: Card, used: CardUse) -> bool:
    return used.idle and card.usable
