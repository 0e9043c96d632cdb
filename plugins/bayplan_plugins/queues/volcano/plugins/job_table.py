"""What every job has and asks for, as rows of numbers that follow the snapshot."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from bayplan import PodInfo
from bayplan.queues.tree import AmountRows
from bayplan_plugins.queues.volcano.changed_jobs import ChangedJobs
from bayplan_plugins.queues.volcano.session import Session

__all__ = ["JobRows", "JobTable"]

_NO_QUEUE = -1


class JobRows(msgspec.Struct, frozen=True):
    """Jobs by row: the queue's row in the tree (-1 for none), what it has and asks for in all."""

    row_of: Mapping[str, int]
    queues: npt.NDArray[np.int64]
    has: AmountRows
    asks: AmountRows

    def changed(self, changes: Mapping[str, AmountRows]) -> JobRows:
        """Return the rows with some more or less of what jobs, by key, have."""
        has = self.has.copy()
        for key, amounts in changes.items():
            if key in self.row_of:
                has[self.row_of[key], : len(amounts)] += amounts
        return replace(self, has=has)


class JobTable:
    """Keeps the rows of all jobs with living pods; only those that changed are counted again."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._members: dict[str, dict[str, PodInfo]] = {}
        self._stale = ChangedJobs(session.handle.snapshot)
        self._rows = JobRows({}, np.zeros(0, np.int64), np.zeros((0, 0)), np.zeros((0, 0)))
        self._tree: tuple[object, int] | None = None
        snapshot = session.handle.snapshot
        for pod in snapshot.living.values():
            self._lives(pod, True)
        snapshot.on_living(self._lives)

    @property
    def version(self) -> int:
        """Changes with any job."""
        return self._stale.version

    def rows(self) -> JobRows:
        """Return the rows as they are now."""
        tree = self._session.tree
        mark, stale = (tree, len(tree.resources)), self._stale.take()
        if self._tree != mark or self._members.keys() != self._rows.row_of.keys():
            self._tree = mark
            count = len(self._members)
            shape = (count, len(tree.resources))
            self._rows = JobRows(
                {key: row for row, key in enumerate(self._members)},
                np.full(count, _NO_QUEUE, np.int64),
                np.zeros(shape),
                np.zeros(shape),
            )
            stale = set(self._members)
        for key in stale:
            self._count(key)
        return self._rows

    def _count(self, key: str) -> None:
        session, pods = self._session, self._members.get(key)
        if not pods:
            return
        first = next(iter(pods.values()))
        at = self._rows.row_of[key]
        queue = session.ledger.row_of(first)
        self._rows.queues[at] = _NO_QUEUE if queue is None else queue
        self._rows.has[at] = session.wide(session.jobs.allocated(session.jobs.of(first)))
        self._rows.asks[at] = session.wide(session.ledger.sum_of(pods.values()))

    def _lives(self, pod: PodInfo, added: bool) -> None:
        key = pod.gang or pod.key
        if added:
            self._members.setdefault(key, {})[pod.key] = pod
        else:
            pods = self._members.get(key, {})
            pods.pop(pod.key, None)
            if not pods:
                self._members.pop(key, None)
