"""GPUs, NICs and FPGAs of Koordinator's Device objects, shared and taken together."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.plugins.gpus.koordinator.koordinator_builders import (
    allocated,
    device,
    devices,
    gpu,
    machine,
    minors,
    nic,
    node,
    pod,
)
from tests.plugins.permit_waits import held_at_permit, let_go

from bayplan.api import ApiObject, Node, Pod
from bayplan.api.configmap import ConfigMap
from bayplan.api.gpus import GPUS
from bayplan.api.meta import ObjectMeta
from bayplan.cluster.embedded.device_plugins import VirtualDevicePlugins
from bayplan.profiles.loading import default_profiles
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import PodInfo
from bayplan.testing import (
    Cluster,
    assert_pending,
    assert_placed,
    make_gang,
    make_node,
    make_pod,
    refusals,
    scores,
)
from bayplan_plugins.device_share import DeviceShare
from bayplan_plugins.gpus.ledger import GpuLedger

POD_GROUP = {"pod-group.scheduling.sigs.k8s.io": "g"}
JOINT = {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
FUNCTIONS = {"rdma": {"vfSelector": {"matchLabels": {"type": "general"}}}}
TEMPLATES = """
huawei-Ascend-310P:
  vir01: {koordinator.sh/gpu-memory: 3Gi, huawei.com/npu-core: 1, huawei.com/npu-cpu: 1}
  vir02: {koordinator.sh/gpu-memory: 6Gi, huawei.com/npu-core: 2, huawei.com/npu-cpu: 2}
"""


def scheduled(*objects: ApiObject, **options: Any) -> Cluster:
    cluster = Cluster(objects, **options)
    cluster.schedule()
    return cluster


@pytest.mark.parametrize("cached", [True, False])
def test_gpus_that_become_known_count_for_the_next_equal_pod(cached: bool) -> None:
    """Until then only their number did, which is not the GPUs' concern."""
    nodes = [make_node(name, gpu=8) for name in ("n1", "n2")]
    cluster = scheduled(*nodes, cached=cached)
    cluster.add(make_pod("first", gpu=8))
    assert_placed(cluster, first="n1")
    cluster.add(devices("n2", *(gpu(minor, health=minor > 0) for minor in range(8))))
    cluster.add(make_pod("second", gpu=8))
    assert_pending(cluster, "second", "Insufficient free GPUs")


def change(cluster: Cluster, new: ApiObject) -> None:
    cluster.api.update(new)
    cluster.api.deliver()


def told(cluster: Cluster, name: str) -> dict[str, str]:
    found = cluster.api.get(Pod, f"default/{name}")
    assert found is not None
    return found.metadata.annotations


# Shares ------------------------------------------------------------------------------------------


def test_a_policy_that_is_not_known_is_told_on_the_node() -> None:
    policy = {"node.koordinator.sh/gpu-partition-policy": "Hope"}
    cluster = scheduled(*machine(node_labels=policy), pod("a", {"gpu": 50}))
    assert cluster.snapshot.problems["n1", "GPUs"] == (
        'label node.koordinator.sh/gpu-partition-policy: expected Honor or Prefer, got "Hope"'
    )


def test_half_a_gpu_is_written_with_the_memory_that_it_is() -> None:
    cluster = scheduled(*machine(), pod("a", {"gpu-core": 50, "gpu-memory-ratio": 50}))
    assert allocated(cluster, "a") == {
        "gpu": [
            {
                "minor": 0,
                "id": "GPU-0",
                "resources": {
                    "koordinator.sh/gpu-core": "50",
                    "koordinator.sh/gpu-memory": "40Gi",
                    "koordinator.sh/gpu-memory-ratio": "50",
                },
            }
        ]
    }
    assert told(cluster, "a")["scheduling.koordinator.sh/gpu-minors"] == "0"


@pytest.mark.parametrize(
    ("requests", "word"),
    [({"gpu": 50}, "koordinator.sh/gpu"), ({"rdma": 50}, "koordinator.sh/rdma")],
)
def test_a_pod_in_the_words_of_two_systems_is_refused_with_both(
    requests: dict[str, int], word: str
) -> None:
    own = pod("a", requests)
    own.metadata.annotations["gpu-fraction"] = "0.5"
    cluster = scheduled(*machine(), own)
    assert_pending(cluster, "a", f"got {word} (koordinator) and gpu-fraction (KAI)")


