"""CPUs of their own: which pods get some, by which policies, and near which devices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.cpu_nodes import SPEC, STATUS, cpu_pod, cpu_report, cpu_topology, cpus_given

from bayplan.api import Pod
from bayplan.api.cpu_lists import cpu_list, cpus_in
from bayplan.explain.suggestions import Diagnosis
from bayplan.snapshot import PodInfo
from bayplan.testing import Cluster, assert_pending, assert_placed, make_node, make_object, make_pod

BIND = "node.koordinator.sh/cpu-bind-policy"
STRATEGY = "node.koordinator.sh/numa-allocate-strategy"
POLICY = "node.koordinator.sh/numa-topology-policy"
RATIO = "node.koordinator.sh/resource-amplification-ratio"


def cluster_of(
    *pods: Pod, labels: Mapping[str, str] | None = None, ratio: str = "", **published: Any
) -> Cluster:
    """Return a cluster of one node: two NUMA nodes with four cores of two threads each."""
    node = make_node("n", 16, labels=labels, annotations={RATIO: ratio} if ratio else {})
    cluster = Cluster([node, cpu_report(**published), *pods])
    cluster.schedule()
    return cluster


def test_a_pod_gets_whole_cores_on_one_numa_node() -> None:
    cluster = cluster_of(cpu_pod("a"), cpu_pod("b"), cpu_pod("c"), cpu_pod("d"))
    assert [cpus_given(cluster, name) for name in "abcd"] == ["0-3", "8-11", "4-7", "12-15"]
    cluster.add(cpu_pod("e"))
    assert_pending(cluster, "e", "Insufficient cpu")


def test_the_fuller_numa_node_comes_first_where_the_node_says_so() -> None:
    cluster = cluster_of(cpu_pod("a"), cpu_pod("b"), labels={STRATEGY: "MostAllocated"})
    assert [cpus_given(cluster, name) for name in "ab"] == ["0-3", "4-7"]


def test_a_pod_may_ask_for_one_thread_of_each_core() -> None:
    cluster = cluster_of(cpu_pod("a", spec={"preferredCPUBindPolicy": "SpreadByPCPUs"}))
    assert cpus_given(cluster, "a") == "0,2,4,6"


@pytest.mark.parametrize(("qos", "given"), [("LSE", "0-1"), ("LSR", "0-1"), ("LS", ""), ("", "")])
def test_only_pods_of_two_classes_get_cpus_of_their_own(qos: str, given: str) -> None:
    assert cpus_given(cluster_of(cpu_pod("a", "2", qos)), "a") == given


def test_a_pod_below_production_gets_none() -> None:
    own = cpu_pod("a", "2")
    own = make_pod(
        "a",
        labels={**own.metadata.labels, "koordinator.sh/priority-class": "koord-batch"},
        cpu=2,
    )
    assert cpus_given(cluster_of(own), "a") == ""


def test_half_a_cpu_cannot_be_a_pods_own() -> None:
    cluster = cluster_of(cpu_pod("a", "1500m"))
    assert_pending(cluster, "a", "the requested CPUs must be integer")


def test_a_required_policy_is_kept_exactly() -> None:
    whole = {"requiredCPUBindPolicy": "FullPCPUs"}
    cluster = cluster_of(cpu_pod("a", "3", spec=whole))
    assert_pending(cluster, "a", "node(s) requested cpus not multiple cpus per core")
    # With one thread of every core gone, no core is left whole.
    cluster = cluster_of(cpu_pod("a", "8", spec={"requiredCPUBindPolicy": "SpreadByPCPUs"}))
    assert cpus_given(cluster, "a") == "0,2,4,6,8,10,12,14"
    cluster.add(cpu_pod("b", "2", spec=whole))
    assert_pending(cluster, "b", "not enough cpus available to satisfy request")
    cluster.add(cpu_pod("c", "2"))
    assert_placed(cluster, c="n")


def test_a_node_demands_a_policy_of_every_pod() -> None:
    cluster = cluster_of(cpu_pod("a", "2", ""), labels={BIND: "FullPCPUsOnly"})
    assert cpus_given(cluster, "a") == "0-1"
    found = cluster.api.get(Pod, "default/a")
    assert found is not None
    assert json.loads(found.metadata.annotations[SPEC]) == {"requiredCPUBindPolicy": "FullPCPUs"}
    cluster.add(cpu_pod("b", "2", spec={"requiredCPUBindPolicy": "SpreadByPCPUs"}))
    assert_pending(cluster, "b", "cpu bind policy conflicts with pod's required cpu bind policy")
    cluster.add(cpu_pod("c", "500m", ""))
    assert_pending(cluster, "c", "the requested CPUs must be integer")


def test_the_kubelets_option_demands_whole_cores_too() -> None:
    kubelet = json.dumps({"policy": "static", "options": {"full-pcpus-only": "true"}})
    cluster = cluster_of(cpu_pod("a", "3", ""), kubelet=kubelet)
    assert_pending(cluster, "a", "node(s) requested cpus not multiple cpus per core")


def test_what_is_reserved_is_given_to_nobody() -> None:
    cluster = cluster_of(
        cpu_pod("a", "8"),
        kubelet=json.dumps({"policy": "static", "reservedCPUs": "0-1"}),
        reservation=json.dumps({"reservedCPUs": "2,3"}),
        system=json.dumps({"cpuset": "8-9"}),
        pods=json.dumps(
            [
                {"uid": "x", "cpuset": "10-11", "managedByKubelet": True},
                {"uid": "y", "cpuset": "12-13"},
            ]
        ),
    )
    assert cpus_given(cluster, "a") == "4-7,12-15"


def test_a_report_of_nothing_reserved_is_read() -> None:
    # So the agent writes it, where the kubelet has given no CPUs away.
    kubelet = json.dumps({"policy": "none"})
    cluster = cluster_of(
        cpu_pod("a", "8"), kubelet=kubelet, pods="null", reservation="{}", system="null"
    )
    assert cpus_given(cluster, "a") == "0-7"


def test_numbers_of_cores_may_start_again_in_each_socket() -> None:
    listed = json.loads(cpu_topology())["detail"]
    again = json.dumps({"detail": [{**cpu, "core": cpu["core"] % 4} for cpu in listed]})
    whole = {"requiredCPUBindPolicy": "FullPCPUs"}
    pods = [cpu_pod("a", "6", spec=whole), cpu_pod("b", "10", spec=whole)]
    cluster = cluster_of(*pods, topology=again)
    assert [cpus_given(cluster, name) for name in "ab"] == ["0-5", "6-15"]


@pytest.mark.parametrize(
    ("level", "second"), [("PCPULevel", "2,4"), ("NUMANodeLevel", "8,10"), ("None", "1,3")]
)
def test_pods_that_exclude_each_other_share_no_core_or_numa_node(level: str, second: str) -> None:
    spec = {"preferredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": level}
    labels = {STRATEGY: "MostAllocated"}
    first = "0,2" if level != "PCPULevel" else "0"
    pods = [cpu_pod("a", "2", spec=spec), cpu_pod("b", "2", spec=spec)]
    if level == "PCPULevel":
        pods[0] = cpu_pod("a", "1", spec=spec)
    cluster = cluster_of(*pods, labels=labels)
    assert [cpus_given(cluster, name) for name in "ab"] == [first, second]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_pod_that_gets_cpus_as_its_node_demands_keeps_others_away_at_once(restarts: bool) -> None:
    spec = {"preferredCPUExclusivePolicy": "NUMANodeLevel"}
    labels = {BIND: "FullPCPUsOnly", STRATEGY: "MostAllocated"}
    cluster = cluster_of(cpu_pod("a", "2", "LS", spec), labels=labels)
    if restarts:
        cluster.restart()
    cluster.add(cpu_pod("b", "2", spec=spec))
    cluster.schedule()
    assert [cpus_given(cluster, name) for name in "ab"] == ["0-1", "8-9"]


def test_cpus_are_on_the_numa_node_of_the_pods_gpu() -> None:
    devices = make_object(
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Device",
            "metadata": {"name": "n"},
            "spec": {
                "devices": [
                    {
                        "type": kind,
                        "minor": 0,
                        "health": True,
                        "resources": amounts,
                        "topology": {"socketID": 1, "nodeID": 1, "pcieID": "1"},
                    }
                    for kind, amounts in (
                        (
                            "gpu",
                            {
                                "koordinator.sh/gpu-core": "100",
                                "koordinator.sh/gpu-memory": "80Gi",
                                "koordinator.sh/gpu-memory-ratio": "100",
                            },
                        ),
                        ("rdma", {"koordinator.sh/rdma": "100"}),
                    )
                ]
            },
        }
    )
    amounts = {"koordinator.sh/gpu-core": 100, "koordinator.sh/rdma": 100}
    node = make_node("n", 16, **amounts)
    wants = [
        cpu_pod("gpu", "2", koordinator_sh__gpu="100"),
        cpu_pod("nic", "2", koordinator_sh__rdma="10"),
        cpu_pod("none", "2"),
    ]
    for own in wants:
        cluster = Cluster([node, devices, cpu_report(), own])
        cluster.schedule()
        name = own.metadata.name
        assert cpus_given(cluster, name) == ("0-1" if name == "none" else "8-9"), name


def test_a_node_of_one_numa_policy_gives_all_from_one_and_says_so() -> None:
    labels = {POLICY: "SingleNUMANode"}
    spread = {"requiredCPUBindPolicy": "FullPCPUs"}
    cluster = cluster_of(
        cpu_pod("a", "6"), cpu_pod("b", "6"), cpu_pod("c", "4", spec=spread), labels=labels, zones=2
    )
    assert [cpus_given(cluster, name) for name in "abc"] == ["0-5", "8-13", ""]
    assert_pending(cluster, "c", "node(s) whose NUMA nodes have no room for the pod")
    found = cluster.api.get(Pod, "default/a")
    assert found is not None
    assert json.loads(found.metadata.annotations[STATUS])["numaNodeResources"] == [
        {"node": 0, "resources": {"cpu": "6", "memory": "1Gi"}}
    ]


def test_of_the_numa_nodes_where_all_fits_one_with_whole_cores_comes_first() -> None:
    spread = {"requiredCPUBindPolicy": "SpreadByPCPUs"}
    pods = [cpu_pod("a", "4", spec=spread), cpu_pod("b"), cpu_pod("c"), cpu_pod("d")]
    cluster = cluster_of(*pods, labels={POLICY: "SingleNUMANode"}, zones=2)
    given = [cpus_given(cluster, name) for name in "abcd"]
    assert given == ["0,2,4,6", "8-11", "12-15", "1,3,5,7"]


def test_the_numa_node_of_a_pod_without_cpus_of_its_own_is_written_for_the_agent() -> None:
    labels = {POLICY: "SingleNUMANode"}
    cluster = cluster_of(cpu_pod("a", "6", "LS"), cpu_pod("b", "6", ""), labels=labels, zones=2)
    for number, name in enumerate("ab"):
        found = cluster.api.get(Pod, f"default/{name}")
        assert found is not None
        own = {"node": number, "resources": {"cpu": "6", "memory": "1Gi"}}
        assert json.loads(found.metadata.annotations[STATUS]) == {"numaNodeResources": [own]}
    cluster.remove("a")
    cluster.restart()
    cluster.add(cpu_pod("c", "6"))
    cluster.schedule()
    assert cpus_given(cluster, "c") == "0-5"
    # Without an agent nobody would read it.
    cluster = Cluster([make_node("n", 16, labels=labels), cpu_pod("a", "6", "LS")])
    cluster.schedule()
    found = cluster.api.get(Pod, "default/a")
    assert found is not None
    assert STATUS not in found.metadata.annotations


@pytest.mark.parametrize("restarts", [False, True])
def test_memory_of_a_numa_node_is_given_once_whatever_the_agent_reports(restarts: bool) -> None:
    # The agent's zones say what there is, at any time; what pods got is written on them.
    pods = [cpu_pod(name, "2", memory="10Gi") for name in "ab"]
    cluster = cluster_of(*pods, labels={POLICY: "SingleNUMANode"}, zones=2)
    for name in "ab":
        found = cluster.api.get(Pod, f"default/{name}")
        assert found is not None
        running = msgspec.structs.replace(found.status, phase="Running")
        cluster.api.update(msgspec.structs.replace(found, status=running))
    if restarts:
        cluster.restart()
    else:
        cluster.api.update(cpu_report(zones=2, reservation='{"reservedCPUs": "15"}'))
    cluster.add(cpu_pod("c", "2", memory="10Gi"), cpu_pod("d", "2", memory="6Gi"))
    assert_pending(cluster, "c", "node(s) whose NUMA nodes have no room for the pod")
    assert_placed(cluster, a="n", b="n", d="n")


def test_memory_is_no_reason_where_alignment_is_only_preferred() -> None:
    # No agent says that a kubelet has a memory manager, which would keep such pods off.
    pods = [cpu_pod(name, "2", memory="10Gi") for name in "abc"]
    cluster = cluster_of(*pods, labels={POLICY: "BestEffort"}, zones=2)
    assert_placed(cluster, a="n", b="n", c="n")


def test_cpus_count_more_where_a_node_is_amplified() -> None:
    # 16 CPUs that count as 32: a CPU of its own takes two of those.
    node = make_node("n", 32, annotations={RATIO: '{"cpu": 2}'})
    cluster = Cluster([node, cpu_report(), cpu_pod("a", "8"), cpu_pod("b", "10", "")])
    assert_placed(cluster, a="n", b="n")
    cluster.add(cpu_pod("c", "7", ""))
    assert_pending(cluster, "c", "Insufficient amplified cpu")
    cluster.add(cpu_pod("d", "4"))
    assert_pending(cluster, "d", "Insufficient amplified cpu")
    cluster.add(cpu_pod("e", "6", ""))
    assert_placed(cluster, e="n")


def test_without_an_agent_that_publishes_cpus_nobody_gets_any() -> None:
    cluster = Cluster([make_node("n"), cpu_pod("a")])
    assert_placed(cluster, a="n")
    assert cpus_given(cluster, "a") == ""


def test_pods_are_asked_about_from_the_moment_when_an_agent_publishes_cpus() -> None:
    cluster = Cluster([make_node("n", 16), cpu_pod("a")])
    assert_placed(cluster, a="n")
    plain = PodInfo(make_pod("x"))
    without = cluster.profile.runtime.of(plain).unconcerned
    assert "NodeNUMA" in without, "what no node has costs nothing"
    cluster.add(cpu_report(), cpu_pod("b"))
    assert_placed(cluster, a="n", b="n")
    assert "NodeNUMA" not in cluster.profile.runtime.of(plain).unconcerned
    assert cpus_given(cluster, "b") == "0-3"


def test_a_node_without_published_cpus_is_refused_where_others_publish_theirs() -> None:
    cluster = Cluster([make_node("m", 64), make_node("n", 16), cpu_report(), cpu_pod("a")])
    assert_placed(cluster, a="n")
    cluster.add(cpu_pod("b", "16"))
    assert_pending(cluster, "b", "1 node(s) invalid CPU Topology", "1 Insufficient cpu")


def test_an_annotation_that_cannot_be_read_is_named() -> None:
    cluster = cluster_of(cpu_pod("a", spec={"requiredCPUBindPolicy": "Both"}))
    assert_pending(cluster, "a", SPEC, "requiredCPUBindPolicy")


def test_topology_that_cannot_be_read_is_a_problem_of_its_node() -> None:
    cluster = cluster_of(cpu_pod("a", qos=""), topology='{"detail": [{"id": "zero"}]}')
    assert_placed(cluster, a="n")
    problems = [text for text in cluster.snapshot.unread().values() if "cpu-topology" in text]
    assert problems


def suggestions(cluster: Cluster, name: str) -> list[str]:
    """Return what would help a pending pod."""
    work = cluster.profile
    diagnosis = Diagnosis(work.runtime, work.evaluator, work.cycle, cluster.snapshot)
    unit = cluster.scheduler.pending_unit(f"default/{name}")
    assert unit is not None
    return [one.text for one in diagnosis.suggest(unit, cluster.api.now)]


def test_what_would_help_is_named() -> None:
    spread = {"requiredCPUBindPolicy": "SpreadByPCPUs"}
    cluster = cluster_of(cpu_pod("a", "6"), cpu_pod("b", "7"))
    cluster.add(cpu_pod("c", "3", spec=spread), cpu_pod("d", "1500m"))
    assert_pending(cluster, "c", "not enough cpus available to satisfy request")
    free = "free: 1 on NUMA 0, 1 on NUMA 1"
    assert suggestions(cluster, "c") == [
        f"would fit on n if 3 CPUs could be bound by SpreadByPCPUs; {free}"
    ]
    assert suggestions(cluster, "d") == ["would fit on n if it requested 2 CPUs, in whole CPUs"]


def test_a_larger_machine_is_divided_the_same_way() -> None:
    node = make_node("n", 256, "1Ti")
    cluster = Cluster([node, cpu_report(topology=cpu_topology(2, 64)), cpu_pod("a", "96")])
    assert_placed(cluster, a="n")
    assert cpus_given(cluster, "a") == "0-95"


@pytest.mark.parametrize(
    ("text", "cpus"), [("", []), ("3", [3]), ("0-2,8", [0, 1, 2, 8]), (" 1 , 4-5", [1, 4, 5])]
)
def test_lists_of_cpus(text: str, cpus: list[int]) -> None:
    assert sorted(cpus_in(text)) == cpus
    assert cpus_in(cpu_list(cpus)) == frozenset(cpus)


@pytest.mark.parametrize("text", ["a", "1-", "3-1", "0-99999", "-1", "1,,2", "٣"])
def test_what_is_no_list_of_cpus(text: str) -> None:
    with pytest.raises(ValueError, match="CPUs"):
        cpus_in(text)
