"""What is left of every card of the cluster, as columns: a row a node, a place a card."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
            arrays.contract[row] = NO_CARD
            for column in _columns(arrays):
                column[row] = NO_CARD
            return
        width = len(found.cards)
        if width > arrays.compute.shape[1]:
            arrays = self._arrays = _wider(arrays, width)
        arrays.contract[row] = found.code
        usable = [card.healthy and not card.cordoned for card in found.cards]
        all_compute = [card.compute for card in found.cards]
        all_memory = [card.memory for card in found.cards]
        all_slots = [card.slots for card in found.cards]
        arrays.compute[row, :width] = _left(all_compute, found.compute, usable)
        arrays.memory[row, :width] = _left(all_memory, found.memory, usable)
        arrays.slots[row, :width] = _left(all_slots, found.slots, usable)
        arrays.all_compute[row, :width] = _left(all_compute, None, usable)
        arrays.all_memory[row, :width] = _left(all_memory, None, usable)
        for column in _columns(arrays):
            column[row, width:] = NO_CARD


def _left(offered: Sequence[int], taken: Sequence[int] | None, usable: Sequence[bool]) -> list[int]:
    if taken is None:
        return [one if may else NO_CARD for one, may in zip(offered, usable, strict=True)]
    pairs = zip(offered, taken, usable, strict=True)
    return [max(0, one - used) if may else NO_CARD for one, used, may in pairs]


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
