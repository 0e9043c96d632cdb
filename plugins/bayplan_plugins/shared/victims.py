"""Which pods a unit may evict, what that costs, and the rules that protect gangs and budgets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from bayplan import Handle, PodInfo, Unit
from bayplan.api import PodDisruptionBudget
from bayplan.api.gang import Gang
from bayplan.api.selectors import Selector, compile_selector
from bayplan.dialects import may_be_evicted
from bayplan.gangs.completeness import has_minimum, rank_order

__all__ = ["Evictable", "EvictionCost"]

_OFFSET = 2**31
"""Added to each priority, as kube-scheduler does, so that every victim adds to the sum."""
_NOT_STARTED = math.inf


@dataclass(frozen=True, order=True)
class EvictionCost:
    """What an eviction costs; less is better, and the first field that differs decides.

    In order: disruption budgets violated, highest priority among the victims, sum of their
    priorities, their number, gangs that end, start time (seconds since 1970, negated: later is
    better) of the earliest victim with the highest priority, and the first position by rank among
    gangs' victims (negated: last is better).
    """

    violations: int
    highest: int
    total: int
    pods: int
    gangs: int
    started: float
    rank: int = 0

    def describe(self) -> str:
        """Return the cost in words."""
        parts = [
            f"{self.pods} pod{'' if self.pods == 1 else 's'} of priority {self.highest} at most"
        ]
        if self.pods == 0:
            parts = ["nobody"]
        if self.violations:
            parts.append(f"{self.violations} against a disruption budget")
        if self.gangs:
            parts.append(f"{self.gangs} gang{'s'[: self.gangs > 1]} ended")
        return ", ".join(parts)


class Evictable:
    """The pods that may be evicted for one unit.

    :param protect: keep every gang at its minimum, even where all of it could go.
    """

    def __init__(self, unit: Unit, handle: Handle, protect: bool = False) -> None:
        self._handle = handle
        self._snapshot = handle.snapshot
        self.priority = min(pod.priority for pod in unit.pods)
        self._own = {pod.key for pod in (*unit.pods, *(bound for bound, _ in unit.bound))}
        self._protect = protect
        self.in_cooldown: dict[str, PodInfo] = {}
        """Pods that could be evicted if they were not in cooldown, by key."""
        self._surplus: dict[str, set[str]] = {}
        self._budgets = [
            (budget, compile_selector(budget.spec.selector))
            for budget in self._snapshot.objects(PodDisruptionBudget).values()
        ]

    def on_row(self, row: int) -> list[PodInfo]:
        """Return the pods of a node that may be evicted, the least important first."""
        found = [pod for pod in self._snapshot.nodes.pods[row].values() if self._may_go(pod)]
        return self.by_importance(found)

    def by_importance(self, pods: Iterable[PodInfo]) -> list[PodInfo]:
        """Sort pods by importance, the most important last."""
        return sorted(pods, key=self._guarded_importance)

    def _guarded_importance(self, pod: PodInfo) -> tuple[bool, tuple[object, ...]]:
        guarded = bool(self._budgets) and bool(self.budgets_of(pod))
        real, *rest = self._importance(pod)
        return (real, (guarded, *rest))

    def _importance(self, pod: PodInfo) -> tuple[bool, int, float, int]:
        """Return a key that sorts by importance, the most important last (MoreImportantPod).

        Of pods that started at the same time the first that the scheduler saw is the most
        important. kube-scheduler takes a pod without start time for one that starts when it is
        asked; sorting turns such pods around, so that the last is the most important.
        """
        started = _started(pod)
        order = pod.serial if started == _NOT_STARTED else -pod.serial
        return (not self.is_free(pod), pod.priority, -started, order)

    def to_reprieve(self, pods: Iterable[PodInfo]) -> tuple[list[PodInfo], list[PodInfo]]:
        """Return the pods whose eviction would violate a budget, and the others, to be reprieved.

        Both lists begin with the most important; so does counting against the budgets
        (filterPodsWithPDBViolation).
        """
        left = self._allowed()
        violating: list[PodInfo] = []
        others: list[PodInfo] = []
        for pod in sorted(pods, key=self._importance, reverse=True):
            own = () if self.is_free(pod) else self.budgets_of(pod)
            for budget in own:
                left[budget] -= 1
            (violating if any(left[budget] < 0 for budget in own) else others).append(pod)
        return violating, others

    def _allowed(self) -> dict[str, int]:
        """Return how many evictions each budget, by key, allows."""
        return {
            f"{budget.metadata.namespace}/{budget.metadata.name}": budget.status.disruptions_allowed
            for budget, _ in self._budgets
        }

    def is_free(self, pod: PodInfo) -> bool:
        """Tell whether a pod costs nothing: it is terminating, or only nominated."""
        return pod.terminating or self._handle.is_nominated(pod)

    def _may_go(self, pod: PodInfo) -> bool:
        if pod.key in self._own or pod.priority >= self.priority:
            return False
        if self.is_free(pod):
            return True
        if not may_be_evicted(pod.pod):
            return False
        if self._handle.in_eviction_cooldown(pod):
            self.in_cooldown[pod.key] = pod
            return False
        return self._gang_allows(pod)

    # Gangs -------------------------------------------------------------------------------

    def gang_of(self, pod: PodInfo) -> Gang | None:
        """Return the gang that a pod's eviction could end."""
        if pod.gang is None:
            return None
        return self._handle.gang(pod.gang).gang

    def members(self, gang: str) -> list[PodInfo]:
        """Return a gang's pods that have a node and are not terminating."""
        bound = self._handle.gang(gang).bound.values()
        return [pod for pod, _ in bound if not pod.terminating]

    def _position(self, pod: PodInfo) -> int:
        """Return a pod's place among its gang's members, by rank."""
        assert pod.gang is not None, "asked of members only"
        ordered = sorted(self.members(pod.gang), key=rank_order)
        return next((i for i, other in enumerate(ordered) if other.key == pod.key), 0)

    def _gang_allows(self, pod: PodInfo) -> bool:
        """Tell whether the pod's gang can end, or stays complete without it."""
        gang = self.gang_of(pod)
        if gang is None:
            return True
        members = self.members(gang.key)
        if not self._protect and all(
            other.priority < self.priority
            and may_be_evicted(other.pod)
            and not self._handle.in_eviction_cooldown(other)
            for other in members
        ):
            return True
        if gang.whole:
            return False
        if gang.key not in self._surplus:
            spare = max(0, len(members) - gang.min_member)
            last = sorted(members, key=rank_order, reverse=True)
            self._surplus[gang.key] = {other.key for other in last[:spare]}
        return pod.key in self._surplus[gang.key]

    def closure(self, victims: Iterable[PodInfo]) -> list[PodInfo]:
        """Return the victims and, for each gang that they end, all of its other members."""
        chosen = {pod.key: pod for pod in victims}
        by_gang: dict[str, int] = {}
        for pod in chosen.values():
            if pod.gang is not None and not self.is_free(pod):
                by_gang[pod.gang] = by_gang.get(pod.gang, 0) + 1
        for key, count in by_gang.items():
            gang = self._handle.gang(key).gang
            if gang is None:
                continue
            members = self.members(key)
            if gang.whole or not has_minimum(gang, len(members) - count):
                chosen |= {pod.key: pod for pod in members}
        return list(chosen.values())

    def ended_gangs(self, victims: Sequence[PodInfo]) -> int:
        """Return how many gangs fall below their minimum without these pods."""
        gone = {pod.key for pod in victims if not self.is_free(pod)}
        gangs = {pod.gang for pod in victims if pod.gang is not None and not self.is_free(pod)}
        ended = 0
        for key in gangs:
            gang = self._handle.gang(key).gang
            members = self.members(key)
            left = sum(pod.key not in gone for pod in members)
            if gang is not None and has_minimum(gang, len(members)):
                ended += not has_minimum(gang, left)
        return ended

    # Costs -------------------------------------------------------------------------------

    def budgets_of(self, pod: PodInfo) -> list[str]:
        """Return the disruption budgets, by key, that cover a pod."""
        return [
            f"{budget.metadata.namespace}/{budget.metadata.name}"
            for budget, selector in self._budgets
            if _covers(budget, selector, pod)
        ]

    def violations(self, victims: Iterable[PodInfo]) -> int:
        """Return how many of the pods cannot be evicted without violating a disruption budget."""
        allowed = self._allowed()
        count = 0
        for pod in victims if allowed else ():
            if self.is_free(pod):
                continue
            own = self.budgets_of(pod)
            for key in own:
                allowed[key] -= 1
            count += any(allowed[key] < 0 for key in own)
        return count

    def cost(self, victims: Sequence[PodInfo]) -> EvictionCost:
        """Return what it costs to evict these pods."""
        real = [pod for pod in victims if not self.is_free(pod)]
        highest = max((pod.priority for pod in real), default=-_OFFSET)
        earliest = min((_started(p) for p in real if p.priority == highest), default=_NOT_STARTED)
        return EvictionCost(
            self.violations(real),
            highest,
            sum(pod.priority + _OFFSET for pod in real),
            len(real),
            self.ended_gangs(real),
            -earliest,
            -min((self._position(pod) for pod in real if pod.gang is not None), default=0),
        )


def _covers(budget: PodDisruptionBudget, selector: Selector, pod: PodInfo) -> bool:
    return budget.metadata.namespace == pod.namespace and selector.matches(pod.labels)


def _started(pod: PodInfo) -> float:
    """Return when a pod started, in seconds since 1970; a pod that has not is the latest."""
    text = pod.pod.status.start_time
    if text is None:
        return _NOT_STARTED
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return _NOT_STARTED
