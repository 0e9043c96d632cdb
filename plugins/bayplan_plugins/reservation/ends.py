"""When reservations end, and when those that are over are deleted."""

from __future__ import annotations

import heapq

from bayplan.api import Reservation
from bayplan.api.times import seconds_of
from bayplan.dialects.koordinator.reservations import expires_at

__all__ = ["Ends", "is_over"]

_RETRY = 10.0
"""Seconds after which what was asked for is asked for again, where nothing has come of it."""


def is_over(one: Reservation) -> bool:
    """Tell whether a reservation holds nothing any more."""
    return one.status.phase in ("Succeeded", "Failed")


class Ends:
    """Keeps when something becomes of each reservation; times are in seconds since 1970.

    :param kept: for how many seconds reservations are kept once they are over, None for ever.
    """

    def __init__(self, kept: float | None) -> None:
        self._kept = kept
        self._times: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def put(self, one: Reservation) -> None:
        """Take note of a reservation, or its new version."""
        at = self._deleted_at(one) if is_over(one) else expires_at(one)
        if at is None:
            self._times.pop(one.key, None)
        elif self._times.get(one.key) != at:
            self._wait(one.key, at)

    def drop(self, name: str) -> None:
        """Forget a reservation."""
        self._times.pop(name, None)

    def due(self, now: float) -> list[str]:
        """Return the names of those whose time has come; each comes again if nothing changes."""
        found = []
        while (at := self.next) is not None and at <= now:
            name = heapq.heappop(self._heap)[1]
            found.append(name)
            self._wait(name, now + _RETRY)
        return found

    @property
    def next(self) -> float | None:
        """When something becomes of one next, None for never."""
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _wait(self, name: str, at: float) -> None:
        self._times[name] = at
        heapq.heappush(self._heap, (at, name))

    def _deleted_at(self, one: Reservation) -> float | None:
        ready = next((c for c in one.status.conditions if c.type == "Ready"), None)
        since = seconds_of(ready.last_transition_time) if ready is not None else 0.0
        return since + self._kept if since and self._kept is not None else None
