"""Plain pods of one kind: the framework's own cost."""

from __future__ import annotations

from bayplan.api import PodSpec
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan_benchmarks.workloads import container, figures, make_node, make_pod, run

__all__ = ["basic"]


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    spec = PodSpec(containers=(container("1", "2Gi"),))
    done = run(
        (make_node(index) for index in range(nodes)),
        (make_pod(f"pod-{index}", spec) for index in range(pods)),
    )
    return BenchmarkResult({"nodes": nodes, "pods": pods}, figures(done))


basic = Benchmark("plain pods of one kind, default profile", (5000,), 10_000, _measure)
