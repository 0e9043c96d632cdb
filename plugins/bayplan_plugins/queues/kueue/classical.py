"""Candidates of classical preemption.

Those over whose quota the preemptor's subtree has a right come first whatever their priority, then
those of other queues by priority, then those of its own queue; evicted ones before all others
(Kueue's pkg/scheduler/preemption/classical).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from enum import Enum

import msgspec

from bayplan.api.queue import Amounts
from bayplan_plugins.queues.kueue.settings import Settings
from bayplan_plugins.queues.kueue.snapshot import QueueView, Snapshot
from bayplan_plugins.queues.kueue.victims import Victim, Why, in_order, may_preempt
from bayplan_plugins.queues.kueue.workloads import WorkloadInfo, priority_of

__all__ = ["ClassicalCandidates"]


class _Claim(Enum):
    """By what right a candidate may be preempted."""

    OWN_QUEUE = Why.IN_QUEUE
    HIERARCHY = Why.RECLAMATION
    """The quota belongs to a subtree that holds the preemptor and not the candidate."""
    UNLESS_BORROWING = "unless borrowing"
    """By priority, as long as the preemptor's queue borrows nothing afterwards."""
    WHILE_BORROWING = Why.RECLAIM_WHILE_BORROWING

    @property
    def why(self) -> Why:
        return Why.RECLAMATION if self is _Claim.UNLESS_BORROWING else Why(self.value)


class _Candidate(msgspec.Struct, frozen=True):
    """A candidate; ``common`` is the row of the lowest cohort that holds both."""

    workload: WorkloadInfo
    claim: _Claim
    common: int


