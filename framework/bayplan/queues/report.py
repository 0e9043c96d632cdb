"""What is known of queues, as data: commands, metrics, the page and statuses render it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from bayplan.api.queue import UNLIMITED
from bayplan.queues.amounts import amount_text
from bayplan.queues.notes import notes_on
from bayplan.queues.tree import EPSILON, AmountRows, QueueTree

__all__ = [
    "KnownReports",
    "PendingJob",
    "QueuePosition",
    "QueueReport",
    "ResourceReport",
    "amount_text",
    "lent_of",
]


class ResourceReport(msgspec.Struct, frozen=True):
    """One resource of one queue, in its unit (CPU in milli-CPU); ``inf`` is unlimited.

    ``deserved`` is what the queue may have whenever it asks, ``guaranteed`` what nobody else may
    use, ``limit`` the most that it may have, ``fair`` what it may have now by its policy. ``used``
    is what its pods on nodes take, ``fixed`` the part of it that cannot be taken back, ``demand``
    what all its living pods ask for. ``borrowed`` is what it uses beyond ``deserved``, ``lent``
    what its siblings use of its own; ``borrow_limit`` and ``lend_limit`` are the most of each.
    ``reserved`` is what jobs hold of it that were admitted, on nodes or not; as much as is used
    where nothing is admitted before it runs.
    """

    deserved: float
    guaranteed: float
    limit: float
    fair: float
    used: float
    fixed: float
    demand: float
    borrowed: float
    lent: float
    borrow_limit: float = UNLIMITED
    lend_limit: float = UNLIMITED
    reserved: float = 0.0


class QueueReport(msgspec.Struct, frozen=True):
    """One queue: its place in the tree, its resources and its jobs.

    ``system`` is the ecosystem that defines it, ``policy`` what decides on it. ``share`` is its
    dominant share: the most of any resource that it uses of what it may have now. ``waiting`` and
    ``running`` count jobs: pod groups, and pods without one. ``problem`` says why it takes none,
    ``notes`` what is odd about its definition.
    """

    system: str
    policy: str
    name: str
    parent: str
    state: str
    priority: int
    weight: float
    share: float
    resources: Mapping[str, ResourceReport]
    waiting: int = 0
    running: int = 0
    problem: str = ""
    children: Sequence[str] = ()
    notes: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; null is unlimited."""
        plain = {field: getattr(self, field) for field in self.__struct_fields__}
        plain["resources"] = {
            name: {field: _finite(getattr(one, field)) for field in one.__struct_fields__}
            for name, one in self.resources.items()
        }
        plain["share"] = _finite(self.share)
        plain["weight"] = _finite(self.weight)
        plain["children"], plain["notes"] = list(self.children), list(self.notes)
        return plain


class PendingJob(msgspec.Struct, frozen=True):
    """A job that waits in a queue: a pod group, a pod without one, or a suspended job.

    ``place`` counts from 1; it is 0 for a job that is held back and not in the line. ``waits`` is
    for how many seconds it has been known. ``why`` is why it has no nodes, "" if not tried yet.
    ``workload`` is the key of the object that its system keeps of it: Kueue's Workload.
    """

    job: str
    place: int
    pods: int
    priority: int
    waits: float
    why: str
    workload: str = ""


class QueuePosition(msgspec.Struct, frozen=True):
    """Where a pending job stands in its queue, and what would admit it.

    ``place`` counts from 1 in a line of ``length`` jobs; ``ahead`` are the keys of the next ones
    before it. ``refusal`` says which limit holds it back, "" for none. ``queue`` is its queue's
    report. ``reclaims`` says what would be evicted for it, by queue, in words; ``waits_for`` names
    the jobs whose end would free enough, with when they end in seconds if they say so. ``change``
    is the smallest change of a queue that would admit it.
    """

    queue: QueueReport
    place: int
    length: int
    ahead: Sequence[str] = ()
    refusal: str = ""
    reclaims: Sequence[str] = ()
    waits_for: Sequence[str] = ()
    change: str = ""
    notes: Sequence[str] = msgspec.field(default_factory=tuple)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "queue": self.queue.as_json(),
            "place": self.place,
            "length": self.length,
            "ahead": list(self.ahead),
            "refusal": self.refusal,
            "reclaims": list(self.reclaims),
            "waitsFor": list(self.waits_for),
            "change": self.change,
            "notes": list(self.notes),
        }


def _finite(value: float) -> float | None:
    return None if np.isinf(value) else value


