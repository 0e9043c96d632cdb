"""Follows the queues of a simulation, and sums up at its end what happened to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan.api import KueueWorkload, Pod
from bayplan.api.object_key import controller_key
from bayplan.plugin.base import Unit
from bayplan.queues.job_waits import JobWaits
from bayplan.queues.report import QueueReport, ResourceReport
from bayplan.queues.workload_waits import (
    ADMITTED,
    EVICTED,
    has_workload,
    is_of_pods,
    reached,
    waiting_workloads,
)
from bayplan.scheduler.observer import Observer
from bayplan.scheduler.scheduler import Scheduler
from bayplan.simulation.job_histories import JobHistories, JobHistory, job_of
from bayplan.simulation.queue_statistics import QueueStatistics, Statistics, Waits, jain
from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["QueueHistory"]

_Parts = npt.NDArray[np.float64]
"""Parts of what all nodes offer of one resource: used, deserved, entitled, demand."""

_USED, _DESERVED, _ENTITLED, _DEMAND = range(4)
_NOTHING = 1e-9
_KUEUE = "kueue"
_BY_CONTROLLERS = ("DeletionByTaintManager", "DeletionByPodGC")
"""Reasons of DisruptionTarget for pods that lose their node without the scheduler."""

Key = tuple[str, str]
"""A queue's system and name."""


class _Track(msgspec.Struct):
    """One queue: what it has now, and its sums over time in parts times seconds, by resource.

    ``since`` is when what it has now began, in seconds; the sums are those up to then.
    """

    report: QueueReport
    since: float = 0.0
    now: dict[str, _Parts] = msgspec.field(default_factory=dict)
    sums: dict[str, _Parts] = msgspec.field(default_factory=dict)
    series: list[tuple[float, float]] = msgspec.field(default_factory=list)
    waits: list[float] = msgspec.field(default_factory=list)
    evictions: int = 0

    def pass_time(self, until: float) -> None:
        """Add what holds now up to a time in seconds."""
        for name, parts in self.now.items():
            self.sums[name] = self.sums.get(name, 0.0) + (until - self.since) * parts
        self.since = until

    def see(self, report: QueueReport, capacity: Mapping[str, float], at: float) -> None:
        """Take in the queue as it is from a time on."""
        self.pass_time(at)
        self.report = report
        self.now = {}
        for column, found in report.resources.items():
            name = _offered(column, capacity)
            if name is not None:
                parts = np.minimum(_amounts(found) / capacity[name], 1.0)
                self.now[name] = self.now.get(name, 0.0) + parts
        share = max((float(parts[_USED]) for parts in self.now.values()), default=0.0)
        if self.series and self.series[-1][0] == at:
            self.series.pop()
        if not self.series or abs(self.series[-1][1] - share) > _NOTHING:
            self.series.append((at, share))

    def means(self, until: float) -> Mapping[str, _Parts]:
        """Return the means from 0 to a time; at 0 what there is then."""
        return {name: sums / until for name, sums in self.sums.items()} if until else self.now

    def ratio(self, part: int, of: int, until: float) -> float | None:
        """Return the largest ratio of two means over the resources, None where both are nothing."""
        means = [one for one in self.means(until).values() if one[of] > _NOTHING]
        return max((float(one[part] / one[of]) for one in means), default=None)

    def mean_share(self, until: float) -> float:
        """Return the mean of the dominant share from 0 to a time; at 0 what it is then."""
        if not until:
            return self.series[-1][1] if self.series else 0.0
        ends = [*(at for at, _ in self.series[1:]), until]
        spans = zip(self.series, ends, strict=False)
        total = sum(share * max(0.0, end - at) for (at, share), end in spans)
        return total / until


def _amounts(found: ResourceReport) -> _Parts:
    entitled = min(found.fair, found.demand)
    return np.array([found.used, found.deserved, entitled, found.demand])


def _offered(column: str, capacity: Mapping[str, float]) -> str | None:
    """Return the resource of the nodes that a column counts, which may be of one flavor."""
    of_flavor = column.partition("/")[2]
    return next((name for name in (column, of_flavor) if name in capacity), None)


