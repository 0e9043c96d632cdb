"""Candidates of preemption by fair sharing (Kueue's KEP-1714).

From the root, the child with the highest share is followed down to a queue. Its workloads go while
the preemptor's share does not exceed the target's; both are measured just below their lowest common
cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

from bayplan.api.queue import Amounts
from bayplan_plugins.queues.kueue.quotas import QuotaForest
from bayplan_plugins.queues.kueue.settings import FairRule, Settings
from bayplan_plugins.queues.kueue.shares import DominantShare, dominant_share
from bayplan_plugins.queues.kueue.snapshot import Snapshot
from bayplan_plugins.queues.kueue.victims import (
    Rank,
    Victim,
    Why,
    in_order,
    may_preempt,
    victim_rank,
)
from bayplan_plugins.queues.kueue.workloads import WorkloadInfo

__all__ = ["TargetOrder", "fair_candidates"]

_Shares = Callable[[DominantShare, DominantShare, DominantShare], bool]


def _final(mine: DominantShare, before: DominantShare, after: DominantShare) -> bool:
    return mine.order <= after.order


def _initial(mine: DominantShare, before: DominantShare, after: DominantShare) -> bool:
    return mine.order < before.order


_RULES: dict[FairRule, _Shares] = {
    FairRule.FINAL_SHARE: _final,
    FairRule.INITIAL_SHARE: _initial,
}


class TargetOrder:
    """The queues whose workloads may have to go, the one with the highest share each time.

    To make progress, each visit has to :meth:`pop` a workload or :meth:`drop` the queue. Among
    queues of equal shares it is the one whose next candidate would go before the others'.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        preemptor: str,
        candidates: Sequence[WorkloadInfo],
        settings: Settings,
        now: float,
    ) -> None:
        self._settings = settings
        self._now = now
        self._preemptor = preemptor
        self._forest = snapshot.forest
        self._row = snapshot.queues[preemptor].row
        self._above = set(self._forest.ancestors(self._row))
        self._left: dict[int, list[WorkloadInfo]] = {}
        for candidate in candidates:
            row = snapshot.queues[candidate.queue].row
            self._left.setdefault(row, []).append(candidate)
        self._pruned: set[int] = set()
        self._measured: dict[int, tuple[int, DominantShare]] = {}
        self._known_sides: dict[int, tuple[int, int]] = {}

    def __iter__(self) -> Iterator[int]:
        """Yield the rows of queues that have candidates left."""
        if self._forest.parent[self._row] < 0:
            while self._left.get(self._row) and self._row not in self._pruned:
                yield self._row
            return
        root = self._forest.root(self._row)
        while root not in self._pruned:
            found = self._next(root)
            if found is not None:
                yield found

    def _next(self, cohort: int) -> int | None:
        """Return the next queue below a cohort; None when only something was pruned."""
        best_queue, best_cohort = -1, -1
        queue_share = cohort_share = (-1.0, 0.0)
        for child in self._forest.children[cohort]:
            if child in self._pruned:
                continue
            share = self._share(child)
            if self._forest.is_cohort(child):
                if not share.borrows and child not in self._above:
                    self._pruned.add(child)
                elif share.order >= cohort_share:
                    best_cohort, cohort_share = child, share.order
            elif not self._left.get(child) or (not share.borrows and child != self._row):
                self._pruned.add(child)
            elif share.order > queue_share or (
                share.order == queue_share and self._rank(child) < self._rank(best_queue)
            ):
                best_queue, queue_share = child, share.order
        if best_queue < 0 and best_cohort < 0:
            self._pruned.add(cohort)
            return None
        # On equal shares the cohort, in which the most unfair node can be chosen.
        if best_cohort >= 0 and cohort_share >= queue_share:
            return self._next(best_cohort)
        return best_queue

    def _rank(self, row: int) -> Rank:
        """Return what a queue's next candidate compares by with those of others."""
        return victim_rank(self._left[row][0], self._preemptor, self._now, self._settings)

    def has(self, row: int) -> bool:
        """Tell whether a queue has candidates left."""
        return bool(self._left.get(row))

    def pop(self, row: int) -> WorkloadInfo:
        """Take a queue's next candidate."""
        return self._left[row].pop(0)

    def pop_all(self, row: int) -> list[WorkloadInfo]:
        """Take all that are left of a queue's candidates."""
        return self._left.pop(row)

    def drop(self, row: int) -> None:
        """Visit a queue no more."""
        self._pruned.add(row)

    def shares(self, row: int) -> tuple[DominantShare, DominantShare]:
        """Return the shares of the preemptor's and the target's side, below what they share."""
        mine, theirs = self._sides(row)
        return self._share(mine), self._share(theirs)

    def share_without(self, row: int, workload: WorkloadInfo) -> DominantShare:
        """Return the share of the target's side without one of its workloads."""
        side = self._sides(row)[1]
        less: Mapping[str, float] = workload.usage
        for at in (row, *self._forest.ancestors(row)):
            if at == side:
                break
            less = self._forest.taken_up(at, less)
        return dominant_share(self._forest, side, {name: -a for name, a in less.items()})

    def _share(self, row: int) -> DominantShare:
        """Return a row's share, measured again only after its usage changed."""
        known = self._measured.get(row)
        changes = self._forest.changes[row]
        if known is None or known[0] != changes:
            known = self._measured[row] = changes, dominant_share(self._forest, row)
        return known[1]

    def _sides(self, row: int) -> tuple[int, int]:
        """Return the rows just below the lowest common cohort of the preemptor and a target."""
        known = self._known_sides.get(row)
        if known is not None:
            return known
        theirs, common = row, -1
        for above in self._forest.ancestors(row):
            if above in self._above:
                common = above
                break
            theirs = above
        mine = self._row
        for above in self._forest.ancestors(self._row):
            if above == common:
                break
            mine = above
        self._known_sides[row] = mine, theirs
        return mine, theirs


