"""Kueue's counters and histograms, from what the conditions of Workloads tell.

Names, labels and buckets are those of kubernetes-sigs/kueue (pkg/metrics); of its label
``replica_role`` there is none, as only the leader counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from prometheus_client import CollectorRegistry

from bayplan.api import ClusterQueue, Cohort, KueueWorkload, LocalQueue
from bayplan.dialects.reading import timestamp
from bayplan.live.collectors import LabeledCounter, LabeledHistogram, Labels
from bayplan.queues.workload_waits import (
    ADMITTED,
    EVICTED,
    QUOTA_RESERVED,
    Reached,
    reached,
    true_conditions,
    waits_since,
)
from bayplan.snapshot import Snapshot

__all__ = ["WAIT_BUCKETS", "KueueMetrics", "cohorts_above", "cohorts_from"]

WAIT_BUCKETS = (1.0, *(2.5 * 2**n for n in range(13)))
"""Seconds, up to about three hours."""
_FINISHED = "Finished"
_PODS_READY = "PodsReady"
_PREEMPTED = "Preempted"
_CAUSE = "DueTo"
"""Between the reason of an eviction and what caused it."""
_PREEMPTOR = re.compile(r"preemptor path: \S*?([^/\s;]+);")
"""The queue at the end of the path that Kueue's message of a preemption states."""


class _Workload(msgspec.Struct, frozen=True):
    """Whose a change of a Workload is; ``queue`` is its ClusterQueue, "" without one."""

    queue: str
    namespace: str
    local: str
    priority_class: str

    def labels(self, *more: str) -> tuple[Labels, Labels]:
        """Return the values of the labels for its ClusterQueue and for its LocalQueue."""
        rest = (*more, self.priority_class)
        return (self.queue, *rest), (self.local, self.namespace, *rest)


class _Counters:
    """A counter by ClusterQueue, and the same by LocalQueue."""

    def __init__(
        self, name: str, text: str, registry: CollectorRegistry, more: Sequence[str] = ()
    ) -> None:
        rest = (*more, "priority_class")
        queue, local = _texts(text)
        self.by_queue = LabeledCounter(f"kueue_{name}", queue, ("cluster_queue", *rest), registry)
        self.by_local = LabeledCounter(
            f"kueue_local_queue_{name}", local, ("name", "namespace", *rest), registry
        )

    def add(self, of: _Workload, *more: str) -> None:
        queue, local = of.labels(*more)
        self.by_queue.add(queue)
        self.by_local.add(local)


