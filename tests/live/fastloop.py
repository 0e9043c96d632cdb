"""An event loop that skips idle time: with nothing on the wire, time jumps to the next timer.

Nor does its clock go on while this process is kept from running, by others or by the garbage
collector: a pause of a second would look like a server that is silent for so long.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_QUIET = 0.001
"""Seconds without traffic after which nothing is on the wire; the kernel's shortest wait."""
_LONGEST_TURN = 0.02
"""As much as a turn of the loop takes at most, by its clock, in seconds."""


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Never waits for long, and keeps the time."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = 0
        """Calls that run in other threads; time cannot be skipped meanwhile."""
        self._turn_began = time.monotonic()
        self._time = self._turn_began
        """When the turn began, by the loop's clock."""

    def time(self) -> float:
        """Return the loop's time, in seconds."""
        return self._time + min(time.monotonic() - self._turn_began, _LONGEST_TURN)

    def select(self, timeout: float | None = None) -> list[Any]:
        self._time = self.time()
        began = time.monotonic()
        if timeout is None or timeout <= _QUIET or self.threads:
            ready = super().select(timeout)
        else:
            ready = super().select(_QUIET)
        self._turn_began = time.monotonic()
        waited = self._turn_began - began
        if timeout is not None:
            skipped = not ready and not self.threads
            waited = timeout if skipped else min(waited, timeout)
        self._time += waited
        return list(ready)


class FastLoop(asyncio.SelectorEventLoop):
    """A loop whose clock runs ahead of the real one."""

    def __init__(self) -> None:
        self._fast = _Selector()
        super().__init__(self._fast)

    def time(self) -> float:
        return self._fast.time()

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> Any:
        self._fast.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: asyncio.Future[Any]) -> None:
        self._fast.threads -= 1
