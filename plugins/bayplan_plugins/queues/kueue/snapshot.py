"""What one admission cycle works on: quotas with usage of its own, and the workloads with quota."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import msgspec

from bayplan.api.kueue import (
    ClusterQueue,
    ClusterQueuePreemption,
    FlavorFungibility,
    ResourceFlavor,
    ResourceGroup,
)
from bayplan.api.queue import Amounts
from bayplan_plugins.queues.kueue.flavor_assignment import Assignment
from bayplan_plugins.queues.kueue.quotas import QuotaForest
from bayplan_plugins.queues.kueue.workloads import WorkloadInfo

__all__ = [
    "Assumed",
    "Awaited",
    "Placement",
    "QueueView",
    "Snapshot",
    "Waits",
    "anywhere",
    "never",
    "unnoticed",
]


class QueueView(msgspec.Struct, frozen=True):
    """A ClusterQueue in a snapshot.

    :param row: its row in the forest.
    :param generation: changes when more may fit: with the quotas, and when a workload leaves.
    """

    spec: ClusterQueue
    row: int
    generation: int
    group_of: Mapping[str, ResourceGroup] = msgspec.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.spec.metadata.name

    @property
    def preemption(self) -> ClusterQueuePreemption:
        """Whom its workloads may preempt."""
        return self.spec.spec.preemption

    @property
    def fungibility(self) -> FlavorFungibility:
        """When the search for a flavor goes on."""
        return self.spec.spec.flavor_fungibility


Awaited = tuple[WorkloadInfo, Assignment]
"""A workload that comes once its victims have left, and what it is assigned then."""


class Placement(Protocol):
    """Whether the pods of a workload would really get nodes."""

    def __call__(
        self,
        workload: WorkloadInfo,
        assignment: Assignment,
        removed: Iterable[WorkloadInfo],
        awaited: Sequence[Awaited] = (),
    ) -> str | None:
        """Return why a workload's pods get no nodes with the assigned flavors; None if they do.

        :param removed: workloads whose pods would be gone. Workloads that this cycle has already
            admitted count as placed.
        :param awaited: those that come then, and whose nodes the workload may not take.
        """
        ...


class Assumed(Protocol):
    """Called with each workload that a cycle admits, before the next one is tried."""

    def __call__(self, workload: WorkloadInfo, assignment: Assignment) -> None:
        """Count a workload as placed."""
        ...


Waits = Callable[[WorkloadInfo], bool]
"""Tells whether a workload gets what it lacks without a preemption, if it waits."""


def never(workload: WorkloadInfo) -> bool:
    """Let nobody wait who may preempt."""
    return False


def unnoticed(workload: WorkloadInfo, assignment: Assignment) -> None:
    """Note nothing."""


def anywhere(
    workload: WorkloadInfo,
    assignment: Assignment,
    removed: Iterable[WorkloadInfo],
    awaited: Sequence[Awaited] = (),
) -> str | None:
    """Take every assignment that the quotas allow."""
    return None


class Snapshot:
    """Queues, quotas and workloads with quota. Simulations take back what they change.

    :param now: seconds since 1970; by default nobody is new.
    """

    def __init__(
        self,
        forest: QuotaForest,
        queues: Mapping[str, QueueView],
        flavors: Mapping[str, ResourceFlavor],
        workloads: Mapping[str, Mapping[str, WorkloadInfo]],
        now: float = math.inf,
    ) -> None:
        self.forest = forest
        self.queues = queues
        self.flavors = flavors
        self._workloads = workloads
        self._now = now
        self._gone: set[str] = set()

    def workloads_of(self, queue: str) -> Iterator[WorkloadInfo]:
        """Yield the workloads that have quota of a queue, but those that are taken away."""
        for workload in self._workloads.get(queue, {}).values():
            if workload.key not in self._gone:
                yield workload

    def candidates_of(self, queue: str) -> Iterator[WorkloadInfo]:
        """Yield the workloads of a queue that may be preempted now: those that ran long enough."""
        return (one for one in self.workloads_of(queue) if one.safe_until <= self._now)

    def workload(self, queue: str, key: str) -> WorkloadInfo | None:
        """Return a workload that has quota of a queue."""
        return None if key in self._gone else self._workloads.get(queue, {}).get(key)

    def add_usage(self, queue: str, usage: Amounts) -> None:
        """Count amounts as used by a queue for the rest of the cycle."""
        self.forest.add(self.queues[queue].row, usage)

    def remove(self, workload: WorkloadInfo) -> None:
        """Take a workload away, for a trial."""
        self._gone.add(workload.key)
        self.forest.remove(self.queues[workload.queue].row, workload.usage)

    def restore(self, workload: WorkloadInfo) -> None:
        """Put a workload back."""
        self._gone.discard(workload.key)
        self.forest.add(self.queues[workload.queue].row, workload.usage)

    @contextmanager
    def without(self, workloads: Iterable[WorkloadInfo]) -> Iterator[None]:
        """Take workloads away while the context is open; those that are already gone stay gone."""
        taken = {one.key: one for one in workloads if one.key not in self._gone}
        for one in taken.values():
            self.remove(one)
        try:
            yield
        finally:
            for one in taken.values():
                self.restore(one)
