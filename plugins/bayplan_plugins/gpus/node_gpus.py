"""The GPUs of one node, and what its pods hold of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from bayplan import PodInfo
from bayplan.api.cards import WHOLE, Card, CardUse, Partition, Share
from bayplan_plugins.gpus.vendors.contract import CardContract, NodeCards
from bayplan_plugins.gpus.vendors.plain import whole_share
from bayplan_plugins.gpus.whole_gpus import WholeGpus
from bayplan_plugins.shared.node_codes import NO_CODE

__all__ = ["NodeGpus"]


@dataclass
class NodeGpus:
    """The cards of one node, what pods hold of them by uid, and what is taken of each.

    ``contract`` describes the cards, None where only the machine is known; ``code`` is its number
    in the ledger. ``whole`` looks at the same holders GPU by GPU, None where the machine is not
    known or the contract chooses whole GPUs itself. ``position`` is each card's place in ``cards``
    by its index; ``compute``, ``memory`` and ``slots`` are sums over all shares. ``unsettled`` are
    pods whose shares are not known yet, ``guessed`` those whose shares are stated nowhere.
    ``version`` is another one after every change of what is held. ``changed`` are the places whose
    sums changed since the columns of all cards showed them.
    """

    contract: CardContract | None = None
    code: int = NO_CODE
    cards: tuple[Card, ...] = ()
    whole: WholeGpus | None = None
    held: dict[str, tuple[Share, ...]] = field(default_factory=dict)
    guessed: set[str] = field(default_factory=set)
    unsettled: dict[str, PodInfo] = field(default_factory=dict)
    version: int = 0
    position: dict[int, int] = field(init=False)
    compute: list[int] = field(init=False)
    memory: list[int] = field(init=False)
    slots: list[int] = field(init=False)
    changed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.position = {card.index: place for place, card in enumerate(self.cards)}
        zeros = [0] * len(self.cards)
        self.compute, self.memory, self.slots = zeros, zeros.copy(), zeros.copy()

    def assign(self, uid: str, shares: tuple[Share, ...] | None, guessed: bool = False) -> None:
        """Change what a pod, by uid, holds; None for nothing."""
        self.count(self.held.get(uid, ()), -1)
        self.guessed.discard(uid)
        if shares is None:
            self.held.pop(uid, None)
            return
        self.held[uid] = shares
        self.count(shares, 1)
        if guessed:
            self.guessed.add(uid)

    def gpus_of(self, uid: str) -> tuple[int, ...]:
        """Return the GPUs by index of which a pod, by uid, holds anything."""
        return tuple(share.card for share in self.held.get(uid, ()))

    def whole_shares(self, gpus: Iterable[int]) -> tuple[Share, ...]:
        """Return the shares that are all of certain GPUs, by index."""
        cards = ((gpu, self.position.get(gpu)) for gpu in gpus)
        return tuple(
            Share(gpu, WHOLE) if place is None else whole_share(self.cards[place])
            for gpu, place in cards
        )

    def count(self, shares: Sequence[Share], sign: int) -> None:
        """Add shares to the sums, or take them away; those of cards that are gone do not count."""
        for share in shares:
            place = self.position.get(share.card)
            if place is not None:
                self.changed.add(place)
                self.compute[place] += sign * share.compute
                self.memory[place] += sign * share.memory
                self.slots[place] += sign * share.slots

    def idle_card(self, but: str = "") -> NodeCards | None:
        """Return the first usable card that nobody uses but one pod, by uid; None without one."""
        own = self.held.get(but, ())
        self.count(own, -1)
        sums = zip(self.cards, self.compute, self.memory, self.slots, strict=True)
        found = None
        for card, compute, memory, slots in sums:
            if not (compute or memory or slots) and card.usable:
                found = card
                break
        self.count(own, 1)
        return NodeCards((found,), (CardUse(),)) if found is not None else None

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
