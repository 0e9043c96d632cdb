"""A cluster grows for the jobs that will run, and for no others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace
from tests.plugins.autoscaling.growing_clusters import ATOMIC, Growing, group
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, flavor, local_queue

from bayplan import Args, Plugin, Wait, hookimpl
from bayplan.api import ApiObject, Node, Pod, Topology
from bayplan.api.objects import decode_part
from bayplan.api.provisioning import ProvisioningRequest
from bayplan.cluster.protocol import CreateObject, Done, Write
from bayplan.errors import ClusterError, InputError, NotFound
from bayplan.testing import make_gang, make_node, make_object, make_pod

NOT_READY = "NotReadyForScheduling"
LACKS_NODES = "Unschedulable"


def members(gang: str, count: int, gpu: int = 8, **more: Any) -> list[Pod]:
    return [make_pod(f"{gang}-{i}", gang=gang, gpu=gpu, **more) for i in range(count)]


def half(name: str, **more: Any) -> Pod:
    return make_pod(name, annotations={"gpu-fraction": "0.5"}, **more)


# Gangs -----------------------------------------------------------------------------------------


def test_a_gang_gets_all_of_its_nodes_at_once() -> None:
    world = Growing(group(most=8), provisioningClass=ATOMIC)
    world.add(make_gang("g", 8), *members("g", 8))
    world.passes(200)
    assert world.bought() == 8
    assert len(world.on_nodes()) == 8
    assert len(set(world.on_nodes().values())) == 8
    assert world.cluster.api.list(ProvisioningRequest) == []


def test_a_gang_that_is_too_large_for_any_group_buys_nothing_and_says_why() -> None:
    world = Growing(group(most=7), provisioningClass=ATOMIC)
    world.add(make_gang("g", 8), *members("g", 8))
    world.passes(300)
    assert world.bought() == 0
    assert set(world.reasons().values()) == {NOT_READY}
    (request,) = world.cluster.api.list(ProvisioningRequest)
    name = request.metadata.name
    assert name.startswith("g-")
    assert f"ProvisioningRequest {name} asks for its nodes" in world.cluster.message("g-0")
    assert "no group can hold all of its pods" in world.cluster.message("g-0")


def test_without_requests_a_gang_asks_by_all_of_its_members() -> None:
    world = Growing(group(most=8))
    world.add(make_gang("g", 4), *members("g", 4))
    world.cluster.schedule()
    assert world.reasons() == dict.fromkeys(("g-0", "g-1", "g-2", "g-3"), LACKS_NODES)
    world.passes(200)
    assert (world.bought(), len(world.on_nodes())) == (4, 4)


def test_a_gang_whose_nodes_do_not_come_gives_up_and_asks_again_later() -> None:
    world = Growing(group(most=2), giveUpAfter=300, retryAfter=3600)
    world.add(make_gang("g", 4), *members("g", 4))
    world.passes(200)
    assert world.bought() == 2
    assert set(world.reasons().values()) == {LACKS_NODES}
    world.passes(1200)
    assert set(world.reasons().values()) == {NOT_READY}
    assert "Its nodes did not come within 5 minutes" in world.cluster.message("g-0")
    assert world.nodes() == []
    world.passes(2600)
    assert set(world.reasons().values()) == {LACKS_NODES}


def test_a_gang_that_fits_no_group_has_one_request_that_stays_open() -> None:
    world = Growing(group(most=8), provisioningClass=ATOMIC)
    world.add(make_gang("g", 2), *members("g", 2, spec={"nodeSelector": {"kept": "free"}}))
    world.passes(100)
    assert len(world.cluster.api.list(ProvisioningRequest)) == 1
    assert world.bought() == 0


def test_a_request_whose_booking_ends_too_early_is_made_again() -> None:
    slow = group(most=8)
    slow = type(slow)(slow.name, 0, 8, 900.0, slow.price, slow.template)
    world = Growing(slow, provisioningClass=ATOMIC)
    world.add(make_gang("g", 2), *members("g", 2))
    world.passes(640)
    assert "was booked for too short" in world.cluster.message("g-0")
    world.passes(70)
    names = [one.metadata.name for one in world.cluster.api.list(ProvisioningRequest)]
    assert [name.rpartition("-")[2] for name in names] == ["2"]
    world.passes(400)
    assert (world.bought(), len(world.on_nodes())) == (2, 2)


def test_a_pod_may_name_the_class_of_its_request() -> None:
    world = Growing(group())
    said = {"autoscaling.x-k8s.io/provisioning-class-name": ATOMIC}
    world.add(make_pod("p", gpu=8, annotations=said))
    world.passes(30)
    (request,) = world.cluster.api.list(ProvisioningRequest)
    assert request.spec.provisioning_class_name == ATOMIC
    world.passes(100)
    assert world.on_nodes() == {"p": "gpu-1"}


def test_nodes_that_came_for_a_gang_are_kept_for_it_until_all_are_there() -> None:
    world = Growing(group(most=0), giveUpAfter=600)
    world.add(make_gang("g", 3), *members("g", 3), make_node("old", cpu="2"))
    world.passes(10)
    world.add(make_node("new-1", gpu=8), make_node("new-2", gpu=8))
    world.add(make_pod("small", gpu=1), make_pod("urgent", gpu=8, priority=5))
    world.passes(20)
    assert world.on_nodes().keys() == {"urgent"}
    assert "kept for a gang" in world.cluster.message("small")
    world.cluster.remove("urgent")
    world.add(make_node("new-3", gpu=8))
    world.passes(20)
    assert world.on_nodes().keys() == {"g-0", "g-1", "g-2"}
    world.add(make_node("new-4", gpu=8))
    world.passes(20)
    assert world.on_nodes()["small"] == "new-4"


def test_nodes_that_are_kept_are_nominated_for_the_pods_that_get_them() -> None:
    """Autoscalers and other schedulers count a nominated node as taken."""
    world = Growing(group(most=0), giveUpAfter=600)
    world.add(make_gang("g", 3), *members("g", 3), make_node("old", cpu="2"))
    world.passes(10)
    assert world.nominated() == {}
    world.add(make_node("new-1", gpu=8), make_node("new-2", gpu=8))
    world.passes(20)
    assert world.nominated() == {"g-0": "new-1", "g-1": "new-2"}
    world.add(make_pod("urgent", gpu=8, priority=5))
    world.passes(20)
    assert world.on_nodes() == {"urgent": "new-1"}
    assert world.nominated() == {"g-0": "new-2"}
    world.passes(600)
    assert world.nominated() == {}


def test_nodes_of_karpenter_are_not_nominated() -> None:
    """It takes a nominated node for free, and would buy one too few."""
    world = Growing(group(most=0))
    world.add(make_gang("g", 2), *members("g", 2), make_node("old", cpu="2"))
    world.passes(10)
    world.add(make_node("new", gpu=8, labels={"karpenter.sh/nodepool": "gpus"}))
    world.passes(20)
    assert world.nominated() == {}


def test_a_nominated_node_is_kept_over_a_restart_until_it_is_known_what_comes() -> None:
    world = Growing(group(most=0))
    world.add(make_gang("g", 2), *members("g", 2), make_node("old", cpu="2"))
    world.passes(10)
    world.add(make_node("new", gpu=8))
    world.passes(20)
    assert world.nominated() == {"g-0": "new"}
    world.restart()
    world.add(make_node("newer", gpu=8))
    world.passes(20)
    assert world.on_nodes().keys() == {"g-0", "g-1"}
    assert world.nominated() == {}


def test_what_is_kept_for_a_gang_is_kept_over_a_restart() -> None:
    world = Growing(group(most=0))
    world.add(make_gang("g", 2), *members("g", 2), make_node("old", cpu="2"))
    world.passes(10)
    world.add(make_node("new", gpu=8))
    world.passes(20)
    world.restart()
    world.add(make_pod("small", gpu=1))
    world.passes(40)
    assert (world.nominated(), world.on_nodes()) == ({"g-0": "new"}, {})


def test_a_gang_that_lost_a_member_meanwhile_keeps_no_node_after_a_restart() -> None:
    world = Growing(group(most=0))
    world.add(make_gang("g", 2), *members("g", 2), make_node("old", cpu="2"))
    world.passes(10)
    world.add(make_node("new", gpu=8))
    world.passes(20)
    world.cluster.api.delete(Pod, "default/g-1", grace=0)
    world.restart()
    world.add(make_pod("small", gpu=1))
    world.passes(20)
    assert (world.nominated(), world.on_nodes()) == ({}, {"small": "new"})


def test_a_gang_that_loses_a_member_gives_its_nominated_nodes_back() -> None:
    world = Growing(group(most=0))
    world.add(make_gang("g", 2), *members("g", 2), make_node("old", cpu="2"))
    world.passes(10)
    world.add(make_node("new", gpu=8))
    world.passes(20)
    world.cluster.remove("g-1")
    world.add(make_pod("small", gpu=1))
    world.passes(20)
    assert (world.nominated(), world.on_nodes()) == ({}, {"small": "new"})
    assert world.reasons() == {"g-0": NOT_READY}
    assert "1 of 2 exist" in world.cluster.message("g-0")


def test_a_gang_in_one_rack_buys_in_one_rack_before_any_node_has_the_label() -> None:
    """No object describes the network: the layer is a label, which only nodes to come have."""
    spec = {"gatherStrategy": [{"layer": "rack", "strategy": "MustGather"}]}
    rule = {"gang.scheduling.koordinator.sh/network-topology-spec": json.dumps(spec)}
    groups = [group(rack, most=4, rack=rack) for rack in "ab"]
    world = Growing(*groups, plugins={"NetworkGather": {}})
    world.add(make_gang("g", 4, annotations=rule), *members("g", 4))
    world.passes(20)
    assert set(world.reasons().values()) == {NOT_READY}
    assert len(world.stand_ins()) == 4
    world.passes(200)
    assert (world.bought(), len(world.on_nodes())) == (4, 4)
    assert len({name[0] for name in world.on_nodes().values()}) == 1


def test_what_is_kept_for_a_gang_is_given_up_after_a_while() -> None:
    world = Growing(group(most=0), giveUpAfter=600)
    world.add(make_gang("g", 3), *members("g", 3), make_node("old", cpu="2"))
    world.passes(10)
    world.add(make_node("new-1", gpu=8), make_pod("small", gpu=1))
    world.passes(300)
    assert world.on_nodes() == {}
    world.passes(320)
    assert world.on_nodes() == {"small": "new-1"}


def test_old_nodes_are_kept_for_nobody() -> None:
    world = Growing(group(most=0))
    world.add(make_node("old", gpu=8), make_gang("g", 2), *members("g", 2))
    world.passes(10)
    world.add(make_pod("small", gpu=1))
    world.passes(10)
    assert world.on_nodes() == {"small": "old"}


def test_a_node_that_starts_with_a_taint_is_used_once_that_is_gone() -> None:
    world = Growing(group(most=0))
    world.add(make_gang("g", 1), *members("g", 1))
    world.passes(10)
    world.add(make_node("new", gpu=8, taints=["startup:NoSchedule"]))
    world.passes(60)
    assert world.on_nodes() == {}
    world.cluster.api.update(make_node("new", gpu=8))
    world.passes(10)
    assert world.on_nodes() == {"g-0": "new"}


def test_a_node_that_has_no_gpus_yet_is_used_once_it_has() -> None:
    world = Growing(group(most=0))
    world.add(make_gang("g", 1), *members("g", 1))
    world.add(make_node("new"))
    world.passes(60)
    assert world.on_nodes() == {}
    world.cluster.api.update(make_node("new", gpu=8))
    world.passes(10)
    assert world.on_nodes() == {"g-0": "new"}


# Queues ----------------------------------------------------------------------------------------


def limited(name: str, gpus: int) -> ApiObject:
    meta = {"name": name, "namespace": "queues", "labels": {"bayplan.dev/queue": name}}
    data = {"maxCapacity": f"{{nvidia.com/gpu: {gpus}}}"}
    return make_object({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})


@pytest.mark.parametrize("class_name", ["", ATOMIC])
def test_nodes_are_bought_only_for_the_gangs_that_their_queue_admits(class_name: str) -> None:
    world = Growing(group(most=300), plugins={"Queues": {}}, provisioningClass=class_name)
    labels = {"bayplan.dev/queue": "lab"}
    world.add(limited("lab", 5 * 16))
    for index in range(50):
        world.add(make_gang(f"g{index}", 2), *members(f"g{index}", 2, labels=labels))
    world.passes(300)
    assert world.bought() == 10
    assert len(world.on_nodes()) == 10
    assert sorted(set(world.reasons().values())) == [NOT_READY]


def test_a_job_beyond_its_kueue_quota_buys_nothing() -> None:
    world = Growing(group(), plugins={"Queues": {}})
    labels = {"kueue.x-k8s.io/queue-name": "lq"}
    pods = [make_pod(f"p{i}", None, None, labels, gpu=8) for i in range(2)]
    quota = cluster_queue("cq", {"f": {"nvidia.com/gpu": 8}})
    world.add(flavor("f"), quota, local_queue("lq", "cq"), *pods)
    world.passes(300)
    assert world.bought() <= 1


@pytest.mark.parametrize("class_name", ["", ATOMIC])
def test_two_profiles_do_not_take_each_other_s_stand_ins_or_requests(
    tmp_path: Path, class_name: str
) -> None:
    enabled = {"multiPoint": {"enabled": [{"name": "Autoscaling"}]}}
    config = [{"name": "Autoscaling", "args": {"provisioningClass": class_name}}]
    names = ("one", "two")
    profiles = [
        {"schedulerName": name, "plugins": enabled, "pluginConfig": config} for name in names
    ]
    kind = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
    }
    path = tmp_path / "profiles.yaml"
    path.write_text(yaml.safe_dump({**kind, "profiles": profiles}))
    world = Growing(group(gpu=1, **{"nvidia.com/gpu.memory": "80000"}), profiles=path)
    for name in names:
        spec = {"schedulerName": name}
        world.add(half(f"h-{name}", spec=spec), make_gang(f"g-{name}", 1))
        world.add(*members(f"g-{name}", 1, gpu=1, spec=spec))
    world.passes(25)
    found = len(world.stand_ins()), len(world.cluster.api.list(ProvisioningRequest))
    assert found == ((1, 2) if class_name else (1, 0))
    world.passes(30)
    assert world.bought() == 3


# What autoscalers cannot see -------------------------------------------------------------------


@pytest.mark.parametrize(("pods", "nodes"), [(1, 1), (2, 1), (3, 2), (5, 3)])
def test_shares_buy_as_many_gpus_as_they_fill(pods: int, nodes: int) -> None:
    world = Growing(group(gpu=1, **{"nvidia.com/gpu.memory": "80000"}))
    world.add(make_node("cpu", cpu="64"), *(half(f"h{i}") for i in range(pods)))
    world.passes(60)
    assert world.bought() == nodes
    assert set(world.reasons().values()) <= {NOT_READY}


def test_stand_ins_ask_for_whole_gpus_and_count_for_nobody() -> None:
    world = Growing(group(most=0))
    world.add(make_node("cpu", cpu="64"), half("h", cpu="2", priority=7))
    world.passes(20)
    (one,) = world.stand_ins()
    assert (one.metadata.namespace, one.spec.node_name) == ("bayplan-stand-ins", "")
    requests = {key: value.text for key, value in one.spec.containers[0].resources.requests.items()}
    assert requests == {"cpu": "2000m", "memory": "1073741824", "nvidia.com/gpu": "1"}
    (condition,) = one.status.conditions
    assert (condition.type, condition.status, condition.reason) == (
        "PodScheduled",
        "False",
        LACKS_NODES,
    )
    assert one.key not in world.cluster.scheduler.snapshot.living
    assert "1 stand-in asks autoscalers for its nodes." in world.cluster.message("h")
    assert "1 stand-in asks autoscalers for its nodes." in world.cluster.decision("h").message


def test_a_stand_in_goes_with_its_pod() -> None:
    world = Growing(group(most=0))
    world.add(make_node("cpu", cpu="64"), half("a"), half("b"))
    world.passes(20)
    assert len(world.stand_ins()) == 1
    world.cluster.remove("a")
    world.passes(20)
    assert len(world.stand_ins()) == 1
    world.cluster.remove("b")
    world.passes(20)
    assert world.stand_ins() == []


def test_pods_that_differ_in_their_nodes_have_stand_ins_of_their_own() -> None:
    world = Growing(group(most=0))
    world.add(half("a", spec={"nodeSelector": {"zone": "a"}}))
    world.add(half("b", spec={"nodeSelector": {"zone": "b"}}))
    world.passes(20)
    assert [one.spec.node_selector for one in world.stand_ins()] != []
    assert sorted(one.spec.node_selector["zone"] for one in world.stand_ins()) == ["a", "b"]


RACKS = {"gatherStrategy": [{"layer": "rack", "strategy": "MustGather"}]}


def racks() -> Topology:
    levels = [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]
    found = decode_part(Topology, {"metadata": {"name": "dc"}, "spec": {"levels": levels}})
    assert isinstance(found, Topology)
    return found


def in_one_rack(name: str, count: int) -> list[ApiObject]:
    said = {"gang.scheduling.koordinator.sh/network-topology-spec": json.dumps(RACKS)}
    return [make_gang(name, count, annotations=said), *members(name, count)]


@pytest.mark.parametrize("class_name", ["", ATOMIC])
def test_a_gang_in_one_rack_is_not_spread_over_two_growing_ones(class_name: str) -> None:
    world = Growing(
        group("a", most=4, rack="a"), group("b", most=4, rack="b"), provisioningClass=class_name
    )
    world.add(racks(), make_node("old", gpu=8, labels={"rack": "b"}), *in_one_rack("g", 4))
    world.passes(200)
    assert len(world.on_nodes()) == 4
    racks_used = {name.rstrip("0123456789-") for name in world.on_nodes().values()}
    assert racks_used in ({"a"}, {"b"}, {"b", "old"})
    assert world.bought() <= 4
    assert world.stand_ins() == []


@pytest.mark.parametrize("class_name", ["", ATOMIC])
def test_a_rack_that_is_too_small_is_not_bought(class_name: str) -> None:
    world = Growing(
        group("a", most=3, rack="a"), group("b", most=3, rack="b"), provisioningClass=class_name
    )
    world.add(racks(), make_node("old", cpu="1", labels={"rack": "c"}), *in_one_rack("g", 4))
    world.passes(300)
    assert world.on_nodes() == {}
    assert world.bought("a") == 0 or world.bought("b") == 0
    assert class_name == "" or world.bought() == 0


# Preemption ------------------------------------------------------------------------------------


def test_a_preemption_in_progress_buys_nothing() -> None:
    world = Growing(group())
    slow = {"terminationGracePeriodSeconds": 120}
    world.add(make_node("n", gpu=8), make_pod("low", gpu=8, priority=0, spec=slow))
    world.cluster.schedule()
    world.add(make_pod("high", gpu=8, priority=10))
    world.passes(300)
    assert world.bought() == 0
    assert world.on_nodes() == {"high": "n"}


# Nodes that go ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"])
def test_a_node_that_is_being_removed_is_not_filled_again(key: str) -> None:
    world = Growing(group(most=0))
    world.add(make_node("n", gpu=8, taints=[f"{key}:NoSchedule"]))
    world.add(make_pod("p", gpu=8, spec={"tolerations": [{"operator": "Exists"}]}))
    world.passes(10)
    assert world.on_nodes() == {}
    assert "being removed by an autoscaler" in world.cluster.message("p")


def test_members_of_gangs_are_marked_and_others_are_not() -> None:
    world = Growing(group(most=0))
    own = {"karpenter.sh/do-not-disrupt": "4h"}
    world.add(make_node("n", gpu=8), make_gang("g", 2), make_pod("alone", gpu=1))
    world.add(make_pod("g-0", gang="g", gpu=1), make_pod("g-1", gang="g", gpu=1, annotations=own))
    world.passes(10)
    said = {pod.metadata.name: pod.metadata.annotations for pod in world.cluster.api.list(Pod)}
    assert said["alone"].get("karpenter.sh/do-not-disrupt") is None
    assert said["g-0"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert said["g-0"]["karpenter.sh/do-not-disrupt"] == "true"
    assert said["g-1"]["karpenter.sh/do-not-disrupt"] == "4h"
    assert "cluster-autoscaler.kubernetes.io/safe-to-evict" not in said["g-1"]


def test_marks_are_removed_by_a_process_that_protects_no_gangs() -> None:
    world = Growing(group(most=0))
    world.add(make_node("n", gpu=8), make_gang("g", 1), make_pod("g-0", gang="g", gpu=1))
    world.passes(10)
    world._plugins["Autoscaling"] = {"protectGangs": False}
    world.restart()
    world.passes(10)
    (pod,) = world.cluster.api.list(Pod)
    assert not any("autoscal" in key or "karpenter" in key for key in pod.metadata.annotations)


# Restarts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("class_name", ["", ATOMIC])
def test_whoever_is_killed_in_the_middle_nothing_is_bought_twice(class_name: str) -> None:
    world = Growing(group("a", most=9, rack="a"), provisioningClass=class_name)
    world.add(racks(), make_node("old", cpu="1", labels={"rack": "c"}), *in_one_rack("g", 4))
    world.add(*(half(f"h{i}") for i in range(2)))
    for _ in range(20):
        world.passes(7)
        world.restart()
    world.passes(400)
    assert len(world.on_nodes()) == 6
    assert world.bought() == 5
    assert world.stand_ins() == []
    assert world.cluster.api.list(ProvisioningRequest) == []


# What a queue counts, refusals and changes -------------------------------------------------------


@pytest.mark.parametrize("gpu", [1, 0])
def test_of_a_gang_in_a_queue_no_more_pods_ask_than_the_queue_counts(gpu: int) -> None:
    world = Growing(group(gpu=1, **{"nvidia.com/gpu.memory": "80000"}), plugins={"Queues": {}})
    labels = {"bayplan.dev/queue": "lab"}
    world.add(limited("lab", 2), make_gang("g", 2))
    if gpu:
        world.add(*members("g", 8, gpu=1, labels=labels))
    else:
        said = {"gpu-fraction": "0.9"}
        pods = [make_pod(f"g-{i}", gang="g", annotations=said, labels=labels) for i in range(8)]
        world.add(*pods)
    world.passes(60)
    assert world.bought() == 2


def test_a_gang_that_has_given_up_leaves_its_place_in_the_queue_to_another() -> None:
    world = Growing(group(), plugins={"Queues": {}}, giveUpAfter=100, retryAfter=5000)
    labels = {"bayplan.dev/queue": "lab"}
    nowhere = {"nodeSelector": {"kept": "free"}}
    world.add(limited("lab", 16), make_gang("big", 2), make_gang("ok", 2))
    world.add(*members("big", 2, labels=labels, spec=nowhere))
    world.passes(10)
    world.add(*members("ok", 2, labels=labels))
    world.passes(60)
    assert world.bought() == 0
    world.passes(300)
    assert world.on_nodes().keys() == {"ok-0", "ok-1"}


class Slow(Plugin[Args]):
    """Holds every pod at Permit for long."""

    @hookimpl
    def permit(self) -> Wait:
        return Wait(500.0)


def test_a_gang_that_waits_at_permit_when_it_would_be_asked_again_stops_nothing() -> None:
    world = Growing(group(), plugins={Slow: {}}, giveUpAfter=120)
    world.add(make_gang("g", 2), *members("g", 2))
    world.passes(400)
    assert world.cluster.scheduler.waiting("default/g-0") is not None
    world.passes(300)
    assert world.cluster.api.now >= 700


def test_stand_ins_keep_to_the_pods_that_a_pod_asks_to_be_with() -> None:
    cheap = group("a", price=1, gpu=1, zone="a", **{"nvidia.com/gpu.memory": "80000"})
    dear = group("b", price=9, gpu=1, zone="b", **{"nvidia.com/gpu.memory": "80000"})
    world = Growing(cheap, dear)
    selector = {"labelSelector": {"matchLabels": {"app": "base"}}, "topologyKey": "zone"}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [selector]}}
    world.add(make_node("base", labels={"zone": "b"}))
    world.add(make_pod("base", labels={"app": "base"}, node="base"))
    world.add(half("h", spec={"affinity": near}))
    world.passes(200)
    assert (world.bought("a"), world.bought("b")) == (0, 1)


def test_pods_that_differ_much_in_cpu_have_stand_ins_of_their_own() -> None:
    world = Growing(group(gpu=1, **{"nvidia.com/gpu.memory": "80000"}))
    world.add(half("a", cpu="1"), half("b", cpu="63500m"))
    world.passes(300)
    assert world.on_nodes().keys() == {"a", "b"}
    assert world.bought() == 2


def test_a_stand_in_that_is_refused_is_reported_and_tried_again() -> None:
    world = Growing(group(most=0))
    faults = Faults()
    world.cluster.api.submit = faults.around(world.cluster.api.submit)  # type: ignore[method-assign]
    world.add(make_node("cpu"), half("h"))
    world.passes(20)
    assert "No stand-in can be made: the namespace is missing" in world.cluster.message("h")
    faults.over = True
    world.passes(120)
    assert len(world.stand_ins()) == 1
    assert "1 stand-in asks" in world.cluster.message("h")


class Faults:
    """Refuses to create anything until it is over."""

    over = False
    error: type[ClusterError] = ClusterError

    def around(self, submit: Callable[..., None]) -> Callable[..., None]:
        def submitted(write: Write, done: Done | None = None) -> None:
            if isinstance(write, CreateObject) and not self.over:
                assert done is not None
                done(self.error("the namespace is missing"))
                return
            submit(write, done)

        return submitted


def test_a_request_that_is_refused_is_reported_and_tried_again() -> None:
    world = Growing(group(), provisioningClass=ATOMIC)
    faults = Faults()
    submit = world.cluster.api.submit
    made: list[Write] = []

    def counted(write: Write, done: Done | None = None) -> None:
        made.extend([write] if isinstance(write, CreateObject) else [])
        refused = faults.around(submit) if done is not None else submit
        refused(write, done)

    world.cluster.api.submit = counted  # type: ignore[method-assign]
    world.add(make_gang("g", 2), *members("g", 2))
    for index in range(10):
        world.add(make_pod(f"other-{index}", cpu="1000"))
        world.passes(4)
    assert len(made) <= 4
    assert "No ProvisioningRequest can be made: the namespace" in world.cluster.message("g-0")
    faults.over = True
    world.passes(300)
    assert len(world.on_nodes()) == 2


def test_a_cluster_without_such_requests_is_asked_by_the_pods_themselves() -> None:
    """Karpenter has none."""
    world = Growing(group(), provisioningClass=ATOMIC)
    faults = Faults()
    faults.error = NotFound
    submit = world.cluster.api.submit

    def without_kind(write: Write, done: Done | None = None) -> None:
        is_request = isinstance(write, CreateObject) and isinstance(write.obj, ProvisioningRequest)
        (faults.around(submit) if is_request else submit)(write, done)

    world.cluster.api.submit = without_kind  # type: ignore[method-assign]
    world.add(make_gang("g", 2), *members("g", 2))
    world.passes(120)
    assert (world.bought(), len(world.on_nodes())) == (2, 2)


def test_members_that_differ_in_their_index_only_are_one_pod_set() -> None:
    world = Growing(group(most=40), provisioningClass=ATOMIC)
    world.add(make_gang("g", 40))
    index = "batch.kubernetes.io/job-completion-index"
    for i in range(40):
        world.add(make_pod(f"g-{i}", gang="g", gpu=8, labels={index: str(i)}))
    world.passes(5)
    (request,) = world.cluster.api.list(ProvisioningRequest)
    assert [one.count for one in request.spec.pod_sets] == [40]


def test_a_gang_of_too_many_kinds_of_pods_has_no_request_and_says_so() -> None:
    world = Growing(group(), provisioningClass=ATOMIC)
    world.add(make_gang("g", 33), *(make_pod(f"g-{i}", cpu=100 + i, gang="g") for i in range(33)))
    world.passes(5)
    assert world.cluster.api.list(ProvisioningRequest) == []
    assert "its pods are of 33 kinds, and a request has at most 32" in world.cluster.message("g-0")


def test_a_gang_that_grows_asks_for_all_of_it() -> None:
    world = Growing(group(most=1), provisioningClass=ATOMIC)
    world.add(make_gang("g", 2), *members("g", 2))
    world.passes(30)
    gang = make_gang("g", 4)
    world.cluster.api.update(gang)
    world.add(*members("g", 4)[2:])
    world.passes(30)
    (request,) = world.cluster.api.list(ProvisioningRequest)
    assert [one.count for one in request.spec.pod_sets] == [4]


def test_members_beyond_the_minimum_get_nodes_of_their_own() -> None:
    world = Growing(group(), provisioningClass=ATOMIC)
    world.add(make_gang("g", 2), *members("g", 4))
    world.passes(1000)
    assert len(world.on_nodes()) == 4
    assert world.bought() == 4


def test_a_request_of_somebody_else_is_left_alone() -> None:
    world = Growing(group(most=0), provisioningClass=ATOMIC)
    world.add(make_gang("g", 2), *members("g", 2))
    world.passes(5)
    (own,) = world.cluster.api.list(ProvisioningRequest)
    base = own.metadata.name.rpartition("-")[0]
    meta = {"name": f"{base}-7", "namespace": "default"}
    spec = {"provisioningClassName": "else", "podSets": [{"podTemplateRef": {"name": "t"}}]}
    world.add(decode_part(ProvisioningRequest, {"metadata": meta, "spec": spec}))
    world.passes(5)
    for name in ("g-0", "g-1"):
        world.cluster.remove(name)
    world.passes(20)
    names = [one.metadata.name for one in world.cluster.api.list(ProvisioningRequest)]
    assert names == [f"{base}-7"]


# Nodes that do not serve, and nodes that are kept -------------------------------------------------


def test_nodes_that_come_and_do_not_serve_are_not_bought_for_ever() -> None:
    """New nodes do not say how much memory their GPUs have, so shares by memory do not fit."""
    world = Growing(group(gpu=1))
    world.add(make_pod("x", annotations={"gpu-memory": "20000"}))
    world.passes(1200)
    assert (world.bought(), world.nodes()) == (2, [])
    assert "The nodes that came do not serve it" in world.cluster.message("x")
    world.passes(6000)
    assert world.on_nodes() == {}
    assert world.bought() <= 6


def test_a_node_that_gets_its_labels_late_is_not_bought_twice() -> None:
    world = Growing(group(gpu=1, most=5))
    world.add(make_pod("x", annotations={"gpu-memory": "20000"}))
    world.passes(75)
    (node,) = world.cluster.api.list(Node)
    world.passes(30)
    labels = {**node.metadata.labels, "nvidia.com/gpu.memory": "80000"}
    world.cluster.api.update(replace(node, metadata=replace(node.metadata, labels=labels)))
    world.passes(300)
    assert (world.bought(), world.on_nodes()) == (1, {"x": node.metadata.name})


def test_nodes_are_kept_for_a_gang_in_a_queue_from_pods_that_came_before_it() -> None:
    world = Growing(group(most=0), plugins={"Queues": {}})
    labels = {"bayplan.dev/queue": "lab"}
    world.add(limited("lab", 1000), make_pod("small", gpu=1), make_pod("q", gpu=1, labels=labels))
    world.passes(5)
    world.add(make_gang("g", 3), *members("g", 3, labels=labels))
    world.passes(5)
    world.add(make_node("n1", gpu=8))
    world.passes(20)
    assert world.on_nodes() == {}
    world.add(make_node("n2", gpu=8), make_node("n3", gpu=8))
    world.passes(20)
    assert world.on_nodes().keys() == {"g-0", "g-1", "g-2"}


def test_new_members_of_a_gang_have_what_was_kept_for_the_old_ones() -> None:
    world = Growing(group(most=0))
    world.add(make_gang("g", 3), *members("g", 3))
    world.passes(5)
    world.add(make_node("n1", gpu=8), make_node("n2", gpu=8))
    world.passes(5)
    for index in range(3):
        world.cluster.remove(f"g-{index}")
    world.add(*(make_pod(f"h-{index}", gang="g", gpu=8) for index in range(3)))
    world.add(make_node("n3", gpu=8))
    world.passes(10)
    assert len(world.on_nodes()) == 3


def test_what_is_kept_is_what_each_kind_of_member_can_use() -> None:
    world = Growing(group(most=0))
    world.add(make_gang("g", 3), make_pod("launcher", cpu="1", gang="g"), *members("g", 2))
    world.passes(5)
    world.add(make_node("n1", cpu="64", gpu=8))
    world.passes(5)
    world.add(make_pod("small", gpu=1))
    world.passes(20)
    assert world.on_nodes() == {}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"giveUpAfter": float("inf")}, "giveUpAfter"),
        ({"gpuResource": "no such"}, "gpuResource"),
        ({"provisioningClass": "Not_Valid"}, "provisioningClass"),
        ({"giveUp": 3}, "giveUp"),
    ],
)
def test_arguments_that_can_only_fail_are_refused(args: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        Growing(group(), **args)
