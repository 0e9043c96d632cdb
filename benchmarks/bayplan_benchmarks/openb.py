"""The openb trace: shares of GPUs that arrive one by one until the cluster is full.

The trace is of a production cluster (alibaba/clusterdata, cluster-trace-gpu-v2023). Its pods go the
normal way through the scheduler: nodes with Koordinator's Devices, pods with its resources, a
profile with GPUFragmentation. Nothing ends, and a pod that does not fit is never tried again, as in
"Beware of Fragmentation" (USENIX ATC 2023), whose figures these compare with.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from msgspec.structs import replace

from bayplan.api import ApiObject, Container, ObjectMeta, Pod, PodSpec, Quantity
from bayplan.api.gpu_shares import WHOLE
from bayplan.api.meta import OwnerReference
from bayplan.api.objects import decode_part
from bayplan.api.pod import ResourceRequirements
from bayplan.benchmark import Benchmark, BenchmarkResult, TraceRun
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.errors import InputError, did_you_mean
from bayplan.garbage import collect_rarely
from bayplan.profiles.loading import ProfileSet, load_profiles
from bayplan.scheduler.scheduler import Scheduler
from bayplan_benchmarks.openb_trace import (
    Trace,
    TraceNode,
    TracePod,
    is_at_100,
    is_at_130,
    read_trace,
)
from bayplan_benchmarks.shares import koordinator_node
from bayplan_plugins.gpu_fragmentation.plugin import GPUFragmentationArgs

__all__ = ["openb"]

_MODEL = "nvidia.com/gpu.product"
_CORE = "koordinator.sh/gpu-core"
_RATIO = "koordinator.sh/gpu-memory-ratio"
_GPU_MEMORY = 16 << 30
_PODS = 1001
_PER_PERCENT = 10
_FULL = 100
_DAY = 86_400.0
_SLOTS = ("NodeAffinity", "NodeResourcesFit", "GPUFragmentation", "DeviceShare", "PrioritySort")


# As objects of a cluster ---------------------------------------------------------------------


def _objects(nodes: Sequence[TraceNode], rank: Sequence[int]) -> Iterator[ApiObject]:
    """Yield the nodes; their names begin with their rank, by which equal scores are decided."""
    for place, node in enumerate(nodes):
        name = f"{rank[place]:04d}-{node.name}"
        amounts = {
            "cpu": Quantity(f"{node.cpu}m"),
            "memory": Quantity(f"{node.memory}Mi"),
            "pods": Quantity(str(_PODS)),
        }
        labels = {_MODEL: node.model, "kubernetes.io/hostname": name}
        yield from koordinator_node(name, node.gpus, amounts, labels, _GPU_MEMORY)


def _spec(pod: TracePod) -> PodSpec:
    requests = {"cpu": Quantity(f"{pod.cpu}m"), "memory": Quantity(f"{pod.memory}Mi")}
    if pod.gpus:
        percent = Quantity(str(pod.total // _PER_PERCENT))
        requests |= {_CORE: percent, _RATIO: percent}
    resources = ResourceRequirements(requests, requests)
    spec: dict[str, Any] = {}
    if pod.models:
        match = {"key": _MODEL, "operator": "In", "values": pod.models.split("|")}
        terms = [{"matchExpressions": [match]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    made = decode_part(PodSpec, spec | {"containers": [{"name": "main", "image": "trace"}]})
    own = Container("main", "trace", resources)
    return PodSpec(
        containers=(own,),
        affinity=made.affinity,
        scheduler_name="openb",
        termination_grace_period_seconds=0,
    )


def _profile(run: TraceRun, pods: Sequence[TracePod]) -> ProfileSet:
    """Return the profile: what a pod needs, and one policy."""
    args: dict[str, Any] = {"policy": run.policy}
    if run.moves:
        args["repack"] = {"movesPerHour": run.moves}
    if not run.learned:
        counted = Counter((one.cpu, one.gpus, one.compute, one.models) for one in pods)
        args["workload"] = [
            {
                "cpu": f"{cpu}m",
                "gpus": gpus,
                "gpuMilli": compute,
                "models": models.split("|") if models else [],
                "count": count,
            }
            for (cpu, gpus, compute, models), count in counted.items()
        ]
    scores = {
        "disabled": [{"name": "*"}],
        "enabled": [{"name": "GPUFragmentation", "weight": 1000}],
    }
    profile = {
        "schedulerName": "openb",
        "plugins": {
            "multiPoint": {
                "disabled": [{"name": "*"}],
                "enabled": [{"name": name} for name in _SLOTS],
            },
            "score": scores,
        },
        "pluginConfig": [{"name": "GPUFragmentation", "args": args}],
    }
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [profile],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "openb.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        return load_profiles(path)


# The run -------------------------------------------------------------------------------------


def _run_seed(trace: Trace, run: TraceRun) -> BenchmarkResult:
    order = trace.order(run.seed)
    cluster = MemoryCluster()
    scheduler = Scheduler(cluster, _profile(run, trace.pods))
    for obj in _objects(trace.nodes, order["node_rank"]):
        cluster.create(obj)
    cluster.deliver()
    scheduler.step()
    specs = [_spec(pod) for pod in trace.pods]
    collect_rarely()
    started = time.perf_counter()
    arrivals = _Arrivals(cluster, scheduler, [specs[place] for place in order["pods"]])
    arrivals.run(over=_DAY if run.moves else 0.0)
    seconds = time.perf_counter() - started
    result = _result(trace, order["pods"], arrivals.bound(), seconds, run.seed)
    return replace(result, figures={**result.figures, **_moves(scheduler)}) if run.moves else result


class _Arrivals:
    """Pods that come one by one; one that is moved is made again at once."""

    def __init__(
        self, cluster: MemoryCluster, scheduler: Scheduler, specs: Sequence[PodSpec]
    ) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._specs = specs
        self._made_again = 0

    def run(self, over: float) -> None:
        """Let all pods come.

        :param over: within how many virtual seconds; with 0, time stands still.
        """
        clock = self._cluster.clock
        for number in range(len(self._specs)):
            if over:
                clock.advance(over * number / len(self._specs))
            self._create(number, 0)
            self._settle()

    def _create(self, number: int, made_again: int) -> None:
        name = f"pod-{number}"
        owner = OwnerReference("ReplicaSet", name, name, "apps/v1", controller=True)
        meta = ObjectMeta(
            name=f"{name}-{made_again}", namespace="default", owner_references=(owner,)
        )
        self._cluster.create(Pod(meta, self._specs[number]))

    def _settle(self) -> None:
        evicted = self._scheduler.evictor.evicted
        while True:
            self._cluster.deliver()
            while self._scheduler.step():
                self._cluster.deliver()
            self._cluster.deliver()
            if self._made_again == len(evicted):
                return
            for eviction in islice(evicted, self._made_again, None):
                _, number, before = eviction.pod.rsplit("-", 2)
                self._create(int(number), int(before) + 1)
            self._made_again = len(evicted)

    def bound(self) -> set[int]:
        """Return which of the arrivals have a node."""
        placed = (pod for pod in self._cluster.list(Pod) if pod.spec.node_name)
        return {int(pod.metadata.name.rsplit("-", 2)[1]) for pod in placed}


def _moves(scheduler: Scheduler) -> dict[str, float]:
    """Return how many pods were moved, and how many GPUs each move freed, by its own measure."""
    reported = [one.reason for one in scheduler.evictor.evicted]
    gains = [float(text.rsplit("it frees ", 1)[1].split()[0]) for text in reported]
    return {"moves": len(gains), "freedGpusPerMove": _mean(gains)}


def _result(
    trace: Trace, order: Sequence[int], bound: set[int], seconds: float, seed: int
) -> BenchmarkResult:
    """Return the figures: percent of all GPUs that are given out, and the GPUs refused to pods.

    ``At100`` is the mean over the arrivals at which 99.5 to 100.5 % of the cluster's GPUs have
    been asked for, ``At130`` over those from 129.5 % on. Losses are counted up to 100 % of
    arrivals, in GPUs (of pods without GPUs: in CPUs), by how many GPUs a pod asks for.
    ``firstRefusedAt`` is the percent asked for when the first pod with GPUs found no node.
    """
    allocated = 0
    lost: dict[str, Counter[str]] = {
        "lostGpusByClass": Counter(),
        "lostGpusByClassAt130": Counter(),
    }
    at_100: list[float] = []
    at_130: list[float] = []
    refused_at = math.inf
    for number, (place, percent) in enumerate(zip(order, trace.asked_for(order), strict=True)):
        pod = trace.pods[place]
        if number in bound:
            allocated += pod.total
        else:
            refused_at = min(refused_at, percent) if pod.gpus else refused_at
            for name, counts in lost.items():
                if percent <= _FULL or name != "lostGpusByClass":
                    counts[pod.kind] += pod.total or pod.cpu
        given = round(100 * allocated / trace.capacity, 2)
        if is_at_100(percent):
            at_100.append(given)
        if is_at_130(percent):
            at_130.append(given)
    figures: dict[str, float | dict[str, float]] = {
        "allocationAt100": _mean(at_100),
        "allocationAt130": _mean(at_130),
        **({"firstRefusedAt": round(refused_at, 3)} if refused_at < math.inf else {}),
        "seconds": round(seconds, 2),
        "podsPerSecond": round(len(order) / seconds, 1),
        **{
            name: {kind: counts[kind] / WHOLE for kind in sorted(counts)}
            for name, counts in lost.items()
        },
    }
    return BenchmarkResult({"seed": seed, "nodes": len(trace.nodes), "pods": len(order)}, figures)


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 3) if values else 0.0


def _trace(run: TraceRun) -> BenchmarkResult:
    known = get_args(GPUFragmentationArgs.model_fields["policy"].annotation)
    chosen = replace(run, policy=run.policy or "LeastStranded")
    if chosen.policy not in known:
        near = did_you_mean(chosen.policy, known)
        raise InputError(f'there is no policy "{chosen.policy}"{near}', "--policy")
    return _run_seed(read_trace(run.folder), chosen)


def _no_sizes(nodes: int, pods: int) -> BenchmarkResult:
    raise InputError('the benchmark "openb" has the size of its trace', "--nodes")


openb = Benchmark(
    "shares of GPUs of a production trace, by one policy (--trace, --policy, --seed, --learned)",
    (),
    42,
    _no_sizes,
    run_trace=_trace,
)
