"""Whoever wants to know what a scheduler does while it does it: logs and metrics."""

from __future__ import annotations

from bayplan.cycle.scheduling_cycle import Result
from bayplan.plugin.base import Unit
from bayplan.plugin.decision import Decision
from bayplan.snapshot import PodInfo

__all__ = ["Observer"]


class Observer:
    """Told of every cycle and binding; this one listens to nothing."""

    def begins(self) -> None:
        """A cycle begins."""

    def ended(self, profile: str, unit: Unit, result: Result, seconds: float) -> None:
        """A cycle of a profile ended after so many seconds."""

    def given_up(self, decision: Decision) -> None:
        """A unit that had its nodes gave them back: it was not permitted, prepared or bound."""

    def bound(self, pod: PodInfo, node: str, cycle: int, attempts: int, seconds: float) -> None:
        """A pod was bound, so many seconds after it came into the queue."""
