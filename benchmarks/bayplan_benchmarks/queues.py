"""Queues: jobs of all sizes in many queues until the cluster is full, then cycles without effect.

At 1,000 nodes of 8 GPUs: 10,000 pending jobs of 1 to 64 pods in 100 queues of KAI.
``podsPerSecond`` counts until nothing more can be placed, ``idleCycleMilliseconds`` is a pass over
all waiting jobs that admits nothing, ``divisionMilliseconds`` the division of a cluster over 1,000
queues in 4 levels and 5 resources, ``reclaimSeconds`` a gang of 128 pods that takes its share back
from 20 queues, ``consolidationSeconds`` a pod for which another one has to move.
``volcanoPodsPerSecond`` counts the same jobs in queues of Volcano, their admission included.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping

import numpy as np
from msgspec.structs import replace

from bayplan.api import (
    ApiObject,
    KaiPodGroup,
    KaiQueue,
    Namespace,
    Node,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
)
from bayplan.api.node import NodeStatus
from bayplan.api.podgroup import KaiPodGroupSpec
from bayplan.api.queue import Queue, Share
from bayplan.api.queue_objects import KaiQueueResource, KaiQueueResources, KaiQueueSpec
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.garbage import collect_rarely
from bayplan.profiles.loading import default_profiles
from bayplan.queues.tree import QueueTree
from bayplan.scheduler.scheduler import Scheduler
from bayplan_benchmarks.volcano_queues import jobs_in_queues
from bayplan_benchmarks.workloads import container, make_pod
from bayplan_plugins.queues.division import Division
from bayplan_plugins.queues.policies import QueuesArgs

__all__ = ["gpu_node", "queues", "started"]

_GPUS = 8
_QUEUES = 100
_SIZES = 64
_GANG = 128
_ACTIONS = ("allocate", "consolidation", "reclaim", "preempt", "stalegangeviction")
_IDLE_PASSES = 5
_ANY = KaiQueueResource(-1, 1, -1)


def gpu_node(index: int) -> Node:
    """Return a node with eight GPUs."""
    name = f"node-{index}"
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(_GPUS)}
    quantities = {key: Quantity(value) for key, value in amounts.items()}
    meta = ObjectMeta(name=name, labels={"kubernetes.io/hostname": name})
    return Node(meta, status=NodeStatus(quantities, quantities))


def _queue(name: str, quota: float, parent: str = "all") -> KaiQueue:
    gpu = KaiQueueResource(quota, 1, -1)
    spec = KaiQueueSpec(parent_queue=parent, resources=KaiQueueResources(gpu, _ANY, _ANY))
    return KaiQueue(ObjectMeta(name=name), spec)


def _job(name: str, queue: str, size: int, node: str = "", gpus: int = 1) -> list[ApiObject]:
    meta = ObjectMeta(name=name, namespace="bench")
    return [KaiPodGroup(meta, KaiPodGroupSpec(size, queue)), *_pods(name, size, node, gpus)]


def _pods(name: str, size: int, node: str, gpus: int) -> list[Pod]:
    one = container("1", "1Gi")
    requests = {**one.resources.requests, "nvidia.com/gpu": Quantity(str(gpus))}
    resources = type(one.resources)(requests)
    main = type(one)(one.name, one.image, resources)
    spec = PodSpec(containers=(main,), node_name=node)
    pods = []
    for index in range(size):
        pod = make_pod(f"{name}-{index}", spec)
        annotated = ObjectMeta(
            name=pod.metadata.name, namespace="bench", annotations={"pod-group-name": name}
        )
        pods.append(Pod(annotated, spec))
    return pods


def _full(nodes: int, jobs: int) -> tuple[Scheduler, MemoryCluster, float]:
    """Place pending jobs of 1 to 64 pods from 100 queues; return the seconds until full."""
    sizes = random.Random(0)  # noqa: S311 - only sizes
    quota = nodes * _GPUS / _QUEUES
    objects: list[ApiObject] = [_queue("all", -1, ""), *map(gpu_node, range(nodes))]
    objects += [_queue(f"queue-{index}", quota) for index in range(_QUEUES)]
    for index in range(jobs):
        objects += _job(f"job-{index}", f"queue-{index % _QUEUES}", sizes.randint(1, _SIZES))
    cluster, scheduler = started(objects, {"kai": {"actions": ("allocate",)}})
    return scheduler, cluster, _seconds_until_full(scheduler, cluster, nodes)


def _seconds_until_full(scheduler: Scheduler, cluster: MemoryCluster, nodes: int) -> float:
    started = time.perf_counter()
    while scheduler.statistics.bound < nodes * _GPUS and scheduler.step():
        cluster.deliver()
    return time.perf_counter() - started


def _volcano_pods_per_second(nodes: int, jobs: int) -> float:
    """Return how fast the same jobs are admitted and placed in queues of Volcano."""
    objects = [*map(gpu_node, range(nodes)), *jobs_in_queues(jobs, _QUEUES, _SIZES, nodes * _GPUS)]
    cluster, scheduler = started(objects, {"volcano": {"policy": "capacity"}})
    seconds = _seconds_until_full(scheduler, cluster, nodes)
    return scheduler.statistics.bound / seconds


def started(
    objects: Iterable[ApiObject], settings: Mapping[str, object] | None = None
) -> tuple[MemoryCluster, Scheduler]:
    """Return a cluster of these objects, and a scheduler that has decided nothing yet.

    :param settings: the arguments of Queues; None for all actions of KAI.
    """
    given = settings if settings is not None else {"kai": {"actions": _ACTIONS}}
    cluster = MemoryCluster()
    profiles = default_profiles()
    first = profiles.profiles[0]
    args = {**first.args, "Queues": QueuesArgs.model_validate(given)}
    scheduler = Scheduler(cluster, replace(profiles, profiles=(replace(first, args=args),)))
    for obj in objects:
        cluster.create(obj)
    cluster.deliver()
    collect_rarely()
    return cluster, scheduler


def _settled(cluster: MemoryCluster, scheduler: Scheduler) -> float:
    """Return the seconds until nothing is left to do at this instant."""
    started = time.perf_counter()
    while scheduler.step():
        cluster.deliver()
    return time.perf_counter() - started


def _idle_milliseconds(scheduler: Scheduler, cluster: MemoryCluster) -> float:
    """Return the time of a pass over all waiting jobs after an object came that helps none."""
    seconds = []
    for index in range(_IDLE_PASSES):
        cluster.create(Namespace(ObjectMeta(name=f"other-{index}")))
        cluster.clock.advance(cluster.now + 10.0)
        cluster.deliver()
        seconds.append(_settled(cluster, scheduler))
    return 1000 * min(seconds)


def _reclaim_seconds(nodes: int) -> float:
    """Return the time of a gang of 128 pods that takes its share back from 20 queues.

    The 20 queues use the whole cluster, in jobs of 8 pods; a part of it belongs to the gang's.
    """
    gpus = nodes * _GPUS
    objects: list[ApiObject] = [_queue("all", -1, ""), *map(gpu_node, range(nodes))]
    objects.append(_queue("owner", _GANG))
    objects += [_queue(f"queue-{index}", (gpus - _GANG) / 20) for index in range(20)]
    for index in range(nodes):
        objects += _job(f"job-{index}", f"queue-{index % 20}", _GPUS, f"node-{index}")
    cluster, scheduler = started(objects)
    _settled(cluster, scheduler)
    for obj in _job("gang", "owner", _GANG):
        cluster.create(obj)
    cluster.deliver()
    seconds = _settled(cluster, scheduler)
    evicted = len(scheduler.evictor.evicted)
    assert evicted == _GANG, f"{evicted} pods were evicted for {_GANG}"
    return seconds


def _consolidation_seconds(nodes: int) -> float:
    """Return the time of a pod of 8 GPUs on nodes that each have one pod of 4 GPUs."""
    objects: list[ApiObject] = [_queue("all", -1, ""), *map(gpu_node, range(nodes))]
    objects += [_queue("small", nodes * 4), _queue("large", nodes * 4)]
    for index in range(nodes):
        objects += _job(f"job-{index}", "small", 1, f"node-{index}", gpus=4)
    cluster, scheduler = started(objects)
    _settled(cluster, scheduler)
    for obj in _job("large", "large", 1, gpus=8):
        cluster.create(obj)
    cluster.deliver()
    seconds = _settled(cluster, scheduler)
    assert len(scheduler.evictor.evicted) == 1, "one pod moves"
    return seconds


def _division_milliseconds() -> float:
    """Return the time to divide a cluster over 1,000 queues in 4 levels and 5 resources."""
    chance = np.random.default_rng(0)
    names = [f"r{index}" for index in range(5)]
    queues: list[Queue] = []
    level = [""]
    for depth, children in enumerate((4, 6, 6, 6)):
        level = [f"{parent}/{i}" for parent in level for i in range(children)]
        for name in level[: 1000 - len(queues)]:
            quota = {r: float(chance.integers(0, 1000 // 6**depth + 1)) for r in names}
            queues.append(Queue(name, name.rpartition("/")[0], deserved=Share(quota)))
    tree = QueueTree(queues, names)
    for row in range(len(tree)):
        if tree.is_leaf(row):
            tree.ask(row, chance.integers(0, 50, 5).astype(np.float64))
    total = np.full(5, 10_000.0)
    division = Division(tree)
    seconds = []
    for _ in range(_IDLE_PASSES):
        started = time.perf_counter()
        division.fair_shares(total)
        seconds.append(time.perf_counter() - started)
    return 1000 * min(seconds)


def _measure(nodes: int, jobs: int) -> BenchmarkResult:
    scheduler, cluster, seconds = _full(nodes, jobs)
    bound = scheduler.statistics.bound
    _settled(cluster, scheduler)
    figures = {
        "podsPerSecond": round(bound / seconds, 1),
        "bound": float(bound),
        "volcanoPodsPerSecond": round(_volcano_pods_per_second(nodes, jobs), 1),
        "idleCycleMilliseconds": round(_idle_milliseconds(scheduler, cluster), 2),
        "divisionMilliseconds": round(_division_milliseconds(), 2),
        "reclaimSeconds": round(_reclaim_seconds(nodes), 3),
        "consolidationSeconds": round(_consolidation_seconds(nodes), 3),
    }
    return BenchmarkResult({"nodes": nodes, "jobs": jobs, "queues": _QUEUES}, figures)


queues = Benchmark("jobs in queues, until full and beyond", (1000,), 10_000, _measure)