class ClassicalCandidates:
    """The candidates for one request; each call of :meth:`iterate` begins again."""

    def __init__(
        self,
        snapshot: Snapshot,
        settings: Settings,
        preemptor: WorkloadInfo,
        usage: Amounts,
        needing: frozenset[str],
        now: float,
    ) -> None:
        self._snapshot = snapshot
        self._settings = settings
        self._preemptor = preemptor
        self._queue: QueueView = snapshot.queues[preemptor.queue]
        self._usage = usage
        self._needing = needing
        own = self._own()
        hierarchy, others = self._of_others() if own or self._others_may_help() else ([], [])
        self._of_hierarchy, self._of_priority = bool(hierarchy), bool(others)
        self._freed = self._most_freed((*own, *hierarchy, *others))
        lists = [self._sorted(found, now) for found in (hierarchy, others, own)]
        gone: list[_Candidate] = []
        staying: list[_Candidate] = []
        for found in lists:
            for one in found:
                (gone if one.workload.evicted else staying).append(one)
        self._candidates = gone + staying

    def _sorted(self, found: Iterable[_Candidate], now: float) -> list[_Candidate]:
        by_key = {one.workload.key: one for one in found}
        workloads = [one.workload for one in by_key.values()]
        ordered = in_order(workloads, self._queue.name, now, self._settings)
        return [by_key[one.key] for one in ordered]

    # Attempts ----------------------------------------------------------------------------

    def attempts(self) -> tuple[bool, ...]:
        """Return whether to let the preemptor borrow, for each attempt in turn."""
        may_not_borrow = self._borrow_policy() == "Never"
        nobody_else = not self._of_hierarchy and not self._of_priority
        if nobody_else or (may_not_borrow and not self._under_nominal()):
            found: tuple[bool, ...] = (True,)
        elif may_not_borrow and not self._of_hierarchy:
            found = (False, True)
        else:
            found = (True, False)
        return tuple(borrowing for borrowing in found if self._may_suffice(borrowing))

    def _others_may_help(self) -> bool:
        """Tell whether workloads of other queues can free enough, if nobody of its own goes.

        They do if the queue stays within its quota, or the request within that of a cohort below
        the root, or if the queue may preempt while it borrows.
        """
        if self._borrow_policy() != "Never":
            return True
        forest, row = self._snapshot.forest, self._queue.row
        fits, missing = forest.beyond_local(row, self._usage)
        for cohort in forest.ancestors(row):
            if fits:
                return True
            fits, missing = forest.beyond_local(cohort, missing)
        return False

    def _most_freed(self, found: Iterable[_Candidate]) -> dict[tuple[_Claim, str], float]:
        """Return what candidates of each claim use of the columns that are needed."""
        total: dict[tuple[_Claim, str], float] = {}
        for one in {one.workload.key: one for one in found}.values():
            for name in self._needing:
                key = one.claim, name
                total[key] = total.get(key, 0) + one.workload.usage.get(name, 0)
        return total

    def _may_suffice(self, borrowing: bool) -> bool:
        """Tell whether there is room once all candidates are gone; a bound from above."""
        forest, row = self._snapshot.forest, self._queue.row
        for name in self._needing:
            amount = self._usage.get(name, 0)
            freed = {claim: self._freed.get((claim, name), 0) for claim in _Claim}
            own = freed[_Claim.OWN_QUEUE]
            if not borrowing and forest.borrows_with(row, name, amount - own):
                return False
            most = sum(freed.values()) - (freed[_Claim.UNLESS_BORROWING] if borrowing else 0)
            if amount > max(0, forest.balance(row, name) + most):
                return False
        return True

    def _borrow_policy(self) -> str:
        policy = self._queue.preemption.borrow_within_cohort
        return policy.policy if policy is not None else "Never"

    def _under_nominal(self) -> bool:
        forest, row = self._snapshot.forest, self._queue.row
        return all(
            forest.used[row].get(name, 0) < forest.nominal(row, name) for name in self._needing
        )

    def iterate(self, borrowing: bool) -> Generator[Victim, None, None]:
        """Yield the candidates in order; each is gone from the snapshot when it is yielded."""
        for one in self._candidates:
            if self._holds(one, borrowing):
                self._snapshot.remove(one.workload)
                yield Victim(one.workload, one.claim.why)

    def _holds(self, one: _Candidate, borrowing: bool) -> bool:
        """Tell whether a claim still holds: what was taken before may have settled the debt."""
        if one.claim is _Claim.OWN_QUEUE:
            return True
        if borrowing and one.claim is _Claim.UNLESS_BORROWING:
            return False
        forest = self._snapshot.forest
        row = self._snapshot.queues[one.workload.queue].row
        if forest.within_nominal(row, self._needing):
            return False
        for above in forest.ancestors(row):
            if above == one.common:
                break
            if forest.within_nominal(above, self._needing):
                return False
        return True

    # Candidates --------------------------------------------------------------------------

    def _own(self) -> list[_Candidate]:
        if self._queue.preemption.within_cluster_queue == "Never":
            return []
        return self._in_queue(self._queue.name, -1, False)

    def _of_others(self) -> tuple[list[_Candidate], list[_Candidate]]:
        """Return candidates of other queues: by hierarchy, and by priority."""
        hierarchy: list[_Candidate] = []
        others: list[_Candidate] = []
        forest, row = self._snapshot.forest, self._queue.row
        if forest.parent[row] < 0 or self._queue.preemption.reclaim_within_cohort == "Never":
            return hierarchy, others
        entitled, missing = forest.beyond_local(row, self._usage)
        below = -1
        for cohort in forest.ancestors(row):
            into = hierarchy if entitled else others
            self._collect(cohort, cohort, below, entitled, into)
            fits, missing = forest.beyond_local(cohort, missing)
            entitled = entitled or fits
            below = cohort
        return hierarchy, others

    def _collect(
        self, cohort: int, common: int, skipped: int, entitled: bool, into: list[_Candidate]
    ) -> None:
        """Add the candidates below a cohort, but those of subtrees within their quota."""
        forest = self._snapshot.forest
        for child in forest.children[cohort]:
            if child in (skipped, self._queue.row):
                continue
            if forest.within_nominal(child, self._needing):
                continue
            if forest.is_cohort(child):
                self._collect(child, common, skipped, entitled, into)
            else:
                into += self._in_queue(forest.name(child), common, entitled)

    def _in_queue(self, queue: str, common: int, entitled: bool) -> list[_Candidate]:
        found = []
        for candidate in self._snapshot.candidates_of(queue):
            claim = self._claim(candidate, entitled)
            if claim is not None:
                found.append(_Candidate(candidate, claim, common))
        return found

    def _claim(self, candidate: WorkloadInfo, entitled: bool) -> _Claim | None:
        if self._needing.isdisjoint(candidate.usage):
            return None
        own = candidate.queue == self._queue.name
        policies = self._queue.preemption
        policy = policies.within_cluster_queue if own else policies.reclaim_within_cohort
        mine = self._preemptor.workload
        if not may_preempt(mine, candidate.workload, policy, self._settings):
            return None
        if own:
            return _Claim.OWN_QUEUE
        if entitled:
            return _Claim.HIERARCHY
        if self._borrow_policy() == "Never" or self._above_threshold(candidate):
            return _Claim.UNLESS_BORROWING
        return _Claim.WHILE_BORROWING

    def _above_threshold(self, candidate: WorkloadInfo) -> bool:
        theirs = priority_of(candidate.workload, self._settings)
        if theirs >= priority_of(self._preemptor.workload, self._settings):
            return True
        policy = self._queue.preemption.borrow_within_cohort
        most = policy.max_priority_threshold if policy is not None else None
        return most is not None and theirs > most
