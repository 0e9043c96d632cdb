"""The state of Kueue's queues as gauges, from their objects and the Workloads in them.

Names and labels are those of kubernetes-sigs/kueue (pkg/metrics).
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from importlib.metadata import version

import msgspec

from bayplan.api import ClusterQueue, Cohort, KueueWorkload, LocalQueue
from bayplan.api.kueue import (
    ClusterQueueSpec,
    ClusterQueueStatus,
    CohortSpec,
    KueueCondition,
    KueueWorkloadSpec,
    LocalQueueStatus,
)
from bayplan.api.quantity import Quantity
from bayplan.api.resources import effective_requests
from bayplan.live.gauges import Gauges
from bayplan.live.kueue_metrics import cohorts_above, cohorts_from
from bayplan.queues.workload_kinds import equivalence
from bayplan.queues.workload_waits import QUOTA_RESERVED, true_conditions
from bayplan.snapshot import Snapshot

__all__ = ["KueueGauges"]

_INF = float("inf")
_STRICT = "StrictFIFO"
_TRIED_AGAIN = ("WaitingForPreemptedWorkloads", "PendingEvaluation")
"""Why a workload has no quota that is tried again without any change of the cluster."""
_PENDING = {False: "active", True: "inadmissible"}
"""Kueue's words for workloads that wait, by whether they are parked."""


class _Asked(msgspec.Struct, frozen=True):
    """What a workload requests by its specification, and what decides where it fits."""

    spec: KueueWorkloadSpec
    amounts: Mapping[str, int]
    kind: Hashable


class _Workloads(msgspec.Struct):
    """The workloads of one queue that wait, to be tried or parked until a change, or have ended.

    ``asked`` is what those that wait request, ``kinds`` what decides where they fit, by whether
    they are parked.
    """

    active: int = 0
    parked: int = 0
    finished: int = 0
    asked: Counter[str] = msgspec.field(default_factory=Counter)
    kinds: dict[bool, set[Hashable]] = msgspec.field(
        default_factory=lambda: {False: set(), True: set()}
    )

    def note(self, asked: _Asked, parked: bool) -> None:
        """Count one that waits."""
        self.parked += parked
        self.active += not parked
        self.kinds[parked].add(asked.kind)
        for resource, amount in asked.amounts.items():
            self.asked[resource] += amount


class _Series:
    """The gauges of one object: what its names begin with, and the labels that tell which it is."""

    def __init__(self, gauges: Gauges, prefix: str, **labels: str) -> None:
        self._gauges = gauges
        self._prefix = f"kueue_{prefix}"
        self._labels = labels

    def add(self, word: str, text: str, value: float, **more: str) -> None:
        """Add a value, with further labels."""
        labels = {**self._labels, **more}
        names, values = tuple(labels), tuple(labels.values())
        self._gauges.add(self._prefix + word, text, names, values, value, unlimited=True)


