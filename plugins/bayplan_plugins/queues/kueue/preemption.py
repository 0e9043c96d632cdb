"""Preemption: the workloads that have to go so that another fits, as few as the order allows.

A plan yields candidates one after another, each already taken away, until the workload fits; then
those that turn out to be needless come back, the last first (Kueue's pkg/scheduler/preemption).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator

import msgspec

from bayplan.api.queue import Amounts
from bayplan_plugins.queues.kueue.classical import ClassicalCandidates
from bayplan_plugins.queues.kueue.fair import fair_candidates
from bayplan_plugins.queues.kueue.flavor_assignment import (
    Assignment,
    Possibility,
    Way,
    total_requests,
)
from bayplan_plugins.queues.kueue.settings import Settings
from bayplan_plugins.queues.kueue.snapshot import QueueView, Snapshot
from bayplan_plugins.queues.kueue.victims import Victim
from bayplan_plugins.queues.kueue.workloads import WorkloadInfo

__all__ = ["Preemptor", "can_always_reclaim"]

Refusal = Callable[[WorkloadInfo, Assignment, Iterable[WorkloadInfo]], str | None]
"""Returns why a workload with an assignment gets no nodes once others are gone; None if it does."""


class Request(msgspec.Struct, frozen=True):
    """What others are preempted for.

    :param usage: what the workload takes, by column.
    :param needing: the columns that are had by preemption only.
    :param fits_nodes: whether the pods would really get nodes without the given workloads.
    """

    workload: WorkloadInfo
    queue: QueueView
    usage: Amounts
    needing: frozenset[str]
    fits_nodes: Callable[[Iterable[WorkloadInfo]], bool]


def can_always_reclaim(queue: QueueView) -> bool:
    """Tell whether a queue gets back what it lent whatever the priorities are."""
    return queue.preemption.reclaim_within_cohort == "Any"


class Preemptor:
    """Finds victims in a snapshot.

    :param refusal: why a workload would get no nodes, whatever the quotas are.
    :param now: seconds since 1970.
    """

    def __init__(
        self, snapshot: Snapshot, settings: Settings, refusal: Refusal, now: float
    ) -> None:
        self._snapshot = snapshot
        self._settings = settings
        self._refusal = refusal
        self._now = now

    def victims(self, workload: WorkloadInfo, assignment: Assignment) -> list[Victim]:
        """Return whom a workload preempts for an assignment; nobody if that would not help."""

        def fits_nodes(removed: Iterable[WorkloadInfo]) -> bool:
            return self._refusal(workload, assignment, removed) is None

        request = Request(
            workload,
            self._snapshot.queues[workload.queue],
            total_requests(assignment, workload.pod_sets),
            assignment.needing_preemption(),
            fits_nodes,
        )
        return self._search(request)

    def way(self, workload: WorkloadInfo, name: str, amount: float) -> Way:
        """Return how an amount of a column could be had by preemption."""
        queue = self._snapshot.queues[workload.queue]
        request = Request(workload, queue, {name: amount}, frozenset((name,)), lambda _: True)
        found = self._search(request)
        forest = self._snapshot.forest
        if not found:
            height, _ = forest.borrow_height(queue.row, name, amount)
            return Way(Possibility.NO_CANDIDATES, height)
        with self._snapshot.without([victim.workload for victim in found]):
            height, _ = forest.borrow_height(queue.row, name, amount)
        own = any(victim.workload.queue == queue.name for victim in found)
        return Way(Possibility.PREEMPT if own else Possibility.RECLAIM, height)

    def _search(self, request: Request) -> list[Victim]:
        for borrowing, candidates in self._plans(request):
            found = self._take(request, candidates, borrowing)
            if found:
                return found
        return []

    def _plans(self, request: Request) -> Iterator[tuple[bool, Generator[Victim, None, None]]]:
        """Yield (whether to borrow, candidates in order)."""
        snapshot, settings, now = self._snapshot, self._settings, self._now
        if settings.fair_sharing:
            yield (
                True,
                fair_candidates(
                    snapshot,
                    settings,
                    request.workload,
                    request.usage,
                    request.needing,
                    now,
                ),
            )
            return
        candidates = ClassicalCandidates(
            snapshot, settings, request.workload, request.usage, request.needing, now
        )
        for borrowing in candidates.attempts():
            yield borrowing, candidates.iterate(borrowing)

    def _take(
        self, request: Request, candidates: Generator[Victim, None, None], borrowing: bool
    ) -> list[Victim]:
        """Take candidates until the workload fits, and put back who is not needed."""
        taken: list[Victim] = []
        fits = False
        for victim in candidates:
            taken.append(victim)
            if self._fits(request, taken, borrowing):
                fits = True
                break
        candidates.close()
        needed = self._fill_back(request, taken, borrowing) if fits else []
        for victim in needed if fits else taken:
            self._snapshot.restore(victim.workload)
        return needed

    def _fill_back(self, request: Request, taken: list[Victim], borrowing: bool) -> list[Victim]:
        needed = list(taken)
        for index in range(len(needed) - 2, -1, -1):
            victim = needed[index]
            self._snapshot.restore(victim.workload)
            others = needed[:index] + needed[index + 1 :]
            if self._fits(request, others, borrowing):
                # The last takes its place, which keeps the order that Kueue reports.
                needed[index] = needed[-1]
                needed.pop()
            else:
                self._snapshot.remove(victim.workload)
        return needed

    def _fits(self, request: Request, taken: list[Victim], borrowing: bool) -> bool:
        forest, row = self._snapshot.forest, request.queue.row
        for name, amount in request.usage.items():
            if not borrowing and forest.borrows_with(row, name, amount):
                return False
            if amount > forest.available(row, name):
                return False
        return request.fits_nodes([victim.workload for victim in taken])