class _Times:
    """A histogram of seconds by ClusterQueue, and the same by LocalQueue."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        queue, local = _texts(text)
        labels = ("cluster_queue", "priority_class")
        self.by_queue = LabeledHistogram(f"kueue_{name}", queue, labels, WAIT_BUCKETS, registry)
        self.by_local = LabeledHistogram(
            f"kueue_local_queue_{name}",
            local,
            ("name", "namespace", "priority_class"),
            WAIT_BUCKETS,
            registry,
        )

    def observe(self, of: _Workload, seconds: float) -> None:
        queue, local = of.labels()
        self.by_queue.observe(queue, max(0.0, seconds))
        self.by_local.observe(local, max(0.0, seconds))


def _texts(text: str) -> tuple[str, str]:
    return f"{text}, per 'cluster_queue'", f"{text}, per 'local_queue'"


class KueueMetrics:
    """Counts what happens to Workloads; what was counted of a queue goes with the queue."""

    def __init__(self, registry: CollectorRegistry) -> None:
        reason = ("reason", "underlying_cause")
        self._reserved = _Counters(
            "quota_reserved_workloads", "The number of workloads that got quota", registry
        )
        self._admitted = _Counters("admitted_workloads", "The number of admissions", registry)
        self._finished = _Counters("finished_workloads", "The number of ended workloads", registry)
        self._evicted = _Counters("evicted_workloads", "The number of evictions", registry, reason)
        since = "The time since a workload was created or requeued until"
        self._until_quota = _Times(
            "quota_reserved_wait_time_seconds", f"{since} it got quota", registry
        )
        self._until_admitted = _Times(
            "admission_wait_time_seconds", f"{since} it was admitted", registry
        )
        self._until_ready = _Times("ready_wait_time_seconds", f"{since} its pods ran", registry)
        self._checks = _Times(
            "admission_checks_wait_time_seconds",
            "The time since a workload got quota until its admission",
            registry,
        )
        self._starts = _Times(
            "admitted_until_ready_wait_time_seconds",
            "The time since a workload was admitted until its pods ran",
            registry,
        )
        self._execution = _Times(
            "execution_time_seconds",
            "The time for which an ended workload was admitted, however often",
            registry,
        )
        self._once = LabeledCounter(
            "kueue_evicted_workloads_once",
            "The number of workloads that were evicted, each counted once per 'cluster_queue', "
            "'reason' and 'underlying_cause'",
            ("cluster_queue", *reason, "priority_class"),
            registry,
        )
        self._preempted = LabeledCounter(
            "kueue_preempted_workloads",
            "The number of preemptions, per 'preempting_cluster_queue' and 'reason'",
            ("preempting_cluster_queue", "reason"),
            registry,
        )
        self._replaced = LabeledCounter(
            "kueue_replaced_workload_slices",
            "The number of slices of elastic workloads that others replaced, per 'cluster_queue'",
            ("cluster_queue",),
            registry,
        )
        self._ran = LabeledHistogram(
            "kueue_pods_ready_to_evicted_time_seconds",
            "The time since the pods of a workload ran until its eviction, per 'cluster_queue'",
            ("cluster_queue", *reason),
            WAIT_BUCKETS,
            registry,
        )
        self._releases = LabeledHistogram(
            "kueue_workload_eviction_latency_seconds",
            "The time since the eviction of a workload until its quota was free, per "
            "'cluster_queue' and 'reason'",
            ("cluster_queue", "reason"),
            WAIT_BUCKETS,
            registry,
        )
        self._in_cohort = LabeledCounter(
            "kueue_cohort_subtree_admitted_workloads",
            "The number of admissions in a cohort and in those below it",
            ("cohort", "priority_class"),
            registry,
        )
        self._pairs = (
            *(self._reserved, self._admitted, self._finished, self._evicted),
            *(self._until_quota, self._until_admitted, self._until_ready),
            *(self._checks, self._starts, self._execution),
        )
        self._of_queues = (self._once, self._replaced, self._ran, self._releases)

    def watch(self, snapshot: Snapshot) -> None:
        """Count what happens to the Workloads of a snapshot from now on."""
        self._snapshot = snapshot
        snapshot.on_object(KueueWorkload, self._workload_changed)
        snapshot.on_object(ClusterQueue, self._queue_changed)
        snapshot.on_object(LocalQueue, self._local_queue_changed)
        snapshot.on_object(Cohort, self._cohort_changed)

    # Queues that go ----------------------------------------------------------------------

    def _queue_changed(self, old: ClusterQueue | None, new: ClusterQueue | None) -> None:
        if old is None or new is not None:
            return
        name = old.metadata.name
        for pair in self._pairs:
            pair.by_queue.discard(cluster_queue=name)
        for one in self._of_queues:
            one.discard(cluster_queue=name)
        self._preempted.discard(preempting_cluster_queue=name)

    def _local_queue_changed(self, old: LocalQueue | None, new: LocalQueue | None) -> None:
        if old is not None and new is None:
            for pair in self._pairs:
                pair.by_local.discard(name=old.metadata.name, namespace=old.metadata.namespace)

    def _cohort_changed(self, old: Cohort | None, new: Cohort | None) -> None:
        if old is not None and new is None:
            self._in_cohort.discard(cohort=old.metadata.name)

    # Workloads ---------------------------------------------------------------------------

    def _workload_changed(self, old: KueueWorkload | None, new: KueueWorkload | None) -> None:
        if old is None or new is None or old.status == new.status:
            return
        of = _whose(old, new, self._snapshot)
        for one in reached(old, new):
            self._reached(of, one, new)
        now, before = true_conditions(new), true_conditions(old)
        if of.queue:
            for reason, cause, first in _evictions(old, new):
                self._count_eviction(of, (reason, cause), first, new)
            ready = now.get(_PODS_READY)
            # Pods that recovered are not pods that start.
            if ready is not None and ready.reason == "Started" and _PODS_READY not in before:
                self._count_start(of, new)
            if QUOTA_RESERVED in before and QUOTA_RESERVED not in now and EVICTED in now:
                evicted = now[EVICTED]
                freed = max(timestamp(c.last_transition_time) for c in new.status.conditions)
                latency = freed - timestamp(evicted.last_transition_time)
                self._releases.observe((of.queue, _parts(evicted.reason)[0]), max(0.0, latency))
        preempted = now.get(_PREEMPTED)
        if preempted is not None and preempted != before.get(_PREEMPTED):
            found = _PREEMPTOR.search(preempted.message)
            if found is not None:
                self._preempted.add((found[1], preempted.reason))
        if _FINISHED in now and _FINISHED not in before:
            self._count_end(of, new)

    def _reached(self, of: _Workload, one: Reached, new: KueueWorkload) -> None:
        if one.condition == QUOTA_RESERVED:
            self._reserved.add(of)
            self._until_quota.observe(of, one.waited)
        elif one.condition == ADMITTED:
            self._admitted.add(of)
            self._until_admitted.observe(of, one.waited)
            self._checks.observe(of, _between(new, QUOTA_RESERVED, ADMITTED))
            queue = self._snapshot.objects(ClusterQueue).get(of.queue)
            for cohort in cohorts_above(queue, self._snapshot):
                self._in_cohort.add((cohort, of.priority_class))

    def _count_eviction(
        self, of: _Workload, why: tuple[str, str], first: bool, new: KueueWorkload
    ) -> None:
        self._evicted.add(of, *why)
        if first:
            self._once.add((of.queue, *why, of.priority_class))
        if _PODS_READY in true_conditions(new):
            self._ran.observe((of.queue, *why), max(0.0, _between(new, _PODS_READY, EVICTED)))

    def _count_start(self, of: _Workload, new: KueueWorkload) -> None:
        ready = timestamp(true_conditions(new)[_PODS_READY].last_transition_time)
        self._until_ready.observe(of, ready - waits_since(new))
        self._starts.observe(of, _between(new, ADMITTED, _PODS_READY))

    def _count_end(self, of: _Workload, new: KueueWorkload) -> None:
        now = true_conditions(new)
        self._finished.add(of)
        if now[_FINISHED].reason == "WorkloadSliceReplaced":
            self._replaced.add((of.queue,))
        if ADMITTED in now:
            past = new.status.accumulated_past_execution_time_seconds or 0
            self._execution.observe(of, past + _between(new, ADMITTED, _FINISHED))


def cohorts_above(queue: ClusterQueue | None, snapshot: Snapshot) -> Iterator[str]:
    """Yield the names of the cohorts that a queue is in, from the nearest to the root."""
    if queue is not None:
        yield from cohorts_from(queue.spec.cohort_name, snapshot.objects(Cohort))


def cohorts_from(name: str, cohorts: Mapping[str, Cohort]) -> Iterator[str]:
    """Yield a cohort's name and those of the cohorts above it; each once, if they form a circle."""
    seen = set[str]()
    while name and name not in seen:
        yield name
        seen.add(name)
        cohort = cohorts.get(name)
        name = cohort.spec.parent_name if cohort is not None else ""


