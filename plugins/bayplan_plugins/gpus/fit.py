"""Which nodes have enough left of their cards, over columns."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from bayplan.plugin.hookspecs import BoolColumn, IntColumn
from bayplan_plugins.gpus.columns import CardArrays, CardColumns, Cards
from bayplan_plugins.gpus.vendors.contract import CardRequest

BoolCards = npt.NDArray[np.bool_]

__all__ = ["Fit", "slots_of"]

_MOST_REQUESTS = 512


class Fit:
    """Tells which nodes have enough left for requests, and which would have if they were empty.

    The latter is computed once for a request, until what nodes offer changes.
    """

    def __init__(self, columns: CardColumns) -> None:
        self._columns = columns
        self._version = -1
        self._ever: dict[CardRequest, BoolColumn] = {}

    def now(self, request: CardRequest, rows: IntColumn) -> BoolColumn:
        """Return, for rows of the table, whether the request fits now."""
        arrays = self._columns.arrays()
        enough = _enough(request, arrays.compute[rows], arrays.memory[rows], arrays, rows)
        enough &= arrays.slots[rows] > 0
        return _enough_cards(request, enough)

    def fits(self, request: CardRequest, row: int, arrays: CardArrays) -> bool:
        """Tell in plain numbers whether the request fits on one row now.

        :param arrays: the columns of all cards, up to date.
        """
        least, memory, share = max(0, request.compute), request.memory, request.share
        missing = request.cards
        for place, compute in enumerate(arrays.compute[row].tolist()):
            if compute < least or arrays.slots.item(row, place) <= 0:
                continue
            if share:
                memory = math.ceil(arrays.all_memory.item(row, place) * share)
            if arrays.memory.item(row, place) >= memory:
                missing -= 1
                if missing <= 0:
                    return True
        return missing <= 0

    def if_empty(self, request: CardRequest) -> BoolColumn:
        """Return, for all rows, whether the request would fit if nothing were taken."""
        arrays = self._columns.arrays()
        if self._version != self._columns.totals_version or len(self._ever) > _MOST_REQUESTS:
            self._version = self._columns.totals_version
            self._ever.clear()
        known = self._ever.get(request)
        if known is None:
            enough = _enough(request, arrays.all_compute, arrays.all_memory, arrays, None)
            known = self._ever[request] = _enough_cards(request, enough)
        return known


def _enough(
    request: CardRequest, compute: Cards, memory: Cards, arrays: CardArrays, rows: IntColumn | None
) -> BoolCards:
    enough = compute >= max(0, request.compute)
    if request.share:
        whole = arrays.all_memory if rows is None else arrays.all_memory[rows]
        enough &= memory >= np.ceil(whole * request.share)
    elif request.memory:
        enough &= memory >= request.memory
    return enough


def _enough_cards(request: CardRequest, enough: BoolCards) -> BoolColumn:
    found: BoolColumn
    if request.cards == 1:
        found = np.logical_or.reduce(enough, axis=1)
    else:
        found = np.add.reduce(enough, axis=1, dtype=np.int64) >= request.cards
    return found


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
