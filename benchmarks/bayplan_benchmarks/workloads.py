"""Nodes, pods and timed runs for benchmarks."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable

from bayplan.api import ApiObject, Container, Node, ObjectMeta, Pod, PodSpec, Quantity
from bayplan.api.node import NodeStatus
from bayplan.api.pod import ResourceRequirements
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.garbage import collect_rarely
from bayplan.profiles.loading import default_profiles
from bayplan.scheduler.scheduler import Scheduler

__all__ = [
    "Run",
    "container",
    "figures",
    "make_node",
    "make_pod",
    "pass_time",
    "peak_memory",
    "run",
]

_ZONES = 10


def make_node(index: int, cpu: str = "32", memory: str = "128Gi", **labels: str) -> Node:
    """Return a node for 110 pods in one of ten zones; "__" in a label's name stands for "/"."""
    name = f"node-{index}"
    all_labels = {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": f"zone-{index % _ZONES}",
        **{key.replace("__", "/"): value for key, value in labels.items()},
    }
    amounts = {"cpu": Quantity(cpu), "memory": Quantity(memory), "pods": Quantity("110")}
    return Node(ObjectMeta(name=name, labels=all_labels), status=NodeStatus(amounts, amounts))


def container(cpu: str, memory: str) -> Container:
    """Return a container with requests."""
    requests = {"cpu": Quantity(cpu), "memory": Quantity(memory)}
    return Container("main", "registry.k8s.io/pause:3.10", ResourceRequirements(requests))


def make_pod(name: str, spec: PodSpec, labels: dict[str, str] | None = None) -> Pod:
    """Return a pod in the namespace "bench"."""
    return Pod(ObjectMeta(name=name, namespace="bench", labels=labels or {}), spec)


def figures(done: Run) -> dict[str, float]:
    """Return the figures of every benchmark: pods per second, seconds, bound pods, peak memory."""
    return {
        "podsPerSecond": round(done.bound / done.seconds, 1),
        "seconds": round(done.seconds, 4),
        "bound": done.bound,
        "peakMemoryMiB": round(peak_memory(), 1),
    }


def peak_memory() -> float:
    """Return the most memory that this process had at a time, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def pass_time(
    cluster: MemoryCluster,
    scheduler: Scheduler,
    seconds: float,
    settle: Callable[[], None],
    tick: Callable[[], None],
) -> None:
    """Let virtual time pass.

    :param settle: does everything that can be done at an instant.
    :param tick: ends the scheduler's waits whose time is over.
    """
    end, clock = cluster.now + seconds, cluster.clock
    settle()
    while True:
        times = (clock.next_time(), scheduler.next_time())
        due = min((at for at in times if at is not None and at <= end), default=None)
        if due is None:
            return
        clock.advance(due)
        tick()
        settle()


class Run:
    """The result of a timed run: the seconds, the cluster and the scheduler."""

    def __init__(self, seconds: float, cluster: MemoryCluster, scheduler: Scheduler) -> None:
        self.seconds = seconds
        self.cluster = cluster
        self.scheduler = scheduler

    @property
    def bound(self) -> int:
        """The number of pods that were bound."""
        return self.scheduler.statistics.bound


def run(
    cluster_objects: Iterable[ApiObject],
    pods: Iterable[ApiObject],
    controllers: Iterable[Callable[[MemoryCluster], object]] = (),
) -> Run:
    """Create a cluster, then time the pods from their creation until no more can be placed.

    :param controllers: called with the cluster before its objects are created.
    """
    cluster = MemoryCluster()
    scheduler = Scheduler(cluster, default_profiles())
    for controller in controllers:
        controller(cluster)
    for obj in cluster_objects:
        cluster.create(obj)
    cluster.deliver()
    while scheduler.step():
        cluster.deliver()
    waiting = list(pods)
    collect_rarely()
    started = time.perf_counter()
    for pod in waiting:
        cluster.create(pod)
    cluster.deliver()
    while scheduler.step():
        cluster.deliver()
    return Run(time.perf_counter() - started, cluster, scheduler)