def test_what_would_have_to_be_free_is_told() -> None:
    cluster = scheduled(
        node("n1", gpus=3),
        devices("n1", *(gpu(n, memory="80Gi") for n in range(3))),
        *(pod(f"p{n}", {"gpu-core": 10, "gpu-memory": "48Gi"}) for n in range(3)),
        pod("a", {"gpu-core": 10, "gpu-memory": "40Gi"}),
    )
    assert_pending(cluster, "a", "Insufficient shares of GPUs")
    own = cluster.api.get(Pod, "default/a")
    assert own is not None
    (suggest,) = (
        call for call in cluster.profile.runtime["remedies"] if call.name == "DeviceShare"
    )
    assert [one.text for one in suggest(PodInfo(own), cluster.snapshot.view())] == [
        "would fit on n1 if 8 GiB on one GPU were freed; 3 GPUs have 32 GiB each: fragmented"
    ]


def test_shares_do_not_exceed_a_gpu_in_either_compute_or_memory() -> None:
    cluster = scheduled(
        node("n1", gpus=1),
        devices("n1", gpu(0, pcie="0")),
        pod("a", {"gpu-core": 60, "gpu-memory-ratio": 20}),
        pod("b", {"gpu-core": 60, "gpu-memory-ratio": 20}),
        pod("c", {"gpu-core": 20, "gpu-memory-ratio": 90}),
        pod("d", {"gpu-core": 40, "gpu-memory-ratio": 80}),
    )
    assert_placed(cluster, a="n1", d="n1")
    for name in "bc":
        assert_pending(cluster, name, "0/1 nodes are available")


def test_several_shared_gpus_get_equal_parts() -> None:
    cluster = scheduled(*machine(), pod("a", {"gpu.shared": 2, "gpu-memory": 32 * 2**30}))
    assert [one["resources"] for one in allocated(cluster, "a")["gpu"]] == [
        {"koordinator.sh/gpu-memory": "16Gi", "koordinator.sh/gpu-memory-ratio": "20"}
    ] * 2


def test_a_share_goes_where_gpus_are_in_use_and_a_whole_gpu_where_none_is() -> None:
    cluster = scheduled(
        *machine(),
        pod("a", {"gpu-core": 50, "gpu-memory-ratio": 50}),
        pod("b", {"gpu-core": 30, "gpu-memory-ratio": 30}),
        pod("c", {"nvidia.com/gpu": 2}),
        plugins={"DeviceShare": {"scoringStrategy": {"type": "MostAllocated"}}},
    )
    assert minors(cluster, "a") == minors(cluster, "b") == [0]
    assert minors(cluster, "c") == [2, 3]


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ({"gpu-core": 50}, "koordinator.sh/gpu-core cannot be requested alone"),
        ({"gpu": 150}, "koordinator.sh/gpu: expected up to 100, or a multiple of 100, got 150"),
        ({"gpu.shared": 2, "gpu-memory-ratio": 101}, "for each of 2 shared GPUs, all alike"),
        ({"gpu": 100, "nvidia.com/gpu": 1}, "cannot be requested together"),
    ],
)
def test_a_request_that_no_gpu_can_meet_says_what_was_expected(
    requests: dict[str, int], message: str
) -> None:
    cluster = scheduled(*machine(), pod("a", requests))
    assert_pending(cluster, "a", message)


def test_an_annotation_that_cannot_be_read_is_named() -> None:
    cluster = scheduled(*machine(), pod("a", {"gpu": 100}, device_allocate_hint={"gpu": {"x": 1}}))
    assert_pending(
        cluster, "a", 'scheduling.koordinator.sh/device-allocate-hint: $.gpu: "x" is not supported'
    )


# Restarts, and Devices that change -----------------------------------------------------------


def test_a_new_scheduler_reads_back_what_pods_hold() -> None:
    first = scheduled(
        *machine(),
        pod("a", {"gpu-core": 50, "gpu-memory-ratio": 50}),
        pod("b", {"nvidia.com/gpu": 2, "rdma": 1}, **_joint()),
    )
    before = first.snapshot.shared(GpuLedger, GpuLedger).state("n1")
    again = Scheduler(first.api, default_profiles())
    first.api.deliver()
    again.snapshot.sync()
    assert again.snapshot.shared(GpuLedger, GpuLedger).state("n1") == before


