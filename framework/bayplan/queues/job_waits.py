"""How long jobs wait: from when a job is known without a node until its first pod has one.

A job is a pod group, or a pod without one. An evicted job waits again from the moment when none of
its pods has a node any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["JobWaits"]


@dataclass
class _Job:
    """``since`` is when it began to wait, in seconds; None while a pod of it has a node."""

    since: float | None
    members: dict[str, PodInfo] = field(default_factory=dict)
    running: int = 0


class JobWaits:
    """Follows the living pods of a snapshot.

    :param now: returns the time in seconds.
    :param since: returns since when a pod that is new here has waited, in seconds.
    :param waited: called when a job starts, with its first pod and how many seconds it has waited;
        not for jobs that were first seen on nodes.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        now: Callable[[], float],
        since: Callable[[PodInfo], float],
        waited: Callable[[PodInfo, float], None],
    ) -> None:
        self._living = snapshot.living
        self._now = now
        self._since = since
        self._waited = waited
        self._jobs: dict[str, _Job] = {}
        snapshot.on_living(self._lives)

    def waiting(self) -> Iterator[tuple[PodInfo, float]]:
        """Yield a pod of each job that waits, and for how many seconds it has waited."""
        now = self._now()
        for job in self._jobs.values():
            if job.since is not None:
                yield next(iter(job.members.values())), max(0.0, now - job.since)

    def _lives(self, pod: PodInfo, added: bool) -> None:
        key = pod.gang or pod.key
        if added:
            self._seen(key, pod)
        elif pod.key not in self._living or self._living[pod.key].gang != pod.gang:
            self._gone(key, pod)

    def _seen(self, key: str, pod: PodInfo) -> None:
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Job(self._since(pod))
        before = job.members.get(pod.key)
        job.members[pod.key] = pod
        if not _runs(pod) or (before is not None and _runs(before)):
            return
        job.running += 1
        if job.since is not None:
            if before is not None:
                self._waited(pod, max(0.0, self._now() - job.since))
            job.since = None

    def _gone(self, key: str, pod: PodInfo) -> None:
        job = self._jobs.get(key)
        known = job.members.pop(pod.key, None) if job is not None else None
        if job is None or known is None:
            return
        job.running -= _runs(known)
        if not job.members:
            del self._jobs[key]
        elif not job.running and job.since is None:
            job.since = self._now()


def _runs(pod: PodInfo) -> bool:
    return bool(pod.pod.spec.node_name)
