"""Several observers as one, and the one that writes the log."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence

from bayplan.cycle import Result
from bayplan.decision import Decision, Outcome
from bayplan.observer import Observer
from bayplan.plugin import Unit
from bayplan.snapshot import PodInfo

__all__ = ["CycleLog", "Observers"]

_REMEMBERED = 10_000

_log = logging.getLogger("bayplan.scheduler")


class Observers(Observer):
    """Tells several observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def begins(self) -> None:
        """Tell all of a cycle's begin."""
        for observer in self._observers:
            observer.begins()

    def ended(self, profile: str, unit: Unit, result: Result, seconds: float) -> None:
        """Tell all of a cycle's end."""
        for observer in self._observers:
            observer.ended(profile, unit, result, seconds)

    def bound(self, pod: PodInfo, node: str, cycle: int, attempts: int, seconds: float) -> None:
        """Tell all of a binding."""
        for observer in self._observers:
            observer.bound(pod, node, cycle, attempts, seconds)


class CycleLog(Observer):
    """Logs what became of pods; the same refusal of a unit is logged once.

    :param dry_run: whether nothing is written, so that "bound" would be wrong.
    """

    def __init__(self, dry_run: bool = False) -> None:
        self._verb = "would be bound" if dry_run else "bound"
        self._told: OrderedDict[str, str] = OrderedDict()

    def ended(self, profile: str, unit: Unit, result: Result, seconds: float) -> None:
        """Log why a unit was not placed."""
        decision = result.decision
        if decision.outcome in (Outcome.PLACED, Outcome.WAITING):
            self._told.pop(decision.unit, None)
            return
        why = _why(decision)
        if self._told.get(decision.unit) == why:
            return
        self._told[decision.unit] = why
        self._told.move_to_end(decision.unit)
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        level = logging.ERROR if decision.outcome is Outcome.ERROR else logging.INFO
        extra = {"unit": decision.unit, "cycle": decision.cycle, "pods": len(unit.pods)}
        _log.log(level, "not placed: %s", why, extra=extra)

    def bound(self, pod: PodInfo, node: str, cycle: int, attempts: int, seconds: float) -> None:
        """Log a binding."""
        _log.info("%s", self._verb, extra={"pod": pod.key, "node": node, "cycle": cycle})


def _why(decision: Decision) -> str:
    if decision.message:
        return decision.message
    return next((own.message for own in decision.pods.values() if own.message), "no reason given")
