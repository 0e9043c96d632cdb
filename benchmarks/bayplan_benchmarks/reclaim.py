"""Reclaim at scale: gangs take back what their queue deserves, from a queue that has all nodes.

Each node has eight GPUs, which one pod of a job of 40 takes. Then gangs of 40 such pods come for
0.75 % of the nodes each, 30 % of the cluster together, to the queue that deserves them.
``reclaimSeconds`` is the time of the scheduler's steps, without its handling of events, until
nobody can be evicted any more and what was evicted has ended; ``longestStepSeconds`` is the longest
of them. Without queues (``plain``) the gangs have a higher priority instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from bayplan.api import (
    ApiObject,
    KaiPodGroup,
    KaiQueue,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
    VolcanoPodGroup,
    VolcanoQueue,
)
from bayplan.api.podgroup import KaiPodGroupSpec, VolcanoPodGroupSpec
from bayplan.api.queue_objects import (
    KaiQueueResource,
    KaiQueueResources,
    KaiQueueSpec,
    VolcanoQueueSpec,
)
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.cluster.embedded.kubelet import VirtualKubelet
from bayplan.errors import InputError
from bayplan_benchmarks.gang import pod_group
from bayplan_benchmarks.queues import gpu_node, started
from bayplan_benchmarks.workloads import container, pass_time

__all__ = ["reclaim"]

_GANG = 40
_GPUS = 8
_GANGS_PER_NODE = 0.0075
_SECONDS = 200.0
"""Virtual time for the evictions and what follows."""
_GPU = "nvidia.com/gpu"


class _System(msgspec.Struct, frozen=True):
    """How a system names queues and jobs.

    :param queue: makes a queue of a name that deserves so many nodes.
    :param group: makes the pod group of a name in a queue.
    :param annotation: the annotation, or label, of a pod that names its group.
    """

    settings: Mapping[str, object]
    queue: Callable[[str, int], Iterator[ApiObject]]
    group: Callable[[str, str], ApiObject]
    annotation: str
    priority: int = 0


def _kai_queue(name: str, nodes: int) -> Iterator[ApiObject]:
    free, gpus = KaiQueueResource(-1, 1, -1), KaiQueueResource(nodes * _GPUS, 1, -1)
    yield KaiQueue(
        ObjectMeta(name=name), KaiQueueSpec(resources=KaiQueueResources(gpus, free, free))
    )


def _volcano_queue(name: str, nodes: int) -> Iterator[ApiObject]:
    deserved = {
        _GPU: Quantity(str(nodes * _GPUS)),
        "cpu": Quantity(str(nodes)),
        "memory": Quantity(f"{nodes}Gi"),
    }
    yield VolcanoQueue(ObjectMeta(name=name), VolcanoQueueSpec(deserved=deserved, reclaimable=True))


def _no_queue(name: str, nodes: int) -> Iterator[ApiObject]:
    yield from ()


def _meta(name: str) -> ObjectMeta:
    return ObjectMeta(name=name, namespace="bench")


_SYSTEMS = {
    "kai": _System(
        {"kai": {"actions": ("allocate", "consolidation", "reclaim", "preempt")}},
        _kai_queue,
        lambda name, queue: KaiPodGroup(_meta(name), KaiPodGroupSpec(_GANG, queue)),
        "pod-group-name",
    ),
    "volcano": _System(
        {"volcano": {"policy": "capacity", "actions": "enqueue, allocate, preempt, reclaim"}},
        _volcano_queue,
        lambda name, queue: VolcanoPodGroup(_meta(name), VolcanoPodGroupSpec(_GANG, queue=queue)),
        "scheduling.k8s.io/group-name",
    ),
    "plain": _System(
        {},
        _no_queue,
        lambda name, queue: pod_group(name, _GANG),
        "pod-group.scheduling.sigs.k8s.io",
        priority=1000,
    ),
}


class _World:
    """A cluster whose nodes are all lent, and its scheduler."""

    def __init__(self, system: _System, nodes: int) -> None:
        self._system = system
        owned = int(nodes * _GANGS_PER_NODE) * _GANG
        queues = [*system.queue("lender", nodes - owned), *system.queue("owner", owned)]
        self.cluster, self.scheduler = started(
            [*queues, *map(gpu_node, range(nodes))], system.settings
        )
        VirtualKubelet(self.cluster)
        self.seconds = self.longest = 0.0
        for index in range(nodes // _GANG):
            self.submit(f"lent-{index}", "lender", 0)
        self.run_for(0.0)

    def submit(self, name: str, queue: str, priority: int) -> None:
        """Create a gang."""
        self.cluster.create(self._system.group(name, queue))
        main = container("1", "1Gi")
        requests = {**main.resources.requests, _GPU: Quantity(str(_GPUS))}
        main = type(main)(main.name, main.image, type(main.resources)(requests))
        spec = PodSpec(containers=(main,), priority=priority)
        label = {self._system.annotation: name}
        for index in range(_GANG):
            meta = ObjectMeta(
                name=f"{name}-{index}", namespace="bench", labels=label, annotations=label
            )
            self.cluster.create(Pod(meta, spec))

    def run_for(self, seconds: float) -> None:
        """Let virtual time pass; measure the scheduler's steps."""
        pass_time(self.cluster, self.scheduler, seconds, self._settle, self.scheduler.tick)

    def _settle(self) -> None:
        busy = True
        while busy:
            self.cluster.deliver()
            begun = time.perf_counter()
            busy = self.scheduler.step()
            took = time.perf_counter() - begun
            self.seconds, self.longest = self.seconds + took, max(self.longest, took)
            busy = self.cluster.deliver() or busy


def _play(system: _System, nodes: int) -> dict[str, float]:
    world = _World(system, nodes)
    full = world.scheduler.statistics.bound
    assert full == nodes // _GANG * _GANG, f"{full} pods fill {nodes} nodes"
    world.seconds = world.longest = 0.0
    count = int(nodes * _GANGS_PER_NODE)
    for index in range(count):
        world.submit(f"owned-{index}", "owner", system.priority)
    world.run_for(_SECONDS)
    placed = world.scheduler.statistics.bound - full
    assert placed == count * _GANG, f"{placed} of {count * _GANG} pods got their nodes"
    return {
        "reclaimSeconds": round(world.seconds, 3),
        "longestStepSeconds": round(world.longest, 4),
        "evictedPods": len(world.scheduler.evictor.evicted),
    }


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    if pods:
        raise InputError("every node gets a pod, so their number follows from --nodes", "--pods")
    if nodes * _GANGS_PER_NODE < 1:
        raise InputError("expected 134 nodes or more, for one gang", "--nodes")
    played = {name: _play(system, nodes) for name, system in _SYSTEMS.items()}
    names = next(iter(played.values()))
    figures = {name: {system: found[name] for system, found in played.items()} for name in names}
    return BenchmarkResult({"nodes": nodes, "pods a gang": _GANG}, figures)


reclaim = Benchmark("queues that take back what they deserve, at scale", (2000,), 0, _measure)