def lent_of(tree: QueueTree) -> AmountRows:
    """Return what each queue lends: its idle part of what siblings use beyond their own.

    What siblings borrow is spread over those that have something idle, in proportion to it.
    """
    lent = np.zeros_like(tree.used)
    deserved = np.where(np.isinf(tree.deserved), tree.used, tree.deserved)
    for rows in (tree.roots, *tree.children):
        if len(rows) < 2:
            continue
        balance = deserved[rows] - tree.used[rows]
        idle = np.maximum(balance, 0)
        borrowed = np.maximum(-balance, 0).sum(axis=0)
        total = idle.sum(axis=0)
        part = np.divide(borrowed, total, out=np.zeros_like(total), where=total > EPSILON)
        lent[rows] = idle * np.minimum(part, 1)
    return lent


class KnownReports:
    """The reports of one policy's queues: those that have not changed stay the same objects.

    :param system: the ecosystem that defines the queues.
    :param policy: what decides on them.
    """

    def __init__(self, system: str, policy: str) -> None:
        self._system = system
        self._policy = policy
        self._tree: QueueTree | None = None
        self._offered: frozenset[str] = frozenset()
        self._columns: AmountRows = np.zeros((0, 0))
        self._jobs: tuple[Mapping[int, int], Mapping[int, int]] = ({}, {})
        self._reports: list[QueueReport] = []

    def of(
        self,
        tree: QueueTree,
        fair: AmountRows,
        offered: Collection[str],
        jobs: tuple[Mapping[int, int], Mapping[int, int]],
        reserved: AmountRows | None = None,
    ) -> Sequence[QueueReport]:
        """Return the reports of all queues of a tree, parents before children.

        :param fair: what each queue may have now by its policy, in the columns of the tree.
        :param offered: the resources that some node offers; empty where there are no nodes.
        :param jobs: how many jobs wait and run in each row.
        :param reserved: what is reserved in each row; None for what is used.
        """
        lent = lent_of(tree)
        held = tree.used if reserved is None else reserved
        columns = np.hstack((tree.used, tree.fixed, tree.demand, fair, lent, held))
        known = self._tree is tree and self._columns.shape == columns.shape
        if known and self._offered == offered:
            changed = (columns != self._columns).any(axis=1)
            rows = set(np.flatnonzero(changed).tolist())
            for now, before in zip(jobs, self._jobs, strict=True):
                rows |= {row for row, _ in now.items() ^ before.items()}
        else:
            rows = set(range(len(tree)))
            self._reports = [_NONE] * len(tree)
        for row in rows:
            self._reports[row] = replace(
                _report(tree, row, (fair, lent, held), self._system, self._policy),
                notes=tuple(notes_on(tree, row, offered)),
                waiting=jobs[0].get(row, 0),
                running=jobs[1].get(row, 0),
            )
        self._tree, self._offered = tree, frozenset(offered)
        self._columns, self._jobs = columns, jobs
        return tuple(self._reports)


_NONE = QueueReport("", "", "", "", "", 0, 0.0, 0.0, {})
"""Where a report is about to be made."""


def _report(
    tree: QueueTree,
    row: int,
    rows: tuple[AmountRows, AmountRows, AmountRows],
    system: str,
    policy: str,
) -> QueueReport:
    queue = tree.queues[row]
    fair, lent, reserved = rows
    found = {}
    share = 0.0
    for column, name in enumerate(tree.resources):
        used, deserved = float(tree.used[row, column]), float(tree.deserved[row, column])
        own = float(fair[row, column])
        if used > EPSILON and not np.isinf(own):
            share = max(share, used / own if own > EPSILON else np.inf)
        one = ResourceReport(
            deserved,
            float(tree.guaranteed[row, column]),
            float(tree.limit[row, column]),
            own,
            used,
            float(tree.fixed[row, column]),
            float(tree.demand[row, column]),
            0.0 if np.isinf(deserved) else max(0.0, used - deserved),
            float(lent[row, column]),
            float(tree.borrowed[row, column]),
            float(tree.lent[row, column]),
            float(reserved[row, column]),
        )
        found[name] = one
    weights = tree.weight[row]
    return QueueReport(
        system,
        policy,
        queue.name,
        queue.parent,
        queue.state.value,
        queue.priority,
        float(weights.max()) if len(weights) else queue.weight.other,
        share,
        found,
        problem=queue.problem or "",
        children=tuple(tree.name(child) for child in tree.children[row]),
    )
