"""Virtual time: a heap of what happens when."""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["VirtualClock"]


class VirtualClock:
    """Time that moves only when told to, in seconds from 0.

    What is due at the same time runs in the order in which it was scheduled.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def call_at(self, at: float, action: Callable[[], None]) -> None:
        """Schedule an action; a time in the past means now."""
        self._count += 1
        heapq.heappush(self._due, (max(at, self.now), self._count, action))

    def call_later(self, delay: float, action: Callable[[], None]) -> None:
        """Schedule an action after a delay in seconds."""
        self.call_at(self.now + delay, action)

    def next_time(self) -> float | None:
        """Return when the next action is due, None without any."""
        return self._due[0][0] if self._due else None

    def advance(self, to: float) -> None:
        """Move to a time and run everything that is due by then, in order."""
        while self._due and self._due[0][0] <= to:
            at, _, action = heapq.heappop(self._due)
            self.now = max(self.now, at)
            action()
        self.now = max(self.now, to)
