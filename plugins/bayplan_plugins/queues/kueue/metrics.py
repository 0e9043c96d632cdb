"""Prometheus metrics of admission; names, labels and buckets are Kueue's (pkg/metrics)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import Metric

__all__ = ["AdmissionMetrics"]

_ATTEMPTS = Counter(
    "kueue_admission_attempts",
    "Cycles of admission, by whether at least one workload was admitted (success) or none "
    "(inadmissible)",
    ["result"],
)
_SECONDS = Histogram(
    "kueue_admission_attempt_duration_seconds",
    "How long a cycle of admission took, by its result",
    ["result"],
)


class _GaugeOfSome(Gauge):
    """A gauge that is not named while it has no series."""

    def collect(self) -> Iterable[Metric]:
        return [one for one in super().collect() if one.samples]


_SKIPS = _GaugeOfSome(
    "kueue_admission_cycle_preemption_skips",
    "Workloads of a ClusterQueue that did not preempt in the last cycle, as other ClusterQueues "
    "needed the same resources; absent while there was none",
    ["cluster_queue"],
)
_RECOMPUTED = Counter(
    "kueue_preemption_target_recomputations",
    "How often other victims were sought, as others had taken the first ones, by what came of it",
    ["cluster_queue", "result"],
)
_CREATED = Histogram(
    "kueue_workload_creation_latency_seconds",
    "The time since a job was created until its Workload was written, by the job's kind",
    ["job_kind"],
    buckets=[0.01 * 2**n for n in range(11)],
)
_OPENED = Histogram(
    "kueue_pod_scheduling_gate_removal_seconds",
    "The time since the admission of a workload until a scheduling gate of its pods was removed",
    ["name", "cluster_queue", "is_group"],
)


class AdmissionMetrics:
    """Counts what admission does."""

    def __init__(self) -> None:
        self._skipped = set[str]()
        """The ClusterQueues that have had any workload that did not preempt."""

    def attempted(self, success: bool, seconds: float) -> None:
        """Count a cycle of admission."""
        result = "success" if success else "inadmissible"
        _ATTEMPTS.labels(result).inc()
        _SECONDS.labels(result).observe(seconds)

    def skipped(self, counts: Mapping[str, int]) -> None:
        """Set how many workloads did not preempt in the last cycle, by ClusterQueue."""
        for queue in self._skipped:
            _SKIPS.labels(queue).set(0)
        for queue, count in counts.items():
            self._skipped.add(queue)
            _SKIPS.labels(queue).set(count)

    def forget(self, queue: str) -> None:
        """Drop what was counted of a ClusterQueue that is gone."""
        self._skipped.discard(queue)
        for one in (_SKIPS, _RECOMPUTED, _OPENED):
            one.remove_by_labels({"cluster_queue": queue})

    def recomputed(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Count what came of seeking other victims, by ClusterQueue."""
        for queue, by_result in counts.items():
            for result, count in by_result.items():
                _RECOMPUTED.labels(queue, result).inc(count)

    def created(self, kind: str, seconds: float) -> None:
        """Count a Workload that was written for a job of a kind."""
        _CREATED.labels(kind).observe(max(0.0, seconds))

    def opened(self, gate: str, queue: str, is_group: bool, seconds: float) -> None:
        """Count a scheduling gate that was removed from a pod of a ClusterQueue."""
        _OPENED.labels(gate, queue, str(is_group).lower()).observe(max(0.0, seconds))
