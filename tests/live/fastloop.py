"""An event loop that skips idle time: with nothing on the wire, time jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_QUIET = 0.001
"""Seconds without traffic after which nothing is on the wire; the kernel's shortest wait."""


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Never waits for long; adds what it would have waited to ``skipped`` (seconds)."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0
        self.threads = 0
        """Calls that run in other threads; time cannot be skipped meanwhile."""

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout <= _QUIET or self.threads:
            return list(super().select(timeout))
        ready = super().select(_QUIET)
        if not ready:
            self.skipped += timeout - _QUIET
        return list(ready)


class FastLoop(asyncio.SelectorEventLoop):
    """A loop whose clock runs ahead of the real one."""

    def __init__(self) -> None:
        self._fast = _Selector()
        super().__init__(self._fast)

    def time(self) -> float:
        return super().time() + self._fast.skipped

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> Any:
        self._fast.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: asyncio.Future[Any]) -> None:
        self._fast.threads -= 1
