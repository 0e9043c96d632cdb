"""How long jobs waited in their queues, and which of Kueue's were evicted, as the page tells it."""

from __future__ import annotations

from collections import deque
from typing import Any

from bayplan.api import KueueWorkload, Pod
from bayplan.plugin.base import Unit
from bayplan.queues.job_waits import JobWaits
from bayplan.queues.workload_waits import ADMITTED, EVICTED, has_workload, is_of_pods, reached
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import PodInfo

__all__ = ["MOST_WAITS", "QueueLog"]

MOST_WAITS = 5_000
_KUEUE = "kueue"


class QueueLog:
    """Keeps the latest waits of jobs that started: ``[at, queue, seconds]``.

    A queue is ``SYSTEM/NAME``; seconds are None for a workload of Kueue that was evicted. Kueue's
    workloads tell their own waits: their pods come only after they were admitted.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.waits: deque[list[Any]] = deque(maxlen=MOST_WAITS)
        self.added = 0
        self.follow(scheduler)

    def follow(self, scheduler: Scheduler) -> None:
        """Follow a scheduler, from its start."""
        self._scheduler = scheduler
        snapshot = scheduler.snapshot
        snapshot.on_object(KueueWorkload, self._workload_changed)
        self._jobs = JobWaits(
            snapshot, lambda: scheduler.now, lambda: scheduler.unix_time, self._waited
        )

    def started(self, pod: Pod) -> None:
        """Note that a pod got a node."""
        info = self._scheduler.snapshot.living.get(pod.key)
        if info is not None:
            self._jobs.started(info)

    def since(self, added: int) -> list[list[Any]]:
        """Return the waits after the first ``added``, as far as they are kept."""
        fresh = min(len(self.waits), self.added - added)
        return list(self.waits)[len(self.waits) - fresh :]

    def _waited(self, pod: PodInfo, seconds: float) -> None:
        queue = self._scheduler.queues.of(Unit(pod.gang or pod.key, [pod]))
        if queue is None or has_workload(pod, queue, self._scheduler.snapshot):
            return
        self._add(queue, seconds)

    def _workload_changed(self, old: KueueWorkload | None, new: KueueWorkload | None) -> None:
        for one in reached(old, new) if new is not None and not is_of_pods(new) else ():
            if one.condition in (ADMITTED, EVICTED):
                waited = one.waited if one.condition == ADMITTED else None
                self._add(f"{_KUEUE}/{one.queue}", waited)

    def _add(self, queue: str, seconds: float | None) -> None:
        waited = None if seconds is None else round(seconds, 3)
        self.waits.append([round(self._scheduler.now, 3), queue, waited])
        self.added += 1