def _whose(old: KueueWorkload, new: KueueWorkload, snapshot: Snapshot) -> _Workload:
    admission = new.status.admission or old.status.admission
    priority_class = new.spec.priority_class_ref
    local = snapshot.objects(LocalQueue).get(f"{new.metadata.namespace}/{new.spec.queue_name}")
    queue = local.spec.cluster_queue if local is not None else ""
    return _Workload(
        admission.cluster_queue if admission is not None else queue,
        new.metadata.namespace,
        new.spec.queue_name,
        priority_class.name if priority_class is not None else "",
    )


def _evictions(old: KueueWorkload, new: KueueWorkload) -> Iterator[tuple[str, str, bool]]:
    """Yield the reason of each eviction, what caused it, and whether it is the first of its kind.

    Statuses of Kueue before 0.14 have no counts: there the condition tells.
    """
    stats, before = new.status.scheduling_stats, old.status.scheduling_stats
    if stats is None:
        one = true_conditions(new).get(EVICTED)
        if one is not None and EVICTED not in true_conditions(old):
            yield *_parts(one.reason), True
        return
    counts = {(e.reason, e.underlying_cause): e.count for e in before.evictions} if before else {}
    for found in stats.evictions:
        known = counts.get((found.reason, found.underlying_cause), 0)
        if found.count > known:
            yield found.reason, found.underlying_cause, known == 0


def _parts(reason: str) -> tuple[str, str]:
    """Return the reason of an eviction, and what caused it."""
    first, _, cause = reason.partition(_CAUSE)
    return first, cause


def _between(workload: KueueWorkload, first: str, second: str) -> float:
    """Return how many seconds after one condition another came true."""
    found = true_conditions(workload)
    if first not in found or second not in found:
        return 0.0
    earlier, later = found[first].last_transition_time, found[second].last_transition_time
    return timestamp(later) - timestamp(earlier)
