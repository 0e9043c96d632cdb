"""The live scheduler's metrics, under the names that kube-scheduler's dashboards use.

Names, labels and buckets are those of k8s.io/kubernetes pkg/scheduler/metrics. As there, plugins
and extension points are measured in one of ten cycles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bayplan.cycle.scheduling_cycle import Result
from bayplan.live.collectors import LabeledCounter, LabeledHistogram
from bayplan.plugin.base import Unit
from bayplan.plugin.decision import Outcome
from bayplan.profiles.runtime import HookCall, Runtime
from bayplan.scheduler.observer import Observer
from bayplan.scheduler.queued_unit import Place
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import PodInfo

__all__ = ["LiveMetrics"]

_SAMPLE = 10
_ATTEMPT_BUCKETS = tuple(0.001 * 2**n for n in range(15))
_POINT_BUCKETS = tuple(0.0001 * 2**n for n in range(12))
_PLUGIN_BUCKETS = tuple(0.00001 * 1.5**n for n in range(20))
_POD_BUCKETS = tuple(0.01 * 2**n for n in range(20))
RESULT_LABELS = {
    Outcome.PLACED: "scheduled",
    Outcome.WAITING: "scheduled",
    Outcome.UNSCHEDULABLE: "unschedulable",
    Outcome.ERROR: "error",
}
_POINTS = {
    "pre_enqueue": "PreEnqueue",
    "pre_filter": "PreFilter",
    "filter": "Filter",
    "filter_node": "Filter",
    "post_filter": "PostFilter",
    "pre_score": "PreScore",
    "score": "Score",
    "score_node": "Score",
    "normalize": "ScoreExtensionNormalize",
    "reserve": "Reserve",
    "unreserve": "Unreserve",
    "permit": "Permit",
    "pre_bind": "PreBind",
    "bind": "Bind",
    "post_bind": "PostBind",
    "placement_generate": "PlacementGenerate",
    "placement_score": "PlacementScore",
}
QUEUE_LABELS = {
    Place.ACTIVE: "active",
    Place.PREEMPTING: "active",
    Place.BACKOFF: "backoff",
    Place.UNSCHEDULABLE: "unschedulable",
    Place.PARKED: "unschedulable",
    Place.GATED: "gated",
    Place.IN_FLIGHT: "active",
}


class _Sample(msgspec.Struct):
    """The durations of one cycle's hooks in seconds; ``on`` says whether they are measured."""

    on: bool = False
    points: dict[str, float] = msgspec.field(default_factory=dict)
    plugins: dict[tuple[str, str], float] = msgspec.field(default_factory=dict)


