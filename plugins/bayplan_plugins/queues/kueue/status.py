"""The status of queues and cohorts as their objects show it, and the places in their lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from bayplan.api import ApiObject
from bayplan.api.conditions import set_condition
from bayplan.api.kueue import (
    AdmissionFairSharingStatus,
    ClusterQueue,
    ClusterQueueStatus,
    Cohort,
    CohortStatus,
    FairSharingStatus,
    FlavorUsage,
    KueueCondition,
    LocalQueue,
    LocalQueueFairSharingStatus,
    LocalQueueStatus,
    ResourceUsage,
)
from bayplan.api.quantity import Quantity, countable
from bayplan.api.times import rfc3339
from bayplan.cluster.protocol import PatchStatus
from bayplan_plugins.queues.isolation import alone
from bayplan_plugins.queues.kueue.amounts import amount_in, column, quantity_of
from bayplan_plugins.queues.kueue.conditions import is_true
from bayplan_plugins.queues.kueue.quotas import cohort_row_name
from bayplan_plugins.queues.kueue.shares import MOST_SHARE, dominant_share
from bayplan_plugins.queues.kueue.store import Store
from bayplan_plugins.queues.kueue.workloads import WorkloadInfo

__all__ = [
    "KueueStatuses",
    "cluster_queue_status",
    "cohort_status",
    "local_queue_status",
]

_Status = ClusterQueueStatus | CohortStatus | LocalQueueStatus
_Subject = tuple[type[ApiObject], str]
_Part = tuple[_Subject, Callable[[], object], Callable[[], _Status]]


class KueueStatuses:
    """The status of each ClusterQueue, Cohort and LocalQueue.

    There may be thousands of them, of which few change at a time: the others keep the status that
    was made last.
    """

    def __init__(self) -> None:
        self._known: dict[_Subject, tuple[object, PatchStatus]] = {}
        self._version: object = None

    def all(self, store: Store, now: float) -> Iterator[PatchStatus]:
        """Yield the status of each.

        :param now: seconds since 1970.
        """
        if self._version == store.version:
            yield from [status for _, status in self._known.values()]
            return
        version, before, self._known = store.version, self._known, {}
        for subject, mark, make in _parts(store, now):
            kind, name = subject
            with alone(f"status of {kind.__name__} {name}"):
                known = before.get(subject)
                stated = mark()
                if known is None or known[0] != stated:
                    known = stated, PatchStatus(kind, name, make())
                self._known[subject] = known
                yield known[1]
        self._version = version


def _parts(store: Store, now: float) -> Iterator[_Part]:
    """Yield all that has a status: what the status follows from, and what makes it."""
    for name in store.cluster_queues:
        mark = partial(_queue_mark, store, name)
        yield (ClusterQueue, name), mark, partial(cluster_queue_status, store, name, now)
    for name in store.cohorts:
        make = partial(cohort_status, store, name)
        yield (Cohort, name), make, make
    for key in store.local_queues:
        mark = partial(_local_mark, store, key)
        yield (LocalQueue, key), mark, partial(local_queue_status, store, key, now)


def _queue_mark(store: Store, name: str) -> object:
    """Return all that the status of a ClusterQueue follows from."""
    why, uses = store.inactive_reason(name), store.uses(name)
    return store.cluster_queues[name], why, uses, len(store.pending[name]), _share(store, name)


def _local_mark(store: Store, key: str) -> object:
    """Return all that the status of a LocalQueue follows from."""
    local = store.local_queues[key]
    name = local.spec.cluster_queue
    queue = store.cluster_queues.get(name)
    why = store.inactive_reason(name) if queue is not None else None
    return local, queue, why, store.uses(key), _waiting(store, local), _usage_share(store, key)


def _waiting(store: Store, local: LocalQueue) -> int:
    """Return how many workloads of a LocalQueue wait."""
    pending = store.pending.get(local.spec.cluster_queue)
    key = f"{local.metadata.namespace}/{local.metadata.name}"
    return pending.count_of(key) if pending is not None else 0


def cluster_queue_status(store: Store, name: str, now: float) -> ClusterQueueStatus:
    """Return the status of a ClusterQueue."""
    queue = store.cluster_queues[name]
    why = store.inactive_reason(name)
    active = KueueCondition("Active", "True", "Ready", "Can admit new workloads")
    if why is not None:
        active = KueueCondition("Active", "False", *why)
    reserving = list(store.reserving.get(name, {}).values())
    running = _admitted(reserving)
    return ClusterQueueStatus(
        conditions=set_condition(queue.status.conditions, active, now, queue.metadata.generation),
        flavors_reservation=_usage(queue, reserving, borrows=True),
        flavors_usage=_usage(queue, running, borrows=True),
        pending_workloads=len(store.pending[name]),
        reserving_workloads=len(reserving),
        admitted_workloads=len(running),
        fair_sharing=_share(store, name),
    )


def cohort_status(store: Store, name: str) -> CohortStatus:
    """Return the status of a Cohort."""
    return CohortStatus(_share(store, cohort_row_name(name)))


def local_queue_status(store: Store, key: str, now: float) -> LocalQueueStatus:
    """Return the status of a LocalQueue.

    :param key: its ``namespace/name``.
    """
    local = store.local_queues[key]
    name = local.spec.cluster_queue
    queue = store.cluster_queues.get(name)
    of_queue = store.reserving_of(key).values()
    reserving = [one for one in of_queue if one.queue == name]
    running = _admitted(reserving)
    active = _active(store, local, queue)
    return LocalQueueStatus(
        conditions=set_condition(local.status.conditions, active, now, local.metadata.generation),
        pending_workloads=_waiting(store, local),
        reserving_workloads=len(reserving),
        admitted_workloads=len(running),
        flavors_reservation=_usage(queue, reserving),
        flavors_usage=_usage(queue, running),
        fair_sharing=_usage_share(store, key),
    )


def _admitted(reserving: Iterable[WorkloadInfo]) -> list[WorkloadInfo]:
    return [one for one in reserving if is_true(one.workload, "Admitted")]


def _active(store: Store, local: LocalQueue, queue: ClusterQueue | None) -> KueueCondition:
    if local.spec.stop_policy in ("Hold", "HoldAndDrain"):
        return KueueCondition("Active", "False", "Stopped", "LocalQueue is stopped")
    refused = "Can't submit new workloads to clusterQueue"
    if queue is None:
        return KueueCondition("Active", "False", "ClusterQueueDoesNotExist", refused)
    if store.inactive_reason(queue.metadata.name) is not None:
        return KueueCondition("Active", "False", "ClusterQueueIsInactive", refused)
    text = "Can submit new workloads to localQueue"
    return KueueCondition("Active", "True", "Ready", text)


def _usage(
    queue: ClusterQueue | None, workloads: Iterable[WorkloadInfo], borrows: bool = False
) -> tuple[FlavorUsage, ...]:
    """Return what workloads use of each quota of a queue, in the order of its quotas.

    :param borrows: whether to say how much of it is beyond the quota.
    """
    if queue is None:
        return ()
    used: dict[str, float] = {}
    for one in workloads:
        for name, amount in one.usage.items():
            used[name] = used.get(name, 0) + amount
    found = []
    for group in queue.spec.resource_groups:
        for flavor in group.flavors:
            resources = []
            for quota in flavor.resources:
                total = used.get(column(flavor.name, quota.name), 0)
                beyond = max(0, total - amount_in(quota.name, quota.nominal_quota))
                borrowed = beyond if borrows and queue.spec.cohort_name else 0
                amounts = (quantity_of(quota.name, one) for one in (total, borrowed))
                resources.append(ResourceUsage(quota.name, *amounts))
            found.append(FlavorUsage(flavor.name, tuple(resources)))
    return tuple(found)


def _share(store: Store, name: str) -> FairSharingStatus | None:
    forest = store.forest()
    row = forest.row_of.get(name)
    if not store.settings.fair_sharing or row is None:
        return None
    return FairSharingStatus(dominant_share(forest, row).rounded)


def _usage_share(store: Store, key: str) -> LocalQueueFairSharingStatus | None:
    ledger = store.ledger
    if ledger is None:
        return None
    consumed = {name: _decayed(name, one) for name, one in ledger.consumed(key).items()}
    sampled = ledger.sampled(key)
    # Kueue's definition requires the time.
    status = None if sampled is None else AdmissionFairSharingStatus(consumed, rfc3339(sampled))
    share = store.usage_share(key)
    rounded = MOST_SHARE if share > MOST_SHARE else round(share)
    return LocalQueueFairSharingStatus(rounded, status)


def _decayed(resource: str, amount: float) -> Quantity:
    """Return decayed usage as a quantity, to the thousandth, so that a restart goes on from it."""
    most = countable(amount)
    if resource == "cpu" or most == int(most):
        return quantity_of(resource, most)
    return Quantity(f"{round(most * 1000)}m")
