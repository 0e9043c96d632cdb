"""What is left of every card of the cluster, as columns: a row a node, a place a card."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bayplan.api.cards import Card
from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot import Snapshot
from bayplan_plugins.device_share.held import HeldCards

__all__ = ["NO_CARD", "CardArrays", "CardColumns", "Cards"]

Cards = npt.NDArray[np.int64]
"""A number for every card: rows are nodes, columns the places of their cards."""
NO_CARD = -1
"""What is left where there is no card, or none that may be used."""
_FEW = 8


@dataclass(frozen=True)
class CardArrays:
    """What is left and what there is in all of each card; NO_CARD where no pod may use one.

    ``contract`` is the number of each node's contract, -1 without cards.
    """

    contract: IntColumn
    compute: Cards
    memory: Cards
    slots: Cards
    all_compute: Cards
    all_memory: Cards


class CardColumns:
    """The cards of all node rows; read again only for nodes that changed.

    :param cards: returns the cards of a node by name, None where it has none.
    """

    def __init__(self, snapshot: Snapshot, cards: Callable[[str], HeldCards | None]) -> None:
        self._snapshot = snapshot
        self._cards = cards
        self._arrays = _empty(0, _FEW)
        self._epoch: object = None
        self._seen = 0
        self._dirty: set[str] = set()
        self._filled: dict[int, HeldCards] = {}
        """Of which cards each row shows what there is in all."""
        self.totals_version = 0
        """Changes with what there is in all, of any card."""

    def touch(self, name: str) -> None:
        """Mark a node's cards as changed."""
        self._dirty.add(name)

    def arrays(self) -> CardArrays:
        """Return the columns of all rows; do not change them."""
        table = self._snapshot.nodes
        epoch = (table.epoch, len(table))
        stale: Iterable[str]
        if epoch != self._epoch:
            self._epoch = epoch
            self._arrays = _empty(len(table), self._arrays.compute.shape[1])
            self._filled.clear()
            self.totals_version += 1
            stale = table.names
        elif not self._dirty and self._seen == len(table.changes):
            return self._arrays
        else:
            stale = self._dirty.union([table.names[row] for row in table.changes[self._seen :]])
        for name in tuple(stale):
            row = table.row_of.get(name)
            if row is not None:
                self._fill(row, self._cards(name))
        self._dirty.clear()
        self._seen = len(table.changes)
        return self._arrays

    def _fill(self, row: int, found: HeldCards | None) -> None:
        arrays = self._arrays
        if found is None:
            self.totals_version += self._filled.pop(row, None) is not None
            arrays.contract[row] = NO_CARD
            for column in _columns(arrays):
                column[row] = NO_CARD
            return
        width = len(found.cards)
        if width > arrays.compute.shape[1]:
            arrays = self._arrays = _wider(arrays, width)
        cards = found.cards
        if self._filled.get(row) is not found:
            self._filled[row] = found
            self.totals_version += 1
            arrays.contract[row] = found.code
            for column in _columns(arrays):
                column[row, width:] = NO_CARD
            arrays.all_compute[row, :width] = [_usable(one, one.compute) for one in cards]
            arrays.all_memory[row, :width] = [_usable(one, one.memory) for one in cards]
        pairs = zip(cards, found.compute, found.memory, found.slots, strict=True)
        left = [_left(card, compute, memory, slots) for card, compute, memory, slots in pairs]
        columns = zip(*left, strict=True)
        shown = (arrays.compute, arrays.memory, arrays.slots)
        for column, values in zip(shown, columns, strict=True):
            column[row, :width] = values


def _usable(card: Card, amount: int) -> int:
    return amount if card.healthy and not card.cordoned else NO_CARD


def _left(card: Card, compute: int, memory: int, slots: int) -> tuple[int, int, int]:
    if not card.healthy or card.cordoned:
        return NO_CARD, NO_CARD, NO_CARD
    return max(0, card.compute - compute), max(0, card.memory - memory), max(0, card.slots - slots)


def _columns(arrays: CardArrays) -> tuple[Cards, ...]:
    return (arrays.compute, arrays.memory, arrays.slots, arrays.all_compute, arrays.all_memory)


def _empty(rows: int, width: int) -> CardArrays:
    contract = np.full(rows, NO_CARD, dtype=np.int64)
    return CardArrays(
        contract, *(np.full((rows, width), NO_CARD, dtype=np.int64) for _ in range(5))
    )


def _wider(arrays: CardArrays, width: int) -> CardArrays:
    wider = _empty(len(arrays.contract), width)
    wider.contract[:] = arrays.contract
    for new, old in zip(_columns(wider), _columns(arrays), strict=True):
        new[:, : old.shape[1]] = old
    return wider
