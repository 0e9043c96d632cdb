"""Progress bars on standard error, for people who wait longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Bars", "Report", "progress_bars"]

_PATIENCE = 1.0
"""Seconds after which a bar is shown."""

Report = Callable[[int, int], None]
"""Called with how much is done, and of how much."""


class Bars(Protocol):
    """Makes bars, of which the latest is shown."""

    def __call__(self, what: str) -> Report:
        """Return what reports on something."""


@contextmanager
def progress_bars() -> Iterator[Bars | None]:
    """Show what is being done, how far it is and how long it will take; None in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    shown = _Shown()
    try:
        yield shown.bar
    finally:
        shown.end()


class _Shown:
    """The bars of a terminal."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._progress: Progress | None = None

    def bar(self, what: str) -> Report:
        """Return what reports on something."""
        task: TaskID | None = None

        def report(done: int, total: int) -> None:
            nonlocal task
            if time.monotonic() - self._begin < _PATIENCE:
                return
            progress = self._made()
            if task is None or task not in progress.task_ids:
                for other in progress.task_ids:
                    progress.remove_task(other)
                task = progress.add_task(what, total=total)
            progress.update(task, completed=done, total=total)

        return report

    def end(self) -> None:
        """Take the bars away."""
        if self._progress is not None:
            self._progress.stop()

    def _made(self) -> Progress:
        if self._progress is None:
            # The import takes longer than a small simulation, and only who waits needs it.
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                Progress,
                TaskProgressColumn,
                TextColumn,
                TimeRemainingColumn,
            )

            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TaskProgressColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._progress.start()
        return self._progress
