"""The metrics of queues, under bayplan's own names and those of the peers' dashboards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bayplan.api import KueueWorkload
from bayplan.errors import PluginError
from bayplan.live.collectors import LabeledCounter, LabeledHistogram
from bayplan.live.gauges import Gauges
from bayplan.live.kueue_gauges import KueueGauges
from bayplan.live.kueue_metrics import WAIT_BUCKETS, KueueMetrics
from bayplan.live.peer_metrics import peer_metrics
from bayplan.live.pool_metrics import PoolMetrics
from bayplan.plugin.base import Unit
from bayplan.queues.amounts import base_resource
from bayplan.queues.job_waits import JobWaits
from bayplan.queues.report import QueueReport
from bayplan.queues.workload_waits import (
    ADMITTED,
    EVICTED,
    is_of_pods,
    reached,
    waiting_workloads,
)
from bayplan.scheduler.observer import Observer
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import PodInfo

__all__ = ["QueueMetrics"]

_KUEUE = "kueue"
_AGE = 1.0
"""Seconds for which the reports of one scrape serve the next."""
_AMOUNTS = {
    "used": "What the pods of a queue that are on nodes take; CPU in cores.",
    "fair": "What a queue may have now, by its policy; CPU in cores.",
    "deserved": "What a queue may have whenever it asks; CPU in cores.",
    "limit": "The most that a queue may have; CPU in cores. Absent where nothing limits it.",
    "demand": "What all living pods of a queue ask for; CPU in cores.",
    "borrowed": "What a queue uses beyond what it deserves; CPU in cores.",
    "lent": "What others use of what a queue deserves; CPU in cores.",
}


class QueueMetrics(Observer):
    """Counts waits and evictions by queue, and exports the queues of the scheduler it watches."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._scheduler: Scheduler | None = None
        self._waits: JobWaits | None = None
        self._wait_seconds = LabeledHistogram(
            "bayplan_queue_wait_seconds",
            "How long jobs waited in a queue, from their creation or eviction to their first node.",
            ["system", "queue"],
            WAIT_BUCKETS,
            registry,
        )
        self._evictions = LabeledCounter(
            "bayplan_queue_evictions",
            "Number of evicted pods of a queue, by the way in which room was made.",
            ["system", "queue", "reason"],
            registry,
        )
        self._kueue = KueueMetrics(registry)
        registry.register(_Queues(lambda: self._scheduler, self._oldest))
        PoolMetrics(registry, lambda: self._scheduler)

    def watch(self, scheduler: Scheduler) -> None:
        """Export the queues of a scheduler from now on."""
        self._scheduler = scheduler
        self._kueue.watch(scheduler.snapshot)
        scheduler.snapshot.on_object(KueueWorkload, self._workload_changed)
        self._waits = JobWaits(
            scheduler.snapshot, lambda: scheduler.now, lambda: scheduler.unix_time, self._waited
        )

    def bound(self, pod: PodInfo, node: str, cycle: int, attempts: int, seconds: float) -> None:
        """Count how long the pod's job waited, if it starts with this pod."""
        if self._waits is not None:
            self._waits.started(pod)

    def evicted(self, pod: PodInfo, reason: str) -> None:
        """Count an evicted pod."""
        queue = self._queue_of(pod)
        if queue is not None:
            self._evictions.add((*queue, reason))

    def _waited(self, pod: PodInfo, seconds: float) -> None:
        queue = self._queue_of(pod)
        # Workloads of Kueue tell their own waits: their pods come only after it.
        if queue is not None and queue[0] != _KUEUE:
            self._wait_seconds.observe(queue, seconds)

    def _workload_changed(self, old: KueueWorkload | None, new: KueueWorkload | None) -> None:
        for one in reached(old, new):
            if one.condition == ADMITTED:
                self._wait_seconds.observe((_KUEUE, one.queue), one.waited)
            elif one.condition == EVICTED and new is not None and not is_of_pods(new):
                self._evictions.add((_KUEUE, one.queue, one.reason))

    def _oldest(self) -> dict[tuple[str, str], float]:
        """Return the longest wait so far of the jobs that wait now, by system and queue."""
        found: dict[tuple[str, str], float] = {}
        for pod, seconds in self._waits.waiting() if self._waits is not None else ():
            queue = self._known_queue_of(pod) or self._queue_of(pod)
            if queue is not None:
                found[queue] = max(found.get(queue, 0.0), seconds)
        if self._scheduler is not None:
            now = self._scheduler.unix_time
            for one in waiting_workloads(self._scheduler.snapshot, now):
                key = (_KUEUE, one.queue)
                found[key] = max(found.get(key, 0.0), one.seconds)
        return found

    def _known_queue_of(self, pod: PodInfo) -> tuple[str, str] | None:
        """Return the queue of a pod that has been tried, without asking plugins again."""
        assert self._scheduler is not None
        queued = self._scheduler.queue.units.get(pod.gang or pod.key)
        return _split(queued.queue) if queued is not None and queued.queue else None

    def _queue_of(self, pod: PodInfo) -> tuple[str, str] | None:
        if self._scheduler is None:
            return None
        try:
            queue = self._scheduler.queues.of(Unit(pod.gang or pod.key, [pod]))
        except PluginError:
            # The scheduler reports it when it meets the pod itself.
            return None
        return None if queue is None else _split(queue)


