"""When reservations end, and when those that are over are deleted."""

from __future__ import annotations

from bayplan.api import Reservation
from bayplan.api.times import seconds_of
from bayplan.dialects.koordinator.reservations import expires_at
from bayplan_plugins.shared.deadlines import Deadlines

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
        self._times = Deadlines()

    def put(self, one: Reservation) -> None:
        """Take note of a reservation, or its new version."""
        self._times.put(one.key, self._deleted_at(one) if is_over(one) else expires_at(one))

    def drop(self, name: str) -> None:
        """Forget a reservation."""
        self._times.put(name, None)

    def due(self, now: float) -> list[str]:
        """Return the names of those whose time has come; each comes again if nothing changes."""
        found = self._times.take(now)
        for name in found:
            self._times.put(name, now + _RETRY)
        return found

    @property
    def next(self) -> float | None:
        """When something becomes of one next, None for never."""
        return self._times.next_time()

    def _deleted_at(self, one: Reservation) -> float | None:
        ready = next((c for c in one.status.conditions if c.type == "Ready"), None)
        since = seconds_of(ready.last_transition_time) if ready is not None else 0.0
        return since + self._kept if since and self._kept is not None else None
