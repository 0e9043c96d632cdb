"""Volcano's plugin proportion: the cluster divided among queues by weight and demand."""

from __future__ import annotations

import numpy as np

from bayplan.api.queue import QueueState
from bayplan.queues.tree import EPSILON, AmountRows
from bayplan_plugins.queues.policy import QuotaRefusal
from bayplan_plugins.queues.volcano.admitted_amounts import Inqueue
from bayplan_plugins.queues.volcano.entitlements import Entitlements
from bayplan_plugins.queues.volcano.jobs import Job
from bayplan_plugins.queues.volcano.limits import first_over
from bayplan_plugins.queues.volcano.plugins.base import Enqueue, VolcanoPlugin
from bayplan_plugins.queues.volcano.session import Claimant, Victim

__all__ = ["Proportion"]


class Proportion(VolcanoPlugin):
    """Votes by what queues deserve of the cluster now."""

    admits_kinds = True

    @property
    def _may(self) -> Entitlements:
        return self.session.proportion()

    def queue_order(self, row: int) -> tuple[float, ...]:
        """Order by priority, then by the dominant share of what the queue deserves."""
        tree = self.session.tree
        used, deserved = tree.used[row], self._may.deserved[row]
        has = deserved > EPSILON
        unowed = (used > EPSILON).astype(np.float64)
        parts = np.divide(used, deserved, out=unowed, where=has)
        return (-float(tree.queues[row].priority), float(parts.max(initial=0.0)))

    def overused(self, row: int) -> bool:
        """Tell whether the queue has what it deserves of every resource."""
        return bool((self._may.deserved[row] <= self.session.tree.used[row] + EPSILON).all())

    def allocatable(self, row: int, request: AmountRows) -> QuotaRefusal | str | None:
        """Refuse what exceeds what the queue deserves."""
        return first_over(self.session, row, request, self._may.deserved, "deserved share")

    def preemptive(self, claimant: Claimant) -> bool:
        """Allow what stays within what the queue deserves."""
        queue = self.session.tree.queues[claimant.row]
        if queue.state is not QueueState.OPEN:
            return False
        return self.allocatable(claimant.row, claimant.request) is None

    def reclaimable(self, claimant: Claimant, victim: Victim) -> bool:
        """Take from queues that have more than they deserve of any resource."""
        used = self.session.tree.used[victim.row]
        return bool((used > self._may.deserved[victim.row] + EPSILON).any())

    def enqueueable(
        self, job: Job, row: int, least: AmountRows | None, inqueue: Inqueue
    ) -> Enqueue:
        """Admit what fits the capability beside what is admitted already."""
        queue = self.session.tree.queues[row]
        if queue.state is not QueueState.OPEN:
            return f'queue "{queue.name}" is {queue.state.value}'
        refusal = inqueue.over(row, least, self._may.real, "capability")
        return True if refusal is None else str(refusal)
