"""Pod groups in phase Pending are admitted, queue by queue, by the action enqueue if it is on."""

from __future__ import annotations

import re
from collections import deque

from msgspec.structs import replace

from bayplan.api import VolcanoPodGroup
from bayplan.cluster.protocol import Event, PatchStatus
from bayplan_plugins.queues.volcano.admitted_amounts import Inqueue
from bayplan_plugins.queues.volcano.jobs import Job
from bayplan_plugins.queues.volcano.session import Session
from bayplan_plugins.queues.volcano.tiers import Tiers

__all__ = ["Admission"]

_WAITING = ("", "Pending")
_NUMBERS = re.compile(r"\d+")


class Admission:
    """Admits waiting pod groups: their phase becomes Inqueue, and their pods are tried.

    The queues take turns in their order, each with its jobs in theirs, as in volcano-sh/volcano.

    :param asks: whether the plugins are asked, by the action enqueue. Without it all groups of
        queues are admitted: their controllers make no pods before.
    """

    def __init__(self, session: Session, tiers: Tiers, asks: bool) -> None:
        self._session = session
        self._tiers = tiers
        self._asks = asks
        self._admitting: set[str] = set()
        self._rejected: dict[str, str] = {}
        self._reported: dict[str, str] = {}
        """Why groups without pods are not admitted, as their events say."""

    def rejection(self, group: str) -> str | None:
        """Return why a group, by key, is not admitted; None for one that is, or need not be."""
        found = self._session.jobs.group(group) if self._asks else None
        if found is None or found.status.phase not in _WAITING or group in self._admitting:
            return None
        return self._rejected.get(group, "it has not been admitted yet")

    def is_admitting(self, group: str) -> bool:
        """Tell whether a group, by key, was admitted and its object does not say so yet."""
        return group in self._admitting

    def run(self) -> None:
        """Admit what the plugins let in."""
        groups = self._session.jobs.groups()
        self._admitting &= {
            key for key in self._admitting if key in groups and self._waits(groups[key])
        }
        waiting = self._lines()
        self._rejected = {}
        if not waiting:
            self._reported = {}
            return
        inqueue = Inqueue(self._session, self._admitting)
        turns = deque(sorted(waiting, key=self._tiers.queue_order))
        while turns:
            row = turns.popleft()
            self._try(waiting[row].popleft(), row, inqueue)
            if waiting[row]:
                turns.append(row)
        self._tell()

    def _tell(self) -> None:
        """Write an event of each group that is rejected, once for each reason.

        Pods, if there are any, say it themselves.
        """
        handle = self._session.handle
        reported = {}
        for key, why in self._rejected.items():
            if handle.gang(key).pending:
                continue
            # Amounts change with every pod that comes or goes.
            reported[key] = _NUMBERS.sub("", why)
            if self._reported.get(key) != reported[key]:
                handle.submit(Event(key, "Normal", "Unschedulable", why, about="PodGroup"))
        self._reported = reported

    def _waits(self, group: VolcanoPodGroup) -> bool:
        return group.status.phase in _WAITING

    def _lines(self) -> dict[int, deque[Job]]:
        """Return the waiting jobs by queue, in order."""
        jobs = self._session.jobs
        lines: dict[int, list[Job]] = {}
        for key, group in jobs.groups().items():
            if not self._waits(group) or key in self._admitting:
                continue
            job = jobs.named(key)
            row = self._session.tree.row_of.get(group.spec.queue)
            if row is not None:
                lines.setdefault(row, []).append(job)
        return {row: deque(sorted(line, key=self._key)) for row, line in lines.items()}

    def _key(self, job: Job) -> tuple[object, ...]:
        return self._tiers.job_order(job), self._session.jobs.created(job.key), job.key

    def _try(self, job: Job, row: int, inqueue: Inqueue) -> None:
        least = self._session.jobs.min_resources(job.key)
        why = self._tiers.rejection(job, row, least, inqueue) if self._asks else None
        if why is not None:
            self._rejected[job.key] = why
            return
        inqueue.add(job, row)
        self._admitting.add(job.key)
        group = self._session.jobs.groups()[job.key]
        status = replace(group.status, phase="Inqueue")
        self._session.handle.submit(PatchStatus(VolcanoPodGroup, job.key, status, awaited=True))
