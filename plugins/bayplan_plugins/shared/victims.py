"""Which pods a unit may evict, what that costs, and the rules that protect gangs and budgets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from bayplan import Handle, PodInfo, Unit
from bayplan.api.gang import Gang
from bayplan.api.times import seconds_of
from bayplan.dialects import may_be_evicted
from bayplan.dialects.progress import min_runtime
from bayplan.gangs.completeness import has_minimum, rank_order
from bayplan.queues.lost_work import (
    NOT_STARTED,
    LostWork,
    gpu_hours,
    saved_at,
    started_at,
)
from bayplan_plugins.shared.budgets import DisruptionBudgets

__all__ = ["Evictable", "EvictionCost", "LeastCost"]

_OFFSET = 2**31
"""Added to each priority, as kube-scheduler does, so that every victim adds to the sum."""


class EvictionCost(msgspec.Struct, frozen=True, order=True):
    """What an eviction costs; less is better, and the first field that differs decides.

    In order: disruption budgets violated, highest priority among the victims, work of GPUs that is
    lost (thousandths of a GPU times seconds), sum of their priorities, their number, gangs that
    end, start time (seconds since 1970, negated: later is better; a checkpoint counts as a start)
    of the earliest victim with the highest priority, and the first position by rank among gangs'
    victims (negated: last is better).
    """

    violations: int
    highest: int
    lost: int
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
        if self.lost:
            parts.append(f"up to {gpu_hours(self.lost):,.1f} GPU hours of work lost")
        if self.gangs:
            parts.append(f"{self.gangs} gang{'s'[: self.gangs > 1]} ended")
        return ", ".join(parts)


_Fields = tuple[int, int, int, int, int, float, int]


class LeastCost(NamedTuple):
    """What one pod's eviction costs: the fields of the EvictionCost but for budgets.

    :param added: what the pod itself adds to the sum of priorities.
    :param own: the work that the pod itself loses.
    :param gpus: the GPUs of all that go, in thousandths, and those of the pod itself: so much more
        is lost with each second.
    :param ends: the gang that ends with it, by key.
    :param alone: whether it may go although gangs are kept at their minimum.
    """

    fields: _Fields
    added: int
    own: int
    gpus: tuple[int, int]
    ends: str | None
    alone: bool


_FREE = LeastCost((-_OFFSET, 0, 0, 0, 0, -NOT_STARTED, 0), 0, 0, (0, 0), None, True)


class GangMembersToEvict:
    """The members of a gang that could be evicted for units of a priority.

    :param members: those that have a node and are not terminating.
    :param protect: keep the gang at its minimum, even where all of it could go.
    :param all_may_go: whether rules other than the gang's let all members go.
    """

    def __init__(
        self, gang: Gang, members: Sequence[PodInfo], protect: bool, all_may_go: bool
    ) -> None:
        self.gang = gang
        self.members = members
        self.may_end = all_may_go and not protect

    @cached_property
    def ends_with_any(self) -> bool:
        """Whether the gang ends when any member goes."""
        return self.gang.whole or not has_minimum(self.gang, len(self.members) - 1)

    @cached_property
    def saved(self) -> float:
        """When any member saved the gang's work last, in seconds since 1970; 0 for never."""
        return max(map(saved_at, self.members), default=0.0)

    @cached_property
    def surplus(self) -> frozenset[str]:
        """The members, by key, beyond the gang's minimum: the last by rank."""
        if self.gang.whole:
            return frozenset()
        spare = max(0, len(self.members) - self.gang.min_member)
        ordered = sorted(self.members, key=rank_order, reverse=True)
        return frozenset(pod.key for pod in ordered[:spare])

    @cached_property
    def position(self) -> Mapping[str, int]:
        """The members' places by rank, by key."""
        ordered = sorted(self.members, key=rank_order)
        return {pod.key: place for place, pod in enumerate(ordered)}

    def allows(self, pod: PodInfo) -> bool:
        """Tell whether the gang can end, or stays complete without this member."""
        return self.may_end or pod.key in self.surplus

    def left_without(self, count: int) -> bool:
        """Tell whether the gang goes on without so many members."""
        return not self.gang.whole and has_minimum(self.gang, len(self.members) - count)


