"""One look at a whole cluster, as ``bayplan top`` shows it and the scheduler's page serves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import Console

from bayplan.explain.overview import overview
from bayplan.explain.overview_text import drawn
from bayplan.scheduler.scheduler import Scheduler

__all__ = ["TopView"]

_ROWS = 20


@dataclass(frozen=True)
class TopView:
    """What somebody asked to see.

    ``unix_time`` returns now in seconds since 1970 where a scheduler has only just seen the pods,
    so that their waits count from their creation.
    """

    unix_time: Callable[[], float] | None = None

    page: ClassVar[str] = "/debug/top"

    @property
    def asked(self) -> dict[str, str]:
        """The query of the page."""
        return {}

    def exists(self, scheduler: Scheduler) -> bool:
        """Tell whether there is anything to see."""
        return True

    def as_json(self, scheduler: Scheduler) -> dict[str, Any]:
        """Return it as one JSON object, with the cluster's time in seconds as ``at``."""
        return overview(scheduler, self._now()).as_json()

    def print(self, console: Console, scheduler: Scheduler) -> None:
        """Print it for people."""
        console.print(drawn(overview(scheduler, self._now()), _ROWS))

    def _now(self) -> float | None:
        return None if self.unix_time is None else self.unix_time()
