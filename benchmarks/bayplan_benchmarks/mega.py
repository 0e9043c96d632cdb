"""The largest clusters that others have shown, phase by phase, in virtual time.

Two published runs: that of 130,000 nodes (GKE, November 2025) and that of 65,000 nodes (GKE with
ClusterLoader2). A pod takes a whole node, and each object makes 100 to 1,000 pods:

1. *fill*: training on an empty cluster;
2. *mixed*: all of it ends, and low, medium and high priorities come together;
3. *preempt*: inference grows in small units and interrupts training, which its Jobs create again;
4. *resume*: that inference ends, and training takes the nodes back;
5. *end*: all ends.

The phases of both runs are the same; the shares of the cluster differ. Only the scheduler's own
time counts: its steps and its handling of events, not that of the objects' controllers.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import msgspec

from bayplan.api import ApiObject, Job, Node, ObjectMeta, PodGroup, PodSpec
from bayplan.api.pod import PodTemplate
from bayplan.api.workloads import JobSpec
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.cluster.embedded.controllers import WorkloadControllers
from bayplan.cluster.embedded.kubelet import VirtualKubelet
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import WatchEvent, WatchHandler
from bayplan.errors import InputError
from bayplan.garbage import collect_rarely
from bayplan.profiles.loading import default_profiles
from bayplan.scheduler.scheduler import Scheduler
from bayplan_benchmarks.gang import network, pod_group
from bayplan_benchmarks.workloads import container, make_node, pass_time, peak_memory

__all__ = ["mega"]

_RACK = 64
_LABEL = "pod-group.scheduling.sigs.k8s.io"
_SIZES = (100, 200, 400, 1000)
"""Pods of the objects that fill the cluster, in turn."""
_LOW, _MEDIUM, _HIGH, _TOP = 0, 100, 1000, 2000
_GRACE = 120.0
"""Virtual seconds after which evicted pods are gone, and all that follows is done."""

Way = Literal["pods", "gangs", "racks"]
"""Plain pods, gangs, or gangs whose training prefers, and whose inference needs, one rack."""


class Published(msgspec.Struct, frozen=True):
    """The shares of the cluster in one published run.

    :param mixed: the share of each priority in phase 2.
    :param growth: the share that inference interrupts in phase 3.
    :param unit: the pods of one object, or gang, of that inference.
    """

    name: str
    mixed: Mapping[int, float]
    growth: float
    unit: int


_RUN_130K = Published("130k", {_LOW: 0.4, _MEDIUM: 0.3, _HIGH: 0.3}, 0.3, 40)
_RUN_65K = Published("65k", {_LOW: 50 / 65, _HIGH: 15 / 65}, 50 / 65, 32)
_RUNS: tuple[tuple[Published, Way], ...] = (
    (_RUN_130K, "pods"),
    (_RUN_130K, "gangs"),
    (_RUN_130K, "racks"),
    (_RUN_65K, "pods"),
    (_RUN_65K, "gangs"),
)


class _TimedCluster(MemoryCluster):
    """A cluster that measures the handling of its events by the first that watches."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.longest = 0.0
        self._watched = False

    def watch(self, handler: WatchHandler) -> None:
        """Let the first handler be measured."""
        super().watch(handler if self._watched else self._measured(handler))
        self._watched = True

    def _measured(self, handler: WatchHandler) -> WatchHandler:
        def handle(event: WatchEvent) -> None:
            started = time.perf_counter()
            handler(event)
            self.add(time.perf_counter() - started)

        return handle

    def add(self, seconds: float) -> None:
        """Count the seconds of one step or event."""
        self.seconds += seconds
        self.longest = max(self.longest, seconds)


