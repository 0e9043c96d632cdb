"""The cards of one node, and what its pods hold of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from bayplan import PodInfo
from bayplan.api.cards import Card, CardUse, Partition, Share
from bayplan_plugins.shared.cards.contract import CardContract, NodeCards

__all__ = ["HeldCards"]


@dataclass
class HeldCards:
    """The cards of one node, what pods hold of them by uid, and what is taken of each.

    ``code`` is the contract's number in the ledger. ``position`` is each card's place in ``cards``
    by its index; ``compute``, ``memory`` and ``slots`` are sums over all shares. ``unsettled`` are
    pods whose shares are not known yet, ``guessed`` those whose shares are stated nowhere.
    ``version`` is another one after every change of what is held.
    """

    contract: CardContract
    code: int
    cards: tuple[Card, ...]
    held: dict[str, tuple[Share, ...]] = field(default_factory=dict)
    guessed: set[str] = field(default_factory=set)
    unsettled: dict[str, PodInfo] = field(default_factory=dict)
    version: int = 0
    position: dict[int, int] = field(init=False)
    compute: list[int] = field(init=False)
    memory: list[int] = field(init=False)
    slots: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.position = {card.index: place for place, card in enumerate(self.cards)}
        zeros = [0] * len(self.cards)
        self.compute, self.memory, self.slots = zeros, zeros.copy(), zeros.copy()

    def count(self, shares: Sequence[Share], sign: int) -> None:
        """Add shares to the sums, or take them away; those of cards that are gone do not count."""
        for share in shares:
            place = self.position.get(share.card)
            if place is not None:
                self.compute[place] += sign * share.compute
                self.memory[place] += sign * share.memory
                self.slots[place] += sign * share.slots

    def partitions(self, but: str = "") -> list[list[Partition]]:
        """Return the partitions of each card that pods hold, except those of a pod by uid."""
        found: list[list[Partition]] = [[] for _ in self.cards]
        for uid, shares in self.held.items():
            for share in shares if uid != but else ():
                if share.partition is not None and share.card in self.position:
                    found[self.position[share.card]].append(share.partition)
        return found

    def details(self, but: str = "") -> list[list[Hashable]]:
        """Return the details of the shares of each card, except those of a pod by uid."""
        found: list[list[Hashable]] = [[] for _ in self.cards]
        for uid, shares in self.held.items():
            for share in shares if uid != but else ():
                if share.detail is not None and share.card in self.position:
                    found[self.position[share.card]].append(share.detail)
        return found

    def state_of(self, place: int, but: str = "") -> NodeCards:
        """Return one card, by its place, and its use, without that of the pod ``but``, by uid."""
        card = self.cards[place]
        compute, memory, slots = self.compute[place], self.memory[place], self.slots[place]
        parts: list[Partition] = []
        details: list[Hashable] = []
        for uid, shares in self.held.items():
            for share in shares:
                if share.card != card.index:
                    continue
                if uid == but:
                    compute -= share.compute
                    memory -= share.memory
                    slots -= share.slots
                    continue
                if share.partition is not None:
                    parts.append(share.partition)
                if share.detail is not None:
                    details.append(share.detail)
        use = CardUse(compute, memory, slots, tuple(sorted(parts)), tuple(details))
        return NodeCards((card,), (use,))

    def state(self, but: str = "") -> NodeCards:
        """Return the cards and their use, without that of the pod ``but``, by uid."""
        own = self.held.get(but, ())
        self.count(own, -1)
        parts, details = self.partitions(but), self.details(but)
        sums = zip(self.compute, self.memory, self.slots, parts, details, strict=True)
        used = tuple(
            CardUse(compute, memory, slots, tuple(sorted(own_parts)), tuple(own_details))
            for compute, memory, slots, own_parts, own_details in sums
        )
        self.count(own, 1)
        return NodeCards(self.cards, used)
