"""How long jobs wait: from when a job is known without a node until its first pod has one.

A job is a pod group, or a pod without one. It is known from when its group was created: a queue may
admit groups before their pods are made. An evicted job waits again from the moment when none of its
pods has a node any more.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator

import msgspec

from bayplan.api import (
    ApiObject,
    KaiPodGroup,
    NativePodGroup,
    PodGroup,
    SchedulerPluginsPodGroup,
    VolcanoPodGroup,
)
from bayplan.dialects.reading import timestamp
from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["JobWaits"]

_GROUPS: tuple[type[ApiObject], ...] = (
    PodGroup,
    SchedulerPluginsPodGroup,
    VolcanoPodGroup,
    KaiPodGroup,
    NativePodGroup,
)
_REMEMBERED = 10_000


class _Job(msgspec.Struct):
    """``since`` is when it began to wait, in seconds; None while a pod of it has a node."""

    since: float | None
    pods: dict[str, PodInfo] = msgspec.field(default_factory=dict)
    running: set[str] = msgspec.field(default_factory=set)


class JobWaits:
    """Follows the living pods of a snapshot; its owner tells it of bindings by ``started``.

    :param now: returns the time in seconds.
    :param unix_time: returns the same time in seconds since 1970, as objects state it.
    :param waited: called when a job starts, with its first pod and how many seconds it has waited;
        not for jobs that were first seen on nodes.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        now: Callable[[], float],
        unix_time: Callable[[], float],
        waited: Callable[[PodInfo, float], None],
    ) -> None:
        self._snapshot = snapshot
        self._living = snapshot.living
        self._now = now
        self._unix_time = unix_time
        self._waited = waited
        self._jobs: dict[str, _Job] = {}
        self._left: OrderedDict[str, float] = OrderedDict()
        """When the last pod of a job was gone, of the latest ones; its pods may be made again."""
        snapshot.on_living(self._lives)

    def waiting(self) -> Iterator[tuple[PodInfo, float]]:
        """Yield a pod of each job that waits, and for how many seconds it has waited."""
        now = self._now()
        for job in self._jobs.values():
            if job.since is not None:
                yield next(iter(job.pods.values())), max(0.0, now - job.since)

    def started(self, pod: PodInfo) -> None:
        """Count a pod that got a node."""
        job = self._jobs.get(_job_of(pod))
        if job is None or pod.key not in job.pods or pod.key in job.running:
            return
        job.running.add(pod.key)
        if job.since is not None:
            self._waited(pod, max(0.0, self._now() - job.since))
            job.since = None

    def _lives(self, pod: PodInfo, added: bool) -> None:
        if added:
            self._seen(pod)
        elif pod.key not in self._living or _job_of(self._living[pod.key]) != _job_of(pod):
            self._gone(pod)

    def _seen(self, pod: PodInfo) -> None:
        key = _job_of(pod)
        job = self._jobs.get(key)
        if job is None and pod.gang is None and pod.pod.spec.node_name:
            # It waits never again.
            return
        if job is None:
            left = self._left.pop(key, -math.inf)
            # The age of a job that runs already does not matter.
            since = None if pod.pod.spec.node_name else max(left, self._now() - self._age(pod))
            job = self._jobs[key] = _Job(since)
        known = pod.key in job.pods
        job.pods[pod.key] = pod
        if not pod.pod.spec.node_name:
            return
        if known:
            self.started(pod)
        else:
            job.running.add(pod.key)
            job.since = None

    def _gone(self, pod: PodInfo) -> None:
        key = _job_of(pod)
        job = self._jobs.get(key)
        if job is None or job.pods.pop(pod.key, None) is None:
            return
        ran = pod.key in job.running
        job.running.discard(pod.key)
        if not job.pods:
            del self._jobs[key]
            self._left[key] = self._now()
            if len(self._left) > _REMEMBERED:
                self._left.popitem(last=False)
        elif ran and not job.running:
            job.since = self._now()

    def _age(self, pod: PodInfo) -> float:
        """Return for how many seconds a pod or its group has existed."""
        found: list[ApiObject | None] = [pod.pod]
        if pod.gang is not None:
            found += (self._snapshot.objects(kind).get(pod.gang) for kind in _GROUPS)
        stamps = [timestamp(one.metadata.creation_timestamp) for one in found if one is not None]
        first = min((stamp for stamp in stamps if stamp), default=math.inf)
        return max(0.0, self._unix_time() - first)


def _job_of(pod: PodInfo) -> str:
    return pod.gang or pod.key
