"""Virtual time: actions run in the order of their times."""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["VirtualClock"]

_Entry = tuple[float, int, Callable[[], None]]


class VirtualClock:
    """Time that moves only in ``advance``, in seconds from 0.

    Actions due at the same time run in the order in which they were scheduled.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[_Entry] = []
        self._idle: list[_Entry] = []
        self._count = 0

    def call_at(self, at: float, action: Callable[[], None], idle: bool = False) -> None:
        """Schedule an action; a time in the past counts as now.

        :param idle: whether a simulation may end without running it.
        """
        self._count += 1
        heap = self._idle if idle else self._due
        heapq.heappush(heap, (max(at, self.now), self._count, action))

    def call_later(self, delay: float, action: Callable[[], None], idle: bool = False) -> None:
        """Schedule an action after a delay in seconds."""
        self.call_at(self.now + delay, action, idle)

    def next_time(self, idle: bool = True) -> float | None:
        """Return when the next action is due, None without any.

        :param idle: whether to count idle actions.
        """
        heap = self._next_heap() if idle else self._due
        return heap[0][0] if heap else None

    def advance(self, to: float) -> None:
        """Move to a time (seconds) and run all actions due by then, in order."""
        while (heap := self._next_heap()) and heap[0][0] <= to:
            at, _, action = heapq.heappop(heap)
            self.now = max(self.now, at)
            action()
        self.now = max(self.now, to)

    def catch_up(self) -> None:
        """Run all actions due at the present time."""
        self.advance(self.now)

    def wake_at(self, due: float | None, action: Callable[[], None]) -> None:
        """Call an action when a time comes by itself, which virtual time never does."""

    def _next_heap(self) -> list[_Entry]:
        """Return the heap with the earliest action."""
        if not self._idle:
            return self._due
        if not self._due or self._idle[0][:2] < self._due[0][:2]:
            return self._idle
        return self._due
