"""The order in which a cycle admits the heads of the queues."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from bayplan_plugins.queues.kueue.conditions import has_quota
from bayplan_plugins.queues.kueue.entry import Entry
from bayplan_plugins.queues.kueue.settings import Settings
from bayplan_plugins.queues.kueue.shares import DominantShare, dominant_share
from bayplan_plugins.queues.kueue.snapshot import Snapshot
from bayplan_plugins.queues.kueue.workloads import priority_of, queue_time

_Ranks = dict[tuple[int, int], tuple[float, ...]]
"""What an entry compares by, by the rows of a cohort and of the entry's queue below it."""

__all__ = ["FairOrder", "classical_order", "entry_rank", "fair_rank"]


def entry_rank(entry: Entry, settings: Settings) -> tuple[float, ...]:
    """Return what entries compare by without fair sharing.

    Those with quota first, then those that borrow from nearer by, of higher priority, and older.
    """
    workload = entry.workload.workload
    priority = priority_of(workload, settings) if settings.priority_across_queues else 0
    return (
        not has_quota(workload),
        settings.preemptors_first and not entry.is_preemptor,
        entry.assignment.borrow,
        -priority,
        queue_time(workload, settings),
    )


def classical_order(entries: Sequence[Entry], settings: Settings) -> Iterator[Entry]:
    """Yield entries in the order without fair sharing."""
    yield from sorted(entries, key=lambda entry: entry_rank(entry, settings))


def fair_rank(entry: Entry, share: DominantShare, settings: Settings) -> tuple[float, ...]:
    """Return what entries of one cohort compare by with fair sharing.

    :param share: the share that the entry's side of the cohort would have with it. A side that
        borrows none of what is requested comes first, then the lower share.
    """
    workload = entry.workload.workload
    priority = priority_of(workload, settings) if settings.priority_across_queues else 0
    return (
        settings.preemptors_first and not entry.is_preemptor,
        settings.lenders_first and share.borrows_any(entry.usage()),
        *share.order,
        -priority,
        queue_time(workload, settings),
    )


class FairOrder:
    """Yields entries by a tournament in each cohort, from the leaves to the root.

    Shares are measured again for each entry, after what was admitted before it.
    """

    def __init__(self, snapshot: Snapshot, entries: Sequence[Entry], settings: Settings) -> None:
        self._snapshot = snapshot
        self._forest = snapshot.forest
        self._settings = settings
        self._left: dict[int, list[Entry]] = {}
        self._measured: dict[int, tuple[tuple[object, ...], _Ranks]] = {}
        for entry in entries:
            row = snapshot.queues[entry.workload.queue].row
            self._left.setdefault(row, []).append(entry)
        for waiting in self._left.values():
            waiting.sort(key=lambda entry: entry_rank(entry, settings))

    def __iter__(self) -> Iterator[Entry]:
        while self._left:
            first = next(iter(self._left))
            if self._forest.parent[first] < 0:
                yield self._take(first)
                continue
            root = self._forest.root(first)
            winner = self._winner(root, self._ranks(root))
            assert winner is not None
            yield self._take(winner)

    def _take(self, row: int) -> Entry:
        waiting = self._left[row]
        entry = waiting.pop(0)
        if not waiting:
            del self._left[row]
        return entry

    def _ranks(self, root: int) -> _Ranks:
        """Return what the entries of all queues below a root compare by."""
        found: _Ranks = {}
        for row in self._forest.queues_below(root):
            if row in self._left:
                found |= self._ranks_of(row, self._left[row][0])
        return found

    def _ranks_of(self, row: int, entry: Entry) -> _Ranks:
        """Return a queue's ranks on its way to the root, found again after usages changed."""
        way = [row, *self._forest.ancestors(row)]
        state = (entry.workload.key, *(self._forest.changes[at] for at in way[:-1]))
        known = self._measured.get(row)
        if known is not None and known[0] == state:
            return known[1]
        found: _Ranks = {}
        more: Mapping[str, float] = entry.usage()
        for below, cohort in itertools.pairwise(way):
            share = dominant_share(self._forest, below, more)
            found[cohort, row] = fair_rank(entry, share, self._settings)
            more = self._forest.passed_up(below, more)
        self._measured[row] = state, found
        return found

    def _winner(self, cohort: int, ranks: _Ranks) -> int | None:
        """Return the queue whose entry wins a cohort; None if no entry is left below it."""
        best, best_rank = None, None
        children = self._forest.children[cohort]
        cohorts = [self._winner(c, ranks) for c in children if self._forest.is_cohort(c)]
        for row in (*cohorts, *(child for child in children if child in self._left)):
            if row is None:
                continue
            rank = ranks[cohort, row]
            if best_rank is None or rank < best_rank:
                best, best_rank = row, rank
        return best
