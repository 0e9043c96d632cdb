"""Pods that Koordinator's policies align: by the label of a node, or as they ask themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.cpu_nodes import QOS, STATUS, cpu_pod, cpu_report, cpus_given

from bayplan.api import Pod
from bayplan.testing import Cluster, assert_pending, assert_placed, make_node, make_pod
from bayplan_plugins.numa.alignment import AlignedNode
from bayplan_plugins.numa.hints import Amounts, Policy
from bayplan_plugins.numa.whole_pods import Criteria, place_whole_pod

POLICY = "node.koordinator.sh/numa-topology-policy"
SPEC = "scheduling.koordinator.sh/numa-topology-spec"
NO_ROOM = "node(s) whose NUMA nodes have no room for the pod"
SINGLE = {POLICY: "SingleNUMANode"}


def burstable(name: str, cpu: str = "5", asks: Mapping[str, str] | None = None) -> Pod:
    """Return a pod that requests CPU and memory, and may use more."""
    return make_pod(
        name,
        labels={QOS: "LS"},
        annotations={SPEC: json.dumps(asks)} if asks else {},
        spec={
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}]
        },
    )


def cluster_of(*pods: Pod, labels: Mapping[str, str] | None = None, **published: Any) -> Cluster:
    """Return a cluster of one node with two NUMA nodes of 8 CPUs and 16Gi."""
    cluster = Cluster([make_node("n", 16, labels=labels), cpu_report(zones=2, **published), *pods])
    cluster.schedule()
    return cluster


def numa_of(cluster: Cluster, name: str) -> dict[int, dict[str, str]]:
    """Return what the agent is told that a pod has of each NUMA node."""
    found = cluster.api.get(Pod, f"default/{name}")
    assert found is not None
    status = json.loads(found.metadata.annotations.get(STATUS, "{}"))
    return {own["node"]: own["resources"] for own in status.get("numaNodeResources", ())}


# By the node's label -----------------------------------------------------------------------


def test_a_pod_that_may_use_more_than_it_requests_is_confined_to_a_numa_node() -> None:
    cluster = cluster_of(burstable("a"), burstable("b"), burstable("c"), labels=SINGLE)
    assert [numa_of(cluster, name) for name in "ab"] == [
        {0: {"cpu": "5", "memory": "1Gi"}},
        {1: {"cpu": "5", "memory": "1Gi"}},
    ]
    assert_pending(cluster, "c", f"{NO_ROOM} (single-numa-node)")


def test_restricted_divides_what_no_numa_node_has_alone() -> None:
    pods = [burstable("a"), burstable("b"), burstable("c", "4"), burstable("d", "3")]
    cluster = cluster_of(*pods, labels={POLICY: "Restricted"})
    half = {"cpu": "2", "memory": "512Mi"}
    assert numa_of(cluster, "c") == {0: half, 1: half}
    assert_pending(cluster, "d", "Insufficient cpu")


def test_the_emptiest_numa_node_comes_first_or_the_fullest_if_the_profile_says_so() -> None:
    pods = [burstable(name, "2") for name in "abc"]
    cluster = cluster_of(*pods, labels=SINGLE)
    assert [*map(tuple, (numa_of(cluster, name) for name in "abc"))] == [(0,), (1,), (0,)]
    fullest = {"numaScoringStrategy": {"type": "MostAllocated"}}
    node = make_node("n", 16, labels=SINGLE)
    cluster = Cluster([node, cpu_report(zones=2), *pods], plugins={"NodeNUMA": fullest})
    cluster.schedule()
    assert [*map(tuple, (numa_of(cluster, name) for name in "abc"))] == [(0,), (0,), (0,)]


def test_cpus_that_nobody_gets_count_for_no_pod() -> None:
    kubelet = json.dumps({"policy": "static", "reservedCPUs": "0-3"})
    pods = [burstable("a", "8"), burstable("b", "4"), burstable("c", "1")]
    cluster = cluster_of(*pods, labels=SINGLE, kubelet=kubelet)
    assert [*map(tuple, (numa_of(cluster, name) for name in "ab"))] == [(1,), (0,)]
    assert_pending(cluster, "c", NO_ROOM)


def test_numa_nodes_of_an_amplified_node_have_amplified_cpus() -> None:
    ratio = {"node.koordinator.sh/resource-amplification-ratio": '{"cpu": 2}'}
    node = make_node("n", 32, labels=SINGLE, annotations=ratio)
    own = cpu_pod("own", "4")
    pods = [burstable("a", "12"), own, burstable("b", "5"), burstable("c", "9")]
    cluster = Cluster([node, cpu_report(zones=2)])
    for pod in pods:
        cluster.add(pod)
        cluster.schedule()
    # Four CPUs of its own are eight of the sixteen that NUMA node 1 counts.
    assert cpus_given(cluster, "own") == "8-11"
    assert [*map(tuple, (numa_of(cluster, name) for name in ("a", "b")))] == [(0,), (1,)]
    assert_pending(cluster, "c", "Insufficient amplified cpu")


def test_the_bind_policy_of_the_profile_counts_for_the_choice_of_numa_nodes() -> None:
    # Of 8 CPUs in 4 cores, one thread of each can be given when each core has lost one.
    spread = {"defaultCPUBindPolicy": "SpreadByPCPUs"}
    node = make_node("n", 16, labels=SINGLE)
    first = cpu_pod("a", "4", spec={"requiredCPUBindPolicy": "SpreadByPCPUs"})
    second = cpu_pod("b", "4", spec={"requiredCPUBindPolicy": "Default"})
    objects = [node, cpu_report(zones=2), first, second]
    cluster = Cluster(objects, plugins={"NodeNUMA": spread})
    cluster.schedule()
    assert [cpus_given(cluster, name) for name in "ab"] == ["0,2,4,6", "8,10,12,14"]


def test_cpus_and_gpus_come_from_one_numa_node() -> None:
    # Four GPUs on each NUMA node: the emptier one for CPUs has too few.
    labels = {**SINGLE, "bayplan.dev/machine": "dgx-1v"}
    node = make_node("n", cpu=16, memory="1Ti", gpu=8, labels=labels)
    gpu = "nvidia.com/gpu"
    pods = [
        make_pod("cpus", cpu=6, memory="1Gi"),
        make_pod("three", cpu=1, memory="1Gi", gpu=3),
        make_pod("two", cpu=1, memory="1Gi", gpu=2),
        make_pod("four", cpu=1, memory="1Gi", gpu=4),
    ]
    cluster = Cluster([node, cpu_report(zones=2)])
    for pod in pods:
        cluster.add(pod)
        cluster.schedule()
    found = {name: tuple(numa_of(cluster, name)) for name in ("cpus", "three", "two")}
    assert found == {"cpus": (0,), "three": (1,), "two": (0,)}
    assert gpu not in numa_of(cluster, "two")[0]
    assert_pending(cluster, "four", "Insufficient nvidia.com/gpu")
    cluster.remove("cpus")
    cluster.add(make_pod("last", cpu=1, memory="1Gi", gpu=3))
    assert_pending(cluster, "last", f"{NO_ROOM} (single-numa-node)")


# As pods ask themselves --------------------------------------------------------------------


def test_a_pod_is_aligned_as_it_asks_on_a_node_that_aligns_nothing() -> None:
    single = {"numaTopologyPolicy": "SingleNUMANode"}
    pods = [burstable("plain", "6"), burstable("a", "6", single), burstable("b", "3", single)]
    cluster = cluster_of(*pods)
    # Who asks for nothing is confined to nothing, and counted nowhere.
    assert numa_of(cluster, "plain") == {}
    assert numa_of(cluster, "a") == {0: {"cpu": "6", "memory": "1Gi"}}
    assert numa_of(cluster, "b") == {1: {"cpu": "3", "memory": "1Gi"}}
    cluster.remove("plain")
    cluster.add(burstable("c", "6", single))
    assert_pending(cluster, "c", f"{NO_ROOM} (single-numa-node)")
    cluster.restart()
    cluster.add(burstable("d", "5", single))
    cluster.schedule()
    assert numa_of(cluster, "d") == {1: {"cpu": "5", "memory": "1Gi"}}


@pytest.mark.parametrize("restarts", [False, True])
def test_cpus_of_pods_that_nothing_aligns_count_for_those_that_ask(restarts: bool) -> None:
    single = {"numaTopologyPolicy": "SingleNUMANode", "singleNUMANodeExclusive": "Preferred"}
    cluster = cluster_of(cpu_pod("own", "6"))
    assert (cpus_given(cluster, "own"), numa_of(cluster, "own")) == ("0-5", {})
    if restarts:
        cluster.restart()
    cluster.add(burstable("a", "6", single))
    cluster.schedule()
    assert tuple(numa_of(cluster, "a")) == (1,)


def test_a_pod_goes_only_where_its_policy_can_be_kept() -> None:
    asks = {"numaTopologyPolicy": "Restricted"}
    nodes = [make_node("plain", 16), make_node("other", 16, labels=SINGLE)]
    cluster = Cluster([*nodes, cpu_report("other", zones=2), burstable("a", "4", asks)])
    other = "node(s) NUMA Topology policy not match"
    assert_pending(cluster, "a", other, "node(s) missing NUMA resources")
    cluster.add(make_node("n", 16, labels={POLICY: "Restricted"}), cpu_report("n", zones=2))
    cluster.advance(10)
    assert_placed(cluster, a="n")


def test_pods_of_one_numa_node_and_of_several_stay_apart_where_one_asks() -> None:
    asks = {"numaTopologyPolicy": "Restricted"}
    single = make_pod(
        "single",
        labels={QOS: "LSR"},
        annotations={SPEC: json.dumps({"numaTopologyPolicy": "Restricted"})},
        cpu=2,
        memory="1Gi",
    )
    wide = burstable("wide", "10", asks)
    cluster = cluster_of(single, wide)
    assert tuple(numa_of(cluster, "single")) == (0,)
    assert_pending(cluster, "wide", f"{NO_ROOM} (restricted)")
    shares = {**asks, "singleNUMANodeExclusive": "Preferred"}
    cluster.add(burstable("sharing", "10", shares))
    assert_placed(cluster, sharing="n")


def test_a_policy_that_cannot_be_read_is_named() -> None:
    cluster = cluster_of(burstable("a", asks={"numaTopologyPolicy": "Strict"}))
    assert_pending(cluster, "a", f"annotation {SPEC}: $.numaTopologyPolicy")
    cluster = cluster_of(burstable("a", asks={"numaTopologyPolcy": "Restricted"}))
    assert_pending(cluster, "a", f'annotation {SPEC}: $: "numaTopologyPolcy" is not supported')


# The rule ----------------------------------------------------------------------------------

_NEEDS = st.fixed_dictionaries(
    {"cpu": st.integers(0, 12), "memory": st.integers(0, 12), "x": st.integers(0, 2)}
)
_SIZES = st.integers(1, 4)


@st.composite
def _nodes(draw: st.DrawFn) -> tuple[AlignedNode, dict[str, Amounts]]:
    size = draw(_SIZES)
    policy: Policy = draw(st.sampled_from(["restricted", "single-numa-node"]))
    amounts = {
        name: tuple(draw(st.lists(st.integers(0, most), min_size=size, max_size=size)))
        for name, most in (("cpu", 8), ("memory", 8), ("x", 2))
    }
    free = {name: tuple(draw(st.integers(0, one)) for one in own) for name, own in amounts.items()}
    ids = tuple(range(size))
    return AlignedNode(policy, "pod", ids, amounts, amounts, free, False, True), free


@given(_nodes(), _NEEDS, st.booleans())
def test_the_numa_nodes_are_those_of_koordinators_merged_hints(
    given_: tuple[AlignedNode, dict[str, Amounts]], needs: dict[str, int], fullest: bool
) -> None:
    node, free = given_
    needs = {name: need for name, need in needs.items() if need and any(node.capacity[name])}
    found = place_whole_pod(node, needs, free, Criteria(fullest))
    expected = _merged(node, needs, free, fullest) if needs else None
    if not needs:
        assert found is not None
        assert not found.taken
    elif expected is None:
        assert found is None
    else:
        assert found is not None
        assert {name: sum(own) for name, own in found.taken.items()} == needs
        ones = {place for own in found.taken.values() for place, one in enumerate(own) if one}
        assert ones <= set(expected)


def _merged(
    node: AlignedNode, needs: Mapping[str, int], free: Mapping[str, Amounts], fullest: bool
) -> Sequence[int] | None:
    """Merge the hints of each resource, all combinations of them, as Koordinator's policies do."""
    sets = [s for s in _subsets(node.ids) if _fits(needs, free, s)]
    hints: list[list[tuple[tuple[int, ...], bool]]] = []
    for name in needs:
        own = [s for s in sets if all(free[name][place] for place in s)]
        least = min(map(len, own), default=0)
        restricted = node.policy == "restricted"
        hints.append([(s, restricted or len(s) == least) for s in own])
    best: tuple[tuple[int, float], tuple[int, ...]] | None = None
    for chosen in product(*hints):
        first = chosen[0][0]
        if any(s != first or not preferred for s, preferred in chosen):
            continue
        if node.policy == "single-numa-node" and len(first) > 1:
            continue
        rank = (-len(first), _points(node, needs, free, first, fullest))
        if best is None or rank > best[0]:
            best = (rank, first)
    return best[1] if best is not None else None


