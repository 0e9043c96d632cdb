"""Volcano's plugin capacity: queues with a deserved amount, a guarantee and a capability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bayplan.api.queue import QueueState
from bayplan.queues.tree import EPSILON, AmountRows
from bayplan_plugins.queues.policy import QuotaRefusal
from bayplan_plugins.queues.volcano.admitted_amounts import Inqueue
from bayplan_plugins.queues.volcano.entitlements import Entitlements, dominant_share
from bayplan_plugins.queues.volcano.jobs import Job
from bayplan_plugins.queues.volcano.limits import first_over
from bayplan_plugins.queues.volcano.plugins.base import Enqueue, VolcanoPlugin
from bayplan_plugins.queues.volcano.session import Claimant, Session, Victim

__all__ = ["Capacity"]


class Capacity(VolcanoPlugin):
    """Votes by what queues deserve, in a tree where ``enableHierarchy`` is on."""

    admits_kinds = True

    def __init__(self, session: Session, arguments: Mapping[str, Any], hierarchical: bool) -> None:
        super().__init__(session, arguments, hierarchical)
        self._levels = max(0, int(arguments.get("ancestorReclaimLevel", 0)))

    @property
    def _may(self) -> Entitlements:
        return self.session.capacity()

    # Order -------------------------------------------------------------------------------

    def queue_order(self, row: int) -> tuple[float, ...]:
        """Order by priority, then by share along the path from below the root."""
        tree, deserved = self.session.tree, self._may.deserved
        path = self.session.path(row)
        below = list(path[:-1] if self.session.hierarchical and len(path) > 1 else path)[::-1]
        shares = dominant_share(tree.used[below], deserved[below]).tolist()
        unowed = [float(not (deserved[one] > EPSILON).any()) for one in below]
        parts = [part for pair in zip(shares, unowed, strict=True) for part in pair]
        return (-float(tree.queues[row].priority), *parts)

    def victim_queue_order(self, row: int, claimant: int) -> tuple[float, ...]:
        """Order by how deep the common ancestor with the claimant's queue is, the deepest first."""
        if not self.session.hierarchical:
            return ()
        tree = self.session.tree
        common = set(tree.path(row)[1:]) & set(tree.path(claimant)[1:])
        return (-float(len(common)),)

    # Limits ------------------------------------------------------------------------------

    def allocatable(self, row: int, request: AmountRows) -> QuotaRefusal | str | None:
        """Refuse what exceeds the capability of the queue or an ancestor."""
        tree = self.session.tree
        if self.session.hierarchical and not tree.is_leaf(row):
            return f'queue "{tree.name(row)}" has queues below it and takes no jobs itself'
        return first_over(self.session, row, request, self._may.real, "capability")

    def enqueueable(
        self, job: Job, row: int, least: AmountRows | None, inqueue: Inqueue
    ) -> Enqueue:
        """Admit what fits the capability beside what is admitted already."""
        tree = self.session.tree
        if self.session.hierarchical and not tree.is_leaf(row):
            return f'queue "{tree.name(row)}" has queues below it and takes no jobs itself'
        if tree.queues[row].state is not QueueState.OPEN:
            return f'queue "{tree.name(row)}" is {tree.queues[row].state.value}'
        refusal = inqueue.over(row, least, self._may.real, "capability")
        return True if refusal is None else str(refusal)

    # Reclaim -----------------------------------------------------------------------------

    def preemptive(self, claimant: Claimant) -> bool:
        """Allow what stays within the capability and, in any resource, within the deserved."""
        tree, may = self.session.tree, self._may
        row, request = claimant.row, self.session.wide(claimant.request)
        if tree.queues[row].state is not QueueState.OPEN:
            return False
        asked = self.session.counts(request)
        if (tree.used[row] + request > may.real[row] + EPSILON)[asked].any():
            return False
        rows = [row]
        if self.session.hierarchical:
            rows += self.session.ancestors(row)[: self._levels]
        return any(bool(self._within(one, request).any()) for one in rows)

    def _within(self, row: int, request: AmountRows) -> npt.NDArray[np.bool_]:
        """Return the columns in which a queue stays within what it deserves with a request."""
        future = self.session.tree.used[row] + request
        within: npt.NDArray[np.bool_] = future <= self._may.deserved[row] + EPSILON
        return within & self.session.counts(request)

    def reclaimable(self, claimant: Claimant, victim: Victim) -> bool:
        """Take from queues beyond what they deserve, never below their guarantee."""
        session = self.session
        takes, request = session.wide(victim.takes), session.wide(claimant.request)
        if not (session.counts(takes) & session.counts(request)).any():
            return False
        left = session.tree.used[victim.row] - takes
        if (left < session.tree.guaranteed[victim.row] - EPSILON).any():
            return False
        if not self._relevant(takes, victim.row).any():
            if self._same_branch(claimant.row, victim.row):
                return bool(self._relevant(request, claimant.row).any())
        elif not self._exceeds(victim.row, takes):
            return False
        return all(
            not self._relevant(takes, above).any() or self._exceeds(above, takes)
            for above in self._unshared(claimant.row, victim.row)
        )

    def _relevant(self, takes: AmountRows, row: int) -> npt.NDArray[np.bool_]:
        """Return the columns that a victim takes and its queue deserves."""
        relevant: npt.NDArray[np.bool_] = (takes > EPSILON) & (self._may.deserved[row] > EPSILON)
        return relevant

    def _exceeds(self, row: int, takes: AmountRows) -> bool:
        over = self.session.tree.used[row] > self._may.deserved[row] + EPSILON
        return bool((over & self._relevant(takes, row)).any())

    def _levels_of(self, row: int) -> list[int | None]:
        """Return the ancestors at distance 1, 2 and so on, up to the level; None for a root."""
        path = list(self.session.tree.path(row)[1 : self._levels + 1])
        root = self.session.tree.path(row)[-1]
        return [None if one == root else one for one in path]

    def _same_branch(self, one: int, other: int) -> bool:
        """Tell whether two queues have an ancestor below the root, within the level."""
        if not self.session.hierarchical or not self._levels:
            return False
        mine = {row for row in self._levels_of(one) if row is not None}
        return bool(mine & set(self._levels_of(other)))

    def _unshared(self, claimant: int, victim: int) -> list[int]:
        """Return the victim's ancestors, within the level, that are not the claimant's, too."""
        if not self.session.hierarchical:
            return []
        mine, theirs = self._levels_of(claimant), self._levels_of(victim)
        padded = [*mine, *[None] * len(theirs)]
        return [
            row for own, row in zip(padded, theirs, strict=False) if row is not None and row != own
        ]
