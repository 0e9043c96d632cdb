"""Whole jobs: a large gang, many small gangs, preemption, sub-groups, and a stream of jobs.

At 5,000 nodes and 1,024 pods, every shape has the size for which other schedulers publish figures;
other sizes scale all shapes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from bayplan.api import (
    ApiObject,
    ClusterNetworkTopology,
    KaiPodGroup,
    KaiTopology,
    Node,
    ObjectMeta,
    Pod,
    PodGroup,
    PodSpec,
)
from bayplan.api.network import (
    ClusterNetworkTopologySpec,
    NetworkTopologyLayer,
    TopologyLevel,
    TopologySpec,
)
from bayplan.api.podgroup import (
    KaiPodGroupSpec,
    KaiSubGroup,
    PodGroupSpec,
    TopologyConstraint,
)
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan_benchmarks.workloads import Run, container, figures, make_node, make_pod, run

__all__ = ["gang", "network", "pod_group"]

_SPEC = "gang.scheduling.koordinator.sh/network-topology-spec"
_LABEL = "pod-group.scheduling.sigs.k8s.io"
_NODES, _PODS = 5000, 1024


def network(**layers: str) -> ClusterNetworkTopology:
    """Return a network of layers, given as name and label key, the outermost first."""
    found: list[NetworkTopologyLayer] = []
    parent = ""
    for name, key in layers.items():
        found.append(NetworkTopologyLayer(name, parent, (key,)))
        parent = name
    found.append(NetworkTopologyLayer("NodeTopologyLayer", parent))
    return ClusterNetworkTopology(
        ObjectMeta(name="default"), ClusterNetworkTopologySpec(tuple(found))
    )


def pod_group(name: str, size: int, **strategies: str) -> PodGroup:
    """Return a PodGroup whose members all have to start together.

    :param strategies: the gather strategy of each layer.
    """
    rules = [{"layer": layer, "strategy": kind} for layer, kind in strategies.items()]
    annotations = {_SPEC: json.dumps({"gatherStrategy": rules})} if rules else {}
    meta = ObjectMeta(name=name, namespace="bench", annotations=annotations)
    return PodGroup(meta, PodGroupSpec(size))


def _members(name: str, size: int, cpu: str, priority: int | None = None) -> list[Pod]:
    spec = PodSpec(containers=(container(cpu, "1Gi"),), priority=priority)
    return [make_pod(f"{name}-{index}", spec, {_LABEL: name}) for index in range(size)]


def _nodes(count: int, cpu: str = "32", **sizes: int) -> list[Node]:
    """Return nodes in domains; ``sizes`` are the nodes per domain, by label."""
    return [
        make_node(index, cpu, **{f"net__{key}": f"{key}-{index // n}" for key, n in sizes.items()})
        for index in range(count)
    ]


def _one_gang(nodes: int, pods: int) -> Run:
    """Run one gang: a required spine of 1,000 nodes, a preferred block of 20."""
    layers = network(SpineLayer="net/spine", BlockLayer="net/block")
    cluster: Sequence[ApiObject] = [layers, *_nodes(nodes, spine=1000, block=20)]
    group = pod_group("job", pods, BlockLayer="PreferGather", SpineLayer="MustGather")
    return run([group, *cluster], _members("job", pods, "16"))


def _racks(nodes: int, jobs: int) -> Run:
    """Run many gangs of 4, each in one of 50 racks."""
    cluster: list[ApiObject] = [
        network(RackLayer="net/rack"),
        *_nodes(nodes, rack=max(4, -(-nodes // 50))),
    ]
    work: list[ApiObject] = []
    for job in range(jobs):
        work += [
            pod_group(f"job-{job}", 4, RackLayer="MustGather"),
            *_members(f"job-{job}", 4, "1"),
        ]
    return run(cluster, work)


def _preempt(nodes: int) -> Run:
    """Run one gang that needs every node, with ten pods of low priority on each."""
    cluster: list[ApiObject] = list(_nodes(nodes, "10"))
    for index in range(nodes * 10):
        spec = PodSpec(
            containers=(container("1", "1Gi"),), priority=1, node_name=f"node-{index % nodes}"
        )
        cluster.append(make_pod(f"low-{index}", spec))
    return run(cluster, [pod_group("job", nodes), *_members("job", nodes, "10", 100)])


def _whole(nodes: int) -> Run:
    """Run one gang that fills the cluster: 4 zones, blocks of 16, racks of 2."""
    layers = network(ZoneLayer="net/zone", BlockLayer="net/block", RackLayer="net/rack")
    zone = max(1, -(-nodes // 4))
    cluster: list[ApiObject] = [layers, *_nodes(nodes, zone=zone, block=16, rack=2)]
    group = pod_group("job", nodes, ZoneLayer="PreferGather", RackLayer="PreferGather")
    return run(cluster, [group, *_members("job", nodes, "32")])


def _sub_groups(nodes: int) -> Run:
    """Run one gang of sub-groups of 10, each in some rack of 10, that fills the cluster."""
    topology = KaiTopology(ObjectMeta(name="net"), TopologySpec((TopologyLevel("net/rack"),)))
    groups = nodes // 10
    constraint = TopologyConstraint("net", "net/rack")
    spec = KaiPodGroupSpec(
        groups * 10,
        sub_groups=tuple(KaiSubGroup(f"s{i}", 10, "", constraint) for i in range(groups)),
    )
    group = KaiPodGroup(ObjectMeta(name="job", namespace="bench"), spec)
    body = PodSpec(containers=(container("32", "1Gi"),))
    pods = [
        Pod(
            ObjectMeta(
                name=f"job-{index}",
                namespace="bench",
                labels={"kai.scheduler/subgroup-name": f"s{index // 10}"},
                annotations={"pod-group-name": "job"},
            ),
            body,
        )
        for index in range(groups * 10)
    ]
    return run([topology, *_nodes(nodes, rack=10)], [group, *pods])


def _stream(nodes: int, jobs: int) -> Run:
    """Run jobs of 1 to 5 pods, half with a required rack of 64 nodes, half with a preferred one."""
    layers = network(BlockLayer="net/block", RackLayer="net/rack")
    cluster: list[ApiObject] = [layers, *_nodes(nodes, "96", block=nodes, rack=64)]
    work: list[ApiObject] = []
    for job in range(jobs):
        size = (1, 1, 1, 2, 2, 4, 5)[job % 7]
        strategy = ("MustGather", "PreferGather")[job % 2]
        work += [
            pod_group(f"job-{job}", size, RackLayer=strategy),
            *_members(f"job-{job}", size, "1"),
        ]
    return run(cluster, work)


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    done = _one_gang(nodes, pods)
    found = figures(done)
    jobs = max(1, 750 * pods // _PODS)
    racks = _racks(nodes, jobs)
    found["gangsOf4PodsPerSecond"] = round(racks.bound / racks.seconds, 1)
    found["gangsOf4Bound"] = racks.bound
    preempt = _preempt(max(2, 100 * nodes // _NODES))
    found["preemptSeconds"] = round(preempt.seconds, 4)
    found["preemptVictims"] = len(preempt.scheduler.evictor.evicted)
    whole = _whole(max(2, 512 * nodes // _NODES))
    found["fullClusterSeconds"] = round(whole.seconds, 4)
    found["fullClusterBound"] = whole.bound
    parts = _sub_groups(max(10, 1000 * nodes // _NODES // 10 * 10))
    found["subGroupsSeconds"] = round(parts.seconds, 4)
    found["subGroupsBound"] = parts.bound
    stream = _stream(max(4, 640 * nodes // _NODES), max(1, 15_000 * pods // _PODS))
    found["streamSeconds"] = round(stream.seconds, 4)
    found["streamBound"] = stream.bound
    return BenchmarkResult({"nodes": nodes, "pods": pods, "layers": 3}, found)


gang = Benchmark("whole jobs of many shapes, gathered in networks", (_NODES,), _PODS, _measure)
