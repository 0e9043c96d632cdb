"""What is left of every card of the cluster, as columns: a row a node, a place a card."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bayplan.api.cards import WHOLE, Card
from bayplan.plugin.hookspecs import BoolColumn, IntColumn
from bayplan.snapshot import Snapshot
from bayplan_plugins.gpus.node_gpus import NodeGpus
from bayplan_plugins.shared.stale_nodes import StaleNodes

__all__ = ["NO_CARD", "CardArrays", "CardColumns", "Cards"]

Cards = npt.NDArray[np.int64]
"""A number for every card: rows are nodes, columns the places of their cards."""
NO_CARD = -1
"""What is left where there is no card, or none that may be used."""
_FEW = 8


@dataclass(frozen=True)
class CardArrays:
    """What is left and what there is in all of each card; NO_CARD where no pod may use one.

    ``contract`` is the number of each node's contract, -1 without cards. ``shared`` are the nodes
    that give out parts of cards. ``part`` are the
    thousandths of a card that are left of its compute and of its memory, whichever is less; 0 where
    no pod may use one.
    """

    contract: IntColumn
    shared: BoolColumn
    part: Cards
    compute: Cards
    memory: Cards
    slots: Cards
    all_compute: Cards
    all_memory: Cards


class CardColumns:
    """The cards of all node rows; read again only for nodes that changed.

    :param cards: returns the cards of a node by name, None where it has none.
    """

    def __init__(self, snapshot: Snapshot, cards: Callable[[str], NodeGpus | None]) -> None:
        self._snapshot = snapshot
        self._cards = cards
        self._arrays = _empty(0, _FEW)
        self._stale = StaleNodes(snapshot)
        self._filled: dict[int, NodeGpus] = {}
        """Of which cards each row shows what there is in all."""
        self.totals_version = 0
        """Changes with what there is in all, of any card."""

    def touch(self, name: str) -> None:
        """Mark a node's cards as changed."""
        self._stale.touch(name)

    def arrays(self) -> CardArrays:
        """Return the columns of all rows; do not change them."""
        if self._stale.up_to_date:
            return self._arrays
        table = self._snapshot.nodes
        # Where rows may have moved, most are what they were: each is compared with what it showed.
        moved, stale = self._stale.take()
        if moved and len(self._arrays.contract) != len(table):
            self._arrays = _empty(len(table), self._arrays.compute.shape[1])
            self._filled.clear()
            self.totals_version += 1
        for name in stale:
            row = table.row_of.get(name)
            if row is not None:
                self._fill(row, self._cards(name))
        return self._arrays

    def _fill(self, row: int, found: NodeGpus | None) -> None:
        arrays = self._arrays
        if found is None:
            self.totals_version += self._filled.pop(row, None) is not None
            _clear(arrays, row)
            return
        places: Iterable[int] = found.changed
        if self._filled.get(row) is not found:
            self._filled[row] = found
            self.totals_version += 1
            if len(found.cards) > arrays.compute.shape[1]:
                arrays = self._arrays = _wider(arrays, len(found.cards))
            _clear(arrays, row)
            arrays.contract[row] = found.code
            arrays.shared[row] = any(map(_in_parts, found.cards))
            places = range(len(found.cards))
            for place, card in enumerate(found.cards):
                if card.usable:
                    arrays.all_compute[row, place] = card.compute
                    arrays.all_memory[row, place] = card.memory
        for place in places:
            card = found.cards[place]
            if card.usable:
                compute = max(0, card.compute - found.compute[place])
                memory = max(0, card.memory - found.memory[place])
                arrays.compute[row, place] = compute
                arrays.memory[row, place] = memory
                arrays.slots[row, place] = max(0, card.slots - found.slots[place])
                part = memory * WHOLE // card.memory if card.memory else compute
                arrays.part[row, place] = min(compute, part)
        found.changed.clear()


def _in_parts(card: Card) -> bool:
    """Tell whether pods are given parts of a card; other devices than accelerators have none."""
    return card.compute > 0 and (card.slots > 1 or card.compute < WHOLE)


def _clear(arrays: CardArrays, row: int) -> None:
    arrays.contract[row] = NO_CARD
    arrays.shared[row] = False
    arrays.part[row] = 0
    for column in _columns(arrays):
        column[row] = NO_CARD


def _columns(arrays: CardArrays) -> tuple[Cards, ...]:
    return (arrays.compute, arrays.memory, arrays.slots, arrays.all_compute, arrays.all_memory)


def _empty(rows: int, width: int) -> CardArrays:
    contract = np.full(rows, NO_CARD, dtype=np.int64)
    shared = np.zeros(rows, dtype=np.bool_)
    part = np.zeros((rows, width), dtype=np.int64)
    others = (np.full((rows, width), NO_CARD, dtype=np.int64) for _ in range(5))
    return CardArrays(contract, shared, part, *others)


def _wider(arrays: CardArrays, width: int) -> CardArrays:
    wider = _empty(len(arrays.contract), width)
    wider.contract[:] = arrays.contract
    wider.shared[:] = arrays.shared
    wider.part[:, : arrays.part.shape[1]] = arrays.part
    for new, old in zip(_columns(wider), _columns(arrays), strict=True):
        new[:, : old.shape[1]] = old
    return wider
