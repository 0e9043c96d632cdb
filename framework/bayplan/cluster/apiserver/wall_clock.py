"""Real time as the time of a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bayplan.cluster.embedded.clock import VirtualClock

__all__ = ["WallClock"]


class WallClock(VirtualClock):
    """A clock that follows real time, in the event loop in which its cluster settles."""

    def __init__(self) -> None:
        super().__init__()
        self._origin = time.monotonic()
        self._alarm: asyncio.TimerHandle | None = None
        self._stopped = False

    def catch_up(self) -> None:
        """Move to the present time and run all actions due by then."""
        self.advance(self.now if self._stopped else time.monotonic() - self._origin)

    def wake_at(self, due: float | None, action: Callable[[], None]) -> None:
        """Call an action at a time (seconds) in the running loop; it replaces the last one."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if due is not None and not self._stopped:
            left = due - (time.monotonic() - self._origin)
            self._alarm = asyncio.get_running_loop().call_later(max(0.0, left), action)

    def stop(self) -> None:
        """Stand still from now on."""
        self._stopped = True
        self.wake_at(None, self.catch_up)