class QueueHistory(Observer):
    """Sums up queues over virtual time; between two changes, what they use stays the same."""

    def __init__(self) -> None:
        self._scheduler: Scheduler | None = None
        self._waits: JobWaits | None = None
        self._waited_for: list[float] = []
        self._histories = JobHistories(lambda: self._scheduler.now if self._scheduler else 0.0)
        self.evictions = 0
        """How many pods, and workloads of Kueue, were evicted."""
        self._lost: set[str] = set()
        self._tracks: dict[Key, _Track] = {}
        self._capacity: Mapping[str, float] = {}
        self._columns: set[str] = set()
        self._nodes = -1
        self._changed = True

    def follow(self, scheduler: Scheduler) -> None:
        """Follow a scheduler, from its start."""
        self._scheduler = scheduler
        snapshot = scheduler.snapshot
        self._waits = JobWaits(
            snapshot, lambda: scheduler.now, lambda: scheduler.unix_time, self._waited
        )
        snapshot.on_object(KueueWorkload, self._workload_changed)
        snapshot.on_living(self._living_changed)
        snapshot.on_pod(lambda pod, node, placed: self._mark())

    def _mark(self) -> None:
        self._changed = True

    def _living_changed(self, pod: PodInfo, added: bool) -> None:
        self._mark()
        uid = pod.pod.metadata.uid
        if added and _lost_its_node(pod.pod) and uid not in self._lost:
            self._lost.add(uid)
            self.evicted(pod, "")

    # What happens ------------------------------------------------------------------------

    def bound(self, pod: PodInfo, node: str, cycle: int, attempts: int, seconds: float) -> None:
        """Note that a job may have started."""
        self._histories.bound(pod, node)
        if self._waits is not None:
            self._waits.started(pod)

    def evicted(self, pod: PodInfo, reason: str) -> None:
        """Count an evicted pod, also in its queue and its ancestors."""
        self.evictions += 1
        self._histories.evicted(pod)
        for track in self._path(pod):
            track.evictions += 1

    def _waited(self, pod: PodInfo, seconds: float) -> None:
        if self._has_workload(pod):
            return
        self._waited_for.append(seconds)
        self._histories.waited(job_of(pod), seconds)
        for track in self._path(pod):
            track.waits.append(seconds)

    def _has_workload(self, pod: PodInfo) -> bool:
        """Tell whether a job's workload of Kueue tells a pod's wait."""
        assert self._scheduler is not None
        queue = self._scheduler.queues.of(Unit(pod.gang or pod.key, [pod])) or ""
        return has_workload(pod, queue, self._scheduler.snapshot)

    def _workload_changed(self, old: KueueWorkload | None, new: KueueWorkload | None) -> None:
        self._mark()
        for one in reached(old, new) if new is not None and not is_of_pods(new) else ():
            if one.condition == ADMITTED:
                self._waited_for.append(one.waited)
                self._histories.waited(_job_of(new), one.waited)
            elif one.condition == EVICTED:
                self.evictions += 1
            for track in self._up_from((_KUEUE, one.queue)):
                if one.condition == ADMITTED:
                    track.waits.append(one.waited)
                elif one.condition == EVICTED:
                    track.evictions += 1

    def _path(self, pod: PodInfo) -> Iterable[_Track]:
        """Yield the tracks of a pod's queue and its ancestors."""
        assert self._scheduler is not None
        queue = self._scheduler.queues.of(Unit(pod.gang or pod.key, [pod]))
        if queue is None:
            return
        system, _, name = queue.partition("/")
        yield from self._up_from((system, name))

    def _up_from(self, key: Key) -> Iterable[_Track]:
        """Yield the tracks of a queue and its ancestors."""
        if not self._tracks:
            self.look()
        track = self._tracks.get(key)
        while track is not None:
            yield track
            track = self._tracks.get((key[0], track.report.parent))

    def look(self) -> None:
        """Take in what has changed; called at each instant, once nothing is left to do at it."""
        if not self._changed or self._scheduler is None:
            return
        self._changed = False
        now = self._scheduler.now
        reports = self._scheduler.queues.reports()
        changed = [one for one in reports if not self._is_known(one)]
        if self._offers_more_or_less(changed):
            changed = reports
        for report in changed:
            key = (report.system, report.name)
            track = self._tracks.get(key)
            if track is None:
                track = self._tracks[key] = _Track(report, now)
            track.see(report, self._capacity, now)

    def _is_known(self, report: QueueReport) -> bool:
        """Tell whether a queue is as it was: what has not changed is reported by the same object.

        So an instant costs what changes at it, however many queues there are.
        """
        track = self._tracks.get((report.system, report.name))
        return track is not None and track.report is report

    def _offers_more_or_less(self, changed: Iterable[QueueReport]) -> bool:
        """Update what all nodes offer; tell whether it has changed."""
        assert self._scheduler is not None
        nodes = self._scheduler.snapshot.nodes
        columns = {name for report in changed for name in report.resources}
        if columns <= self._columns and nodes.node_version == self._nodes:
            return False
        self._columns |= columns
        self._nodes = nodes.node_version
        before = self._capacity
        self._capacity = _capacity(self._scheduler.snapshot, self._columns)
        return before != self._capacity

    def _pass_time(self) -> float:
        """Count all queues up to now; return the time."""
        assert self._scheduler is not None
        now = self._scheduler.now
        for track in self._tracks.values():
            track.pass_time(now)
        return now

    # At the end --------------------------------------------------------------------------

    def statistics(self) -> Statistics | None:
        """Return the sums up to now; None if there was no queue."""
        self.look()
        if not self._tracks or self._waits is None or self._scheduler is None:
            return None
        until = self._pass_time()
        waiting: dict[Key, list[float]] = {}
        for pod, seconds in self._waits.waiting():
            for track in self._path(pod):
                key = (track.report.system, track.report.name)
                waiting.setdefault(key, []).append(seconds)
        unix_time = self._scheduler.unix_time
        for one in waiting_workloads(self._scheduler.snapshot, unix_time):
            for track in self._up_from((_KUEUE, one.queue)):
                waiting.setdefault((_KUEUE, track.report.name), []).append(one.seconds)
        queues = [
            _statistics(track, waiting.get(key, ()), until) for key, track in self._tracks.items()
        ]
        satisfied = [q.satisfaction for q in queues if q.leaf and q.satisfaction is not None]
        return Statistics(until, queues, self._utilisation(until), jain(satisfied))

    def waits(self) -> Waits:
        """Return how long all jobs waited up to now, in queues or not."""
        return Waits.of(self._waited_for, [seconds for _, seconds in self._waiting()])

    def histories(self) -> dict[str, JobHistory]:
        """Return what became of each job up to now, in queues or not."""
        waiting: dict[str, float] = {}
        for job, seconds in self._waiting():
            waiting[job] = max(waiting.get(job, 0.0), seconds)
        return self._histories.with_waiting(waiting)

    def _waiting(self) -> Iterator[tuple[str, float]]:
        """Yield the job of all that waits now, and for how many seconds it has waited."""
        if self._waits is None or self._scheduler is None:
            return
        for pod, seconds in self._waits.waiting():
            if not self._has_workload(pod):
                yield job_of(pod), seconds
        unix_time = self._scheduler.unix_time
        for one in waiting_workloads(self._scheduler.snapshot, unix_time):
            yield _job_of(one.workload), one.seconds

    def _utilisation(self, until: float) -> dict[str, float]:
        """Return how much of each resource the roots used, as a part of what the nodes offer."""
        roots = [one for one in self._tracks.values() if not one.report.parent]
        means = [one.means(until) for one in roots]
        return {
            name: sum(float(one[name][_USED]) for one in means if name in one)
            for name in self._capacity
        }


