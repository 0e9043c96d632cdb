"""Gangs that nobody wrote: what it costs to follow the owners of pods.

Jobs of five kinds with 20 pods each are placed three times: as gangs of what owns them, as gangs of
PodGroups, and as pods that nobody groups. The difference is what owners, and gangs, cost; what it
takes to follow the owners alone is measured apart.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec.structs import replace

from bayplan.api import ApiObject, Pod
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.gangs.owned import OwnedGangs
from bayplan.testing import Cluster, make_object, make_pods_of
from bayplan_benchmarks.gang import pod_group
from bayplan_benchmarks.workloads import make_node, peak_memory, run

__all__ = ["owners"]

_EACH = 20
_LABEL = "pod-group.scheduling.sigs.k8s.io"
_TEMPLATE = {
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "registry.k8s.io/pause:3.10",
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
            }
        ]
    }
}


def _replicas(field: str, **counts: int) -> dict[str, object]:
    return {field: {kind: {"replicas": n, "template": _TEMPLATE} for kind, n in counts.items()}}


_KINDS = (
    ("kubeflow.org/v1", "TFJob", _replicas("tfReplicaSpecs", PS=4, Worker=16)),
    ("kubeflow.org/v1", "XGBoostJob", _replicas("xgbReplicaSpecs", Master=1, Worker=19)),
    ("kubeflow.org/v1", "PaddleJob", _replicas("paddleReplicaSpecs", Master=1, Worker=19)),
    ("kubeflow.org/v2beta1", "MPIJob", _replicas("mpiReplicaSpecs", Launcher=1, Worker=19)),
    (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        {"replicas": 1, "leaderWorkerTemplate": {"size": _EACH, "workerTemplate": _TEMPLATE}},
    ),
)


def _jobs(count: int) -> list[tuple[ApiObject, list[Pod]]]:
    """Return jobs of all kinds in turn, each with its pods."""
    found = []
    for index in range(count):
        version, kind, spec = _KINDS[index % len(_KINDS)]
        meta = {"name": f"job-{index}", "namespace": "bench", "uid": f"uid-{index}"}
        job = make_object({"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec})
        found.append((job, list(make_pods_of(job))))
    return found


def _without_owner(pod: Pod, **labels: str) -> Pod:
    meta = replace(pod.metadata, owner_references=(), labels={**pod.metadata.labels, **labels})
    return replace(pod, metadata=meta)


def _cost(nodes: Sequence[ApiObject], objects: list[ApiObject], pods: list[Pod]) -> float:
    """Return the CPU time of placing some pods, that of their cluster included, in µs each."""
    started = time.process_time()
    done = run([*nodes, *objects], pods)
    if done.bound != len(pods):
        raise RuntimeError(f"{done.bound} of {len(pods)} pods have a node")
    return (time.process_time() - started) / len(pods) * 1e6


def _following(jobs: list[ApiObject], pods: list[Pod]) -> float:
    """Return the CPU time of finding the gang of each pod by what owns it, in µs each."""
    owned = OwnedGangs(Cluster(jobs).snapshot)
    started = time.process_time()
    for pod in pods:
        owned.member(pod)
    return (time.process_time() - started) / len(pods) * 1e6


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    cluster = [make_node(index) for index in range(nodes)]
    jobs = _jobs(max(1, pods // _EACH))
    grouped = [
        _without_owner(pod, **{_LABEL: job.metadata.name}) for job, own in jobs for pod in own
    ]
    groups: list[ApiObject] = [pod_group(job.metadata.name, _EACH) for job, _ in jobs]
    alone = [_without_owner(pod) for _, own in jobs for pod in own]
    objects, owned = [job for job, _ in jobs], [pod for _, own in jobs for pod in own]
    figures = {
        "following": _following(objects, owned),
        "alone": _cost(cluster, [], alone),
        "grouped": _cost(cluster, groups, grouped),
        "owned": _cost(cluster, objects, owned),
    }
    found = {f"{name}MicrosecondsPerPod": round(cost, 1) for name, cost in figures.items()}
    found["bound"] = len(alone)
    found["peakMemoryMiB"] = round(peak_memory(), 1)
    return BenchmarkResult({"nodes": nodes, "pods": len(alone), "jobs": len(jobs)}, found)


owners = Benchmark("gangs of owners beside gangs of PodGroups", (5_000,), 20_000, _measure)
