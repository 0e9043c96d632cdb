"""Fresh reports of the load of every node each 30 seconds: what following them costs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from bayplan.api import KINDS, PodSpec
from bayplan.api.times import rfc3339
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.cluster.kubernetes.resources import WatchedResource
from bayplan.garbage import collect_rarely
from bayplan.testing import Cluster
from bayplan_benchmarks.workloads import container, make_node, make_pod, pass_time

__all__ = ["node_loads"]

_SECONDS = 30
"""Between two reports of a node."""
_REPORTS = WatchedResource(KINDS["slo.koordinator.sh", "NodeMetric"], "v1alpha1")


def _report(node: int, pods: int, at: float) -> bytes:
    """Return what an agent writes, with the usage of each pod."""
    # Other numbers in each report, as of real nodes.
    busy = 1 + int(at) * 7919 % 499 + node % 89
    usage = {"cpu": f"{pods * busy}m", "memory": str(pods * busy * 10**6)}
    own = [
        {
            "namespace": "bench",
            "name": f"pod-{node}-{index}",
            "podUsage": {"resources": {"cpu": f"{busy + index}m", "memory": f"{busy * index}Ki"}},
            "priority": "koord-prod",
            "qos": "LS",
        }
        for index in range(pods)
    ]
    return msgspec.json.encode(
        {
            "apiVersion": "slo.koordinator.sh/v1alpha1",
            "kind": "NodeMetric",
            "metadata": {"name": f"node-{node}"},
            "spec": {"metricCollectPolicy": {"reportIntervalSeconds": _SECONDS}},
            "status": {
                "updateTime": rfc3339(at),
                "nodeMetric": {
                    "nodeUsage": {"resources": usage},
                    "aggregatedNodeUsages": [
                        {
                            "duration": "5m0s",
                            "usage": {one: {"resources": usage} for one in ("avg", "p50", "p95")},
                        }
                    ],
                },
                "podsMetric": own,
            },
        }
    )


def _second(cluster: Cluster) -> None:
    """Let a second pass."""
    api, scheduler = cluster.api, cluster.scheduler

    def settle() -> None:
        api.deliver()
        while scheduler.step():
            api.deliver()

    end = api.now + 1
    pass_time(api, scheduler, 1, settle, scheduler.tick)
    api.clock.advance(end)
    settle()


def _round(cluster: Cluster, nodes: int, pods: int, first: bool) -> Iterator[float]:
    """Let every node report once within 30 seconds, and a pod come each second.

    Yields the CPU seconds of each second: reading, handling, and a cycle that looks at all nodes.
    """
    spec = PodSpec(containers=(container("100m", "64Mi"),))
    for second in range(_SECONDS):
        at = cluster.scheduler.snapshot.unix_time
        texts = [_report(node, pods, at) for node in range(second, nodes, _SECONDS)]
        began = time.process_time()
        for text in texts:
            obj = _REPORTS.read(text)
            (cluster.api.create if first else cluster.api.update)(obj)
        cluster.api.create(make_pod(f"new-{first}-{second}", spec))
        _second(cluster)
        yield time.process_time() - began


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    each = max(1, pods // nodes)
    cluster = Cluster(plugins=("LoadAwareScheduling",))
    cluster.add(*(make_node(index) for index in range(nodes)))
    spec = PodSpec(containers=(container("100m", "64Mi"),))
    for node in range(nodes):
        placed = msgspec.structs.replace(spec, node_name=f"node-{node}")
        cluster.add(*(make_pod(f"pod-{node}-{index}", placed) for index in range(each)))
    cluster.schedule()
    collect_rarely()
    for _ in _round(cluster, nodes, each, first=True):
        pass
    seconds = sum(_round(cluster, nodes, each, first=False))
    began = time.process_time()
    for second in range(_SECONDS):
        cluster.api.create(make_pod(f"alone-{second}", spec))
        _second(cluster)
    alone = time.process_time() - began
    return BenchmarkResult(
        {"nodes": nodes, "pods": nodes * each},
        {
            "corePercent": round(100 * (seconds - alone) / _SECONDS, 2),
            "corePercentWithPods": round(100 * seconds / _SECONDS, 2),
            "microsecondsPerReport": round(1e6 * (seconds - alone) / nodes, 1),
        },
        "percent of one core, for a report of each node in 30 s; WithPods: and a pod each second",
    )


node_loads = Benchmark(
    "a report of the load of every node each 30 seconds", (5000,), 100_000, _measure
)