def _job_of(workload: KueueWorkload | None) -> str:
    """Return the key of the job that a workload stands for."""
    if workload is None:
        return ""
    return controller_key(workload.metadata) or workload.key


def _statistics(track: _Track, waiting: Sequence[float], until: float) -> QueueStatistics:
    report = track.report
    satisfaction = track.ratio(_USED, _ENTITLED, until)
    return QueueStatistics(
        report.system,
        report.name,
        report.parent,
        not report.children,
        track.series,
        track.mean_share(until),
        Waits.of(track.waits, waiting),
        track.ratio(_USED, _DESERVED, until),
        None if satisfaction is None else min(1.0, satisfaction),
        track.evictions,
    )


def _capacity(snapshot: Snapshot, columns: Iterable[str]) -> dict[str, float]:
    """Return what all nodes offer of the resources that queues count, where it is anything."""
    nodes = snapshot.nodes
    names = {part for name in columns for part in (name, name.partition("/")[2])}
    found = {
        name: float(nodes.allocatable(name).sum(dtype=np.float64)) for name in sorted(names) if name
    }
    return {name: total for name, total in found.items() if total > 0}


def _lost_its_node(pod: Pod) -> bool:
    """Tell whether a controller deletes a pod because of its node: taints, or the node is gone."""
    return any(
        one.type == "DisruptionTarget" and one.reason in _BY_CONTROLLERS
        for one in pod.status.conditions
    )