def _split(queue: str) -> tuple[str, str]:
    """Return the system and the name of ``SYSTEM/NAME``."""
    system, _, name = queue.partition("/")
    return system, name


class _Queues(Collector):
    """Exports the reports of all queues, made again at most once a second."""

    def __init__(
        self,
        scheduler: Callable[[], Scheduler | None],
        oldest: Callable[[], dict[tuple[str, str], float]],
    ) -> None:
        self._scheduler = scheduler
        self._oldest = oldest
        self._made: Sequence[Metric] = ()
        self._made_at = float("-inf")
        self._kueue = KueueGauges()

    def describe(self) -> Iterable[Metric]:
        """Yield nothing: the names depend on the systems that the cluster has."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges of all queues, none while a plugin fails to report them."""
        scheduler = self._scheduler()
        if scheduler is None:
            return ()
        now = time.monotonic()
        if now - self._made_at >= _AGE:
            try:
                reports = scheduler.queues.reports()
            except PluginError:
                return ()
            peers = peer_metrics(scheduler, reports, self._kueue)
            self._made = [*_own(reports, self._oldest()), *peers]
            self._made_at = now
        return self._made


def _own(
    reports: Sequence[QueueReport], oldest: dict[tuple[str, str], float]
) -> list[GaugeMetricFamily]:
    labels = ("system", "queue")
    gauges = Gauges()
    for name, text in _AMOUNTS.items():
        family = f"bayplan_queue_{name}"
        for one in reports:
            for resource, found in one.resources.items():
                value: float = getattr(found, name)
                scale = 0.001 if base_resource(resource) == "cpu" else 1.0
                of = (one.system, one.name, resource)
                gauges.add(family, text, (*labels, "resource"), of, value * scale)
    for one in reports:
        key = (one.system, one.name)
        gauges.add("bayplan_queue_share", _SHARE, labels, key, one.share)
        gauges.add("bayplan_queue_waiting_jobs", "Jobs that wait.", labels, key, one.waiting)
        gauges.add("bayplan_queue_running_jobs", "Jobs on nodes.", labels, key, one.running)
        if not one.children:
            wait = oldest.get(key, 0.0)
            gauges.add("bayplan_queue_oldest_wait_seconds", _OLDEST, labels, key, wait)
    return gauges.families()


_SHARE = (
    "The dominant share of a queue: the most of any resource that it uses of what it may have now."
)
_OLDEST = "How long the job has waited that has waited longest in a queue; 0 for none."
