"""GPUs by topology: selections on one machine, one decision over many nodes, a stream of pods.

The machines are known ones, and the nvidia-smi tables of ``../shared/fixtures/nvidia-smi-topo`` if
that folder exists.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import click
import numpy as np
from msgspec.structs import replace

from bayplan.api import Container, Node, Pod, PodSpec, Quantity
from bayplan.api.gpus import GPUS
from bayplan.api.node import NodeStatus
from bayplan.api.pod import ResourceRequirements
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.profiles.loading import default_profiles
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import PodInfo
from bayplan.topology.machine.bandwidth import inter_socket, nvlink, pcie
from bayplan.topology.machine.builder import MachineBuilder
from bayplan.topology.machine.model import Gpu, Machine, Nic
from bayplan.topology.machine.readers.machinefile import known_machine, known_machines
from bayplan.topology.machine.readers.smi import read_smi
from bayplan.topology.machine.select import NoSelection, SelectionRequest, select
from bayplan_benchmarks.workloads import figures, make_node, make_pod, run
from bayplan_plugins.gpu_topology.plugin import GPUTopology

__all__ = ["topology"]

_TABLES = Path("../shared/fixtures/nvidia-smi-topo")
_GPU = "nvidia.com/gpu"
_STATES = 20
_ROUNDS = 9


def sixteen(nics: int, bridged: bool = False) -> Machine:
    """Return 16 GPUs on NVSwitches with 8 or 16 NICs, two GPUs or one to each.

    With ``bridged``, neighbours have different numbers of NVLinks instead, so all GPUs differ.
    """
    builder = MachineBuilder("sixteen", nvlink(2), inter_socket("skylake"))
    for socket in (0, 1):
        builder.socket(f"socket {socket}")
        builder.numa(f"numa {socket}", f"socket {socket}", socket)
    for index in range(nics):
        builder.root(f"root {index}", f"numa {index * 2 // nics}")
        builder.switch(f"switch {index}", f"root {index}", pcie(3))
    for gpu in range(16):
        switch = gpu * nics // 16
        builder.gpu(Gpu(gpu, numa=gpu // 8), f"switch {switch}", pcie(3))
        if not bridged:
            builder.nvswitch(gpu, 6)
    for index in range(nics):
        nic = Nic(index, f"mlx5_{index}", rate=100.0, rail=index)
        builder.nic(nic, f"switch {index}", pcie(3))
    for gpu in range(16) if bridged else ():
        builder.nvlink(gpu, (gpu + 1) % 16, 1 + gpu % 3)
    return builder.build()


def fixtures() -> list[Machine]:
    """Return the known machines, and those of the nvidia-smi tables if these exist."""
    found = [known_machine(name) for name in known_machines()]
    if _TABLES.is_dir():
        found += [read_smi(path) for path in sorted(_TABLES.glob("*.txt"))]
    else:
        click.echo(f"note: {_TABLES} does not exist: its tables are left out", err=True)
    return found


def milliseconds(make: Callable[[], Machine], count: int) -> float:
    """Return the median milliseconds of one selection on a new machine, without caches."""
    times = []
    for _ in range(_ROUNDS):
        machine = make()
        started = time.perf_counter()
        found = select(machine, range(len(machine)), SelectionRequest(count))
        times.append((time.perf_counter() - started) * 1e3)
        assert not isinstance(found, NoSelection)
    return median(times)


def every_count() -> tuple[float, int]:
    """Select every count on every fixture; return the seconds and the number of selections."""
    machines = fixtures()
    started = time.perf_counter()
    done = 0
    for machine in machines:
        for count in range(1, len(machine) + 1):
            select(machine, range(len(machine)), SelectionRequest(count))
            done += 1
    return time.perf_counter() - started, done


def gpu_node(index: int, machine: str) -> Node:
    """Return a node of 8 GPUs with a known machine."""
    node = make_node(index, cpu="192", memory="2Ti")
    labels = {**node.metadata.labels, "bayplan.dev/machine": machine}
    amounts = {**node.status.allocatable, _GPU: Quantity(8)}
    meta = replace(node.metadata, labels=labels)
    return replace(node, metadata=meta, status=NodeStatus(amounts, amounts))


def gpu_pod(name: str, count: int) -> Pod:
    """Return a pod that requests ``count`` GPUs."""
    requests = {"cpu": Quantity(count), "memory": Quantity("8Gi"), _GPU: Quantity(count)}
    container = Container("main", "registry.k8s.io/pause:3.10", ResourceRequirements(requests))
    return make_pod(name, PodSpec(containers=(container,)))


def one_decision(nodes: int) -> dict[str, float]:
    """Time Filter and Score of GPUTopology for one pod, with 20 different sets of free GPUs.

    The first decision reads all nodes and solves each set; before each later decision, a pod is
    added to a node.
    """
    cluster = MemoryCluster()
    scheduler = Scheduler(cluster, default_profiles())
    draw = random.Random(3)  # noqa: S311 - which GPUs are busy, not secrets
    busy = _busy_sets(draw)
    for index in range(nodes):
        cluster.create(gpu_node(index, "dgx-1v"))
        gpus = busy[index % _STATES]
        if gpus:
            pod = gpu_pod(f"busy-{index}", len(gpus))
            named = {GPUS: ",".join(str(gpu) for gpu in gpus)}
            meta = replace(pod.metadata, annotations=named)
            spec = replace(pod.spec, node_name=f"node-{index}")
            cluster.create(replace(pod, metadata=meta, spec=spec))
    cluster.deliver()
    scheduler.step()
    (profile,) = scheduler.profiles.values()
    plugin = profile.runtime.plugins["GPUTopology"]
    assert isinstance(plugin, GPUTopology)
    info = PodInfo(gpu_pod("new", 3))
    view = scheduler.snapshot.view()
    times = []
    for turn in range(_ROUNDS + 1):
        started = time.perf_counter()
        list(plugin.filter(info, view))
        scores = plugin.score(info, view)
        times.append((time.perf_counter() - started) * 1e3)
        scheduler.snapshot.add_pod(PodInfo(gpu_pod(f"turn-{turn}", 1)), f"node-{turn * _STATES}")
    assert len(np.unique(scores)) > 1
    return {"firstDecisionMs": times[0], "decisionMs": median(times[1:])}


def _busy_sets(draw: random.Random) -> list[tuple[int, ...]]:
    """Return 20 different sets of busy GPUs; the first is empty."""
    found: dict[tuple[int, ...], None] = {(): None}
    while len(found) < _STATES:
        found[tuple(sorted(draw.sample(range(8), draw.randint(1, 6))))] = None
    return list(found)


def _stream(nodes: int, pods: int) -> dict[str, float]:
    draw = random.Random(5)  # noqa: S311 - sizes of pods, not secrets
    sizes: Iterable[int] = (draw.choice((1, 1, 2, 2, 4, 8)) for _ in range(pods))
    done = run(
        (gpu_node(index, ("dgx-1v", "dgx-h100")[index % 2]) for index in range(nodes)),
        [gpu_pod(f"pod-{index}", size) for index, size in enumerate(sizes)],
    )
    return figures(done)


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    seconds, selections = every_count()
    found = {
        "eightOf16Ms": milliseconds(lambda: sixteen(8), 8),
        "eightOf16OneNicEachMs": milliseconds(lambda: sixteen(16), 8),
        "eightOf16AllDifferentMs": milliseconds(lambda: sixteen(8, bridged=True), 8),
        "everyCountMs": seconds * 1e3,
        "everyCountSelections": float(selections),
        **one_decision(nodes),
        **_stream(min(nodes, 1000), pods),
    }
    given = {"nodes": nodes, "gpusPerNode": 8, "states": _STATES, "pods": pods}
    return BenchmarkResult(given, found)


topology = Benchmark(
    "GPUs by topology: sets, one decision, a stream of pods", (5000,), 2000, _measure
)
