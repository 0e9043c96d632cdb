"""How near the members of random gangs are placed, on network models and with training job sizes.

The models are two of our own, and those of topograph if ``../shared/fixtures/topograph`` exists.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import click

from bayplan.api import ApiObject, Container, Node, Pod, PodSpec
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.manifests import load_manifests
from bayplan.plugin.hookspecs import BoolColumn
from bayplan.profiles.loading import default_profiles
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot.networks import Networks
from bayplan.topology.network.tree import NetworkTree
from bayplan_benchmarks.gang import network, pod_group
from bayplan_benchmarks.workloads import container, make_node, make_pod

__all__ = ["JobStream", "models", "nearness", "run_jobs"]

_MODELS = Path("../shared/fixtures/topograph")
_SIZES = (1, 2, 2, 4, 4, 8, 8, 16)
_LABEL = "pod-group.scheduling.sigs.k8s.io"


class JobStream:
    """The counts of a stream of random gangs on one model, one after the other.

    ``nearest`` counts the jobs in the smallest domain that had room when they came, ``broken``
    those that run in part or span domains of a required layer.
    """

    def __init__(self) -> None:
        self.placed = 0
        self.nearest = 0
        self.broken = 0
        self.pods = 0
        self.seconds = 0.0


def models(nodes: int) -> Iterator[tuple[str, list[ApiObject]]]:
    """Yield clusters by name: a regular tree, an irregular tree, and topograph's models."""
    layers = network(SpineLayer="net/spine", BlockLayer="net/block")
    regular = [
        make_node(i, net__spine=f"s{i // 32}", net__block=f"b{i // 8}") for i in range(nodes)
    ]
    yield "regular", [layers, *regular]
    draw = random.Random(7)  # noqa: S311 - sizes of blocks, not secrets
    irregular: list[Node] = []
    block = 0
    while len(irregular) < nodes:
        for _ in range(min(draw.randint(2, 12), nodes - len(irregular))):
            labels = {"net__spine": f"s{block // 5}", "net__block": f"b{block}"}
            irregular.append(make_node(len(irregular), **labels))
        block += 1
    yield "irregular", [layers, *irregular]
    if not _MODELS.is_dir():
        click.echo(f"note: {_MODELS} does not exist: topograph's models are left out", err=True)
        return
    for path in sorted(_MODELS.glob("*.yaml")):
        yield path.stem, list(load_manifests([str(path)]).objects)


def run_jobs(cluster_objects: list[ApiObject], jobs: int, seed: int = 0) -> JobStream:
    """Let random jobs come and go on a cluster, and count how near their members are."""
    draw = random.Random(seed)  # noqa: S311 - a workload, not secrets
    cluster = MemoryCluster(seed)
    scheduler = Scheduler(cluster, default_profiles())
    for obj in cluster_objects:
        cluster.create(obj)
    cluster.deliver()
    scheduler.step()
    tree = Networks.of(scheduler.snapshot).trees()["default"]
    layers = list(tree.layers)
    stream = JobStream()
    running: list[tuple[str, int]] = []
    started = time.perf_counter()
    for number in range(jobs):
        name, size = f"job-{number}", draw.choice(_SIZES)
        strategies = dict.fromkeys(layers, "PreferGather")
        border = draw.choice([*layers, None, None])
        if border is not None:
            strategies[border] = "MustGather"
        smallest = _smallest_layer(tree, _free(scheduler), size)
        cluster.create(pod_group(name, size, **strategies))
        for index in range(size):
            spec = PodSpec(containers=(_whole_node(scheduler),))
            cluster.create(make_pod(f"{name}-{index}", spec, {_LABEL: name}))
        _settle(cluster, scheduler)
        rows = _rows_of(scheduler, cluster, name, size)
        if rows:
            running.append((name, size))
            depth = _depth_of(tree, rows)
            stream.placed += 1
            stream.pods += len(rows)
            stream.nearest += depth >= smallest
            outside = border is not None and depth < layers.index(border) + 1
            stream.broken += outside or len(rows) != size
        else:
            _remove(cluster, name, size)
        while running and draw.random() < 0.45:
            _remove(cluster, *running.pop(draw.randrange(len(running))))
            _settle(cluster, scheduler)
    stream.seconds = time.perf_counter() - started
    return stream


def _whole_node(scheduler: Scheduler) -> Container:
    offered = int(scheduler.snapshot.nodes.allocatable("cpu").max())
    return container(f"{offered}m", "1Gi")


def _settle(cluster: MemoryCluster, scheduler: Scheduler) -> None:
    cluster.deliver()
    while scheduler.step():
        cluster.deliver()


def _remove(cluster: MemoryCluster, name: str, size: int) -> None:
    for index in range(size):
        cluster.delete(Pod, f"bench/{name}-{index}", grace=0)
    cluster.deliver()


def _free(scheduler: Scheduler) -> BoolColumn:
    free: BoolColumn = scheduler.snapshot.nodes.used("pods") == 0
    return free


def _rows_of(scheduler: Scheduler, cluster: MemoryCluster, name: str, size: int) -> list[int]:
    pods = (cluster.get(Pod, f"bench/{name}-{index}") for index in range(size))
    rows = scheduler.snapshot.nodes.row_of
    return [rows[pod.spec.node_name] for pod in pods if pod is not None and pod.spec.node_name]


def _smallest_layer(tree: NetworkTree, free: BoolColumn, size: int) -> int:
    """Return the depth of the innermost layer with a domain of ``size`` free nodes, else 0."""
    best = 0
    for depth, layer in enumerate(tree.layers, start=1):
        if any(int(free[domain.rows].sum()) >= size for domain in tree.layers[layer]):
            best = depth
    return best


def _depth_of(tree: NetworkTree, rows: list[int]) -> int:
    depth = 0
    wanted = set(rows)
    for level, layer in enumerate(tree.layers, start=1):
        if any(wanted <= set(domain.rows.tolist()) for domain in tree.layers[layer]):
            depth = level
    return depth


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    found: dict[str, float] = {}
    placed = broken = 0
    seconds = 0.0
    bound = 0
    for name, objects in models(nodes):
        stream = run_jobs(objects, pods)
        found[f"{name}.inSmallestDomain"] = round(stream.nearest / max(1, stream.placed), 4)
        found[f"{name}.jobs"] = stream.placed
        placed, broken = placed + stream.placed, broken + stream.broken
        seconds, bound = seconds + stream.seconds, bound + stream.pods
    totals = {"podsPerSecond": round(bound / seconds, 1), "jobs": placed, "broken": broken}
    return BenchmarkResult({"nodes": nodes, "jobs a model": pods}, {**totals, **found})


nearness = Benchmark("how near the members of random gangs are", (256,), 300, _measure)
