"""Volcano's policy: which plugins of Volcano decide, and what they decide together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bayplan import Args, Handle, PodInfo, Unit
from bayplan.api import VolcanoPodGroup, VolcanoQueue
from bayplan.api.queue import Queue
from bayplan.dialects import volcano
from bayplan.queues.gate import gate
from bayplan.queues.ledger import Ledger, PodRules
from bayplan.queues.tree import EPSILON, AmountRows
from bayplan.snapshot import Snapshot
from bayplan_plugins.queues.policy import QuotaRefusal, RoomPlan

__all__ = ["VolcanoArgs", "VolcanoPolicy"]


class VolcanoArgs(Args):
    """Arguments of Volcano's policy."""


class VolcanoPolicy:
    """Order, limits and victims as Volcano's plugins decide them."""

    name = "capacity"
    system = "volcano"
    actions: Sequence[str] = ()

    def __init__(self, args: VolcanoArgs, handle: Handle) -> None:
        self.args = args
        self._handle = handle
        rules = PodRules(
            queue_of=self.queue_of,
            amounts=lambda pod: pod.requests,
            is_fixed=lambda pod: False,
            counts=lambda pod: not pod.terminating,
        )
        snapshot = handle.snapshot
        self.ledger = Ledger(snapshot, _queues, (VolcanoQueue,), (VolcanoPodGroup,), rules)

    @property
    def active(self) -> bool:
        """Whether the cluster has any Volcano Queue."""
        return bool(self._handle.snapshot.objects(VolcanoQueue))

    def queue_of(self, pod: PodInfo) -> str | None:
        """Return the queue of the pod's group, or the one that its annotation names."""
        if pod.gang is not None:
            group = self._handle.snapshot.objects(VolcanoPodGroup).get(pod.gang)
            if group is not None:
                return group.spec.queue
        return pod.annotations.get(volcano.QUEUE_ANNOTATION)

    def gate(self, pod: PodInfo, queue: str) -> str | None:
        """Hold back pods of queues that do not exist, are broken or are not open."""
        return gate(self.ledger.tree, "Queue", queue, leaves_only=False)

    def order(self, unit: Unit, added: float) -> tuple[float, ...]:
        """Order by priority, then by arrival."""
        return (-float(unit.priority), added)

    def next_queue(self, heads: Mapping[str, Unit], action: str) -> str | None:
        """Return the queue with the highest priority, then the smallest share."""
        return min(heads, default=None)

    def turn(self, unit: Unit) -> Sequence[PodInfo] | None:
        """Place the whole unit."""
        return None

    def refusal(self, unit: Unit) -> QuotaRefusal | None:
        """Refuse a unit whose minimum would exceed the capability of its queue or an ancestor."""
        tree = self.ledger.tree
        row = self.ledger.row_of(unit.pods[0])
        if row is None:
            return None
        request = self.ledger.sum_of(unit.pods[: unit.min_placed])
        for ancestor in tree.path(row):
            over = (request > 0) & (tree.used[ancestor] + request > tree.limit[ancestor] + EPSILON)
            for column in over.nonzero()[0].tolist():
                return QuotaRefusal(
                    tree.name(row),
                    tree.name(ancestor),
                    tree.resources[column],
                    "capability",
                    float(tree.limit[ancestor, column]),
                    float(tree.used[ancestor, column]),
                    float(request[column]),
                )
        return None

    def overrun(self, pod: PodInfo) -> QuotaRefusal | None:
        """Refuse a pod that took its queue beyond its capability."""
        return None

    def fair(self) -> AmountRows:
        """Return what each queue deserves."""
        tree = self.ledger.tree
        return np.minimum(tree.limit, np.maximum(tree.deserved, tree.guaranteed))

    def plan(self, unit: Unit, action: str) -> RoomPlan | str | None:
        """Return no way to make room."""
        return None

    def overdue(self) -> None:
        """Evict nothing that no unit waits for."""


def _queues(snapshot: Snapshot) -> list[Queue]:
    return [volcano.queue_of(one) for one in snapshot.objects(VolcanoQueue).values()]
