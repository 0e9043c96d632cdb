"""Events that wait to be written: warnings first, not too many a second, not too many at all.

Events cost the API server as much as bindings, and nobody reads ten thousand of one burst. Other
Kubernetes components limit theirs in the same way (``eventRecordQPS`` of the kubelet).
"""

from __future__ import annotations

from collections import deque

from bayplan.cluster.kubernetes.pending_write import PendingWrite
from bayplan.cluster.kubernetes.rate_limiter import RateLimiter
from bayplan.cluster.protocol import Event

__all__ = ["EventQueue"]

_MOST = 1000


class EventQueue:
    """Events in the order in which they are written.

    :param rate: limits events per second; None for no limit.
    :param most: how many events may wait; beyond that, the oldest are dropped, warnings last.
    """

    def __init__(self, rate: RateLimiter | None, most: int = _MOST) -> None:
        self._rate = rate
        self._most = most
        self._warnings: deque[PendingWrite] = deque()
        self._others: deque[PendingWrite] = deque()

    def __len__(self) -> int:
        return len(self._warnings) + len(self._others)

    def add(self, job: PendingWrite) -> PendingWrite | None:
        """Add an event; return the event that is dropped for it, None for none."""
        assert isinstance(job.write, Event), "other writes have their own queues"
        (self._warnings if job.write.type == "Warning" else self._others).append(job)
        if len(self) <= self._most:
            return None
        return (self._others or self._warnings).popleft()

    def take(self, now: float) -> PendingWrite | None:
        """Remove and return the next event, None when none may be written now (seconds)."""
        waiting = self._warnings or self._others
        if not waiting or (self._rate is not None and not self._rate.allows(now)):
            return None
        return waiting.popleft()

    def wait(self, now: float) -> float | None:
        """Return the seconds until the next event may be written, None when none waits."""
        if not self:
            return None
        return self._rate.wait(now) if self._rate is not None else 0.0

    def hurry(self) -> None:
        """Lift the limit, because the process ends."""
        self._rate = None

    def clear(self) -> list[PendingWrite]:
        """Remove and return all events."""
        jobs = [*self._warnings, *self._others]
        self._warnings.clear()
        self._others.clear()
        return jobs
