"""Room for pods of several cards, and what it costs to use it up.

A node has a *slot* for a pod of n whole cards when that many are free, with enough CPU. A share on
a free card may use up a slot. How dear slots are follows from how many there are, and how many will
be needed until the idle cards of the cluster are used up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bayplan.api.cards import WHOLE
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn
from bayplan_plugins.gpu_fragmentation.shapes import NodeChoice, WeightedShape
from bayplan_plugins.gpu_fragmentation.states import NodeStates

__all__ = ["SlotTable", "Slots"]

SlotTable = npt.NDArray[np.float64]
"""Numbers of slots: a row for each size of pod, a column for each node."""
_LEAST_PRICE = 80.0
_MOST_PRICE = 3000.0
_LARGEST = 8
_FEWEST = 0.5


@dataclass(frozen=True)
class _Size:
    """The shapes with one number of cards, and each one's part among them."""

    cards: int
    shapes: tuple[WeightedShape, ...]


class Slots:
    """Counts and prices slots.

    :param workload: the shapes and how often they come.
    :param allowed: returns which nodes of the cluster a choice allows.
    """

    def __init__(
        self, workload: Sequence[WeightedShape], allowed: Callable[[NodeChoice], BoolColumn]
    ) -> None:
        self._allowed = allowed
        several = [one for one in workload if one.shape.cards > 1]
        self._sizes = [
            _Size(cards, tuple(one for one in several if one.shape.cards == cards))
            for cards in sorted({one.shape.cards for one in several})
        ]
        self.cards = np.array([size.cards for size in self._sizes], dtype=np.float64)
        # A pod of eight cards uses up four slots of two.
        self._needed = np.array(
            [
                sum(one.part * one.shape.cards for one in several if one.shape.cards >= cards)
                / cards
                for cards in self.cards
            ]
        )
        self._each = sum(one.part * one.shape.total for one in workload) or float(WHOLE)

    def of(self, states: NodeStates) -> SlotTable:
        """Return how many slots nodes have, the mean of the shapes of one size."""
        found = np.zeros((len(self._sizes), len(states)))
        if not self._sizes or not len(states):
            return found
        free = (states.left >= WHOLE).sum(axis=1)
        cpu = states.cpu.clip(min=0)
        for place, size in enumerate(self._sizes):
            by_cards = free // size.cards
            part = sum(one.part for one in size.shapes)
            for one in size.shapes:
                slots = np.minimum(by_cards, cpu // max(1, one.shape.cpu))
                allowed = self._allowed(one.shape.choice)[states.rows]
                found[place] += one.part / part * (slots * allowed)
        return found

    def prices(self, slots: FloatColumn, idle: float) -> FloatColumn:
        """Return what a slot of each size is worth, in thousandths of a card.

        :param slots: the number of slots of each size in the cluster.
        :param idle: the thousandths of cards that are idle in the cluster.
        """
        needed = idle / self._each * self._needed
        scarcity = np.minimum(1.0, needed / np.maximum(slots, _FEWEST))
        found: FloatColumn = self.cards / _LARGEST * (_LEAST_PRICE + _MOST_PRICE * scarcity**2)
        return found
