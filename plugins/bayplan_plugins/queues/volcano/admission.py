"""Pod groups in phase Pending are admitted, queue by queue, by the action enqueue if it is on."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Hashable
from functools import cached_property

from msgspec.structs import replace

from bayplan.api import VolcanoPodGroup
from bayplan.cluster.protocol import Event, PatchStatus
from bayplan_plugins.queues.volcano.admitted_amounts import AdmittedAmounts, Inqueue
from bayplan_plugins.queues.volcano.jobs import Job
from bayplan_plugins.queues.volcano.session import Session
from bayplan_plugins.queues.volcano.tiers import Tiers
from bayplan_plugins.queues.volcano.waiting_groups import WaitingGroups, WaitingKind, waits

__all__ = ["Admission"]

_NUMBERS = re.compile(r"\d+")
_MOST_REPORTED = 100_000


class Admission:
    """Admits waiting pod groups: their phase becomes Inqueue, and their pods are tried.

    The queues take turns in their order, each with its jobs in theirs, as in volcano-sh/volcano.
    Of groups that ask for the same in one queue, one is asked for all that come after it: what is
    admitted meanwhile leaves less.

    :param asks: whether the plugins are asked, by the action enqueue. Without it all groups of
        queues are admitted: their controllers make no pods before.
    """

    def __init__(self, session: Session, tiers: Tiers, asks: bool) -> None:
        self._session = session
        self._tiers = tiers
        self._asks = asks
        self._admitting: set[str] = set()
        self._settled: set[str] = set()
        """Groups that left ``_admitting``."""
        self._waiting = WaitingGroups(session.handle.snapshot, self._apart)
        self._stamp: object = None
        self._reported: dict[str, str] = {}
        """Why groups without pods are not admitted, as their events say."""

    @cached_property
    def _amounts(self) -> AdmittedAmounts:
        """What is admitted, followed from the first group that waits: unused, it costs nothing."""
        return AdmittedAmounts(self._session, self._admitting)

    def _apart(self, group: VolcanoPodGroup) -> Hashable:
        """Return what makes a group a kind of its own where plugins vote on each."""
        return None if self._tiers.admit_kinds else group.metadata.name

    def rejection(self, group: str) -> str | None:
        """Return why a group, by key, is not admitted; None for one that is, or need not be."""
        kind = self._waiting.kind_of(group) if self._asks else None
        if kind is None or group in self._admitting:
            return None
        return kind.why or "it has not been admitted yet"

    def is_admitting(self, group: str) -> bool:
        """Tell whether a group, by key, was admitted and its object does not say so yet."""
        return group in self._admitting

    def run(self) -> None:
        """Admit what the plugins let in."""
        groups = self._session.jobs.groups()
        for key in [key for key in self._admitting if key not in groups or not waits(groups[key])]:
            self._admitting.discard(key)
            self._settled.add(key)
        if not self._waiting.kinds:
            self._reported.clear()
            return
        stamp = self._now()
        if stamp == self._stamp and self._tiers.admit_kinds:
            return
        inqueue = self._amounts.now(self._settled)
        self._settled.clear()
        if self._any_admitted(inqueue):
            self._take_turns(inqueue)
        self._stamp = self._now()
        self._tell()

    def _now(self) -> object:
        """Return what changes with all that the plugins look at, except the time."""
        session = self._session
        snapshot = session.handle.snapshot
        nodes = snapshot.nodes
        used = (nodes.epoch, nodes.position, nodes.node_version)
        return session.ledger.version, self._amounts.version, snapshot.objects_version, used

    def _any_admitted(self, inqueue: Inqueue) -> bool:
        """Ask for each kind; tell whether any of its groups may be admitted."""
        found = False
        for kind in self._waiting.kinds.values():
            key = next((key for key in kind.groups if key not in self._admitting), None)
            row = self._session.tree.row_of.get(kind.queue)
            if key is None or row is None:
                kind.why = None
                continue
            kind.why = self._rejection(self._session.jobs.named(key), row, inqueue)
            found |= kind.why is None
        return found

    def _rejection(self, job: Job, row: int, inqueue: Inqueue) -> str | None:
        if not self._asks:
            return None
        return self._tiers.rejection(job, row, self._session.jobs.min_resources(job.key), inqueue)

    def _take_turns(self, inqueue: Inqueue) -> None:
        waiting = self._lines()
        turns = deque(sorted(waiting, key=self._tiers.queue_order))
        while turns:
            row = turns.popleft()
            job, kind = waiting[row].popleft()
            self._try(job, kind, row, inqueue)
            if waiting[row]:
                turns.append(row)

    def _lines(self) -> dict[int, deque[tuple[Job, WaitingKind]]]:
        """Return the waiting jobs by queue, in order."""
        lines: dict[int, list[tuple[Job, WaitingKind]]] = {}
        for kind in self._waiting.kinds.values():
            row = self._session.tree.row_of.get(kind.queue)
            if row is not None:
                own = [key for key in kind.groups if key not in self._admitting]
                lines.setdefault(row, []).extend(
                    (self._session.jobs.named(key), kind) for key in own
                )
        return {
            row: deque(sorted(line, key=lambda one: self._key(one[0])))
            for row, line in lines.items()
            if line
        }

    def _key(self, job: Job) -> tuple[object, ...]:
        return self._tiers.job_order(job), self._session.jobs.created(job.key), job.key

    def _try(self, job: Job, kind: WaitingKind, row: int, inqueue: Inqueue) -> None:
        kind.why = kind.why or self._rejection(job, row, inqueue)
        if kind.why is not None:
            return
        owed = self._amounts.owed(job)
        if owed is not None:
            inqueue.add(row, owed)
        self._admitting.add(job.key)
        self._settled.add(job.key)
        group = self._session.jobs.groups()[job.key]
        status = replace(group.status, phase="Inqueue")
        self._session.handle.submit(PatchStatus(VolcanoPodGroup, job.key, status, awaited=True))

    def _tell(self) -> None:
        """Write an event of each group that is rejected, once for each reason.

        Pods, if there are any, say it themselves.
        """
        for kind in self._waiting.kinds.values():
            if kind.why is None:
                continue
            # Amounts change with every pod that comes or goes.
            plain = _NUMBERS.sub("", kind.why)
            keys = list(kind.groups if plain != kind.reported else kind.unreported)
            kind.reported = plain
            kind.unreported = {key for key in keys if not self._is_reported(key, kind)}

    def _is_reported(self, key: str, kind: WaitingKind) -> bool:
        """Report on a group if nobody has; tell whether that is done."""
        handle = self._session.handle
        if self._reported.get(key) == kind.reported or key in self._admitting:
            return True
        if handle.gang(key).pending:
            return False
        if len(self._reported) >= _MOST_REPORTED:
            self._reported.clear()
        self._reported[key] = kind.reported
        handle.submit(Event(key, "Normal", "Unschedulable", kind.why or "", about="PodGroup"))
        return True