def test_an_allocation_that_cannot_be_read_is_reported_with_its_place() -> None:
    bad = pod("a", {"gpu": 100}, device_allocated={"gpu": [{"minor": -1}]})
    spec = msgspec.structs.replace(bad.spec, node_name="n1")
    cluster = scheduled(*machine(), msgspec.structs.replace(bad, spec=spec))
    cluster.snapshot.shared(GpuLedger, GpuLedger).state("n1")
    problems = cluster.snapshot.problems
    assert [text for (where, _), text in problems.items() if where == "n1"] == [
        "annotation scheduling.koordinator.sh/device-allocated: $.gpu[0].minor: "
        "expected a number from 0 to 2147483647"
    ]


@pytest.mark.parametrize(
    ("resources", "problem"),
    [
        ({}, "$.gpu: minor 0: expected an amount of koordinator.sh/gpu-core"),
        (
            {"koordinator.sh/gpu-core": "60"},
            "expected an amount of koordinator.sh/gpu-memory-ratio",
        ),
        ({"koordinator.sh/gpu-core": "60", "koordinator.sh/gpu-memory-ratio": "60"}, ""),
    ],
)
def test_an_allocation_that_lacks_amounts_takes_what_its_pod_requests(
    resources: dict[str, str], problem: str
) -> None:
    stated = {"gpu": [{"minor": 0, "resources": resources}]}
    old = pod("old", {"gpu": 60}, device_allocated=stated)
    spec = msgspec.structs.replace(old.spec, node_name="n1")
    cluster = scheduled(*machine(), msgspec.structs.replace(old, spec=spec))
    state = cluster.snapshot.shared(GpuLedger, GpuLedger).state("n1")
    assert state is not None
    first = state.used[0]
    assert first.compute == 600
    assert first.memory == state.gpus[0].memory * 60 // 100
    told = "".join(cluster.snapshot.problems.values())
    assert (problem in told) if problem else not told


def test_an_unreadable_allocation_is_forgotten_with_its_pod() -> None:
    lost = pod("a", {"gpu": 50}, device_allocated="{")
    cluster = scheduled(*machine(), replace(lost, spec=replace(lost.spec, node_name="n1")))
    cluster.snapshot.shared(GpuLedger, GpuLedger).state("n1")
    assert ("n1", "default/a") in cluster.snapshot.problems
    cluster.remove("a")
    assert ("n1", "default/a") not in cluster.snapshot.problems


def test_a_gpu_that_is_no_longer_healthy_takes_no_pod() -> None:
    cluster = Cluster([node("n1", gpus=2), devices("n1", gpu(0), gpu(1))])
    change(cluster, devices("n1", gpu(0, health=False), gpu(1)))
    cluster.add(pod("a", {"gpu": 100}), pod("b", {"gpu": 100}))
    cluster.schedule()
    assert minors(cluster, "a") == [1]
    assert_pending(cluster, "b", "Insufficient free GPUs")


def test_a_pod_whose_share_went_to_another_before_it_was_bound_gets_another() -> None:
    asked = {"gpu-core": 60, "gpu-memory-ratio": 60}
    cluster = held_at_permit(*machine(), pod("ours", asked))
    share = {"minor": 0, "resources": {f"koordinator.sh/{key}": "60" for key in asked}}
    theirs = pod("theirs", asked, device_allocated={"gpu": [share]})
    cluster.add(replace(theirs, spec=replace(theirs.spec, node_name="n1")))
    let_go(cluster, "ours")
    assert cluster.message("ours") == "its shares of GPUs of n1 went to another pod"
    cluster.advance(30)
    let_go(cluster, "ours")
    assert minors(cluster, "ours") == [1]


def test_a_gpu_that_vanishes_with_shares_on_it_gives_its_pods_no_room_elsewhere() -> None:
    cluster = scheduled(
        node("n1", gpus=2), devices("n1", gpu(0, "0"), gpu(1, "0")), pod("a", {"gpu": 100})
    )
    change(cluster, devices("n1", gpu(1, "0")))
    cluster.add(pod("b", {"gpu": 100}), pod("c", {"gpu": 100}))
    cluster.schedule()
    assert minors(cluster, "b") == [1]
    assert "c" not in cluster.placements()


def test_a_node_without_a_device_object_has_no_shares() -> None:
    cluster = scheduled(node("n1"), pod("a", {"gpu-core": 50, "gpu-memory-ratio": 50}))
    assert_pending(cluster, "a", "no GPUs for shares by koordinator")


