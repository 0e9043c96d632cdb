"""Anti-affinity and topology spread on every pod: the plugins that look across nodes."""

from __future__ import annotations

from bayplan.api import LabelSelector, PodSpec
from bayplan.api.pod import Affinity, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan_benchmarks.workloads import container, figures, make_node, make_pod, run

__all__ = ["affinity"]

_PODS_PER_APP = 100


def _spec(app: str) -> PodSpec:
    selector = LabelSelector({"app": app})
    apart = PodAffinityTerm("kubernetes.io/hostname", selector)
    spread = TopologySpreadConstraint(5, "topology.kubernetes.io/zone", "DoNotSchedule", selector)
    return PodSpec(
        containers=(container("500m", "1Gi"),),
        affinity=Affinity(pod_anti_affinity=PodAffinity(required=(apart,))),
        topology_spread_constraints=(spread,),
    )


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    apps = max(1, pods // _PODS_PER_APP)
    specs = {f"app-{index}": _spec(f"app-{index}") for index in range(apps)}
    made = (
        make_pod(f"pod-{index}", specs[app], {"app": app})
        for index in range(pods)
        for app in [f"app-{index % apps}"]
    )
    done = run((make_node(index) for index in range(nodes)), made)
    return BenchmarkResult({"nodes": nodes, "pods": pods, "apps": apps}, figures(done))


affinity = Benchmark(
    "required anti-affinity by host and spread by zone on every pod", (5000,), 5000, _measure
)
