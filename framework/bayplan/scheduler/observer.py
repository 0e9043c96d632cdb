"""The hooks for logs and metrics: what a scheduler reports while it works."""

from __future__ import annotations

from bayplan.cycle.scheduling_cycle import Result
from bayplan.plugin.base import Unit
from bayplan.plugin.decision import Decision
from bayplan.snapshot import PodInfo

__all__ = ["Observer"]


class Observer:
    """Called at every cycle and binding; this one does nothing."""

    def begins(self) -> None:
        """A cycle begins."""

    def ended(self, profile: str, unit: Unit, result: Result, seconds: float) -> None:
        """A cycle of a profile ended; ``seconds`` is how long it took."""

    def given_up(self, decision: Decision) -> None:
        """A placed unit gave its nodes back: it was not permitted, prepared or bound."""

    def bound(self, pod: PodInfo, node: str, cycle: int, attempts: int, seconds: float) -> None:
        """A pod was bound, ``seconds`` after it came into the queue, in ``attempts`` cycles."""

    def evicted(self, pod: PodInfo, reason: str) -> None:
        """A pod was evicted; ``reason`` is the action that preempted it, or "overdue"."""
