"""What admission counts for metrics; nothing until they are declared."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bayplan import Handle, PodInfo
from bayplan.api.kueue import KueueWorkload
from bayplan.api.times import seconds_of
from bayplan.dialects.queued_jobs import QueuedJob
from bayplan_plugins.queues.kueue.admission import CycleResult
from bayplan_plugins.queues.kueue.conditions import since
from bayplan_plugins.queues.kueue.gates import gates_of

if TYPE_CHECKING:
    from bayplan_plugins.queues.kueue.metrics import AdmissionMetrics

__all__ = ["AdmissionCounts"]


class AdmissionCounts:
    """Counts cycles, the Workloads that are written for jobs, and the gates that are opened."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._metrics: AdmissionMetrics | None = None
        self._began = 0.0

    def declare(self) -> None:
        """Create the metrics, and count from now on."""
        from bayplan_plugins.queues.kueue.metrics import AdmissionMetrics

        self._metrics = AdmissionMetrics()

    def begin(self) -> None:
        """A cycle begins."""
        self._began = time.perf_counter()

    def ended(self, result: CycleResult) -> None:
        """Count a cycle that has ended."""
        if self._metrics is None:
            return
        seconds = time.perf_counter() - self._began
        self._metrics.attempted(bool(result.admitted), seconds)
        self._metrics.skipped(result.outcome.skipped_preemptions)
        self._metrics.recomputed(result.outcome.recomputed)

    def created(self, job: QueuedJob) -> None:
        """Count a job's Workload that is written; not that of a job that was changed before."""
        meta = job.obj.metadata
        if self._metrics is not None and (meta.generation or 1) == 1:
            seconds = self._handle.unix_time - seconds_of(meta.creation_timestamp)
            self._metrics.created(job.kind, seconds)

    def opened(self, pod: PodInfo, workload: KueueWorkload, is_group: bool) -> None:
        """Count the gates of a pod that are removed."""
        admitted, admission = since(workload, "Admitted"), workload.status.admission
        if self._metrics is None or admitted is None or admission is None:
            return
        for gate in gates_of(pod):
            seconds = self._handle.unix_time - admitted
            self._metrics.opened(gate, admission.cluster_queue, is_group, seconds)

    def forget(self, queue: str) -> None:
        """Drop what was counted of a ClusterQueue that is gone."""
        if self._metrics is not None:
            self._metrics.forget(queue)
