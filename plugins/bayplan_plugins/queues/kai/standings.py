"""Choosing among queues: whose job is next, and whose job goes first.

``Standings.first`` picks the next queue by the criteria of :mod:`.ordering`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, cmp_to_key

import msgspec
import numpy as np
from msgspec.structs import replace

from bayplan import PodInfo
from bayplan.queues.ledger import Ledger
from bayplan.queues.tree import AmountRows
from bayplan_plugins.queues.kai.jobs import Job
from bayplan_plugins.queues.kai.ordering import Standing, compare, standing
from bayplan_plugins.queues.kai.shares import FairShares
from bayplan_plugins.queues.kai.turns import next_victims

__all__ = ["Head", "Standings", "victim_line"]


class Head(msgspec.Struct, frozen=True, eq=False):
    """The first job of a line: what it asks for; among victims, what its queue gives back."""

    requested: AmountRows
    taken: AmountRows | None = None


class Standings:
    """Compares queues; remembers their standings as long as nothing changes for them."""

    def __init__(self, shares: FairShares) -> None:
        self._shares = shares
        self._known: dict[int, tuple[bytes, Standing]] = {}

    def first(self, heads: Mapping[int, Head], last: bool = False) -> int:
        """Return the row of the queue whose head comes first; with ``last`` comes last.

        Queues are compared with their siblings, level by level; each stands for the best head
        below it.

        :param heads: by the row of their queue; not empty.
        """
        tree = self._shares.tree
        best = {row: row for row in heads}
        above = {row: None for head in heads for row in tree.path(head)[1:]}
        for row in sorted(above, key=lambda one: -len(tree.paths[one])):
            below = [child for child in tree.children[row] if child in best]
            best[row] = best[self._best(below, best, heads, last)]
        roots = [row for row in tree.roots if row in best]
        return best[self._best(roots, best, heads, last)]

    def _best(
        self, rows: list[int], best: Mapping[int, int], heads: Mapping[int, Head], last: bool
    ) -> int:
        found = rows[0]
        first = self._standing(found, heads[best[found]])
        for row in rows[1:]:
            own = self._standing(row, heads[best[row]])
            if (compare(own, first) > 0) == last:
                found, first = row, own
        return found

    def _standing(self, row: int, head: Head) -> Standing:
        taken = b"" if head.taken is None else head.taken.tobytes()
        mark = self._shares.used[row].tobytes() + head.requested.tobytes() + taken
        known = self._known.get(row)
        if known is None or known[0] != mark:
            made = standing(self._shares, row, head.requested, head.taken)
            known = self._known[row] = (mark, made)
        return known[1]


class _Victims(msgspec.Struct, frozen=True, eq=False, dict=True):
    """What is left of a job in the line of victims."""

    job: Job
    ledger: Ledger

    @cached_property
    def held(self) -> AmountRows:
        """What its pods hold; asked of those alone that come first in their line."""
        return self.ledger.sum_of(self.job.pods)


def victim_line(
    shares: FairShares, ledger: Ledger, jobs: Iterable[Job]
) -> Iterator[tuple[Job, list[PodInfo]]]:
    """Yield victims in the order in which they go, with their job as it is before.

    Queues come in reverse order, and so do the jobs of each: the lowest priority, those above
    their minimum, the youngest. A job loses its surplus pods one at a time, then the rest together.

    :param shares: frozen, so that the order does not change with what is evicted in trials.
    """
    lines: dict[int, list[tuple[object, _Victims]]] = {}
    for job in jobs:
        row = shares.tree.row_of[job.queue]
        lines.setdefault(row, []).append(_entry(_Victims(job, ledger)))
    for line in lines.values():
        heapq.heapify(line)
    nothing = np.zeros(len(shares.tree.resources))
    taken = dict.fromkeys(lines, nothing)
    standings = Standings(shares)
    while lines:
        heads = {row: Head(nothing, taken[row] + line[0][1].held) for row, line in lines.items()}
        row = standings.first(heads, last=True)
        _, victims = heapq.heappop(lines[row])
        taken[row] = taken[row] + victims.held
        pods = next_victims(victims.job)
        yield victims.job, pods
        left = without(victims.job, pods)
        if left.pods:
            heapq.heappush(lines[row], _entry(_Victims(left, ledger)))
        elif not lines[row]:
            del lines[row]


def without(job: Job, pods: Iterable[PodInfo]) -> Job:
    """Return a job without some of its active pods."""
    gone = frozenset(pod.key for pod in pods)
    left = [pod for pod in job.pods if pod.key not in gone]
    return replace(job, pods=left, whole=job.whole.without(gone))


def _entry(victims: _Victims) -> tuple[object, _Victims]:
    return _LAST(victims.job), victims


def _goes_later(one: Job, other: Job) -> int:
    return -1 if one.order() > other.order() else 1


_LAST = cmp_to_key(_goes_later)
