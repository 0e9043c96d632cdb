"""The meter's time, which never goes back, whatever the machine's clock does."""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["MeterClock"]

_log = logging.getLogger("bayplan.metering")
_SECOND = 1000


class MeterClock:
    """Milliseconds since 1970, not before those that it returned last.

    :param unix_time: returns the seconds since 1970.
    """

    def __init__(self, unix_time: Callable[[], float]) -> None:
        self._unix_time = unix_time
        self._last = 0
        self.jumps = 0
        """How often the clock was set back."""
        self._behind = False

    def start_at(self, at: int) -> None:
        """Begin no earlier than at a time, such as the journal's heartbeat."""
        self._last = max(self._last, at)

    def now(self) -> int:
        """Return the time; while the clock is behind, the last one."""
        now = round(self._unix_time() * _SECOND)
        behind = now < self._last
        if behind and not self._behind:
            self.jumps += 1
            if self.jumps == 1:
                text = "the clock was set back by %.3f s; usage goes on from where it was"
                _log.warning(text, (self._last - now) / _SECOND)
        self._behind = behind
        self._last = max(now, self._last)
        return self._last

    def refined(self, stated: float, now: int) -> int:
        """Return when something happened that an object dates and that is seen now.

        Objects state whole seconds. What is seen within that second is dated more exactly, and a
        date in the future is wrong.

        :param stated: in seconds since 1970, 0 for none.
        """
        at = round(stated * _SECOND)
        return at if 0 < at <= now - _SECOND else now