class KueueGauges:
    """Makes the gauges; what Workloads request is kept from one scrape to the next."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}

    def add(self, gauges: Gauges, snapshot: Snapshot) -> None:
        """Add the gauges of all ClusterQueues, LocalQueues and Cohorts."""
        queues = snapshot.objects(ClusterQueue)
        of_queue = self._workloads(snapshot)
        release = f"bayplan-{version('bayplan')}"
        build = {"git_version": release, "git_commit": "", "build_date": "", "go_version": ""}
        build |= {"compiler": sys.implementation.name, "platform": sys.platform}
        _Series(gauges, "").add("build_info", "What exports Kueue's metrics", 1, **build)
        for name, queue in queues.items():
            _cluster_queue(gauges, queue, of_queue.get(name, _Workloads()), snapshot)
        for key, local in snapshot.objects(LocalQueue).items():
            _local_queue(gauges, local, of_queue.get(key, _Workloads()), queues)
        _cohorts(gauges, snapshot)

    def _workloads(self, snapshot: Snapshot) -> Mapping[str, _Workloads]:
        """Return the workloads that wait, or have finished, by ClusterQueue and by LocalQueue."""
        queues, locals_ = snapshot.objects(ClusterQueue), snapshot.objects(LocalQueue)
        found: defaultdict[str, _Workloads] = defaultdict(_Workloads)
        before, self._asked = self._asked, {}
        for one in snapshot.objects(KueueWorkload).values():
            local_key = f"{one.metadata.namespace}/{one.spec.queue_name}"
            local = locals_.get(local_key)
            if local is None:
                continue
            name, admission = local.spec.cluster_queue, one.status.admission
            conditions = true_conditions(one)
            if "Finished" in conditions:
                found[name if admission is None else admission.cluster_queue].finished += 1
                found[local_key].finished += 1
            elif QUOTA_RESERVED not in conditions and one.spec.active is not False:
                known = before.get(one.key)
                asked = known if known is not None and known.spec is one.spec else _asked(one)
                self._asked[one.key] = asked
                parked = _is_parked(one, queues.get(name))
                for of in (found[name], found[local_key]):
                    of.note(asked, parked)
        return found


# Workloads -------------------------------------------------------------------------------


def _asked(one: KueueWorkload) -> _Asked:
    total = Counter[str]()
    by_set: list[tuple[int, dict[str, int]]] = []
    for pod_set in one.spec.pod_sets:
        requests = effective_requests(pod_set.template.spec)
        by_set.append((pod_set.count, {n: a * pod_set.count for n, a in requests.items()}))
        total.update(by_set[-1][1])
    return _Asked(one.spec, total, equivalence(one, by_set))


def _is_parked(one: KueueWorkload, queue: ClusterQueue | None) -> bool:
    """Tell whether a workload was tried and waits for a change that may let it in."""
    if queue is None or not _is_active(queue.status.conditions):
        return True
    stated = {condition.type: condition for condition in one.status.conditions}
    requeued, reserved = stated.get("Requeued"), stated.get(QUOTA_RESERVED)
    if requeued is not None and requeued.status == "False":
        return True
    if queue.spec.queueing_strategy == _STRICT or reserved is None:
        return False
    return reserved.reason not in _TRIED_AGAIN


def _is_active(conditions: Iterable[KueueCondition]) -> bool:
    return any(one.type == "Active" and one.status == "True" for one in conditions)


# Queues ----------------------------------------------------------------------------------


def _cluster_queue(
    gauges: Gauges, queue: ClusterQueue, workloads: _Workloads, snapshot: Snapshot
) -> None:
    name, status = queue.metadata.name, queue.status
    series = _Series(gauges, "", cluster_queue=name)
    _counts(series, workloads, status)
    for parked, word in _PENDING.items():
        text = "The number of kinds of pending workloads, per 'cluster_queue' and 'status'"
        series.add("pending_scheduling_hashes", text, len(workloads.kinds[parked]), status=word)
    state = "active" if _is_active(status.conditions) else "pending"
    if queue.metadata.deletion_timestamp:
        state = "terminating"
    for one in ("pending", "active", "terminating"):
        text = "Reports 'cluster_queue' with its 'status'"
        series.add("cluster_queue_status", text, one == state, status=one)
    above = list(cohorts_above(queue, snapshot))
    cohort, root = (above[0], above[-1]) if above else ("", "")
    text = "Reports where a ClusterQueue is in the hierarchy"
    series.add("cluster_queue_info", text, 1, parent_cohort=cohort, root_cohort=root)
    if status.fair_sharing is not None:
        text, share = "Weighted share of the cluster_queue", status.fair_sharing.weighted_share
        series.add("cluster_queue_weighted_share", text, share, cohort=cohort)
    series = _Series(gauges, "cluster_queue_", cohort=cohort, cluster_queue=name)
    _usage(series, status)
    _resources(series, queue)
    asked = workloads.asked
    series = _Series(gauges, "cluster_queue_", cluster_queue=name)
    for resource in sorted(asked.keys() | {q.resource for q in _quotas(queue.spec)}):
        text = "Reports what the pending workloads of a cluster_queue request"
        amount = asked[resource] * (0.001 if resource == "cpu" else 1)
        series.add("resource_pending", text, amount, resource=resource)


def _resources(series: _Series, queue: ClusterQueue) -> None:
    for quota in _quotas(queue.spec):
        amounts = {
            "nominal_quota": quota.nominal,
            "borrowing_limit": quota.borrowing,
            "lending_limit": quota.lending,
        }
        of = {"flavor": quota.flavor, "resource": quota.resource}
        for word, value in amounts.items():
            text = f"Reports the cluster_queue's {word.replace('_', ' ')} within all the flavors"
            series.add(word, text, value, **of)


def _local_queue(
    gauges: Gauges, local: LocalQueue, workloads: _Workloads, queues: Mapping[str, ClusterQueue]
) -> None:
    name, namespace, status = local.metadata.name, local.metadata.namespace, local.status
    queue = local.spec.cluster_queue
    series = _Series(gauges, "local_queue_", name=name, namespace=namespace)
    _counts(series, workloads, status if queue in queues else None)
    active = [one.status for one in status.conditions if one.type == "Active"] or ["Unknown"]
    for one in ("True", "False", "Unknown"):
        text = "Reports 'localQueue' with its 'active' status"
        series.add("status", text, one == active[0], active=one)
    if status.fair_sharing is not None:
        text, share = "Usage over time, by the queue's weight", status.fair_sharing.weighted_share
        series.add("admission_fair_sharing_usage", text, share, cluster_queue=queue)
    if queue in queues:
        _usage(series, status)


def _counts(
    series: _Series, workloads: _Workloads, status: ClusterQueueStatus | LocalQueueStatus | None
) -> None:
    """Add how many workloads wait, have quota, run and have ended."""
    for parked, word in _PENDING.items():
        text = "The number of pending workloads, per queue and 'status'"
        count = workloads.parked if parked else workloads.active
        series.add("pending_workloads", text, count, status=word)
    if status is not None:
        text = "The number of workloads with quota, per queue"
        series.add("reserving_active_workloads", text, status.reserving_workloads)
        text = "The number of workloads that are admitted, per queue"
        series.add("admitted_active_workloads", text, status.admitted_workloads)
    text = "The number of finished workloads, per queue"
    series.add("finished_workloads", text, workloads.finished)


def _usage(series: _Series, status: ClusterQueueStatus | LocalQueueStatus) -> None:
    """Add what workloads with quota, and those that are admitted, take of each flavor."""
    for word, usage in (
        ("reservation", status.flavors_reservation),
        ("usage", status.flavors_usage),
    ):
        text = f"Reports the queue's total resource {word} within all the flavors"
        for flavor in usage:
            for one in flavor.resources:
                of = {"flavor": flavor.name, "resource": one.name}
                series.add(f"resource_{word}", text, float(one.total.amount), **of)


class _Quota(msgspec.Struct, frozen=True):
    """A quota, in cores, bytes or numbers; ``inf`` is unlimited."""

    flavor: str
    resource: str
    nominal: float
    borrowing: float
    lending: float

    @property
    def column(self) -> tuple[str, str]:
        """The flavor and the resource."""
        return self.flavor, self.resource


def _quotas(spec: ClusterQueueSpec | CohortSpec) -> Iterator[_Quota]:
    for group in spec.resource_groups:
        for flavor in group.flavors:
            for one in flavor.resources:
                limits = (_limit(one.borrowing_limit), _limit(one.lending_limit))
                yield _Quota(flavor.name, one.name, float(one.nominal_quota.amount), *limits)


def _limit(quantity: Quantity | None) -> float:
    return _INF if quantity is None else float(quantity.amount)


# Cohorts ---------------------------------------------------------------------------------

_Column = tuple[str, str]
"""A flavor and a resource."""


class _Subtree(msgspec.Struct):
    """What a cohort and all below it have together.

    ``above`` are the cohorts above it, the nearest first. Of ``quota``, its ``limits`` let others
    have no more.
    """

    above: list[str]
    quota: dict[_Column, float] = msgspec.field(default_factory=dict)
    limits: dict[_Column, float] = msgspec.field(default_factory=dict)
    reserved: dict[_Column, float] = msgspec.field(default_factory=dict)
    admitted: int = 0


def _cohorts(gauges: Gauges, snapshot: Snapshot) -> None:
    cohorts = snapshot.objects(Cohort)
    for name, one in _subtrees(snapshot).items():
        series = _Series(gauges, "cohort_", cohort=name)
        parent, root = (one.above[0], one.above[-1]) if one.above else ("", name)
        text = "Reports where a Cohort is in the hierarchy"
        series.add("info", text, 1, parent_cohort=parent, root_cohort=root)
        text = "The number of admitted workloads in a cohort and those below it"
        series.add("subtree_admitted_active_workloads", text, one.admitted)
        for word, amounts in (("quota", one.quota), ("resource_reservations", one.reserved)):
            text = f"Reports the {word.replace('_', ' ')} of a cohort and those below it"
            for (flavor, resource), amount in amounts.items():
                if amount > 0:
                    series.add(f"subtree_{word}", text, amount, flavor=flavor, resource=resource)
        sharing = cohorts[name].status.fair_sharing if name in cohorts else None
        if sharing is not None:
            series.add("weighted_share", "Weighted share of the cohort", sharing.weighted_share)


def _subtrees(snapshot: Snapshot) -> dict[str, _Subtree]:
    """Return all cohorts, also those that only a queue or another cohort names."""
    cohorts, queues = snapshot.objects(Cohort), snapshot.objects(ClusterQueue).values()
    named = [one.spec.parent_name for one in cohorts.values()]
    named += [one.spec.cohort_name for one in queues]
    found = {
        name: _Subtree(list(cohorts_from(_parent_of(name, cohorts), cohorts)))
        for name in dict.fromkeys((*cohorts, *named))
        if name
    }
    for name, cohort in cohorts.items():
        for quota in _quotas(cohort.spec):
            found[name].quota[quota.column] = quota.nominal
            found[name].limits[quota.column] = quota.lending
    for queue in queues:
        if queue.spec.cohort_name:
            _add_queue(queue, found)
    for one in sorted(found.values(), key=lambda one: -len(one.above)):
        if one.above:
            _lend(one.quota, one.limits, found[one.above[0]].quota)
    return found


def _parent_of(name: str, cohorts: Mapping[str, Cohort]) -> str:
    cohort = cohorts.get(name)
    return cohort.spec.parent_name if cohort is not None else ""


def _add_queue(queue: ClusterQueue, cohorts: Mapping[str, _Subtree]) -> None:
    quotas = list(_quotas(queue.spec))
    own = cohorts[queue.spec.cohort_name]
    _lend({q.column: q.nominal for q in quotas}, {q.column: q.lending for q in quotas}, own.quota)
    for one in (own, *(cohorts[name] for name in own.above)):
        one.admitted += queue.status.admitted_workloads
        for flavor in queue.status.flavors_reservation:
            for used in flavor.resources:
                column, amount = (flavor.name, used.name), float(used.total.amount)
                one.reserved[column] = one.reserved.get(column, 0.0) + amount


def _lend(
    quota: Mapping[_Column, float], limits: Mapping[_Column, float], into: dict[_Column, float]
) -> None:
    """Add to a cohort's quota what a member lends, as in Kueue's resource_node.go."""
    for column, amount in quota.items():
        into[column] = into.get(column, 0.0) + min(amount, limits.get(column, _INF))
