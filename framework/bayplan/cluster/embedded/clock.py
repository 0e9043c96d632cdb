"""Virtual time: a heap of what happens when."""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["VirtualClock"]

_Entry = tuple[float, int, Callable[[], None]]


class VirtualClock:
    """Time that moves only when told to, in seconds from 0.

    What is due at the same time runs in the order in which it was scheduled.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[_Entry] = []
        self._idle: list[_Entry] = []
        self._count = 0

    def call_at(self, at: float, action: Callable[[], None], idle: bool = False) -> None:
        """Schedule an action; a time in the past means now.

        :param idle: whether nobody has to wait for it: a simulation may end before.
        """
        self._count += 1
        heap = self._idle if idle else self._due
        heapq.heappush(heap, (max(at, self.now), self._count, action))

    def call_later(self, delay: float, action: Callable[[], None], idle: bool = False) -> None:
        """Schedule an action after a delay in seconds."""
        self.call_at(self.now + delay, action, idle)

    def next_time(self, idle: bool = True) -> float | None:
        """Return when the next action is due, None without any.

        :param idle: whether those count for which nobody has to wait.
        """
        heap = self._next_heap() if idle else self._due
        return heap[0][0] if heap else None

    def advance(self, to: float) -> None:
        """Move to a time and run everything that is due by then, in order."""
        while (heap := self._next_heap()) and heap[0][0] <= to:
            at, _, action = heapq.heappop(heap)
            self.now = max(self.now, at)
            action()
        self.now = max(self.now, to)

    def _next_heap(self) -> list[_Entry]:
        """Return the heap whose first action is due first."""
        if not self._idle:
            return self._due
        if not self._due or self._idle[0][:2] < self._due[0][:2]:
            return self._idle
        return self._due
