"""The seam between the scheduler and those that share the cluster: queues, their order and limits.

A profile has at most one plugin with the hook ``queueing``; it returns a :class:`Queueing`, which
the scheduler asks whenever something depends on the queue of a unit. Without one there are no
queues: units are tried in the order of ``queue_sort``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from bayplan.api.podgroup import UnschedulableReason
from bayplan.cluster.protocol import PatchAnnotations, PatchStatus
from bayplan.plugin.base import Unit
from bayplan.queues.report import PendingJob, QueuePosition, QueueReport
from bayplan.snapshot import PodInfo

__all__ = ["Queueing"]


class Queueing(Protocol):
    """The queues that share the cluster. Queues have the name ``SYSTEM/NAME``.

    A subclass needs ``queue_of`` and ``next_queue``; the other methods have defaults.
    """

    # The order in which units are tried --------------------------------------------------

    def queue_of(self, unit: Unit) -> str | None:
        """Return the queue of a unit; None for a unit without one, which has the queue ""."""

    def order(self, unit: Unit, added: float) -> tuple[float, ...] | None:
        """Return a unit's sort key in its queue, smallest first; None leaves it to ``queue_sort``.

        :param added: when the unit first entered the queue, in seconds.
        """

    def next_queue(self, heads: Mapping[str, Unit], action: str) -> str | None:
        """Return the queue whose first unit is tried next; None when none of them may be.

        :param heads: the first units by queue.
        :param action: "" for plain placement, else one of ``Plugin.actions``.
        """

    def is_strict(self, unit: Unit) -> bool:
        """Tell whether a unit that does not fit holds back all after it in its queue."""
        return False

    def pods_to_place(self, unit: Unit) -> Sequence[PodInfo] | None:
        """Return the pods of a unit that are placed in this cycle, in order; None for all of them.

        The others get a cycle of their own once these have their nodes.
        """

    def actions(self, unit: Unit) -> Sequence[str] | None:
        """Return which of the plugin's own ``actions`` a unit has; None for all of them."""

    # What is known of queues -------------------------------------------------------------

    def reports(self) -> Sequence[QueueReport]:
        """Return what is known of all queues, parents before their children."""
        return ()

    def statuses(self) -> Sequence[PatchStatus | PatchAnnotations]:
        """Return what the objects of the queues should say of them now.

        Called when no unit is left to try, after changes of the cluster. Only what an object does
        not say yet is written, and each state once: another program may have the last word. Only
        in the first minute a state that was overwritten is written again: a killed scheduler may
        have done it.
        """
        return ()

    def position(self, unit: Unit) -> QueuePosition | None:
        """Return where a pending unit stands in its queue, and what would admit it.

        None without a queue. May search and try, within trials: it is asked for explanations only.
        """

    def jobs(self, queue: str) -> Sequence[PendingJob] | None:
        """Return the jobs that wait for admission to a queue, the next one first.

        None where they wait as units of the scheduler.
        """

    def units_of_job(self, kind: str, key: str) -> Sequence[Unit] | None:
        """Return the pods that a job will have, which waits for its queue without any; None if not.

        ``position`` is asked about the first of these units, and all are tried, for explanations
        only.

        :param kind: of the object whose pods are still to come: gangs, and single pods.
        :param key: its ``namespace/name``.
        """

    def unschedulable_reason(self, unit: Unit) -> UnschedulableReason | None:
        """Return why a pending unit's queue does not take it, None if it does.

        The words are those of the queue's system, for the status of the unit's pod group.
        """

    def requeue(self, pods: Sequence[PodInfo], why: str) -> bool:
        """Take a job that can run no more back into its queue; tell whether this was done.

        Whoever answers True ends the job's pods itself, and begins with what a restart finds.

        :param pods: members of the job's gang, with nodes or without.
        """
        return False

    def keep_in_place(self, pod: PodInfo) -> str | None:
        """Return why a pod that runs may not be moved so that others fit better; None if it may."""

    def is_admitted(self, gang: str) -> bool:
        """Tell whether a gang, by key, was admitted though its object may not say so yet."""
        return False

    def admitted_without(self, pods: Sequence[PodInfo], job: str) -> str | None:
        """Return the first job that waits for quota and would be admitted without some pods.

        :param pods: pods that elastic jobs would give up, which have no node in the running trial.
        :param job: the only job to ask for, as it was returned before; "" for any.
        """
