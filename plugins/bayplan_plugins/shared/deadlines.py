"""Times of many things: the next one, and those that are over, without a look at the others."""

from __future__ import annotations

import heapq

__all__ = ["Deadlines"]


class Deadlines:
    """Keys, each with a time or none."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._queue: list[tuple[float, str]] = []

    def put(self, key: str, at: float | None) -> None:
        """Give a key a time, in place of the one that it had; None for none."""
        if at is None:
            self._at.pop(key, None)
        elif self._at.get(key) != at:
            self._at[key] = at
            heapq.heappush(self._queue, (at, key))
            if len(self._queue) > 2 * len(self._at) + 64:
                # Most of them were given another time since.
                self._queue = [(when, one) for one, when in self._at.items()]
                heapq.heapify(self._queue)

    def next_time(self) -> float | None:
        """Return the earliest time; None without any."""
        while self._queue and self._at.get(self._queue[0][1]) != self._queue[0][0]:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def take(self, now: float) -> list[str]:
        """Return the keys whose time has come, the first ones first; they have none any more."""
        found = []
        while (at := self.next_time()) is not None and at <= now:
            key = heapq.heappop(self._queue)[1]
            del self._at[key]
            found.append(key)
        return found