def test_a_device_object_with_one_minor_twice_is_reported() -> None:
    cluster = scheduled(node("n1"), devices("n1", gpu(0), gpu(0)), pod("a", {"gpu": 100}))
    assert "a" not in cluster.placements()
    assert any(
        "Device n1: $.spec.devices[1].minor: 0 is not the only gpu so named" in text
        for text in cluster.snapshot.problems.values()
    )


def test_resources_that_a_node_does_not_count_are_given_out_all_the_same() -> None:
    cluster = scheduled(
        make_node("n1", cpu=8),
        devices("n1", gpu(0, "0")),
        pod("a", {"gpu.shared": 1, "gpu-memory": 2**30}),
    )
    assert minors(cluster, "a") == [0]


def test_what_the_node_counts_limits_all_pods_together() -> None:
    cluster = scheduled(
        node("n1", None, 8, **{"koordinator.sh/rdma": 50}),
        devices("n1", nic(0, "0"), nic(1, "1")),
        pod("a", {"rdma": 50}),
        pod("b", {"rdma": 50}),
    )
    assert_pending(cluster, "b", "Insufficient koordinator.sh/rdma")


# Gangs and preemption ------------------------------------------------------------------------


def test_the_pods_of_a_gang_see_each_others_shares_before_any_is_bound() -> None:
    share = {"gpu-core": 60, "gpu-memory-ratio": 60}
    members = [pod(f"p{n}", share, labels=POD_GROUP) for n in range(3)]
    few: list[ApiObject] = [devices("n1", gpu(0, "0"), gpu(1, "0")), make_gang("g", min_member=3)]
    assert not scheduled(node("n1"), *few, *members).placements()
    enough: list[ApiObject] = [
        devices("n1", *(gpu(n, "0") for n in range(3))),
        make_gang("g", min_member=3),
    ]
    cluster = scheduled(node("n1"), *enough, *members)
    assert sorted(minors(cluster, f"p{n}")[0] for n in range(3)) == [0, 1, 2]


def test_a_share_and_its_function_are_taken_from_a_pod_of_lower_priority() -> None:
    wanted = {"nvidia.com/gpu": 1, "rdma": 1}
    cluster = scheduled(
        node("n1", gpus=1),
        devices("n1", gpu(0, "0"), nic(1, "0", functions=1)),
        pod("low", wanted, priority=1, **_joint()),
    )
    cluster.add(pod("high", wanted, priority=100, **_joint()))
    cluster.advance(60)
    assert minors(cluster, "high") == [0]
    assert allocated(cluster, "high")["rdma"][0]["extension"]["vfs"] == [{"busID": "0000:01:00.0"}]
    assert "low" not in cluster.placements()


def test_a_device_decides_also_where_the_machine_of_the_node_is_known() -> None:
    """GPUTopology leaves nodes to Koordinator's rules, so NICs stay with their GPUs."""
    labels = {"bayplan.dev/machine": "dgx-h100"}
    wanted = {"nvidia.com/gpu": 2, "rdma": 1}
    cluster = scheduled(
        *machine(node_labels=labels), pod("a", {"nvidia.com/gpu": 1}), pod("b", wanted, **_joint())
    )
    assert minors(cluster, "a") == [0]
    assert (minors(cluster, "b"), minors(cluster, "b", "rdma")) == ([2, 3], [2])
    assert GPUS not in told(cluster, "b")


# GPUs and NICs together ----------------------------------------------------------------------


def _joint(**hints: Any) -> dict[str, Any]:
    return {"device_joint_allocate": JOINT, "device_allocate_hint": {**FUNCTIONS, **hints}}


def test_a_nic_is_taken_at_the_switch_of_the_gpus_with_a_function_of_its_own() -> None:
    cluster = scheduled(
        *machine(),
        pod("a", {"nvidia.com/gpu": 2, "rdma": 1}, **_joint()),
        pod("b", {"nvidia.com/gpu": 2, "rdma": 1}, **_joint()),
    )
    assert minors(cluster, "a") == [0, 1]
    assert allocated(cluster, "a")["rdma"] == [
        {
            "minor": 1,
            "resources": {"koordinator.sh/rdma": "1"},
            "extension": {"vfs": [{"busID": "0000:01:00.0"}]},
        }
    ]
    assert minors(cluster, "b") == [2, 3]
    assert minors(cluster, "b", "rdma") == [2]