class _World:
    """A cluster of empty nodes in racks, its controllers and its scheduler."""

    def __init__(self, nodes: int, way: Way) -> None:
        self.cluster = _TimedCluster()
        self.scheduler = Scheduler(self.cluster, default_profiles())
        VirtualKubelet(self.cluster)
        WorkloadControllers(self.cluster)
        self._way = way
        self._jobs = itertools.count()
        self.live: dict[int, list[str]] = {}
        """The objects that run, by priority."""
        self.cluster.create(network(RackLayer="net/rack"))
        for index in range(nodes):
            self.cluster.create(_node(index))
        self.cluster.deliver()
        self.settle()
        collect_rarely()

    @property
    def bound(self) -> int:
        """How many pods were bound up to now."""
        return self.scheduler.statistics.bound

    def submit(self, pods: int, priority: int, sizes: Iterator[int]) -> None:
        """Create objects of these sizes, for so many pods."""
        left = pods
        while left > 0:
            size = min(next(sizes), left)
            left -= size
            for obj in self._job(size, priority):
                self.cluster.create(obj)

    def end(self, priority: int) -> None:
        """Delete all objects of a priority."""
        for name in self.live.pop(priority, ()):
            self.cluster.delete(Job, f"bench/{name}")

    def end_all(self) -> None:
        """Delete all objects."""
        for priority in list(self.live):
            self.end(priority)

    def _job(self, size: int, priority: int) -> Iterator[ApiObject]:
        name = f"job-{next(self._jobs)}"
        self.live.setdefault(priority, []).append(name)
        labels = {}
        if self._way != "pods":
            labels[_LABEL] = name
            yield self._group(name, size, priority)
        body = PodSpec(containers=(container("32", "1Gi"),), priority=priority)
        template = PodTemplate(ObjectMeta(labels=labels), body)
        spec = JobSpec(parallelism=size, completions=size, template=template)
        yield Job(ObjectMeta(name=name, namespace="bench"), spec)

    def _group(self, name: str, size: int, priority: int) -> PodGroup:
        if self._way == "gangs":
            return pod_group(name, size)
        return pod_group(name, size, RackLayer="MustGather" if priority == _TOP else "PreferGather")

    # Time --------------------------------------------------------------------------------

    def settle(self) -> None:
        """Do everything that can be done at this instant; measure the scheduler's steps."""
        cluster, scheduler = self.cluster, self.scheduler
        busy = True
        while busy:
            cluster.deliver()
            started = time.perf_counter()
            busy = scheduler.step()
            cluster.add(time.perf_counter() - started)
            busy = cluster.deliver() or busy

    def run_for(self, seconds: float) -> None:
        """Let virtual time pass."""
        pass_time(self.cluster, self.scheduler, seconds, self.settle, self._tick)

    def _tick(self) -> None:
        started = time.perf_counter()
        self.scheduler.tick()
        self.cluster.add(time.perf_counter() - started)

    def timed(self, act: Callable[[], object], seconds: float = 0.0) -> float:
        """Return the scheduler's seconds for an act and all that follows from it.

        :param seconds: how much virtual time passes.
        """
        before = self.cluster.seconds
        act()
        self.run_for(seconds)
        return self.cluster.seconds - before


def _node(index: int) -> Node:
    return make_node(index, net__rack=f"rack-{index // _RACK}")


def _play(nodes: int, run: Published, way: Way) -> dict[str, float]:
    """Play one published run; return its figures."""
    world, sizes = _World(nodes, way), itertools.cycle(_SIZES)
    fill = world.timed(lambda: world.submit(nodes, _LOW, sizes))
    assert world.bound == nodes, f"{world.bound} of {nodes} pods fill the cluster"
    world.end(_LOW)
    world.run_for(_GRACE)
    mixed = world.timed(lambda: _submit_mixed(world, nodes, run, sizes))
    placed = world.bound - nodes
    evicted = len(world.scheduler.evictor.evicted)
    grown = int(nodes * run.growth) // run.unit * run.unit
    units = itertools.repeat(run.unit)
    preempt = world.timed(lambda: world.submit(grown, _TOP, units), _GRACE)
    victims = len(world.scheduler.evictor.evicted) - evicted
    resume = world.timed(lambda: world.end(_TOP), _GRACE)
    world.timed(world.end_all, _GRACE)
    return {
        "fillPodsPerSecond": round(nodes / fill, 1),
        "mixedPodsPerSecond": round(placed / mixed, 1),
        "preemptedPods": victims,
        "preemptSeconds": round(preempt, 3),
        "resumeSeconds": round(resume, 3),
        "longestStepSeconds": round(world.cluster.longest, 4),
    }


def _submit_mixed(world: _World, nodes: int, run: Published, sizes: Iterator[int]) -> None:
    for priority, share in run.mixed.items():
        world.submit(int(nodes * share), priority, sizes)


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    if pods:
        raise InputError("every node gets a pod, so their number follows from --nodes", "--pods")
    played = {f"{run.name} {way}": _play(nodes, run, way) for run, way in _RUNS}
    names = next(iter(played.values()))
    figures: dict[str, float | Mapping[str, float]] = {
        name: {run: found[name] for run, found in played.items()} for name in names
    }
    figures["peakMemoryMiB"] = round(peak_memory(), 1)
    return BenchmarkResult({"nodes": nodes, "nodes a rack": _RACK}, figures)


mega = Benchmark("the largest published runs, phase by phase", (5000,), 0, _measure)
