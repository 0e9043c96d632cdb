"""What is admitted and has no nodes yet: it counts when the next job asks to be admitted."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from bayplan.queues.tree import AmountRows
from bayplan_plugins.queues.policy import QuotaRefusal
from bayplan_plugins.queues.volcano.jobs import Job
from bayplan_plugins.queues.volcano.limits import first_over
from bayplan_plugins.queues.volcano.session import Session

__all__ = ["Inqueue"]


class Inqueue:
    """What admitted jobs still have to get, read once; jobs admitted since are added.

    As volcano-sh/volcano counts ``inqueue``: the ``minResources`` beyond what a job has, of groups
    in phase Inqueue and of running ones that have their minimum. Pods with scheduling gates take
    nothing yet and keep no other job out, so what they ask for is taken off; so is what running
    jobs have beyond their ``minResources`` (``elastic``), because they can spare it.

    :param admitting: the keys of groups whose phase is being written.
    """

    def __init__(self, session: Session, admitting: Container[str]) -> None:
        self._session = session
        self._admitting = admitting
        tree = session.tree
        self._balance: AmountRows = np.zeros_like(tree.used)
        self.owed: AmountRows = np.zeros(len(tree.resources))
        """What admitted jobs of all queues still have to get together."""
        jobs = session.jobs
        for key in jobs.groups():
            job = jobs.named(key)
            if job.row is not None and self._counts(job):
                self.add(job, job.row)
        for job in jobs.with_pods():
            if job.row is not None:
                self._change(job.row, -session.wide(jobs.elastic(job)))

    def _counts(self, job: Job) -> bool:
        group = self._session.jobs.groups()[job.key]
        if group.status.phase == "Running":
            return len(job.placed) >= group.spec.min_member
        return group.status.phase == "Inqueue" or job.key in self._admitting

    def add(self, job: Job, row: int) -> None:
        """Count a job as admitted."""
        jobs = self._session.jobs
        least = jobs.min_resources(job.key)
        if least is not None:
            owed = jobs.beyond(jobs.beyond(least, jobs.allocated(job)), jobs.gated(job.key))
            part = self._session.wide(owed)
            self._change(row, part)
            self.owed = self._session.wide(self.owed) + part

    def _change(self, row: int, part: AmountRows) -> None:
        missing = len(part) - self._balance.shape[1]
        if missing:
            self._balance = np.pad(self._balance, ((0, 0), (0, missing)))
        for one in self._session.path(row):
            self._balance[one] += part

    def over(
        self, row: int, least: AmountRows | None, most: AmountRows, bound: str
    ) -> QuotaRefusal | None:
        """Return what admitting a job with these ``minResources`` would exceed, if anything."""
        if least is None:
            return None
        request = self._session.wide(least)
        owed = np.pad(self._balance, ((0, 0), (0, len(request) - self._balance.shape[1])))
        return first_over(self._session, row, request, most, bound, owed)
