"""What a plugin of Volcano may vote on; one that does not override a vote has none."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from bayplan import NodeView, Overdue, PodInfo, Reject
from bayplan.queues.tree import AmountRows
from bayplan_plugins.queues.policy import QuotaRefusal
from bayplan_plugins.queues.volcano.admitted_amounts import Inqueue
from bayplan_plugins.queues.volcano.jobs import Job
from bayplan_plugins.queues.volcano.session import Claimant, Session, Victim

__all__ = ["Enqueue", "VolcanoPlugin"]

Enqueue = bool | str | None
"""True permits, a text rejects, None abstains."""


class VolcanoPlugin:
    """One plugin with its arguments. Orders are keys: the smallest comes first.

    ``protects`` says that its refusal of a victim is final, whatever tier it is in.
    ``admits_kinds`` says that ``enqueueable`` answers the same at any time for all jobs of one
    queue and namespace that have equal ``minResources``.

    :param arguments: as in Volcano's configuration.
    :param hierarchical: whether its ``enableHierarchy`` is on.
    """

    protects = False
    admits_kinds = False

    def __init__(self, session: Session, arguments: Mapping[str, Any], hierarchical: bool) -> None:
        self.session = session
        self.arguments = arguments
        self.hierarchical = hierarchical

    def has(self, vote: str) -> bool:
        """Tell whether the plugin votes on something, by the name of the method."""
        return getattr(type(self), vote) is not getattr(VolcanoPlugin, vote)

    def job_order(self, job: Job, pods: Iterable[PodInfo]) -> tuple[float, ...]:
        """Return a job's key among the jobs of its queue; ``pods`` are pending ones."""
        raise NotImplementedError

    def task_order(self, pod: PodInfo) -> tuple[float, ...]:
        """Return a pod's key among the pods of its job."""
        raise NotImplementedError

    def gathers_tasks(self, pod: PodInfo) -> bool:
        """Tell whether ``task_order`` is also the order in which a pod's job is placed."""
        raise NotImplementedError

    def queue_order(self, row: int) -> tuple[float, ...]:
        """Return a queue's key among the queues."""
        raise NotImplementedError

    def victim_queue_order(self, row: int, claimant: int) -> tuple[float, ...]:
        """Return the key of a victim's queue, given the claimant's; before ``queue_order``."""
        raise NotImplementedError

    def overused(self, row: int) -> bool:
        """Tell whether a queue has all that it may have."""
        raise NotImplementedError

    def allocatable(self, row: int, request: AmountRows) -> QuotaRefusal | str | None:
        """Return why a queue may not take a request; a request of nothing checks what it has."""
        raise NotImplementedError

    def preemptive(self, claimant: Claimant) -> bool:
        """Tell whether the claimant's queue may take from others for its request."""
        raise NotImplementedError

    def enqueueable(
        self, job: Job, row: int, least: AmountRows | None, inqueue: Inqueue
    ) -> Enqueue:
        """Tell whether a waiting job is admitted; ``least`` is its minResources."""
        raise NotImplementedError

    def starving(self, job: Job, pending: int) -> bool:
        """Tell whether a job with pending pods may ask for room."""
        raise NotImplementedError

    def preemptable(self, claimant: Claimant, victim: Victim) -> bool:
        """Tell whether a claimant of the same queue may take a victim's place."""
        raise NotImplementedError

    def node_kind(self, pod: PodInfo) -> Hashable:
        """Return what tells apart the pods that may use other nodes, for ``refused_nodes``."""
        raise NotImplementedError

    def refused_nodes(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes to a pod."""
        raise NotImplementedError

    def victims(self) -> Overdue | None:
        """Return pods that have to leave though nobody waits for their nodes."""
        raise NotImplementedError

    def reclaimable(self, claimant: Claimant, victim: Victim) -> bool:
        """Tell whether a claimant of another queue may take a victim's place."""
        raise NotImplementedError
