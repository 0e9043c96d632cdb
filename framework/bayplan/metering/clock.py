"""The meter's time: it stands still while the machine's clock is behind, and follows it in the end.

A clock may be wrong for a moment, ahead or behind. What was dated too late while it was ahead must
not keep the time standing for as long as that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["MeterClock"]

_log = logging.getLogger("bayplan.metering")
_SECOND = 1000
_CATCHES_UP = 60_000
"""Milliseconds that a clock may be behind for good: the time stands still for so long."""
_TRUSTED = 300_000
"""Milliseconds after which a clock that is further behind is taken to be right."""


class MeterClock:
    """Milliseconds since 1970, not before those that it returned last, but for ``went_back``.

    :param unix_time: returns the seconds since 1970.
    """

    def __init__(self, unix_time: Callable[[], float]) -> None:
        self._unix_time = unix_time
        self._last = 0
        self.jumps = 0
        """How often the clock was set back."""
        self._behind_since: int | None = None
        self.went_back = False
        """Whether the latest time is before one that was returned earlier."""
        self.wall = 0
        """What the machine's clock said at the latest time."""

    def start_at(self, at: int) -> None:
        """Begin no earlier than at a time, such as the journal's heartbeat."""
        self._last = max(self._last, at)

    @property
    def behind(self) -> bool:
        """Whether the machine's clock is far behind: it may have to be followed back."""
        return self._behind_since is not None and self._last - self.wall > _CATCHES_UP

    def now(self) -> int:
        """Return the time; while the clock is behind, the last one, until it can be trusted."""
        self.wall = now = round(self._unix_time() * _SECOND)
        self.went_back = False
        if now >= self._last:
            self._behind_since = None
            self._last = now
            return now
        if self._behind_since is None:
            self.jumps += 1
            if self.jumps == 1:
                text = "the clock was set back by %.3f s; usage goes on from where it was"
                _log.warning(text, (self._last - now) / _SECOND)
        self._behind_since = now if self._behind_since is None else min(self._behind_since, now)
        if self._last - now > _CATCHES_UP and now - self._behind_since >= _TRUSTED:
            text = "the clock has been behind by %.3f s for a while: usage follows it back"
            _log.warning(text, (self._last - now) / _SECOND)
            self.went_back, self._behind_since, self._last = True, None, now
        return self._last

    def refined(self, stated: float, now: int) -> int:
        """Return when something happened that an object dates and that is seen now.

        Objects state whole seconds. What is seen within that second is dated more exactly, and a
        date in the future is wrong.

        :param stated: in seconds since 1970, 0 for none.
        """
        at = round(stated * _SECOND)
        return at if 0 < at <= now - _SECOND else now