def test_gpus_are_chosen_again_where_the_first_ones_have_no_nic_left() -> None:
    cluster = scheduled(*machine(), pod("nic", {"rdma": 100}))
    assert minors(cluster, "nic", "rdma") == [1]
    cluster.add(pod("a", {"nvidia.com/gpu": 2, "rdma": 1}, **_joint()))
    cluster.schedule()
    assert (minors(cluster, "a"), minors(cluster, "a", "rdma")) == ([2, 3], [2])


def test_gpus_without_any_nic_at_their_switches_are_refused() -> None:
    gpus = [gpu(n, pcie=str(n // 2)) for n in range(4)]
    wanted = {"nvidia.com/gpu": 4, "rdma": 1}
    cluster = scheduled(node("n1"), devices("n1", *gpus, nic(1, "1")), pod("a", wanted, **_joint()))
    assert_pending(cluster, "a", "Insufficient rdma devices")


def test_a_function_is_given_to_one_pod_only() -> None:
    pods = [pod(f"p{n}", {"rdma": 1}, device_allocate_hint=FUNCTIONS) for n in range(3)]
    shared = nic(1, "0", functions=2)
    cluster = scheduled(node("n1"), devices("n1", gpu(0, "0"), shared), *pods)
    found = [allocated(cluster, f"p{n}")["rdma"][0]["extension"]["vfs"] for n in range(2)]
    assert found == [[{"busID": "0000:01:00.0"}], [{"minor": 1, "busID": "0000:01:00.1"}]]
    assert_pending(cluster, "p2", "Insufficient rdma devices")


def test_a_function_comes_back_with_the_end_of_its_pod() -> None:
    cluster = scheduled(
        node("n1"),
        devices("n1", gpu(0, "0"), nic(1, "0", functions=1)),
        pod("a", {"rdma": 1}, device_allocate_hint=FUNCTIONS),
    )
    cluster.remove("a")
    cluster.add(pod("b", {"rdma": 1}, device_allocate_hint=FUNCTIONS))
    assert_placed(cluster, b=cluster.schedule()["b"])
    assert allocated(cluster, "b")["rdma"][0]["extension"] == {"vfs": [{"busID": "0000:01:00.0"}]}


def test_all_nics_are_taken_where_the_pod_applies_for_all() -> None:
    hint = {"rdma": {"allocateStrategy": "ApplyForAll"}}
    cluster = scheduled(*machine(), pod("a", {"rdma": 10}, device_allocate_hint=hint))
    assert minors(cluster, "a", "rdma") == [1, 2, 3, 4]


def test_a_scope_that_is_too_narrow_keeps_the_pod_pending() -> None:
    hint = {"gpu": {"requiredTopologyScope": "PCIe"}}
    cluster = scheduled(*machine(), pod("a", {"nvidia.com/gpu": 4}, device_allocate_hint=hint))
    assert_pending(cluster, "a", "Insufficient Topology Scoped GPU Devices")


# Groups of GPUs ------------------------------------------------------------------------------


def _hopper(policy: str) -> list[ApiObject]:
    labels = {
        "node.koordinator.sh/gpu-model": "H800",
        "node.koordinator.sh/gpu-partition-policy": policy,
    }
    return machine(node_labels=labels)


def test_honoured_groups_refuse_a_number_of_gpus_that_no_group_has() -> None:
    cluster = scheduled(*_hopper("Honor"), pod("a", {"nvidia.com/gpu": 3}))
    assert_pending(cluster, "a", "node(s) Unsupported number of GPU requests")


def test_a_single_gpu_is_refused_before_binding_where_no_group_has_one() -> None:
    text = {"scheduling.koordinator.sh/gpu-partitions": '{"2": [{"minors": [0, 1]}]}'}
    honor = {"node.koordinator.sh/gpu-partition-policy": "Honor"}
    found = machine(annotations=text, node_labels=honor)
    cluster = scheduled(*found, pod("a", {"nvidia.com/gpu": 1}))
    refused = refusals(DeviceShare, pod("b", {"nvidia.com/gpu": 1}), cluster)
    assert refused == {"n1": "node(s) Unsupported number of GPU requests"}
    assert "a" not in cluster.placements()


def test_preferred_groups_give_way() -> None:
    cluster = scheduled(*_hopper("Prefer"), pod("a", {"nvidia.com/gpu": 3}))
    assert minors(cluster, "a") == [0, 1, 2]


def test_a_small_group_leaves_the_large_ones_whole() -> None:
    pods = [pod("a", {"nvidia.com/gpu": 1}), pod("b", {"nvidia.com/gpu": 4})]
    cluster = scheduled(*_hopper("Honor"), *pods, pod("c", {"nvidia.com/gpu": 1}))
    assert [minors(cluster, name) for name in "abc"] == [[0], [4, 5, 6, 7], [1]]


def test_the_groups_of_a_device_come_best_score_first() -> None:
    groups = [
        {"minors": [0, 1], "allocationScore": 1},
        {"minors": [2, 5], "allocationScore": 9},
    ]
    text = {"scheduling.koordinator.sh/gpu-partitions": json.dumps({"2": groups})}
    spec = {"allocatePolicy": "Restricted"}
    wanted = {"nvidia.com/gpu": 2}
    cluster = scheduled(
        *machine(annotations=text),
        pod("a", wanted, gpu_partition_spec=spec),
        pod("b", wanted, gpu_partition_spec=spec),
        pod("c", wanted, gpu_partition_spec={}),
    )
    assert minors(cluster, "a") == [2, 5]
    assert_pending(cluster, "b", "Insufficient Partitioned GPU Devices")
    assert minors(cluster, "c") == [0, 1]


# Nodes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "expected"), [("LeastAllocated", "n2"), ("MostAllocated", "n1")]
)
def test_nodes_are_scored_by_the_scoring_strategy(strategy: str, expected: str) -> None:
    args = {"scoringStrategy": {"type": strategy}}
    cluster = Cluster([*machine("n1"), *machine("n2")], plugins={"DeviceShare": args})
    share = {"gpu-core": 50, "gpu-memory-ratio": 50}
    taken = pod("a", share)
    spec = msgspec.structs.replace(taken.spec, node_selector={"kubernetes.io/hostname": "n1"})
    cluster.add(msgspec.structs.replace(taken, spec=spec))
    cluster.schedule()
    found = scores(DeviceShare, pod("b", share), cluster, args)
    assert max(found, key=lambda name: found[name]) == expected


def test_the_policy_for_fragments_chooses_gpus_not_nics() -> None:
    pods = [pod(f"p{n}", {"gpu-core": 60, "gpu-memory-ratio": 60}) for n in range(8)]
    small = [pod(f"s{n}", {"gpu-core": 40, "gpu-memory-ratio": 40}) for n in range(8)]
    cluster = scheduled(*machine(), *pods, *small, plugins=["GPUFragmentation"])
    assert len(cluster.placements()) == 16
    state = cluster.snapshot.shared(GpuLedger, GpuLedger).state("n1")
    assert state is not None
    assert [one.compute for one in state.used] == [1000] * 8 + [0] * 4


# What device plugins are told ----------------------------------------------------------------


def _vendor(vendor: str, *found: Any, **labels: str) -> list[ApiObject]:
    own = {"node.koordinator.sh/gpu-vendor": vendor, **labels}
    resources: dict[str, Any] = {"huawei.com/npu-core": 64, "huawei.com/npu-cpu": 56}
    return [node("n1", **resources), devices("n1", *found, labels=own)]


def _npus(count: int) -> list[Any]:
    resources = {
        "huawei.com/npu-core": "8",
        "huawei.com/npu-cpu": "7",
        "koordinator.sh/gpu-memory": "24Gi",
        "koordinator.sh/gpu-memory-ratio": "100",
    }
    return [device("gpu", n, resources, str(n), 0) for n in range(count)]


def test_a_part_of_an_npu_is_cut_after_a_template() -> None:
    model = {"node.koordinator.sh/gpu-model": "Ascend-310P"}
    templates = ConfigMap(
        ObjectMeta(name="gpu-shared-resource-templates", namespace="koordinator-system"),
        {"data.yaml": TEMPLATES},
    )
    share = {
        "gpu.shared": 1,
        "gpu-memory": 6 * 2**30,
        "huawei.com/npu-core": 2,
        "huawei.com/npu-cpu": 2,
    }
    cluster = scheduled(
        *_vendor("huawei", *_npus(2), **model),
        templates,
        pod("a", share),
        pod("b", {**share, "huawei.com/npu-core": 3}),
    )
    (got,) = allocated(cluster, "a")["gpu"]
    assert got["extension"] == {"gpuSharedResourceTemplate": "vir02"}
    assert got["resources"]["koordinator.sh/gpu-memory-ratio"] == "25"
    assert told(cluster, "a")["huawei.com/npu-core"] == "0-vir02"
    assert_pending(cluster, "b", "no template for shared GPUs has exactly these amounts")


def test_whole_npus_are_told_by_their_minors() -> None:
    cluster = scheduled(
        *_vendor("huawei", *_npus(2)),
        pod("a", {"huawei.com/npu-core": 16, "gpu-memory-ratio": 200}),
    )
    assert told(cluster, "a")["huawei.com/npu-core"] == "0,1"


def test_the_310p_has_an_annotation_and_a_prefix_of_its_own() -> None:
    model = {"node.koordinator.sh/gpu-model": "Ascend-310P3-300I-DUO"}
    cluster = scheduled(
        *_vendor("huawei", *_npus(2), **model),
        pod("a", {"huawei.com/npu-core": 16, "gpu-memory-ratio": 200}),
    )
    found = told(cluster, "a")
    assert found["huawei.com/Ascend310P"] == "Ascend310P-0,Ascend310P-1"
    assert found["predicate-time"]
    assert "huawei.com/npu-core" not in found


def test_cambricon_serves_one_pod_at_a_time_by_its_profile() -> None:
    share = {"gpu.shared": 1, "gpu-core": 25, "gpu-memory": 2**30}
    cluster = scheduled(*_vendor("cambricon", gpu(0, "0")), pod("a", share), pod("b", share))
    assert told(cluster, "a")["CAMBRICON_DSMLU_PROFILE"] == "0_25_4"
    assert _locks(cluster) == {"cambricon.com/dsmlu.lock": "2000-01-01T00:00:00Z,default,a"}
    assert "b" not in cluster.placements(), "the lock is another pod's"
    VirtualDevicePlugins(cluster.api)
    assert cluster.advance(1) == {"a": "n1", "b": "n1"}
    assert _locks(cluster) == {}


def _locks(cluster: Cluster) -> dict[str, str]:
    found = cluster.api.get(Node, "n1")
    assert found is not None
    return {key: text for key, text in found.metadata.annotations.items() if key.endswith(".lock")}


def test_cambricon_cannot_share_several_gpus_with_one_pod() -> None:
    cluster = scheduled(
        *_vendor("cambricon", gpu(0, "0"), gpu(1, "0")), pod("a", {"nvidia.com/gpu": 2})
    )
    assert_pending(cluster, "a", "Cambricon's device plugin cannot share several GPUs")


def test_metax_gets_the_uuids_of_its_gpus() -> None:
    share = {"gpu.shared": 1, "gpu-core": 50, "gpu-memory-ratio": 50}
    cluster = scheduled(*_vendor("metax", gpu(0, "0", memory="64Gi")), pod("a", share))
    text = told(cluster, "a")["metax-tech.com/gpu-devices-allocated"]
    assert json.loads(text) == [[{"uuid": "GPU-0", "compute": 50, "vRam": 32768}]]


def test_hami_core_finds_the_pods_that_it_isolates_by_a_label() -> None:
    share = {"gpu.shared": 1, "gpu-core": 50, "gpu-memory-ratio": 50}
    isolated = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    cluster = scheduled(*machine(), pod("a", share, labels=isolated), pod("b", share))
    assert labels_of(cluster, "a") == {**isolated, "hami.io/vgpu-node": "n1"}
    assert labels_of(cluster, "b") == {}


def labels_of(cluster: Cluster, name: str) -> dict[str, str]:
    found = cluster.api.get(Pod, f"default/{name}")
    assert found is not None
    return found.metadata.labels


# Profiles ------------------------------------------------------------------------------------


def test_koordinators_arguments_load_as_they_are() -> None:
    arguments = {
        "allocator": "default",
        "disableDeviceNUMATopologyAlignment": True,
        "scoringStrategy": {
            "type": "MostAllocated",
            "resources": [{"name": "koordinator.sh/gpu-memory-ratio", "weight": 2}],
        },
        "gpuSharedResourceTemplatesConfig": {
            "configMapNamespace": "x",
            "configMapName": "y",
            "matchedResources": ["huawei.com/npu-core"],
        },
    }
    cluster = scheduled(*machine(), pod("a", {"gpu": 100}), plugins={"DeviceShare": arguments})
    assert_placed(cluster, a="n1")
