"""Which nodes have enough left of their cards, over columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bayplan.plugin.hookspecs import BoolColumn, IntColumn
from bayplan_plugins.device_share.columns import CardArrays, Cards
from bayplan_plugins.shared.cards.contract import CardRequest

BoolCards = npt.NDArray[np.bool_]

__all__ = ["fitting", "fitting_cards", "slots_of"]


def fitting(
    request: CardRequest, arrays: CardArrays, rows: IntColumn
) -> tuple[BoolColumn, BoolColumn]:
    """Return, for rows of the table, whether the request fits now, and whether it ever could."""
    ever = _enough(request, arrays.all_compute[rows], arrays.all_memory[rows], arrays, rows)
    return (
        fitting_cards(request, arrays, rows).sum(axis=1) >= request.cards,
        ever.sum(axis=1) >= request.cards,
    )


def fitting_cards(request: CardRequest, arrays: CardArrays, rows: IntColumn) -> BoolCards:
    """Return which cards of each row have enough left."""
    enough = _enough(request, arrays.compute[rows], arrays.memory[rows], arrays, rows)
    return enough & (arrays.slots[rows] > 0)


def _enough(
    request: CardRequest, compute: Cards, memory: Cards, arrays: CardArrays, rows: IntColumn
) -> BoolCards:
    enough = compute >= request.compute
    if request.compute == 0:
        enough &= compute >= 0
    if request.share:
        enough &= memory >= np.ceil(arrays.all_memory[rows] * request.share)
    elif request.memory:
        enough &= memory >= request.memory
    return enough


def slots_of(request: CardRequest, arrays: CardArrays, rows: IntColumn) -> IntColumn:
    """Return how many requests like this one fit on each row, at most."""
    left = arrays.compute[rows]
    each = arrays.slots[rows].clip(min=0)
    if request.compute:
        each = np.minimum(each, left.clip(min=0) // request.compute)
    if request.memory and not request.share:
        each = np.minimum(each, arrays.memory[rows].clip(min=0) // request.memory)
    total: IntColumn = each.sum(axis=1) // max(1, request.cards)
    return total
