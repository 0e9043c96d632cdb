"""A workload that takes part in a cycle, with what the cycle finds out about it."""

from __future__ import annotations

from enum import Enum

import msgspec

from bayplan.api.queue import Amounts
from bayplan_plugins.queues.kueue.conditions import has_quota
from bayplan_plugins.queues.kueue.flavor_assignment import Assignment, Mode
from bayplan_plugins.queues.kueue.pending import Requeue
from bayplan_plugins.queues.kueue.snapshot import QueueView, Snapshot
from bayplan_plugins.queues.kueue.victims import Victim
from bayplan_plugins.queues.kueue.workloads import WorkloadInfo

__all__ = ["Entry", "State", "to_reserve"]


class State(Enum):
    """How far a workload came in a cycle."""

    NOT_NOMINATED = ""
    SKIPPED = "skipped"
    GATED = "preemptionGated"
    NOMINATED = "nominated"
    ASSUMED = "assumed"
    EVICTED = "evicted"


class Entry(msgspec.Struct):
    """A head of a queue in a cycle.

    :param message: why it was not admitted.
    :param reason: the same in one word, for its condition.
    """

    workload: WorkloadInfo
    assignment: Assignment = msgspec.field(default_factory=Assignment)
    victims: list[Victim] = msgspec.field(default_factory=list)
    state: State = State.NOT_NOMINATED
    message: str = ""
    reason: str = ""
    requeue: Requeue = Requeue.GENERIC
    is_preemptor: bool = False

    def usage(self) -> dict[str, float]:
        """Return what its admission adds to the usage; nothing if it has quota already."""
        return {} if has_quota(self.workload.workload) else self.assignment.usage

    def assign(self, assignment: Assignment, victims: list[Victim]) -> None:
        """Note the assignment that was found, and where the next search goes on."""
        self.assignment, self.victims = assignment, victims
        self.message = assignment.message
        self.workload.last_tried = assignment.last_tried

    def skip(self, message: str, reason: str, goes_on: bool = False) -> None:
        """Give up for this cycle.

        :param goes_on: whether the next one goes on with the next flavor, not with the first.
        """
        self.state, self.message, self.reason = State.SKIPPED, message, reason
        if not goes_on:
            self.workload.last_tried = None


def to_reserve(entry: Entry, snapshot: Snapshot, queue: QueueView) -> Amounts:
    """Return the quota to set aside for an entry that cannot preempt anybody now.

    Without borrowing it is what is left of the nominal quota, else of that and the borrowing limit.
    """
    if has_quota(entry.workload.workload) or entry.assignment.mode is not Mode.PREEMPT:
        return entry.usage()
    forest, row = snapshot.forest, queue.row
    kept: dict[str, float] = {}
    for name, amount in entry.assignment.usage.items():
        nominal, used = forest.nominal(row, name), forest.used[row].get(name, 0)
        limit = forest.tree.queues[row].borrowed.amounts.get(name)
        if not entry.assignment.borrow:
            kept[name] = max(0, min(amount, nominal - used))
        elif limit is None:
            kept[name] = amount
        else:
            kept[name] = min(amount, nominal + limit - used)
    return kept
