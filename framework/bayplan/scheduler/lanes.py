"""Active units in lanes: one for each queue of the cluster's organisation, each in its own order.

Without queues there is one lane, "", and the first of its heap is tried next. With several, the
heads of all lanes are offered, and the chosen one is tried.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from enum import Enum

__all__ = ["Lanes", "Skip"]

_Entry = tuple[tuple[float, ...], int, str]


class Skip(Enum):
    """What to do with the first unit of a lane."""

    NO = "no"
    YES = "yes"
    WHOLE_LANE = "whole lane"


class Lanes:
    """Heaps of unit keys by lane.

    :param ticket_of: returns the valid ticket of a unit by key, None for a unit that is gone.
    """

    def __init__(self, ticket_of: Callable[[str], int | None]) -> None:
        self._ticket_of = ticket_of
        self._heaps: dict[str, list[_Entry]] = {}

    def push(self, lane: str, order: tuple[float, ...], ticket: int, key: str) -> None:
        """Add a unit; the smallest ``order`` of its lane comes first, then the smallest ticket."""
        heapq.heappush(self._heaps.setdefault(lane, []), (order, ticket, key))

    def pop(
        self,
        choose: Callable[[Mapping[str, str]], str | None],
        skip: Callable[[str, str], Skip],
    ) -> str | None:
        """Remove and return the key of the unit to try next; None for none.

        :param choose: returns a lane, given the first unit of each of several; None for none.
        :param skip: tells, for a lane and its first unit, whether to try it, to drop it from the
            lane, or to leave the lane alone.
        """
        heads = self._heads(skip)
        if not heads:
            return None
        only_default = len(heads) == 1 and "" in heads
        lane = "" if only_default else choose(heads)
        if lane is None:
            return None
        return heapq.heappop(self._heaps[lane])[2]

    def _heads(self, skip: Callable[[str, str], Skip]) -> dict[str, str]:
        """Return the first unit of each lane, by key; drop stale entries and empty lanes."""
        heads: dict[str, str] = {}
        for lane, heap in list(self._heaps.items()):
            while heap:
                _, ticket, key = heap[0]
                if self._ticket_of(key) == ticket:
                    answer = skip(lane, key) if lane else Skip.NO
                    if answer is Skip.NO:
                        heads[lane] = key
                    if answer is not Skip.YES:
                        break
                heapq.heappop(heap)
            if not heap:
                del self._heaps[lane]
        return heads
