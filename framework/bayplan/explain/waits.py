"""For how long pending jobs have waited."""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.dialects.reading import timestamp
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import PodInfo

__all__ = ["waited"]


def waited(scheduler: Scheduler, unit: str, pods: Iterable[PodInfo]) -> float:
    """Return for how many seconds a unit has waited, by the older of two facts.

    The creation of its pods tells it of a scheduler that has just started; when it was queued tells
    it of manifests that were written for another time.
    """
    now = scheduler.unix_time
    created = [timestamp(pod.pod.metadata.creation_timestamp) for pod in pods]
    age = now - min((at for at in created if at), default=now)
    queued = scheduler.queue.units.get(unit)
    return max(age, scheduler.now - queued.added if queued is not None else 0.0, 0.0)
