"""Volcano's plugins that order jobs: gang, priority and drf."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bayplan import PodInfo
from bayplan.api import VolcanoQueue
from bayplan.queues.tree import EPSILON, AmountRows
from bayplan_plugins.queues.volcano.jobs import Job, task_priority
from bayplan_plugins.queues.volcano.plugins.base import VolcanoPlugin
from bayplan_plugins.queues.volcano.plugins.hierarchical_shares import (
    HierarchicalShares,
    Hierarchy,
)
from bayplan_plugins.queues.volcano.plugins.job_table import JobRows, JobTable
from bayplan_plugins.queues.volcano.session import Claimant, Victim

__all__ = ["Drf", "Gang", "Priority"]

_SHARE_DELTA = 1e-6


class Gang(VolcanoPlugin):
    """Jobs that lack their minimum come first, and no job is brought below its minimum."""

    def job_order(self, job: Job, pods: Iterable[PodInfo]) -> tuple[float, ...]:
        """Put jobs that are not ready first, above all those that hold nodes for nothing."""
        if self._is_ready(job):
            return (1.0,)
        return (-1.0,) if job.placed else (0.0,)

    def _is_ready(self, job: Job) -> bool:
        return self.session.jobs.ready(job) >= self.session.jobs.min_available(job)

    def starving(self, job: Job, pending: int) -> bool:
        """Tell whether the job lacks its minimum; without a minimum every pod counts.

        Volcano lets no job without a minimum ask for room.
        """
        if self.session.jobs.min_available(job) == 0:
            return pending > 0
        return not self._is_ready(job)

    def preemptable(self, claimant: Claimant, victim: Victim) -> bool:
        """Take only what a job has beyond its minimum."""
        return not victim.whole and self.session.jobs.surplus(victim.job) >= len(victim.pods)

    reclaimable = preemptable


class Priority(VolcanoPlugin):
    """Jobs and pods of a high priority come first, and take from those of a lower one."""

    def job_order(self, job: Job, pods: Iterable[PodInfo]) -> tuple[float, ...]:
        """Order by the job's priority."""
        return (-float(self.session.jobs.priority(job, pods)),)

    def task_order(self, pod: PodInfo) -> tuple[float, ...]:
        """Order by the pod's priority."""
        return (-float(task_priority(pod)),)

    def starving(self, job: Job, pending: int) -> bool:
        """Tell whether any pod of the job is pending."""
        return pending > 0

    def preemptable(self, claimant: Claimant, victim: Victim) -> bool:
        """Take from jobs of a lower priority, and within a job from such pods."""
        if victim.job.key == claimant.job.key:
            highest = max(task_priority(pod) for pod in victim.pods)
            return highest < claimant.task_priority
        if any(pod.priority >= claimant.stated_priority > 0 for pod in victim.pods):
            return False
        return self.session.jobs.priority(victim.job) < claimant.priority


class Drf(VolcanoPlugin):
    """Jobs with a small dominant share of the cluster come first.

    With ``enableHierarchy`` queues are ordered by their shares in a tree, too, and reclaim by them.
    """

    _known: tuple[object, HierarchicalShares] | None = None
    _table: JobTable | None = None
    _hierarchy: tuple[object, Hierarchy] | None = None

    def has(self, vote: str) -> bool:
        """Vote on queues with a hierarchy only."""
        if vote in ("queue_order", "reclaimable") and not self.hierarchical:
            return False
        return super().has(vote)

    def queue_order(self, row: int) -> tuple[float, ...]:
        """Order by the shares at every level of the tree."""
        return self._shares().key(row)

    def reclaimable(self, claimant: Claimant, victim: Victim) -> bool:
        """Take where the claimant's queue still comes before the victim's afterwards."""
        changes = {claimant.job.key: claimant.request, victim.job.key: -victim.takes}
        shares = self._shares_of(self._jobs().rows().changed(changes))
        return shares.key(claimant.row) < shares.key(victim.row)

    def _jobs(self) -> JobTable:
        if self._table is None:
            self._table = JobTable(self.session)
        return self._table

    def _shares(self) -> HierarchicalShares:
        jobs, session = self._jobs(), self.session
        snapshot = session.handle.snapshot
        versions = (session.ledger.version, jobs.version, snapshot.objects_version)
        stamp = (*versions, snapshot.nodes.node_version, len(session.tree.resources))
        if self._known is None or self._known[0] != stamp:
            self._known = (stamp, self._shares_of(jobs.rows()))
        return self._known[1]

    def _shares_of(self, jobs: JobRows) -> HierarchicalShares:
        session, snapshot = self.session, self.session.handle.snapshot
        stamp = (session.tree, snapshot.objects_version)
        if self._hierarchy is None or self._hierarchy[0] != stamp:
            made = Hierarchy(snapshot.objects(VolcanoQueue), session.tree)
            self._hierarchy = (stamp, made)
        total = session.total()
        return HierarchicalShares(self._hierarchy[1], jobs, total, session.tree.resources)

    def job_order(self, job: Job, pods: Iterable[PodInfo]) -> tuple[float, ...]:
        """Order by the job's dominant share."""
        return (self._share(self.session.jobs.allocated(job)),)

    def _share(self, amounts: AmountRows) -> float:
        total = self.session.total()
        amounts = self.session.wide(amounts)
        parts = np.divide(amounts, total, out=np.zeros_like(amounts), where=total > EPSILON)
        return float(parts.max(initial=0.0))

    def preemptable(self, claimant: Claimant, victim: Victim) -> bool:
        """Take from jobs that still have a larger share afterwards."""
        session = self.session
        mine = session.wide(session.jobs.allocated(claimant.job)) + session.wide(claimant.request)
        theirs = session.wide(session.jobs.allocated(victim.job)) - session.wide(victim.takes)
        return self._share(mine) < self._share(theirs) + _SHARE_DELTA
