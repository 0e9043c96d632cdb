"""The scheduler on the embedded cluster, in virtual time, from manifests to an answer."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from datetime import datetime
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from bayplan.api import (
    ApiObject,
    Node,
    Pod,
    ResourceClaim,
    pod_requests,
)
from bayplan.api.gpu_shares import WHOLE
from bayplan.api.gpus import GPU_RESOURCES, named_gpus
from bayplan.cluster.embedded.assembly import create_in_order, start_controllers
from bayplan.cluster.embedded.store import LONG_AGO, MemoryCluster
from bayplan.cluster.node_changes import NodeChange
from bayplan.cluster.protocol import Event
from bayplan.cycle.decision_tables import DecisionTables
from bayplan.cycle.evaluator import Trace
from bayplan.dialects.autoscaling import is_stand_in
from bayplan.explain.explanation import why_pending
from bayplan.naming import counted, natural_key
from bayplan.profiles.loading import ProfileSet
from bayplan.queues.gpus import gpus_offered, gpus_used, is_gpu_count
from bayplan.queues.held_jobs import HeldJob, HeldJobs
from bayplan.scheduler.scheduler import Scheduler
from bayplan.scheduler.virtual_time import VirtualTime
from bayplan.simulation.job_histories import JobHistory
from bayplan.simulation.queue_history import QueueHistory
from bayplan.simulation.queue_statistics import Statistics, Waits
from bayplan.snapshot import NodeRow, NodeTable, problem_lines
from bayplan.snapshot.kept_nodes import KeptNodes

if TYPE_CHECKING:
    from bayplan.metering.journal import Journal
    from bayplan.metering.meter import Meter
    from bayplan.simulation.autoscaler import Autoscaler
    from bayplan.simulation.fault_play import FaultPlay
    from bayplan.simulation.faults import Faults
    from bayplan.simulation.node_groups import NodeGroups

__all__ = ["Progress", "Simulation", "TimelineEntry", "resource_use"]

_STEPS_PER_REPORT = 64
_RECORDS_PER_BATCH = 10_000
_RUNTIME_ANNOTATIONS = (
    "bayplan.dev/",
    "gpu.topology/",
    "scheduling.koordinator.sh/device-allocated",
    "scheduling.koordinator.sh/gpu-minors",
)
_LONGEST_WITH_FAULTS = 30 * 86_400.0
"""Virtual seconds after which a simulation of faults ends by itself, while jobs still run."""
_DEFAULT_HORIZON = 600.0
"""Virtual seconds after which a simulation ends by itself; long enough for every backoff."""

Progress = Callable[[int, int], None]

_KINDS = {"Scheduled": "Bound", "FailedScheduling": "Unschedulable", "Preempted": "Evicted"}


class TimelineEntry(msgspec.Struct, frozen=True):
    """Something that happened to a pod; ``at`` in virtual seconds."""

    at: float
    kind: str
    pod: str
    node: str
    message: str


class Simulation:
    """One run: create the objects, let everything happen, then read the results.

    :param until: virtual seconds to run at most; None runs ten minutes, or until nothing has been
        due for ten minutes after the last arrival.
    :param explained: pods, by key, that will be explained: their decisions keep what each plugin
        said of the nodes, and so do the newest others.
    :param trace: a pod whose evaluations are logged hook by hook.
    :param journal: where usage is recorded, from the start of the virtual time on.
    :param start: the date and time at which the virtual time begins.
    :raises PluginError: when a plugin raises in ``__init__``.
    """

    autoscaler: Autoscaler | None = None
    """What adds and removes nodes; None where nothing does."""
    fault_play: FaultPlay | None = None
    """What lets parts of the cluster fail; None where nothing does."""

    def __init__(
        self,
        profiles: ProfileSet,
        seed: int = 0,
        until: float | None = None,
        explained: frozenset[str] = frozenset(),
        trace: Trace | None = None,
        journal: Journal | None = None,
        start: datetime = LONG_AGO,
    ) -> None:
        self.cluster = MemoryCluster(seed, start=start)
        self.wall_seconds = 0.0
        """Seconds that ``run`` took by the wall clock."""
        self._until = until
        self._settled: list[Callable[[Simulation], None]] = []
        tables = None
        if explained:
            tables = DecisionTables(lambda: self.cluster.now, math.inf, always=explained)
        self._queues = QueueHistory()
        self.scheduler = Scheduler(
            self.cluster, profiles, tables=tables, observer=self._queues, trace=trace
        )
        self._queues.follow(self.scheduler)
        self._last_arrival = 0.0
        self._more_nodes = False
        self._ended_at = 0.0
        self._meter = self._metered(journal) if journal is not None else None
        self._kubelet = start_controllers(self.cluster)

    def _metered(self, journal: Journal) -> Meter:
        # The database takes longer to import than a small simulation.
        from bayplan.metering.meter import Meter

        start = self.cluster.start.timestamp()
        meter = Meter(
            journal,
            lambda: start + self.ended_at,
            self.scheduler.queues.name_of,
            KeptNodes.of(self.scheduler.snapshot).now,
        )
        self.cluster.watch(meter.handle)
        return meter

    def create(self, objects: Iterable[ApiObject], restore: bool = False) -> None:
        """Create objects in any order; those that others refer to are created first.

        An object that an API server would refuse is left out; ``refused`` names it.

        :param restore: keep their creationTimestamps, where the virtual time begins now.
        """
        create_in_order(self.cluster, objects, restore)

    def arrive(self, later: Iterable[tuple[float, ApiObject]]) -> None:
        """Create objects at their times in virtual seconds, those of one time together."""
        by_time: dict[float, list[ApiObject]] = {}
        for at, obj in later:
            by_time.setdefault(at, []).append(obj)
        for at, objects in by_time.items():
            self.cluster.clock.call_at(at, partial(self.create, objects))
            self._last_arrival = max(self._last_arrival, at)

    def change_nodes(self, changes: Iterable[NodeChange]) -> None:
        """Change nodes at their times, as a kubelet and ``kubectl`` would."""
        for change in changes:
            self._more_nodes = True
            self.cluster.clock.call_at(change.at, partial(self._change_node, change))
            self._last_arrival = max(self._last_arrival, change.at)

    def _change_node(self, change: NodeChange) -> None:
        before = self.cluster.get(Node, change.name)
        after = change.applied(before)
        if before is None:
            self.cluster.create(after)
        else:
            self.cluster.update(after)

    def queue_statistics(self) -> Statistics | None:
        """Return what happened to the queues up to now; None without queues."""
        return self._queues.statistics()

    def waits(self) -> Waits:
        """Return how long jobs waited up to now, in queues or not."""
        return self._queues.waits()

    def histories(self) -> dict[str, JobHistory]:
        """Return what became of each job up to now, by its key."""
        return self._queues.histories()

    @property
    def evictions(self) -> int:
        """How many pods, and workloads of Kueue, were evicted."""
        return self._queues.evictions

    @property
    def ended_at(self) -> float:
        """The end of the run, in virtual seconds."""
        return max(self.cluster.now, self._ended_at)

    def annotations(self) -> dict[str, dict[str, str]]:
        """Return the annotations about GPUs that bound pods got, by pod."""
        own = {pod.key: pod.metadata.annotations for pod in self.pods() if pod.spec.node_name}
        reported = {
            key: {
                name: text for name, text in found.items() if name.startswith(_RUNTIME_ANNOTATIONS)
            }
            for key, found in own.items()
        }
        return {key: found for key, found in reported.items() if found}

    def problems(self) -> list[str]:
        """Return what could not be read or had to be assumed, equal nodes in one line."""
        about_nodes = [
            *self.foreign_pods(),
            *problem_lines(self.scheduler.snapshot.problems),
        ]
        about_pods = [
            f"Pod {key}: {text}"
            for (kind, key), text in self.cluster.reports.items()
            if kind == "Pod" and self._is_there(key)
        ]
        about_faults = self.fault_play.idle_rules() if self.fault_play is not None else []
        return about_nodes + about_pods + about_faults

    def foreign_pods(self) -> list[str]:
        """Return, for each scheduler without a profile here, how many pods wait for it."""
        names = Counter(
            pod.spec.scheduler_name
            for pod in self.pods()
            if not pod.spec.node_name and self.scheduler.profile_of(pod) is None
        )
        known = ", ".join(self.scheduler.profiles)
        return [
            f'no profile schedules {counted(count, "pod")} of schedulerName "{name}"; '
            f"there are profiles for {known}"
            for name, count in sorted(names.items())
        ]

    def on_settled(self, look: Callable[[Simulation], None]) -> None:
        """Call a function at each instant, when nothing is left to do at it."""
        self._settled.append(look)

    def autoscale(self, groups: NodeGroups) -> None:
        """Let an autoscaler add and remove nodes of groups from now on."""
        # It has a scheduler of its own, which a simulation without it need not load.
        from bayplan.simulation.autoscaler import Autoscaler

        autoscaler = self.autoscaler = Autoscaler(self.cluster, groups)
        autoscaler.begin()
        self.on_settled(lambda _: autoscaler.look())

    def play_faults(self, faults: Faults, seed: int) -> None:
        """Let parts of the cluster fail from now on; call it before anything is created.

        :param seed: what the times of faults follow from.
        """
        from bayplan.simulation.fault_play import FaultPlay

        play = FaultPlay(self.cluster, self.scheduler, self._kubelet, faults, seed)
        self.fault_play = play
        self.on_settled(lambda _: play.look())

    def would_help(self, groups: NodeGroups, pods: Set[str]) -> list[str]:
        """Return which nodes of groups would help some pods, by their keys, at the end."""
        from bayplan.simulation.autoscaler import Autoscaler

        return Autoscaler(self.cluster, groups).would_help(pods)

    def observe(self) -> None:
        """Let the scheduler see the objects, without deciding anything."""
        self.cluster.deliver()
        self.scheduler.stand_by()

    def run(self, progress: Progress | None = None) -> None:
        """Run until nothing is left to happen, or until the horizon.

        :param progress: called occasionally with the number of bound pods and of all pods.
        """
        started = time.perf_counter()
        report = partial(self._report, progress, count()) if progress is not None else None
        time_ = VirtualTime(self.cluster, self.scheduler, report, self._look)
        if self.fault_play is not None:
            self._run_with_faults(time_, self.fault_play)
            self.wall_seconds += time.perf_counter() - started
            return
        time_.advance(self._horizon() if self._until is None else self._until, idle=False)
        while self._until is None and self._last_arrival and self.cluster.clock.next_time(False):
            time_.advance(self._horizon(), idle=False)
        if self._until is not None and self._somebody_waits():
            # What is waited for has been so until the end, not until the last event.
            self.cluster.clock.advance(self._until)
        self._end_at(self._until or 0.0)
        self.wall_seconds += time.perf_counter() - started

    def _run_with_faults(self, time_: VirtualTime, play: FaultPlay) -> None:
        """Run to the end, or else until all jobs have ended: faults by themselves never do."""
        self.observe()
        if not self._more_nodes and self.autoscaler is None:
            play.check()
        if self._until is not None:
            time_.advance(self._until)
            self.cluster.clock.advance(self._until)
        else:
            time_.advance_while(
                _LONGEST_WITH_FAULTS, lambda: play.is_busy or self._somebody_waits()
            )
            if play.is_busy or self._somebody_waits():
                self.cluster.clock.advance(_LONGEST_WITH_FAULTS)
        self._end_at(self._until or 0.0)

    def _somebody_waits(self) -> bool:
        prepared = self.scheduler.backlog()["being prepared"]
        return bool(prepared or self.scheduler.queue.units or self.held_jobs())

    def outlast(self, until: float) -> None:
        """Let time pass up to a time in virtual seconds, so that runs end at the same time."""
        VirtualTime(self.cluster, self.scheduler, on_settled=self._look).advance(until)
        self.cluster.clock.advance(until)
        self._end_at(until)

    def _end_at(self, until: float) -> None:
        self._ended_at = until
        if self._meter is not None:
            self._meter.settle()
            self._meter.flush()

    def _horizon(self) -> float:
        """Return how far to run: well beyond what is due next, if work arrives over time."""
        due = self.cluster.clock.next_time(idle=False) if self._last_arrival else None
        return max(due or 0.0, self._last_arrival) + _DEFAULT_HORIZON

    def _look(self) -> None:
        self._queues.look()
        if self._meter is not None:
            self._meter.settle()
            if self._meter.waiting > _RECORDS_PER_BATCH:
                self._meter.flush()
        for look in self._settled:
            look(self)

    def _report(self, progress: Progress, steps: Iterator[int]) -> None:
        if next(steps) % _STEPS_PER_REPORT == 0:
            progress(self.scheduler.statistics.bound, len(self.cluster.list(Pod)))

    # Answers -----------------------------------------------------------------------------

    def pods(self) -> list[Pod]:
        """Return all pods but stand-ins, by name with digits as numbers."""
        pods = (pod for pod in self.cluster.list(Pod) if not is_stand_in(pod))
        return sorted(pods, key=lambda pod: natural_key(pod.key))

    def placements(self) -> dict[str, str]:
        """Return the node of every pod that has one."""
        return {pod.key: pod.spec.node_name for pod in self.pods() if pod.spec.node_name}

    def pending(self) -> dict[str, tuple[str, str | None]]:
        """Return, for every pod without a node, its message and its nominated node."""
        found = {}
        for pod in self.pods():
            if pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
                continue
            message = why_pending(self.scheduler, pod)
            found[pod.key] = (message, pod.status.nominated_node_name or None)
        return found

    def held_jobs(self) -> list[HeldJob]:
        """Return the jobs that wait suspended for quota: they have no pods yet."""
        return sorted(HeldJobs(self.scheduler.snapshot).all(), key=lambda job: natural_key(job.key))

    @property
    def complete(self) -> bool:
        """Whether every pod has a node, and nothing is held back or refused."""
        return not (self.pending() or self.held_jobs() or self.refused())

    def refused(self) -> dict[str, str]:
        """Return the objects that an API server would not admit, by kind and key, and why.

        When a controller makes the pods, the workload is named.
        """
        return {
            f"{kind} {key}": message
            for (kind, key), message in self.cluster.reports.items()
            if kind != "Pod" or not self._is_there(key)
        }

    def _is_there(self, pod: str) -> bool:
        return self.cluster.get(Pod, pod) is not None

    def devices(self) -> dict[str, list[dict[str, str]]]:
        """Return the devices of claims that are allocated, and the GPUs chosen for pods, by key."""
        found = {pod.key: gpus for pod in self.pods() if (gpus := _gpus_of(pod))}
        claims = sorted(self.cluster.list(ResourceClaim), key=lambda c: natural_key(c.key))
        return found | {
            claim.key: [
                {
                    "request": one.request,
                    "driver": one.driver,
                    "pool": one.pool,
                    "device": one.device,
                }
                for one in claim.status.allocation.devices.results
            ]
            for claim in claims
            if claim.status.allocation is not None
        }

    def timeline(self) -> list[TimelineEntry]:
        """Return what happened, in order."""
        return [self._entry(at, event) for at, event in self.cluster.events if event.about == "Pod"]

    def _entry(self, at: float, event: Event) -> TimelineEntry:
        kind = _KINDS.get(event.reason, event.reason)
        return TimelineEntry(at, kind, event.pod, event.node, event.message)

    def result(self) -> dict[str, Any]:
        """Return the answer as one JSON object.

        Everything in it follows from the input and the seed, except the two wall-clock figures
        ``stats.seconds`` and ``stats.podsPerSecond``.
        """
        placements, pending, held = self.placements(), self.pending(), self.held_jobs()
        seconds = self.wall_seconds
        bound = self.scheduler.statistics.bound
        return {
            "placements": placements,
            "devices": self.devices(),
            "annotations": self.annotations(),
            "notes": self.problems(),
            "pending": {
                key: {"message": message, "nominatedNode": node}
                for key, (message, node) in pending.items()
            },
            "held": [
                {
                    "kind": job.kind,
                    "job": job.key,
                    "pods": job.pods,
                    "queue": job.queue,
                    "waits": round(max(0.0, self.scheduler.unix_time - job.since), 3),
                    "message": job.why,
                }
                for job in held
            ],
            "refused": self.refused(),
            "evicted": [
                {"pod": eviction.pod, "at": eviction.at, "for": eviction.unit}
                for eviction in self.scheduler.evictor.evicted
            ],
            "timeline": [
                {
                    "at": entry.at,
                    "kind": entry.kind,
                    "pod": entry.pod,
                    "node": entry.node or None,
                    "message": entry.message,
                }
                for entry in self.timeline()
            ],
            **_queue_figures(self.queue_statistics()),
            **({"autoscaling": self.autoscaler.as_json()} if self.autoscaler is not None else {}),
            **({"goodput": self.fault_play.report().as_json()} if self.fault_play else {}),
            "stats": {
                "pods": len(self.pods()),
                "bound": len(placements),
                "pending": len(pending),
                "held": len(held),
                "seconds": round(seconds, 6),
                "podsPerSecond": round(bound / seconds, 1) if seconds > 0 else 0.0,
                "cycles": self.scheduler.statistics.cycles,
            },
        }


def _queue_figures(statistics: Statistics | None) -> dict[str, Any]:
    if statistics is None:
        return {}
    return {"queues": statistics.queues_json(), "fairness": statistics.cluster_json()}


def _gpus_of(pod: Pod) -> list[dict[str, str]]:
    """Return the GPUs that were chosen for what a pod requests as nvidia.com/gpu."""
    requests = pod_requests(pod.spec).effective
    resource = next((name for name in GPU_RESOURCES if name in requests), None)
    if resource is None or not pod.spec.node_name:
        return []
    return [
        {
            "request": resource,
            "driver": resource.partition("/")[0],
            "pool": pod.spec.node_name,
            "device": f"gpu-{gpu}",
        }
        for gpu in named_gpus(pod.metadata.annotations)
    ]


def resource_use(table: NodeTable, row: int) -> list[tuple[str, str, str]]:
    """Return (resource, used, offered) of a node for people: cores, and extended resources.

    Shares of GPUs count as what they are of a GPU.
    """
    node = table.nodes[row]
    extended = sorted(
        name for name in node.status.allocatable or node.status.capacity if "/" in name
    )
    cores = [f"{int(c[row]) / 1000:g}" for c in (table.used("cpu"), table.allocatable("cpu"))]
    return [("cpu", cores[0], cores[1]), *(_counted(table, row, name) for name in extended)]


def _counted(table: NodeTable, row: int, resource: str) -> tuple[str, str, str]:
    offered = int(table.allocatable(resource)[row])
    if not is_gpu_count(resource):
        return resource, str(table.used(resource)[row]), str(offered)
    used = gpus_used(NodeRow(table, row), resource)
    gpus = gpus_offered(table.nodes[row], resource, offered)
    return resource, f"{used / WHOLE:g}", f"{gpus / WHOLE:g}"
