"""One look at a whole cluster, as ``bayplan top`` shows it and the scheduler's page serves it."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from rich.console import Console

from bayplan.explain.overview import overview
from bayplan.explain.overview_text import drawn
from bayplan.scheduler.scheduler import Scheduler

__all__ = ["TopView"]

_ROWS = 20


class TopView(msgspec.Struct, frozen=True):
    """What somebody asked to see."""

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
        return overview(scheduler).as_json()

    def print(self, console: Console, scheduler: Scheduler) -> None:
        """Print it for people."""
        console.print(drawn(overview(scheduler), _ROWS))