class Evictable:
    """The pods that may be evicted for one unit, or for any unit of a priority.

    It holds as long as no pod comes or goes, trials of the snapshot excepted.

    :param own: pods, by key, that stay whatever their priority is.
    :param protect: keep every gang at its minimum, even where all of it could go.
    """

    def __init__(
        self,
        handle: Handle,
        priority: int,
        own: Collection[str] = (),
        protect: bool = False,
    ) -> None:
        self._handle = handle
        self._snapshot = handle.snapshot
        self.priority = priority
        self._own = own
        self.protect = protect
        self.in_cooldown: dict[str, PodInfo] = {}
        """Pods that could be evicted if they were not in cooldown, by key."""
        self._gangs: dict[str, GangMembersToEvict | None] = {}
        self._ending: dict[str, EvictionCost] = {}
        self._least_costs: dict[str, tuple[_Fields, int]] = {}
        self._work = LostWork.of(handle.snapshot)
        self.as_of = self._work.as_of
        """Up to when the work of pods counts, in seconds since 1970."""
        self.budgets = DisruptionBudgets.of(handle.snapshot)

    @classmethod
    def by(cls, unit: Unit, handle: Handle, protect: bool = False) -> Evictable:
        """Return the pods that a unit may evict: less important than each of its own."""
        own = {pod.key for pod in (*unit.pods, *(bound for bound, _ in unit.bound))}
        return cls(handle, min(pod.priority for pod in unit.pods), own, protect)

    def on_row(self, row: int) -> list[PodInfo]:
        """Return the pods of a node that may be evicted, the least important first."""
        found = [pod for pod in self._snapshot.nodes.pods[row].values() if self._may_go(pod)]
        return self.by_importance(found) if len(found) > 1 else found

    def by_importance(self, pods: Iterable[PodInfo]) -> list[PodInfo]:
        """Sort pods by importance, the most important last."""
        return sorted(pods, key=self._guarded_importance)

    def _guarded_importance(self, pod: PodInfo) -> tuple[bool, tuple[object, ...]]:
        guarded = bool(self.budgets.covering(pod))
        real, *rest = self._importance(pod)
        return (real, (guarded, *rest))

    def _importance(self, pod: PodInfo) -> tuple[bool, int, int, float, int]:
        """Return a key that sorts by importance, the most important last (MoreImportantPod).

        Of equal priority, the pod is more important that has done more with GPUs. Of pods that
        started at the same time the first that the scheduler saw is the most important.
        kube-scheduler takes a pod without start time for one that starts when it is asked; sorting
        turns such pods around, so that the last is the most important.
        """
        since = self._since(pod)
        order = pod.serial if since == NOT_STARTED else -pod.serial
        return (not self.is_free(pod), pod.priority, self._lost(pod), -since, order)

    def to_reprieve(self, pods: Iterable[PodInfo]) -> tuple[list[PodInfo], list[PodInfo]]:
        """Return the pods whose eviction would violate a budget, and the others, to be reprieved.

        Both lists begin with the most important; so does counting against the budgets
        (filterPodsWithPDBViolation).
        """
        left = self.budgets.allowed()
        violating: list[PodInfo] = []
        others: list[PodInfo] = []
        for pod in sorted(pods, key=self._importance, reverse=True):
            own = () if self.is_free(pod) else self.budgets.covering(pod)
            for budget in own:
                left[budget] -= 1
            (violating if any(left[budget] < 0 for budget in own) else others).append(pod)
        return violating, others

    def is_free(self, pod: PodInfo) -> bool:
        """Tell whether a pod costs nothing: it is terminating, or only nominated."""
        return pod.terminating or self._handle.is_nominated(pod)

    def is_young(self, pod: PodInfo) -> bool:
        """Tell whether a pod has not run yet for the minimum that it states."""
        return self._handle.unix_time < self.runs_until(pod)

    def runs_until(self, pod: PodInfo) -> float:
        """Return when a pod has run for the minimum that it states, in seconds since 1970."""
        return seconds_of(pod.pod.status.start_time) + min_runtime(pod.annotations)

    def _may_go(self, pod: PodInfo) -> bool:
        if pod.priority >= self.priority or pod.key in self._own:
            return False
        gang = self._gang(pod)
        if gang is not None and gang.may_end:
            # Its members were all asked for what follows.
            return True
        if self.is_free(pod):
            return True
        if not may_be_evicted(pod.pod):
            return False
        if self._handle.in_eviction_cooldown(pod):
            self.in_cooldown[pod.key] = pod
            return False
        return gang is None or gang.allows(pod)

    # Gangs -------------------------------------------------------------------------------

    def _gang(self, pod: PodInfo) -> GangMembersToEvict | None:
        """Return the gang that a pod's eviction could end."""
        return self._members(pod.gang) if pod.gang is not None else None

    def _members(self, key: str) -> GangMembersToEvict | None:
        if key not in self._gangs:
            known = self._handle.gang(key)
            members = [pod for pod, _ in known.bound.values() if not pod.terminating]
            all_may_go = all(
                other.priority < self.priority
                and may_be_evicted(other.pod)
                and not self._handle.in_eviction_cooldown(other)
                for other in members
            )
            self._gangs[key] = (
                GangMembersToEvict(known.gang, members, self.protect, all_may_go)
                if known.gang is not None
                else None
            )
        return self._gangs[key]

    def closure(self, victims: Iterable[PodInfo]) -> list[PodInfo]:
        """Return the victims and, for each gang that they end, all of its other members."""
        chosen = {pod.key: pod for pod in victims}
        by_gang: dict[str, int] = {}
        for pod in chosen.values():
            if pod.gang is not None and not self.is_free(pod):
                by_gang[pod.gang] = by_gang.get(pod.gang, 0) + 1
        for key, count in by_gang.items():
            gang = self._members(key)
            if gang is not None and not gang.left_without(count):
                chosen |= {pod.key: pod for pod in gang.members}
        return list(chosen.values())

    def ended_gangs(self, victims: Sequence[PodInfo]) -> int:
        """Return how many gangs fall below their minimum without these pods."""
        gangs: dict[str, set[str]] = {}
        for pod in victims:
            if pod.gang is not None and not self.is_free(pod):
                gangs.setdefault(pod.gang, set()).add(pod.key)
        ended = 0
        for key, gone in gangs.items():
            own = self._members(key)
            if own is not None and has_minimum(own.gang, len(own.members)):
                left = sum([pod.key not in gone for pod in own.members])
                ended += not has_minimum(own.gang, left)
        return ended

    # Costs -------------------------------------------------------------------------------

    def violations(self, victims: Iterable[PodInfo]) -> int:
        """Return how many of the pods cannot be evicted without violating a disruption budget."""
        return self.budgets.violations(pod for pod in victims if not self.is_free(pod))

    def cost(self, victims: Sequence[PodInfo]) -> EvictionCost:
        """Return what it costs to evict these pods."""
        real = [pod for pod in victims if not self.is_free(pod)]
        place = min((self._position(pod) for pod in real if pod.gang is not None), default=0)
        return self._cost_of(real, place)

    def _cost_of(
        self, real: Sequence[PodInfo], place: int, gangs: int | None = None
    ) -> EvictionCost:
        """Return the cost of pods none of which is free.

        :param place: the first place by rank among those of gangs.
        :param gangs: how many gangs end with them; None to find out.
        """
        highest = max((pod.priority for pod in real), default=-_OFFSET)
        since = [self._since(pod) for pod in real if pod.priority == highest]
        earliest = min(since, default=NOT_STARTED)
        return EvictionCost(
            self.budgets.violations(real),
            highest,
            sum(map(self._lost, real)),
            sum([pod.priority for pod in real]) + _OFFSET * len(real),
            len(real),
            self.ended_gangs(real) if gangs is None else gangs,
            -earliest,
            -place,
        )

    def cost_with_all(self, victims: Sequence[PodInfo]) -> EvictionCost:
        """Return what it costs to evict these pods and those that go with them (``closure``)."""
        gang = victims[0].gang if len(victims) == 1 else None
        if gang is not None and self.ends_gang(victims[0]):
            return self._cost_of_gang(gang)
        return self.cost(self.closure(victims))

    def _cost_of_gang(self, key: str) -> EvictionCost:
        """Return what the end of a gang costs; it is asked for each of its members."""
        if key not in self._ending:
            gang = self._members(key)
            members = gang.members if gang is not None else ()
            real = [pod for pod in members if not self.is_free(pod)]
            ends = gang is not None and has_minimum(gang.gang, len(members))
            if ends and gang is not None:
                ends = bool(real) and not has_minimum(gang.gang, len(members) - len(real))
            # Of all its members, one is the first by rank.
            self._ending[key] = self._cost_of(real, 0, int(ends))
        return self._ending[key]

    def ends_gang(self, pod: PodInfo) -> bool:
        """Tell whether a pod's gang ends when it goes."""
        gang = self._gang(pod)
        return gang is not None and gang.ends_with_any and not self.is_free(pod)

    def least_cost(self, pod: PodInfo) -> LeastCost:
        """Return what a pod's eviction costs with all that go with it, budgets left out."""
        if self.is_free(pod):
            return _FREE
        added, growing = pod.priority + _OFFSET, self._growing(pod)
        own = growing * int(self.as_of - self._since(pod)) if growing else 0
        gang = self._members(pod.gang) if pod.gang is not None else None
        if gang is not None and gang.ends_with_any:
            key = gang.gang.key
            if key not in self._least_costs:
                # Budgets are not among them.
                _, *fields = msgspec.structs.astuple(self._cost_of_gang(key))
                self._least_costs[key] = tuple(fields), sum(map(self._growing, gang.members))
            of_all, all_growing = self._least_costs[key]
            return LeastCost(of_all, added, own, (all_growing, growing), key, False)
        alone = gang is None or pod.key in gang.surplus
        place = gang.position[pod.key] if gang is not None else 0
        fields_of = (pod.priority, own, added, 1, 0, -self._since(pod), -place)
        return LeastCost(fields_of, added, own, (growing, growing), None, alone)

    def _growing(self, pod: PodInfo) -> int:
        """Return of how many GPUs ever more work is lost, in thousandths."""
        gpus = self._work.gpus(pod)
        return gpus if gpus and not self.is_free(pod) and self._since(pod) < self.as_of else 0

    def _lost(self, pod: PodInfo) -> int:
        """Return the work that a pod did since it began, or was saved; nothing if it is free.

        In thousandths of a GPU times seconds.
        """
        gpus = self._growing(pod)
        return gpus * int(self.as_of - self._since(pod)) if gpus else 0

    def _since(self, pod: PodInfo) -> float:
        """Return since when a pod's work would be lost, in seconds since 1970.

        That is when it started, or when it or another member of its gang saved its work last.
        """
        started = started_at(pod)
        if started == NOT_STARTED:
            return started
        gang = self._gang(pod)
        return max(started, gang.saved if gang is not None else saved_at(pod))

    def gang_state(self, key: str) -> object:
        """Return what changes when the eviction of a gang's members costs something else."""
        gang = self._members(key)
        if gang is None or (gang.ends_with_any and not gang.may_end):
            return None
        if gang.ends_with_any:
            return self._cost_of_gang(key), gang.saved, self.as_of
        return gang.may_end, gang.saved, gang.surplus, tuple(gang.position)

    def _position(self, pod: PodInfo) -> int:
        """Return a pod's place among its gang's members, by rank."""
        gang = self._gang(pod)
        return gang.position.get(pod.key, 0) if gang is not None else 0
