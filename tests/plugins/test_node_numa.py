"""NodeNUMA as the kubelet's Topology Manager: what it would refuse is not bound, and why."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api import ApiObject, NodeResourceTopology, Pod, Quantity
from bayplan.api.pod import PodStatus
from bayplan.explain.suggestions import Diagnosis
from bayplan.snapshot import PodInfo
from bayplan.testing import (
    Cluster,
    assert_pending,
    assert_placed,
    check_plugin,
    make_node,
    make_object,
    make_pod,
    refusals,
)
from bayplan_plugins.node_numa import NodeNUMA
from bayplan_plugins.numa.aligned_requests import aligned_requests_of
from bayplan_plugins.numa.hints import Amounts, Policy, affinity

POLICIES: tuple[Policy, ...] = ("none", "best-effort", "restricted", "single-numa-node")
SCOPES = ("container", "pod")
GPU, NIC, FPGA = "nvidia.com/gpu", "example.com/vf", "example.com/fpga"
TWO = ({"cpu": "8", "memory": "32Gi", GPU: "4", NIC: "2", FPGA: "4"},) * 2
"""Two equal NUMA nodes."""
CPUS = ({"cpu": "8"},) * 2
"""Two of which the kubelet aligns CPUs alone."""


def report(
    *zones: Mapping[str, str],
    policy: str = "single-numa-node",
    scope: str = "container",
    left: Sequence[Mapping[str, str]] = (),
    capacity: Mapping[str, str] | None = None,
) -> ApiObject:
    """Return what the agent of node "n" reports.

    :param left: what pods have left, if not all.
    :param capacity: of each zone, where not all of it is allocatable.
    """
    found = []
    for number, amounts in enumerate(zones):
        available = {**amounts, **(left[number] if left else {})}
        resources = [
            {
                "name": name,
                "capacity": (capacity or {}).get(name, all_),
                "allocatable": all_,
                "available": available[name],
            }
            for name, all_ in amounts.items()
        ]
        found.append({"name": f"node-{number}", "type": "Node", "resources": resources})
    attributes = {"topologyManagerPolicy": policy, "topologyManagerScope": scope}
    return make_object(
        {
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": {"name": "n"},
            "attributes": [{"name": key, "value": value} for key, value in attributes.items()],
            "zones": found,
        }
    )


def cluster_of(*zones: Mapping[str, str], **settings: Any) -> Cluster:
    """Return a cluster of one node that is large enough for everything but alignment."""
    others = {name for amounts in zones for name in amounts} - {"cpu", "memory"}
    total = {
        name: str(sum((Quantity(amounts[name]).units for amounts in zones), start=0))
        for name in others
    }
    node = make_node("n", cpu=128, memory="1Ti", **total)
    return Cluster([node, report(*zones, **settings)])


def container(cpu: str = "1", memory: str = "1Gi", **more: Any) -> dict[str, Any]:
    """Return a container whose requests are its limits; ``more`` may name any resource."""
    fields = {key: more.pop(key) for key in ("restartPolicy",) if key in more}
    amounts = {"cpu": cpu, "memory": memory, **more}
    return {"name": "c", "resources": {"requests": amounts, "limits": amounts}, **fields}


def sidecar(cpu: str, **more: Any) -> dict[str, Any]:
    return container(cpu, restartPolicy="Always", **more)


def pod(name: str, *containers: dict[str, Any], before: Sequence[dict[str, Any]] = ()) -> Pod:
    return make_pod(name, spec={"containers": containers, "initContainers": before})


def aligned(cluster: Cluster, name: str) -> str:
    """Return what a placed pod was noted to get, such as "8 cpu of NUMA 0"."""
    found = cluster.decision(name).pods[f"default/{name}"].notes
    return next((note.partition(": ")[2] for note in found if "kubelet would align" in note), "")


def refused(cluster: Cluster, name: str, policy: str, scope: str = "container") -> None:
    reason = f"1 node(s) whose Topology Manager ({policy}, {scope} scope) would refuse the pod"
    assert_pending(cluster, name, reason)


# Policies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(
    ("policy", "cpu", "fits"),
    [
        ("none", "9", True),
        ("best-effort", "9", True),
        ("restricted", "9", True),
        ("single-numa-node", "9", False),
        ("single-numa-node", "8", True),
        ("restricted", "17", False),
        ("best-effort", "17", True),
    ],
)
def test_a_policy_decides_what_more_than_a_numa_node_has_may_do(
    policy: Policy, scope: str, cpu: str, fits: bool
) -> None:
    cluster = cluster_of(*CPUS, policy=policy, scope=scope)
    cluster.add(pod("p", container(cpu)))
    if fits:
        assert_placed(cluster, p="n")
    else:
        refused(cluster, "p", policy, scope)


@pytest.mark.parametrize(
    ("policy", "fits"),
    [("none", True), ("best-effort", True), ("restricted", False), ("single-numa-node", False)],
)
def test_a_resource_that_is_left_on_other_numa_nodes_than_the_rest(
    policy: Policy, fits: bool
) -> None:
    # Four devices are free on node 1 alone, eight CPUs on node 0 alone. Both prefer one node.
    left = ({FPGA: "0"}, {"cpu": "3"})
    cluster = cluster_of(*TWO, policy=policy, left=left)
    cluster.add(pod("p", container("8", **{FPGA: "4"})))
    if fits:
        assert_placed(cluster, p="n")
    else:
        refused(cluster, "p", policy)


def test_restricted_wants_one_set_of_numa_nodes_for_all_resources() -> None:
    # Five GPUs need two NUMA nodes, a CPU prefers one: no set is preferred by both.
    cluster = cluster_of(*TWO, policy="restricted")
    cluster.add(pod("one", container("1", memory="40Gi", **{GPU: "5"})))
    refused(cluster, "one", "restricted")
    cluster.add(pod("both", container("9", memory="40Gi", **{GPU: "5"})))
    assert_placed(cluster, both="n")


def test_restricted_refuses_what_would_fit_one_numa_node_were_it_empty() -> None:
    cluster = cluster_of(*TWO, policy="restricted", left=({"cpu": "5"}, {"cpu": "5"}))
    cluster.add(pod("p", container("6")))
    refused(cluster, "p", "restricted")


def test_best_effort_takes_as_many_numa_nodes_as_the_widest_need() -> None:
    cluster = cluster_of(*TWO, policy="best-effort", left=({"cpu": "4"}, {"cpu": "4"}))
    cluster.add(pod("p", container("6", **{GPU: "1"})))
    assert_placed(cluster, p="n")
    assert aligned(cluster, "p").startswith("4 cpu, 1Gi memory, 1 nvidia.com/gpu of NUMA 0; 2 cpu")


@pytest.mark.parametrize(
    ("cpu", "policy", "fits"),
    [
        ("7", "restricted", True),
        ("8", "restricted", False),
        ("9", "restricted", True),
        ("8", "best-effort", True),
    ],
)
def test_what_is_reserved_counts_for_how_many_numa_nodes_a_need_could_do_with(
    cpu: str, policy: str, fits: bool
) -> None:
    # Eight CPUs would fit one NUMA node, were none of its eight reserved for the system.
    cluster = cluster_of({"cpu": "7"}, {"cpu": "7"}, policy=policy, capacity={"cpu": "8"})
    cluster.add(pod("p", container(cpu)))
    if fits:
        assert_placed(cluster, p="n")
    else:
        refused(cluster, "p", policy)


@pytest.mark.parametrize(
    ("where", "policy", "scope"),
    [
        ({"topologyPolicies": ["SingleNUMANodeContainerLevel"]}, "single-numa-node", "container"),
        ({"topologyPolicies": ["SingleNUMANodePodLevel"]}, "single-numa-node", "pod"),
        ({"topologyPolicies": ["RestrictedPodLevel"]}, "restricted", "pod"),
        ({}, "single-numa-node", "pod"),
    ],
)
def test_the_policy_is_read_from_older_reports_and_from_the_node(
    where: dict[str, Any], policy: str, scope: str
) -> None:
    own = {"policy": "single-numa-node", "scope": "pod"} if not where else {}
    labels = {f"bayplan.dev/topology-manager-{key}": value for key, value in own.items()}
    amounts = {"name": "cpu", "capacity": "8", "allocatable": "8", "available": "8"}
    content = {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "n"},
        "zones": [{"name": f"node-{n}", "type": "Node", "resources": [amounts]} for n in (0, 1)],
        **where,
    }
    cluster = Cluster([make_node("n", cpu=128, memory="1Ti", labels=labels), make_object(content)])
    cluster.add(pod("p", container("17")))
    refused(cluster, "p", policy, scope)


@pytest.mark.parametrize("policy", ["single-numa", "single-numa-nod", "Restricted-", "strict"])
def test_an_unknown_policy_aligns_nothing_and_is_reported(policy: str) -> None:
    cluster = cluster_of(*TWO, policy=policy)
    cluster.add(pod("p", container("9")))
    assert_placed(cluster, p="n")
    problem = cluster.snapshot.problems["n", "NUMA alignment"]
    assert f'there is no Topology Manager policy "{policy}"' in problem
    if policy.startswith("single"):
        assert 'did you mean "single-numa-node"?' in problem


# Which resources --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resources", "why"),
    [
        ({"requests": {"cpu": "8500m", "memory": "1Gi"}}, "a part of a CPU"),
        ({"requests": {"cpu": "9"}, "limits": {"cpu": "10", "memory": "1Gi"}}, "burstable"),
        ({"requests": {"cpu": "9", "memory": "1Gi"}}, "no limits"),
        ({"limits": {"cpu": "9"}}, "no memory"),
        ({"requests": {"memory": "40Gi"}, "limits": {"memory": "40Gi"}}, "no CPU"),
    ],
)
def test_only_whole_cpus_of_guaranteed_pods_are_aligned(
    resources: dict[str, Any], why: str
) -> None:
    cluster = cluster_of(*TWO)
    if why == "a part of a CPU":
        resources["limits"] = resources["requests"]
    cluster.add(pod("p", {"name": "c", "resources": resources}))
    assert_placed(cluster, p="n")
    assert "cpu" not in aligned(cluster, "p")


def test_resources_of_the_pod_itself_are_not_aligned() -> None:
    cluster = cluster_of(*TWO)
    whole = {"cpu": "10", "memory": "8Gi"}
    spec = {"containers": [container("9")], "resources": {"requests": whole, "limits": whole}}
    cluster.add(make_pod("p", spec=spec))
    assert_placed(cluster, p="n")
    assert not aligned(cluster, "p")


def test_a_second_container_without_limits_makes_no_cpu_exclusive() -> None:
    cluster = cluster_of(*TWO)
    cluster.add(pod("p", container("9"), {"name": "d", "resources": {}}))
    assert_placed(cluster, p="n")


@pytest.mark.parametrize(
    ("name", "has", "fits", "too_many"),
    [
        ("memory", "32Gi", "32Gi", "33Gi"),
        ("hugepages-1Gi", "4Gi", "4Gi", "5Gi"),
        (GPU, "4", "4", "5"),
        (NIC, "2", "2", "3"),
    ],
)
def test_every_resource_of_the_report_is_aligned(
    name: str, has: str, fits: str, too_many: str
) -> None:
    zones = ({"cpu": "8", "memory": "32Gi", name: has},) * 2
    for amount, placed in ((fits, True), (too_many, False)):
        cluster = cluster_of(*zones)
        cluster.add(pod("p", container(**{name: amount})))
        if placed:
            assert_placed(cluster, p="n")
            assert name in aligned(cluster, "p")
        else:
            refused(cluster, "p", "single-numa-node")


def test_devices_are_aligned_whatever_the_class_of_the_pod() -> None:
    cluster = cluster_of(*TWO)
    limits = {"limits": {GPU: "5"}}
    cluster.add(pod("p", {"name": "c", "resources": limits}))
    refused(cluster, "p", "single-numa-node")


def test_a_resource_that_no_numa_node_reports_gives_no_hint() -> None:
    cluster = Cluster(
        [
            make_node("n", cpu=128, memory="1Ti", **{"example.com/asic": 4}),
            report(*TWO),
        ]
    )
    cluster.add(pod("p", container("8", **{"example.com/asic": "4"})))
    assert_placed(cluster, p="n")


def test_gpu_and_nic_on_different_numa_nodes_are_refused() -> None:
    cluster = cluster_of(*TWO, left=({NIC: "0"}, {}))
    cluster.add(pod("a", container(**{GPU: "3", NIC: "1"})))
    assert_placed(cluster, a="n")
    assert aligned(cluster, "a").endswith("NUMA 1")
    cluster.add(pod("apart", container(**{GPU: "2", NIC: "1"})))
    refused(cluster, "apart", "single-numa-node")
    cluster.add(pod("together", container(**{GPU: "1", NIC: "1"})))
    assert_placed(cluster, together="n")
    assert "of NUMA 1" in aligned(cluster, "together")


# Containers -------------------------------------------------------------------------------------


def test_containers_that_fit_one_by_one_may_not_fit_as_a_pod() -> None:
    for scope in SCOPES:
        cluster = cluster_of(*TWO, scope=scope)
        cluster.add(pod("p", container("6"), container("6")))
        if scope == "container":
            assert_placed(cluster, p="n")
            assert "6 cpu" in aligned(cluster, "p").split(";")[0]
            assert "6 cpu" in aligned(cluster, "p").split(";")[1]
        else:
            refused(cluster, "p", "single-numa-node", "pod")


def test_containers_of_a_pod_do_not_get_the_same_cpus() -> None:
    cluster = cluster_of(*TWO)
    cluster.add(pod("p", container("6"), container("6"), container("6")))
    refused(cluster, "p", "single-numa-node")


@pytest.mark.parametrize(("init", "fits"), [("8", True), ("9", False)])
@pytest.mark.parametrize("scope", SCOPES)
def test_an_init_container_is_aligned_and_leaves_again(scope: str, init: str, fits: bool) -> None:
    cluster = cluster_of(*TWO, scope=scope)
    cluster.add(pod("p", container("6"), before=[container(init), container("5")]))
    if fits:
        assert_placed(cluster, p="n")
    else:
        refused(cluster, "p", "single-numa-node", scope)


@pytest.mark.parametrize(("main", "fits"), [("5", True), ("6", False)])
def test_a_sidecar_stays(main: str, fits: bool) -> None:
    cluster = cluster_of(*TWO, scope="pod")
    cluster.add(pod("p", container(main), before=[sidecar("3")]))
    if fits:
        assert_placed(cluster, p="n")
    else:
        refused(cluster, "p", "single-numa-node", "pod")


@pytest.mark.parametrize(
    ("before", "cpu"),
    [
        ([sidecar("3"), container("6")], 9),
        ([container("6"), sidecar("3")], 6),
        ([sidecar("1"), container("6"), sidecar("2"), container("4")], 7),
        ([container("2"), container("3")], 3),
        ([], 2),
    ],
)
def test_an_init_container_counts_with_the_sidecars_that_are_there_by_then(
    before: Sequence[dict[str, Any]], cpu: int
) -> None:
    found = aligned_requests_of(PodInfo(pod("p", container("2"), before=before)))
    assert found.pod["cpu"] == cpu * 1000


def test_what_an_init_container_had_stays_with_its_pod() -> None:
    cluster = cluster_of(*CPUS)
    cluster.add(pod("first", container("2"), before=[container("6")]))
    assert_placed(cluster, first="n")
    cluster.add(pod("other", container("8")), pod("more", container("3")))
    assert_placed(cluster, other="n")
    refused(cluster, "more", "single-numa-node")


def test_sidecars_get_theirs_before_containers() -> None:
    # The sidecar takes three of the four of node 0, as the kubelet starts it first.
    zones = ({"cpu": "4"}, {"cpu": "3"})
    cluster = cluster_of(*zones)
    cluster.add(pod("p", container("4"), before=[sidecar("3")]))
    refused(cluster, "p", "single-numa-node")
    cluster.add(pod("q", container("3"), before=[sidecar("4")]))
    assert_placed(cluster, q="n")


# Memory -----------------------------------------------------------------------------------------


def test_memory_of_several_numa_nodes_needs_them_unused() -> None:
    for policy, reason in (
        ("restricted", "Topology Manager (restricted, container scope)"),
        ("best-effort", "memory manager"),
    ):
        cluster = cluster_of(*TWO, policy=policy)
        cluster.add(pod("small", container(memory="1Gi")))
        assert_placed(cluster, small="n")
        cluster.add(pod("wide", container("9", memory="40Gi")))
        assert_pending(cluster, "wide", f"{reason} would refuse the pod")
        cluster.remove("small")
        cluster.advance(60)
        assert_placed(cluster, wide="n")


@pytest.mark.parametrize(("policy", "fits"), [("best-effort", True), ("restricted", False)])
def test_numa_nodes_that_give_memory_together_give_none_alone(policy: str, fits: bool) -> None:
    cluster = cluster_of(*TWO, policy=policy)
    cluster.add(pod("wide", container("9", memory="40Gi")))
    assert_placed(cluster, wide="n")
    cluster.add(pod("small", container(memory="1Gi")))
    if fits:
        assert_placed(cluster, small="n")
    else:
        refused(cluster, "small", policy)


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_memory_and_huge_pages_come_from_the_same_numa_nodes(policy: str) -> None:
    zone = {"memory": "32Gi", "hugepages-1Gi": "4Gi"}
    left = ({"memory": "1Gi"}, {"hugepages-1Gi": "1Gi"})
    cluster = cluster_of(zone, zone, policy=policy, left=left)
    cluster.add(pod("p", container(memory="2Gi", **{"hugepages-1Gi": "2Gi"})))
    assert_pending(cluster, "p", "would refuse the pod")


def test_memory_that_an_init_container_had_is_used_again() -> None:
    cluster = cluster_of(*TWO)
    cluster.add(pod("p", container(memory="20Gi"), before=[container(memory="30Gi")]))
    assert_placed(cluster, p="n")
    assert aligned(cluster, "p") == "1 cpu, 30Gi memory of NUMA 0"


# Pods that are there ----------------------------------------------------------------------------


def test_pods_share_numa_nodes_until_none_has_enough() -> None:
    cluster = cluster_of(*TWO)
    for name in ("a", "b", "c"):
        cluster.add(pod(name, container("5")))
    assert_placed(cluster, a="n", b="n")
    assert {aligned(cluster, name).split(", ")[0] for name in ("a", "b")} == {"5 cpu"}
    assert aligned(cluster, "a")[-1] != aligned(cluster, "b")[-1]
    refused(cluster, "c", "single-numa-node")
    cluster.remove("a")
    cluster.advance(60)
    assert_placed(cluster, c="n")


def test_what_a_report_says_is_left_counts() -> None:
    cluster = cluster_of(*TWO, left=({"cpu": "2"}, {"cpu": "5"}))
    cluster.add(pod("large", container("6")), pod("small", container("5")))
    assert_placed(cluster, small="n")
    assert aligned(cluster, "small").endswith("NUMA 1")
    refused(cluster, "large", "single-numa-node")


def test_a_report_says_where_the_gpus_of_pods_are_that_name_none() -> None:
    cluster = cluster_of(*TWO, left=({GPU: "0"}, {}))
    there = make_pod("there", gpu=4, node="n")
    cluster.add(there, pod("p", container(**{GPU: "4"})))
    assert_placed(cluster, p="n")
    assert aligned(cluster, "p").endswith("NUMA 1")
    cluster.remove("p")
    cluster.api.update(report(*TWO, left=({}, {GPU: "0"})))
    cluster.add(pod("q", container(**{GPU: "4"})))
    assert_placed(cluster, q="n")
    assert aligned(cluster, "q").endswith("NUMA 0")


def test_a_report_that_comes_later_is_waited_for() -> None:
    node = make_node("n", cpu=128, memory="1Ti", gpu=8)
    cluster = Cluster([node])
    cluster.add(pod("early", container("9")))
    assert_placed(cluster, early="n")
    cluster.add(report(*TWO))
    cluster.add(pod("late", container("9")))
    refused(cluster, "late", "single-numa-node")


def test_a_new_report_brings_a_pending_pod_back() -> None:
    cluster = cluster_of(*TWO, left=({"cpu": "1"}, {"cpu": "1"}))
    cluster.add(pod("p", container("6")))
    refused(cluster, "p", "single-numa-node")
    cluster.api.update(report(*TWO))
    cluster.advance(60)
    assert_placed(cluster, p="n")


def test_what_a_running_pod_has_is_taken_off_once() -> None:
    cluster = cluster_of(*TWO)
    cluster.add(pod("first", container("5")))
    assert_placed(cluster, first="n")
    first = cluster.api.get(Pod, "default/first")
    assert first is not None
    cluster.api.update(msgspec.structs.replace(first, status=PodStatus(phase="Running")))
    cluster.api.update(report(*TWO, left=({"cpu": "3"}, {})))
    cluster.add(pod("second", container("3")), pod("third", container("8")))
    assert_placed(cluster, second="n", third="n")
    assert aligned(cluster, "second").endswith("NUMA 0")
    assert aligned(cluster, "third").endswith("NUMA 1")
    cluster.add(pod("fourth", container("1")))
    refused(cluster, "fourth", "single-numa-node")


def test_a_report_that_is_gone_aligns_nothing() -> None:
    cluster = cluster_of(*TWO)
    cluster.add(pod("p", container("9")))
    refused(cluster, "p", "single-numa-node")
    cluster.api.delete(NodeResourceTopology, "n")
    cluster.advance(60)
    assert_placed(cluster, p="n")


def test_a_pod_goes_where_the_kubelet_takes_it() -> None:
    cluster = cluster_of(*TWO)
    cluster.add(make_node("plain", cpu=12, memory="64Gi"), pod("p", container("9")))
    assert refusals(NodeNUMA, pod("p", container("9")), cluster) == {
        "n": "node(s) whose Topology Manager (single-numa-node, container scope) would refuse "
        "the pod"
    }
    assert_placed(cluster, p="plain")


def test_the_advice_says_what_each_numa_node_has_left() -> None:
    cluster = cluster_of({"cpu": "8", NIC: "2"}, {"cpu": "6", NIC: "1"})
    cluster.add(pod("p", container("9", **{NIC: "1"})))
    refused(cluster, "p", "single-numa-node")
    work = next(iter(cluster.scheduler.profiles.values()))
    diagnosis = Diagnosis(work.runtime, work.evaluator, work.cycle, cluster.snapshot)
    unit = cluster.scheduler.pending_unit("default/p")
    assert unit is not None
    (text,) = (one.text for one in diagnosis.suggest(unit, cluster.api.now))
    assert "9 cpu, 1 example.com/vf" in text
    assert "NUMA 0 has 8 cpu, 2 example.com/vf; NUMA 1 has 6 cpu, 1 example.com/vf" in text


def test_a_node_without_a_report_has_the_numa_nodes_of_its_machine() -> None:
    labels = {
        "bayplan.dev/machine": "dgx-1v",
        "bayplan.dev/topology-manager-policy": "single-numa-node",
    }
    cluster = Cluster([make_node("n", cpu=128, memory="1Ti", gpu=8, labels=labels)])
    cluster.add(make_pod("five", gpu=5), make_pod("four", gpu=4), make_pod("three", gpu=3))
    refused(cluster, "five", "single-numa-node")
    assert_placed(cluster, four="n", three="n")
    assert aligned(cluster, "four")[-1] != aligned(cluster, "three")[-1]


def test_it_keeps_the_contract() -> None:
    check_plugin(NodeNUMA, rounds=3)


# The merge of hints -----------------------------------------------------------------------------


def kubelet(
    policy: Policy,
    needs: Mapping[str, int],
    free: Mapping[str, Amounts],
    capacity: Mapping[str, Amounts],
) -> int | None:
    """Merge hints as the kubelet states it: try every combination of one hint for each resource."""
    size = len(next(iter(free.values())))
    sets = range(1, 1 << size)

    def amount(of: Amounts, mask: int) -> int:
        return sum(of[node] for node in range(size) if mask >> node & 1)

    offers: list[list[tuple[int | None, bool]]] = []
    for name, need in needs.items():
        widths = [m.bit_count() for m in sets if amount(capacity[name], m) >= need]
        own: list[tuple[int | None, bool]] = [
            (mask, mask.bit_count() == min(widths))
            for mask in sets
            if amount(free[name], mask) >= need
        ]
        offers.append(own or [(None, False)])
    if policy == "single-numa-node":
        offers = [[o for o in own if o[0] and o[0].bit_count() == 1 and o[1]] for own in offers]
    widest = max(min((m.bit_count() for m, _ in own if m), default=0) for own in offers)
    merged = []
    for combination in itertools.product(*offers):
        named = [mask for mask, _ in combination if mask is not None]
        common = (1 << size) - 1
        for mask in named:
            common &= mask
        preferred = all(flag for _, flag in combination) and len(set(named)) == 1
        if common:
            width = common.bit_count()
            distance = (0, width) if preferred else (width > widest, abs(widest - width))
            merged.append((not preferred, *distance, common))
    best = min(merged, default=(True, 0, 0, (1 << size) - 1))
    return None if best[0] and policy != "best-effort" else best[3]


@st.composite
def questions(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, Amounts], dict[str, Amounts]]:
    """Draw needs, what is free on each NUMA node and what is there."""
    size = draw(st.integers(1, 4))
    names = draw(st.lists(st.sampled_from(["cpu", "memory", GPU, NIC]), min_size=1, unique=True))
    capacity = {
        name: tuple(draw(st.lists(st.integers(0, 4), min_size=size, max_size=size)))
        for name in names[:3]
    }
    capacity = {name: amounts for name, amounts in capacity.items() if any(amounts)} or {
        "cpu": (4,) * size
    }
    free = {
        name: tuple(draw(st.integers(0, most)) for most in amounts)
        for name, amounts in capacity.items()
    }
    needs = {name: draw(st.integers(1, sum(amounts) + 1)) for name, amounts in capacity.items()}
    return needs, free, capacity


@given(questions(), st.sampled_from(POLICIES[1:]))
def test_hints_merge_as_in_the_kubelet(
    question: tuple[dict[str, int], dict[str, Amounts], dict[str, Amounts]], policy: Policy
) -> None:
    assert affinity(policy, *question) == kubelet(policy, *question)
