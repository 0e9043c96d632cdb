"""Kueue's counters of workloads, from what the conditions of Workloads tell.

Names, labels and buckets are those of kubernetes-sigs/kueue (pkg/metrics).
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from bayplan.api import KueueWorkload
from bayplan.api.kueue import KueueCondition
from bayplan.dialects.reading import timestamp
from bayplan.live.collectors import LabeledCounter, LabeledHistogram
from bayplan.snapshot import Snapshot

__all__ = ["WAIT_BUCKETS", "KueueMetrics"]

WAIT_BUCKETS = (1.0, *(2.5 * 2**n for n in range(13)))
"""Seconds, up to about three hours."""
_LABELS = ["cluster_queue"]
_SINCE = ("Evicted", "Requeued")
"""The conditions from whose last change an evicted workload waits again."""


class KueueMetrics:
    """Counts workloads that get quota, are admitted and are evicted."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._totals = {
            "QuotaReserved": LabeledCounter(
                "kueue_quota_reserved_workloads",
                "The total number of quota reserved workloads per 'cluster_queue'",
                _LABELS,
                registry,
            ),
            "Admitted": LabeledCounter(
                "kueue_admitted_workloads",
                "The total number of admitted workloads per 'cluster_queue'",
                _LABELS,
                registry,
            ),
        }
        self._waits = {
            "QuotaReserved": LabeledHistogram(
                "kueue_quota_reserved_wait_time_seconds",
                "The time between a workload was created or requeued until it got quota "
                "reservation, per 'cluster_queue'",
                _LABELS,
                WAIT_BUCKETS,
                registry,
            ),
            "Admitted": LabeledHistogram(
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

    def follow(self, snapshot: Snapshot) -> None:
        """Count the changes of a snapshot's workloads from now on."""
        snapshot.on_object(KueueWorkload, self._changed)

    def _changed(self, old: KueueWorkload | None, new: KueueWorkload | None) -> None:
        if old is None or new is None:
            # What a new object says happened before this process saw it.
            return
        before, now = _true(old), _true(new)
        admission = new.status.admission or old.status.admission
        if admission is None:
            return
        queue = admission.cluster_queue
        for name in self._totals:
            if name in now and name not in before:
                self._totals[name].add((queue,))
                self._waits[name].observe((queue,), _wait(new, now[name]))
        if "Evicted" in now and "Evicted" not in before:
            self._evicted.add((queue, now["Evicted"].reason))


def _true(workload: KueueWorkload) -> dict[str, KueueCondition]:
    """Return the conditions that hold, by type."""
    return {one.type: one for one in workload.status.conditions if one.status == "True"}


def _wait(workload: KueueWorkload, reached: KueueCondition) -> float:
    """Return for how many seconds a workload waited until a condition came true."""
    stamps = [workload.metadata.creation_timestamp]
    stamps += [c.last_transition_time for c in workload.status.conditions if c.type in _SINCE]
    since = max(map(timestamp, stamps))
    return max(0.0, timestamp(reached.last_transition_time) - since)
