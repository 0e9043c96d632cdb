"""Kueue's counters of workloads, from what the conditions of Workloads tell.

Names, labels and buckets are those of kubernetes-sigs/kueue (pkg/metrics).
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from bayplan.live.collectors import LabeledCounter, LabeledHistogram
from bayplan.queues.workload_waits import ADMITTED, EVICTED, QUOTA_RESERVED, Reached

__all__ = ["WAIT_BUCKETS", "KueueMetrics"]

WAIT_BUCKETS = (1.0, *(2.5 * 2**n for n in range(13)))
"""Seconds, up to about three hours."""
_LABELS = ["cluster_queue"]


class KueueMetrics:
    """Counts workloads that get quota, are admitted and are evicted."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._totals = {
            QUOTA_RESERVED: LabeledCounter(
                "kueue_quota_reserved_workloads",
                "The total number of quota reserved workloads per 'cluster_queue'",
                _LABELS,
                registry,
            ),
            ADMITTED: LabeledCounter(
                "kueue_admitted_workloads",
                "The total number of admitted workloads per 'cluster_queue'",
                _LABELS,
                registry,
            ),
        }
        self._waits = {
            QUOTA_RESERVED: LabeledHistogram(
                "kueue_quota_reserved_wait_time_seconds",
                "The time between a workload was created or requeued until it got quota "
                "reservation, per 'cluster_queue'",
                _LABELS,
                WAIT_BUCKETS,
                registry,
            ),
            ADMITTED: LabeledHistogram(
                "kueue_admission_wait_time_seconds",
                "The time between a workload was created or requeued until admission, per "
                "'cluster_queue'",
                _LABELS,
                WAIT_BUCKETS,
                registry,
            ),
        }
        self._evicted = LabeledCounter(
            "kueue_evicted_workloads",
            "The number of evicted workloads per 'cluster_queue' and 'reason'",
            [*_LABELS, "reason"],
            registry,
        )

    def count(self, one: Reached) -> None:
        """Count a condition that came true."""
        if one.condition == EVICTED:
            self._evicted.add((one.queue, one.reason))
            return
        self._totals[one.condition].add((one.queue,))
        self._waits[one.condition].observe((one.queue,), one.waited)
