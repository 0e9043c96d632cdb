"""Shares of GPUs: pods of eight kinds on nodes of eight GPUs, default profile."""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.api import ApiObject, KoordinatorDevice, Node, ObjectMeta, Pod, PodSpec, Quantity
from bayplan.api.node import NodeStatus
from bayplan.api.objects import decode_part
from bayplan.api.pod import Container, ResourceRequirements
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan_benchmarks.workloads import figures, make_pod, run

__all__ = ["koordinator_node", "shares"]

_CORE = "koordinator.sh/gpu-core"
_RATIO = "koordinator.sh/gpu-memory-ratio"
_MEMORY = "koordinator.sh/gpu-memory"
_GPU_MEMORY = 80 << 30
_GPUS = 8
_KINDS = ((10, 2), (20, 2), (25, 4), (30, 4), (50, 6), (60, 8), (75, 8), (100, 12))
"""Percent of a GPU, and CPUs."""


def koordinator_node(
    name: str, gpus: int, amounts: dict[str, Quantity], labels: dict[str, str], memory: int
) -> Iterator[ApiObject]:
    """Yield a node and the Device object of its GPUs.

    :param amounts: what the node offers besides its GPUs.
    :param memory: of each GPU, in bytes.
    """
    offered = amounts | {
        _CORE: Quantity(str(100 * gpus)),
        _RATIO: Quantity(str(100 * gpus)),
        _MEMORY: Quantity(str(memory * gpus)),
    }
    yield Node(ObjectMeta(name=name, labels=labels), status=NodeStatus(offered, offered))
    gpu = {_CORE: "100", _RATIO: "100", _MEMORY: str(memory)}
    devices = [
        {"type": "gpu", "id": f"{name}-{minor}", "minor": minor, "health": True, "resources": gpu}
        for minor in range(gpus)
    ]
    yield decode_part(KoordinatorDevice, {"metadata": {"name": name}, "spec": {"devices": devices}})


def _objects(nodes: int) -> Iterator[ApiObject]:
    amounts = {"cpu": Quantity("128"), "memory": Quantity("1Ti"), "pods": Quantity("110")}
    for index in range(nodes):
        yield from koordinator_node(f"node-{index}", _GPUS, amounts, {}, _GPU_MEMORY)


def _pod(index: int) -> Pod:
    percent, cpus = _KINDS[index % len(_KINDS)]
    amount = Quantity(str(percent))
    requests = {"cpu": Quantity(str(cpus)), _CORE: amount, _RATIO: amount}
    own = Container("main", "registry.k8s.io/pause:3.10", ResourceRequirements(requests, requests))
    return make_pod(f"pod-{index}", PodSpec(containers=(own,)))


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    done = run(_objects(nodes), (_pod(index) for index in range(pods)))
    return BenchmarkResult({"nodes": nodes, "pods": pods}, figures(done))


shares = Benchmark(
    "shares of GPUs, eight kinds, 8 GPUs a node, default profile", (5000,), 10_000, _measure
)
