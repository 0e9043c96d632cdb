"""Concurrent admission: variants of one workload, each for one flavor; the best one runs."""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.queues.workload_owners import parent_of
from bayplan_plugins.queues.kueue.conditions import is_true
from bayplan_plugins.queues.kueue.flavor_search import ALLOWED_FLAVORS
from bayplan_plugins.queues.kueue.snapshot import QueueView, Snapshot
from bayplan_plugins.queues.kueue.workloads import WorkloadInfo

__all__ = ["flavor_rank", "less_favorable", "more_favorable", "rank_of"]


def rank_of(queue: QueueView, flavor: str) -> int | None:
    """Return the index of a flavor in a queue's first resource group; 0 is the best."""
    groups = queue.spec.spec.resource_groups
    names = [one.name for one in groups[0].flavors] if groups else []
    return names.index(flavor) if flavor in names else None


def flavor_rank(workload: WorkloadInfo, queue: QueueView) -> int | None:
    """Return the index of the flavor that a variant is for."""
    return rank_of(queue, workload.workload.metadata.annotations.get(ALLOWED_FLAVORS, ""))


def more_favorable(workload: WorkloadInfo, snapshot: Snapshot) -> WorkloadInfo | None:
    """Return an admitted variant of the same workload on a better flavor."""
    mine = flavor_rank(workload, snapshot.queues[workload.queue])
    for rank, sibling in _admitted_siblings(workload, snapshot):
        if mine is not None and rank < mine:
            return sibling
    return None


def less_favorable(workload: WorkloadInfo, snapshot: Snapshot) -> WorkloadInfo | None:
    """Return an admitted variant of the same workload on a worse flavor."""
    mine = flavor_rank(workload, snapshot.queues[workload.queue])
    for rank, sibling in _admitted_siblings(workload, snapshot):
        if mine is not None and rank > mine:
            return sibling
    return None


def _admitted_siblings(
    workload: WorkloadInfo, snapshot: Snapshot
) -> Iterator[tuple[int, WorkloadInfo]]:
    parent = parent_of(workload.workload)
    if not parent:
        return
    queue = snapshot.queues[workload.queue]
    for other in snapshot.workloads_of(queue.name):
        if other.uid == workload.uid or parent_of(other.workload) != parent:
            continue
        rank = flavor_rank(other, queue)
        if rank is not None and is_true(other.workload, "Admitted"):
            yield rank, other
