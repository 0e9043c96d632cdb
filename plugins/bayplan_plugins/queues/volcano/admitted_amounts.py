"""What is admitted and has no nodes yet: it counts when the next job asks to be admitted."""

from __future__ import annotations

from collections.abc import Container

import msgspec
import numpy as np

from bayplan.queues.tree import AmountRows
from bayplan_plugins.queues.policy import QuotaRefusal
from bayplan_plugins.queues.volcano.changed_jobs import ChangedJobs
from bayplan_plugins.queues.volcano.jobs import Job
from bayplan_plugins.queues.volcano.limits import first_over
from bayplan_plugins.queues.volcano.session import Session

__all__ = ["AdmittedAmounts", "Inqueue"]


class Inqueue:
    """What admitted jobs still have to get, by queue (``balance``) and together (``owed``)."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.balance: AmountRows = np.zeros_like(session.tree.used)
        self.owed: AmountRows = np.zeros(len(session.tree.resources))

    def copy(self) -> Inqueue:
        """Return the same amounts, to which others are added."""
        made = Inqueue(self._session)
        made.balance, made.owed = self.balance.copy(), self.owed.copy()
        return made

    def add(
        self, row: int, owed: AmountRows, spare: AmountRows | None = None, sign: int = 1
    ) -> None:
        """Count what a job of a queue still has to get, and what it can spare."""
        owed = self._session.wide(owed)
        part = owed if spare is None else owed - self._session.wide(spare)
        missing = len(part) - self.balance.shape[1]
        if missing:
            self.balance = np.pad(self.balance, ((0, 0), (0, missing)))
        for one in self._session.path(row):
            self.balance[one] += sign * part
        self.owed = self._session.wide(self.owed) + sign * owed

    def over(
        self, row: int, least: AmountRows | None, most: AmountRows, bound: str
    ) -> QuotaRefusal | None:
        """Return what admitting a job with these ``minResources`` would exceed, if anything."""
        if least is None:
            return None
        request = self._session.wide(least)
        owed = np.pad(self.balance, ((0, 0), (0, len(request) - self.balance.shape[1])))
        return first_over(self._session, row, request, most, bound, owed)


class _Part(msgspec.Struct, frozen=True):
    """What counts of a job in its queue's row: what it still has to get, what it can spare."""

    row: int
    owed: AmountRows
    spare: AmountRows


class AdmittedAmounts:
    """Keeps what admitted jobs still have to get; only jobs that changed are counted again.

    As volcano-sh/volcano counts ``inqueue``: the ``minResources`` beyond what a job has, of groups
    in phase Inqueue and of running ones that have their minimum. Pods with scheduling gates take
    nothing yet and keep no other job out, so what they ask for is taken off; so is what running
    jobs have beyond their ``minResources`` (``elastic``), because they can spare it.

    :param admitting: the keys of groups whose phase is being written.
    """

    def __init__(self, session: Session, admitting: Container[str]) -> None:
        self._session = session
        self._admitting = admitting
        self._changed = ChangedJobs(session.handle.snapshot)
        self._parts: dict[str, _Part] = {}
        self._sum = Inqueue(session)
        self._tree: object = None

    @property
    def version(self) -> int:
        """Changes with any job."""
        return self._changed.version

    def now(self, also: set[str]) -> Inqueue:
        """Return the amounts, to which what is admitted next may be added.

        :param also: the keys of jobs to count again whose objects did not change.
        """
        changed = self._changed.take() | also
        tree = self._session.tree
        if self._tree is not tree:
            self._tree = tree
            self._parts, self._sum = {}, Inqueue(self._session)
            jobs = self._session.jobs
            changed |= {*jobs.groups(), *(job.key for job in jobs.with_pods())}
        for key in changed:
            self._count(key)
        return self._sum.copy()

    def owed(self, job: Job) -> AmountRows | None:
        """Return what a job still has to get of its ``minResources``, None where it states none."""
        jobs = self._session.jobs
        least = jobs.min_resources(job.key)
        if least is None:
            return None
        return jobs.beyond(jobs.beyond(least, jobs.allocated(job)), jobs.gated(job.key))

    def _count(self, key: str) -> None:
        before = self._parts.pop(key, None)
        if before is not None:
            self._sum.add(before.row, before.owed, before.spare, sign=-1)
        part = self._part(key)
        if part is not None:
            self._parts[key] = part
            self._sum.add(part.row, part.owed, part.spare)

    def _part(self, key: str) -> _Part | None:
        jobs = self._session.jobs
        job = jobs.named(key)
        if job.row is None:
            return None
        nothing: AmountRows = np.zeros(0)
        owed = self.owed(job) if self._counts(job) else None
        spare = jobs.elastic(job) if job.placed else nothing
        if owed is None and not job.placed:
            return None
        return _Part(job.row, nothing if owed is None else owed, spare)

    def _counts(self, job: Job) -> bool:
        group = self._session.jobs.group(job.key)
        if group is None:
            return False
        if group.status.phase == "Running":
            return len(job.placed) >= group.spec.min_member
        return group.status.phase == "Inqueue" or job.key in self._admitting
