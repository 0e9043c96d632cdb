"""Observers: several combined, and one that logs."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from bayplan.cycle.scheduling_cycle import Result
from bayplan.plugin.base import Unit
from bayplan.plugin.decision import Decision, Outcome
from bayplan.scheduler.observer import Observer
from bayplan.snapshot import PodInfo

__all__ = ["CycleLog", "Observers"]

_REMEMBERED = 10_000
_MOST_NAMED = 8

_log = logging.getLogger("bayplan.scheduler")


class Observers(Observer):
    """Passes every call on to several observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def begins(self) -> None:
        """A cycle begins."""
        for observer in self._observers:
            observer.begins()

    def ended(self, profile: str, unit: Unit, result: Result, seconds: float) -> None:
        """A cycle of a profile ended after ``seconds``."""
        for observer in self._observers:
            observer.ended(profile, unit, result, seconds)

    def given_up(self, decision: Decision) -> None:
        """A unit that had its nodes gave them back."""
        for observer in self._observers:
            observer.given_up(decision)

    def bound(self, pod: PodInfo, node: str, cycle: int, attempts: int, seconds: float) -> None:
        """A pod was bound."""
        for observer in self._observers:
            observer.bound(pod, node, cycle, attempts, seconds)

    def evicted(self, pod: PodInfo, reason: str) -> None:
        """A pod was evicted."""
        for observer in self._observers:
            observer.evicted(pod, reason)


class CycleLog(Observer):
    """Logs decisions and bindings; logs a repeated refusal of a unit once.

    :param dry_run: whether bindings are only decided, not written.
    """

    def __init__(self, dry_run: bool = False) -> None:
        self._verb = "would be bound" if dry_run else "bound"
        self._logged: OrderedDict[str, str] = OrderedDict()

    def ended(self, profile: str, unit: Unit, result: Result, seconds: float) -> None:
        """Log why a unit was not placed, or what it is waiting for."""
        decision = result.decision
        if decision.outcome is Outcome.PLACED:
            self._logged.pop(decision.unit, None)
        elif decision.outcome is Outcome.WAITING:
            nodes = {reserved.pod.key: reserved.node for reserved in result.reserved}
            self._log_once(decision, decision.message, logging.INFO, {"nodes": _listed(nodes)})
        else:
            level = logging.ERROR if decision.outcome is Outcome.ERROR else logging.INFO
            why = f"not placed: {_why(decision)}"
            self._log_once(decision, why, level, {"pods": len(unit.pods)})

    def given_up(self, decision: Decision) -> None:
        """Log why a unit that had its nodes was not bound."""
        level = logging.ERROR if decision.outcome is Outcome.ERROR else logging.INFO
        self._log_once(
            decision, f"not bound: {_why(decision)}", level, {"pods": len(decision.pods)}
        )

    def _log_once(
        self, decision: Decision, why: str, level: int, more: Mapping[str, object]
    ) -> None:
        if self._logged.get(decision.unit) == why:
            return
        self._logged[decision.unit] = why
        self._logged.move_to_end(decision.unit)
        if len(self._logged) > _REMEMBERED:
            self._logged.popitem(last=False)
        extra = {"unit": decision.unit, "cycle": decision.cycle, **more}
        _log.log(level, "%s", why, extra=extra)

    def bound(self, pod: PodInfo, node: str, cycle: int, attempts: int, seconds: float) -> None:
        """Log a binding."""
        _log.info("%s", self._verb, extra={"pod": pod.key, "node": node, "cycle": cycle})


def _listed(nodes: Mapping[str, str]) -> str:
    """Return ``pod=node`` pairs, the first few of many."""
    shown = [f"{pod}={node}" for pod, node in list(nodes.items())[:_MOST_NAMED]]
    return ",".join(shown) + (",..." if len(nodes) > _MOST_NAMED else "")


def _why(decision: Decision) -> str:
    if decision.message:
        return decision.message
    return next((own.message for own in decision.pods.values() if own.message), "no reason given")
