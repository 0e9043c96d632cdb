"""An event loop in which nobody waits: with nothing on the wire, time jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_QUIET = 0.003
"""Seconds without anything on the wire after which nothing is taken to be under way."""


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Never waits for long; what it would have waited is added to ``skipped``."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout <= _QUIET:
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


def run_fast(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a fast loop."""
    with asyncio.Runner(loop_factory=FastLoop) as runner:
        return runner.run(coroutine)