def _subsets(ids: Sequence[int]) -> Iterable[tuple[int, ...]]:
    every = (tuple(i for i in ids if mask >> i & 1) for mask in range(1, 1 << len(ids)))
    return sorted(every, key=len)


def _fits(needs: Mapping[str, int], free: Mapping[str, Amounts], places: Sequence[int]) -> bool:
    for name, need in needs.items():
        left = need
        for index, place in enumerate(sorted(places, key=lambda one: free[name][one])):
            left -= min(left // (len(places) - index), free[name][place])
        if left:
            return False
    return True


def _points(
    node: AlignedNode,
    needs: Mapping[str, int],
    free: Mapping[str, Amounts],
    places: Sequence[int],
    fullest: bool,
) -> float:
    points = []
    for name in ("cpu", "memory"):
        total = sum(node.allocatable[name][place] for place in places)
        left = sum(free[name][place] for place in places) - needs.get(name, 0)
        if total:
            points.append(100 * (total - max(0, left) if fullest else max(0, left)) // total)
    return sum(points) / len(points) if points else 0.0


def test_what_cannot_be_aligned_is_placed_all_the_same_where_that_is_only_preferred() -> None:
    amounts = {"cpu": (4, 4)}
    node = AlignedNode("best-effort", "pod", (0, 1), amounts, amounts, amounts, False, True)
    full = place_whole_pod(node, {"cpu": 6}, {"cpu": (2, 0)}, Criteria())
    assert full is not None
    assert full.taken == {"cpu": (2, 0)}
    assert (
        place_whole_pod(replace(node, policy="restricted"), {"cpu": 6}, {"cpu": (2, 0)}, Criteria())
        is None
    )
