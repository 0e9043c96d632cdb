"""One large gang, gathered in a network of three layers."""

from __future__ import annotations

import json

from bayplan.api import ClusterNetworkTopology, ObjectMeta, PodGroup, PodSpec
from bayplan.api.network import ClusterNetworkTopologySpec, NetworkTopologyLayer
from bayplan.api.podgroup import PodGroupSpec
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan_benchmarks.workloads import container, figures, make_node, make_pod, run

__all__ = ["gang"]

_SPEC = "gang.scheduling.koordinator.sh/network-topology-spec"
_NODES_PER_BLOCK = 20
_BLOCKS_PER_SPINE = 50
_LAYERS = (
    NetworkTopologyLayer("SpineLayer", "", ("net/spine",)),
    NetworkTopologyLayer("BlockLayer", "SpineLayer", ("net/block",)),
    NetworkTopologyLayer("NodeTopologyLayer", "BlockLayer"),
)


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    topology = ClusterNetworkTopology(
        ObjectMeta(name="default"), ClusterNetworkTopologySpec(_LAYERS)
    )
    made = []
    for index in range(nodes):
        block = index // _NODES_PER_BLOCK
        spine = f"spine-{block // _BLOCKS_PER_SPINE}"
        made.append(make_node(index, net__spine=spine, net__block=f"block-{block}"))
    rules = [
        {"layer": "BlockLayer", "strategy": "PreferGather"},
        {"layer": "SpineLayer", "strategy": "MustGather"},
    ]
    group = PodGroup(
        ObjectMeta(
            name="job",
            namespace="bench",
            annotations={_SPEC: json.dumps({"gatherStrategy": rules})},
        ),
        PodGroupSpec(pods),
    )
    spec = PodSpec(containers=(container("16", "64Gi"),))
    labels = {"pod-group.scheduling.sigs.k8s.io": "job"}
    members = (make_pod(f"job-{index}", spec, labels) for index in range(pods))
    done = run([topology, group, *made], members)
    return BenchmarkResult({"nodes": nodes, "pods": pods, "layers": 3}, figures(done))


gang = Benchmark("one gang in a network of three layers", (5000,), 1024, _measure)