class LiveMetrics(Observer):
    """Counts what schedulers do; ``watch`` sets the one whose queue and cache are exported."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sample = _Sample()
        self._cycles = 0
        self._scheduler: Scheduler | None = None
        self.dropped_events: Callable[[], int] = lambda: 0
        """Returns how many events were dropped."""
        self._attempts = LabeledCounter(
            "scheduler_schedule_attempts",
            "Number of attempts to schedule pods, by the result.",
            ["result", "profile"],
            registry,
        )
        self._attempt_seconds = LabeledHistogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Scheduling attempt latency in seconds (scheduling algorithm + binding).",
            ["result", "profile"],
            _ATTEMPT_BUCKETS,
            registry,
        )
        self._algorithm_seconds = LabeledHistogram(
            "scheduler_scheduling_algorithm_duration_seconds",
            "Scheduling algorithm latency in seconds.",
            [],
            _ATTEMPT_BUCKETS,
            registry,
        )
        self._point_seconds = LabeledHistogram(
            "scheduler_framework_extension_point_duration_seconds",
            "Latency for running all plugins of a specific extension point.",
            ["extension_point", "status", "profile"],
            _POINT_BUCKETS,
            registry,
        )
        self._plugin_seconds = LabeledHistogram(
            "scheduler_plugin_execution_duration_seconds",
            "Duration for running a plugin at a specific extension point.",
            ["plugin", "extension_point", "status"],
            _PLUGIN_BUCKETS,
            registry,
        )
        self._pod_seconds = LabeledHistogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "E2e latency for a pod being scheduled, from the time the pod enters the scheduling "
            "queue, and might involve multiple scheduling attempts.",
            ["attempts"],
            _POD_BUCKETS,
            registry,
        )
        self._pod_attempts = LabeledHistogram(
            "scheduler_pod_scheduling_attempts",
            "Number of attempts to successfully schedule a pod.",
            [],
            (1, 2, 4, 8, 16),
            registry,
        )
        self._preemptions = LabeledCounter(
            "scheduler_preemption_attempts",
            "Total preemption attempts in the cluster till now",
            [],
            registry,
        )
        self._victims = LabeledHistogram(
            "scheduler_preemption_victims",
            "Number of selected preemption victims",
            [],
            tuple(2**n for n in range(7)),
            registry,
        )
        self._requests = LabeledCounter(
            "rest_client_requests",
            "Number of HTTP requests, partitioned by status code, method, and host.",
            ["code", "method", "host"],
            registry,
        )
        self._request_seconds = LabeledHistogram(
            "rest_client_request_duration_seconds",
            "Request latency in seconds. Broken down by verb, and host.",
            ["verb", "host"],
            (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0),
            registry,
        )
        self._leader = Gauge(
            "leader_election_master_status",
            "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, "
            "1 indicates master. 'name' is the string used to identify the lease.",
            ["name"],
            registry=registry,
        )
        registry.register(_SchedulerState(lambda: self._scheduler, lambda: self.dropped_events()))

    # Following a scheduler -------------------------------------------------------------------

    def watch(self, scheduler: Scheduler) -> None:
        """Export the state of a scheduler from now on."""
        self._scheduler = scheduler
        for active in scheduler.profiles.values():
            for plugin in active.runtime.plugins.values():
                plugin.declare_metrics()

    def instrument(self, runtime: Runtime) -> Runtime:
        """Return a runtime whose hooks are measured in sampled cycles."""
        return runtime.with_calls(self._timed)

    def _timed(self, call: HookCall) -> HookCall:
        sample, inner = self._sample, call.call
        point = _POINTS.get(call.hook)
        if point is None:
            return call
        key = (call.name, point)

        def timed(*args: Any) -> Any:
            if not sample.on:
                return inner(*args)
            started = time.perf_counter()
            try:
                return inner(*args)
            finally:
                took = time.perf_counter() - started
                sample.points[point] = sample.points.get(point, 0.0) + took
                sample.plugins[key] = sample.plugins.get(key, 0.0) + took

        return replace(call, call=timed)

    def begins(self) -> None:
        """Start a cycle; measure the hooks of one in ten."""
        self._cycles += 1
        self._sample.on = self._cycles % _SAMPLE == 0

    def ended(self, profile: str, unit: Unit, result: Result, seconds: float) -> None:
        """Count an attempt, for each pod of its unit."""
        label = RESULT_LABELS[result.decision.outcome]
        labels = (label, profile)
        self._attempts.add(labels, len(unit.pods))
        self._attempt_seconds.observe(labels, seconds)
        self._algorithm_seconds.observe((), seconds)
        if result.preemption is not None:
            self._preemptions.add(())
            self._victims.observe((), len(result.preemption.victims))
        if self._sample.on:
            self._sample.on = False
            self._observe_sample(profile)

    def _observe_sample(self, profile: str) -> None:
        for point, seconds in self._sample.points.items():
            self._point_seconds.observe((point, "Success", profile), seconds)
        for (plugin, point), seconds in self._sample.plugins.items():
            self._plugin_seconds.observe((plugin, point, "Success"), seconds)
        self._sample.points.clear()
        self._sample.plugins.clear()

    def bound(self, pod: PodInfo, node: str, cycle: int, attempts: int, seconds: float) -> None:
        """Count a binding and how long its pod waited."""
        self._pod_attempts.observe((), attempts)
        label = str(attempts) if attempts < 16 else "16+"
        self._pod_seconds.observe((label,), seconds)

    # Requests and election -------------------------------------------------------------------

    def request(self, host: str, method: str, code: str, seconds: float) -> None:
        """Count a request to the API server."""
        self._requests.add((code, method, host))
        self._request_seconds.observe((method, host), seconds)

    def leads(self, name: str, leading: bool) -> None:
        """Export whether this process holds the lease of this name."""
        self._leader.labels(name).set(leading)


class _SchedulerState(Collector):
    """Exports the current state: pods in the queue, and the contents of the scheduler's cache."""

    def __init__(
        self, scheduler: Callable[[], Scheduler | None], dropped_events: Callable[[], int]
    ) -> None:
        self._scheduler = scheduler
        self._dropped_events = dropped_events

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges and the counter."""
        dropped = CounterMetricFamily(
            "gpu_scheduler_events_dropped",
            "Number of events that were not written, because there were too many at once.",
            value=self._dropped_events(),
        )
        pending = GaugeMetricFamily(
            "scheduler_pending_pods",
            "Number of pending pods, by the queue type. 'active' means number of pods in "
            "activeQ; 'backoff' means number of pods in backoffQ; 'unschedulable' means number of "
            "pods in unschedulablePods that the scheduler attempted to schedule and failed; "
            "'gated' is the number of unschedulable pods that the scheduler never attempted to "
            "schedule because they are gated.",
            labels=["queue"],
        )
        size = GaugeMetricFamily(
            "scheduler_scheduler_cache_size",
            "Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
            labels=["type"],
        )
        refusals = GaugeMetricFamily(
            "scheduler_unschedulable_pods",
            "The number of unschedulable pods broken down by plugin name. A pod will increment "
            "the gauge for all plugins that caused it to not schedule and so this metric has "
            "meaning only when broken down by plugin.",
            labels=["plugin", "profile"],
        )
        scheduler = self._scheduler()
        if scheduler is not None:
            for queue, count in _pending(scheduler).items():
                pending.add_metric([queue], count)
            size.add_metric(["nodes"], len(scheduler.snapshot.nodes.row_of))
            size.add_metric(["pods"], len(scheduler.snapshot.placed))
            size.add_metric(["assumed_pods"], scheduler.unconfirmed)
            for (plugin, profile), count in _refusals(scheduler).items():
                refusals.add_metric([plugin, profile], count)
        return [pending, size, refusals, dropped]


def _pending(scheduler: Scheduler) -> dict[str, int]:
    counts = dict.fromkeys(("active", "backoff", "unschedulable", "gated"), 0)
    for unit in scheduler.queue.units.values():
        counts[QUEUE_LABELS[unit.place]] += len(unit.ready)
        counts["gated"] += len(unit.gated)
    return counts


def _refusals(scheduler: Scheduler) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for unit in scheduler.queue.units.values():
        if unit.place is not Place.UNSCHEDULABLE:
            continue
        for pod in unit.ready.values():
            for plugin in unit.refused_by:
                key = (plugin, pod.pod.spec.scheduler_name)
                counts[key] = counts.get(key, 0) + 1
    return counts