def fair_candidates(
    snapshot: Snapshot,
    settings: Settings,
    preemptor: WorkloadInfo,
    usage: Amounts,
    needing: frozenset[str],
    now: float,
) -> Generator[Victim, None, None]:
    """Yield victims in order; each is gone from the snapshot when it is yielded.

    Between two yields the usage of the preemptor is counted, because shares include it.
    """
    queue = snapshot.queues[preemptor.queue]
    row, forest = queue.row, snapshot.forest
    own = _own(snapshot, settings, preemptor, needing)
    forest.add(row, usage)
    try:
        if not own and _nobody_has_more(forest, row, needing):
            return
    finally:
        forest.remove(row, usage)
    found = own + _of_others(snapshot, settings, preemptor, needing)
    if not _may_suffice(forest, row, found, {name: usage.get(name, 0) for name in needing}):
        return
    search = _FairSearch(snapshot, settings, preemptor, needing, now)
    forest.add(row, usage)
    try:
        for victim in search.run(in_order(found, preemptor.queue, now, settings)):
            forest.remove(row, usage)
            try:
                yield victim
            finally:
                forest.add(row, usage)
    finally:
        forest.remove(row, usage)


def _nobody_has_more(forest: QuotaForest, row: int, needing: frozenset[str]) -> bool:
    """Tell whether all others have a lower share than a queue that borrows: no rule takes them."""
    if forest.within_nominal(row, needing):
        return False
    below = row
    for common in forest.ancestors(row):
        mine = dominant_share(forest, below)
        for child in forest.children[common]:
            idle = not forest.is_cohort(child) and forest.within_nominal(child, needing)
            if child == below or idle:
                continue
            if dominant_share(forest, child).order >= mine.order:
                return False
        below = common
    return True


def _may_suffice(
    forest: QuotaForest, row: int, found: Sequence[WorkloadInfo], needed: Amounts
) -> bool:
    """Tell whether there is room once all candidates are gone; a bound from above."""
    return all(
        amount <= max(0, forest.balance(row, name) + sum(one.usage.get(name, 0) for one in found))
        for name, amount in needed.items()
    )


def _own(
    snapshot: Snapshot, settings: Settings, preemptor: WorkloadInfo, needing: frozenset[str]
) -> list[WorkloadInfo]:
    """Return the workloads of its own queue that a workload may preempt."""
    policy = snapshot.queues[preemptor.queue].preemption.within_cluster_queue
    if policy == "Never":
        return []
    return _in_queue(snapshot, settings, preemptor, needing, preemptor.queue, policy)


def _of_others(
    snapshot: Snapshot, settings: Settings, preemptor: WorkloadInfo, needing: frozenset[str]
) -> list[WorkloadInfo]:
    """Return the workloads of queues above their quota that a workload may preempt."""
    queue, forest = snapshot.queues[preemptor.queue], snapshot.forest
    policy = queue.preemption.reclaim_within_cohort
    if forest.parent[queue.row] < 0 or policy == "Never":
        return []
    found: list[WorkloadInfo] = []
    for row in forest.queues_below(forest.root(queue.row)):
        if row != queue.row and not forest.within_nominal(row, needing):
            name = forest.name(row)
            found += _in_queue(snapshot, settings, preemptor, needing, name, policy)
    return found


def _in_queue(
    snapshot: Snapshot,
    settings: Settings,
    preemptor: WorkloadInfo,
    needing: frozenset[str],
    queue: str,
    policy: str,
) -> list[WorkloadInfo]:
    mine = preemptor.workload
    return [
        one
        for one in snapshot.candidates_of(queue)
        if not needing.isdisjoint(one.usage) and may_preempt(mine, one.workload, policy, settings)
    ]


class _FairSearch:
    """The rules of fair sharing, one after the other."""

    def __init__(
        self,
        snapshot: Snapshot,
        settings: Settings,
        preemptor: WorkloadInfo,
        needing: frozenset[str],
        now: float,
    ) -> None:
        self._snapshot = snapshot
        self._settings = settings
        self._now = now
        self._preemptor = preemptor
        self._row = snapshot.queues[preemptor.queue].row
        self._needing = needing
        self._retry: list[WorkloadInfo] = []
        self._took_own = False

    def run(self, candidates: Sequence[WorkloadInfo]) -> Iterator[Victim]:
        """Yield victims by the first rule, maybe again if its own went, and then by the second."""
        rules = self._settings.fair_rules
        yield from self._first(candidates, _RULES[rules[0]])
        if self._took_own and self._settings.second_look:
            # The preemptor's share has fallen, so others may pass now.
            yield from self._first(self._take_retry(), _RULES[rules[0]])
        if len(rules) > 1:
            yield from self._second(self._take_retry())

    def _take_retry(self) -> list[WorkloadInfo]:
        left, self._retry = self._retry, []
        return left

    def _gone(self, workload: WorkloadInfo, why: Why) -> Victim:
        self._snapshot.remove(workload)
        return Victim(workload, why)

    def _order(self, candidates: Sequence[WorkloadInfo]) -> TargetOrder:
        preemptor = self._preemptor.queue
        return TargetOrder(self._snapshot, preemptor, candidates, self._settings, self._now)

    def _first(self, candidates: Sequence[WorkloadInfo], rule: _Shares) -> Iterator[Victim]:
        order = self._order(candidates)
        # What lies within the nominal quota is the preemptor's whatever the shares are.
        within = self._snapshot.forest.within_nominal(self._row, self._needing)
        entitled = within and self._settings.nominal_regardless
        for row in order:
            if row == self._row:
                self._took_own = True
                yield self._gone(order.pop(row), Why.IN_QUEUE)
                continue
            if entitled:
                yield self._gone(order.pop(row), Why.RECLAMATION)
                continue
            mine, before = order.shares(row)
            if mine.order > before.order:
                # No share after a removal can be above the one before it.
                self._retry += order.pop_all(row)
                continue
            while order.has(row):
                workload = order.pop(row)
                if rule(mine, before, order.share_without(row, workload)):
                    yield self._gone(workload, Why.FAIR_SHARING)
                    # Another queue may have the highest share now.
                    break
                self._retry.append(workload)

    def _second(self, candidates: Sequence[WorkloadInfo]) -> Iterator[Victim]:
        order = self._order(candidates)
        for row in order:
            mine, before = order.shares(row)
            workload = order.pop(row)
            if _initial(mine, before, before):
                yield self._gone(workload, Why.FAIR_SHARING)
            # One of a queue at most: the rule does not depend on the workload.
            order.drop(row)
