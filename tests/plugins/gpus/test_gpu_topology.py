"""Which GPUs pods get, and what becomes of GPUs that pods and claims held."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.paths import ROOT
from tests.plugins.permit_waits import held_at_permit, let_go

from bayplan import PodInfo
from bayplan.api import ApiObject, Node, Pod, ResourceClaim
from bayplan.api.gpus import GPUS, named_gpus
from bayplan.profiles.loading import load_profiles
from bayplan.testing import Cluster as AnyCluster
from bayplan.testing import (
    assert_pending,
    assert_placed,
    make_gang,
    make_node,
    make_object,
    make_pod,
)
from bayplan.topology.machine.readers.hami_register import REGISTER
from bayplan_plugins.gpus.ledger import GpuLedger

MACHINE = "bayplan.dev/machine"
DRIVER = "gpu.nvidia.com"
SPREADING = load_profiles(ROOT / "configs" / "profiles" / "default-scheduler.yaml")
Cluster = partial(AnyCluster, profiles=replace(SPREADING, any_scheduler=True))
"""The topology of GPUs decides here; the default profile packs them first."""


def gpu_node(name: str, machine: str = "dgx-1v", gpus: int = 8, **labels: str) -> Node:
    return make_node(name, cpu=64, memory="512Gi", labels={MACHINE: machine, **labels}, gpu=gpus)


def gpu_pod(name: str, count: int = 1, asks: str = "", **fields: Any) -> Pod:
    """Return a pod with GPUs; ``asks`` lists its gpu.topology/ annotations as ``name=value``."""
    annotations = dict(f"gpu.topology/{part}".split("=", 1) for part in asks.split())
    return make_pod(
        name, annotations={**annotations, **fields.pop("notes", {})}, gpu=count, **fields
    )


def gpus_of(cluster: AnyCluster, name: str) -> tuple[int, ...]:
    """Return the GPUs that the pod's annotation names."""
    pod = cluster.api.get(Pod, f"default/{name}")
    assert pod is not None
    return named_gpus(pod.metadata.annotations)


def free_gpus(cluster: AnyCluster, node: str) -> tuple[int, ...]:
    ledger = cluster.snapshot.shared(GpuLedger, GpuLedger)
    ledger.whole_codes()
    found = ledger.whole(node)
    assert found is not None
    return found.free()


def dra_class() -> ApiObject:
    return make_object(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "gpu"},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
        }
    )


def dra_slice(
    node: str, gpus: Sequence[int], parts: Mapping[int, str] = MappingProxyType({})
) -> ApiObject:
    """Return a slice of a node's GPUs, and of a MIG device of others, by index and uuid."""
    devices = [{"name": f"gpu-{g}", "attributes": {"index": {"int": g}}} for g in gpus]
    devices += [
        {
            "name": f"gpu-{g}-mig-0",
            "attributes": {"type": {"string": "mig"}, "parentUUID": {"string": uuid}},
        }
        for g, uuid in parts.items()
    ]
    spec = {"driver": DRIVER, "pool": {"name": node}, "nodeName": node, "devices": devices}
    meta = {"name": f"slice-{node}"}
    return make_object(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": meta,
            "spec": spec,
        }
    )


def dra_template(count: int) -> ApiObject:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": count}}]
    return make_object(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": f"gpus-{count}", "namespace": "default"},
            "spec": {"spec": {"devices": {"requests": requests}}},
        }
    )


def claim_pod(name: str, count: int, asks: str = "", **fields: Any) -> Pod:
    wanted = {"name": "own", "resourceClaimTemplateName": f"gpus-{count}"}
    annotations = dict(f"gpu.topology/{part}".split("=", 1) for part in asks.split())
    return make_pod(name, annotations=annotations, spec={"resourceClaims": [wanted]}, **fields)


def claimed(cluster: AnyCluster) -> list[int]:
    """Return the GPUs that claims hold, by index."""
    return sorted(
        int(one.device.split("-")[1])
        for claim in cluster.api.list(ResourceClaim)
        if claim.status.allocation is not None
        for one in claim.status.allocation.devices.results
    )


def made_claims(cluster: AnyCluster) -> None:
    """Have the claims of pods made from their templates."""
    from bayplan.cluster.embedded.claims import ClaimController

    ClaimController(cluster.api)


def dra_cluster(*objects: ApiObject, cached: bool = True) -> AnyCluster:
    cluster = Cluster(cached=cached)
    made_claims(cluster)
    cluster.add(dra_class(), *(dra_template(n) for n in (1, 2, 4)), *objects)
    return cluster


# Choosing ------------------------------------------------------------------------------------


def test_four_gpus_are_those_with_the_fastest_rings() -> None:
    cluster = Cluster([gpu_node("a"), gpu_pod("p", 4)])
    assert_placed(cluster, p="a")
    assert gpus_of(cluster, "p") == (0, 1, 2, 3)


def test_the_node_that_can_give_the_faster_set_now_wins() -> None:
    cluster = Cluster([gpu_node("a"), gpu_node("b")])
    cluster.add(gpu_pod("first", 2, node="a", notes={GPUS: "0,4"}), gpu_pod("p", 4))
    assert_placed(cluster, p="b")


def test_what_a_removed_pod_held_is_free_again() -> None:
    cluster = Cluster([gpu_node("a"), gpu_pod("p", 3), gpu_pod("q", 5), gpu_pod("late", 3)])
    assert_pending(cluster, "late", "Insufficient nvidia.com/gpu")
    held = gpus_of(cluster, "p")
    cluster.remove("p")
    cluster.advance(30)
    assert gpus_of(cluster, "late") == held


def test_running_pods_keep_the_gpus_that_they_name() -> None:
    silent = gpu_pod("silent", 2, node="a")
    named = gpu_pod("named", 2, node="a", notes={GPUS: "0,1"})
    cluster = Cluster([gpu_node("a"), silent, named])
    assert free_gpus(cluster, "a") == (4, 5, 6, 7)


def test_what_pods_hold_is_known_after_the_trial_in_which_their_node_was_read() -> None:
    cluster = Cluster([gpu_node("a")])
    cluster.add(gpu_pod("named", 2, node="a", notes={GPUS: "0,1"}), gpu_pod("guessed", 1, node="a"))
    snapshot = cluster.snapshot
    ledger = snapshot.shared(GpuLedger, GpuLedger)
    ledger._sources.clear()
    ledger._nodes.clear()
    with snapshot.trial():
        assert free_gpus(cluster, "a") == (3, 4, 5, 6, 7)
    assert free_gpus(cluster, "a") == (3, 4, 5, 6, 7)


def test_gpus_that_are_busy_on_a_known_machine_can_be_freed() -> None:
    cluster = Cluster([gpu_node("a"), gpu_pod("p", 8)])
    cluster.schedule()
    call = next(c for c in cluster.profile.runtime["remedies"] if c.name == "GPUTopology")
    late = PodInfo(gpu_pod("late", 3))
    texts = [one.text for one in call(late, cluster.snapshot.view())]
    assert texts == ["would fit if 3 nvidia.com/gpu were freed on a"]


def test_two_pods_that_name_one_gpu_do_not_both_have_it() -> None:
    pods = [gpu_pod(name, 1, node="a", notes={GPUS: "3"}) for name in ("p", "q")]
    cluster = Cluster([gpu_node("a"), *pods])
    assert len(free_gpus(cluster, "a")) == 6


def test_an_annotation_of_more_gpus_than_requested_is_not_believed() -> None:
    cluster = Cluster([gpu_node("a"), gpu_pod("p", 1, node="a", notes={GPUS: "0,1,2,3,4"})])
    assert len(free_gpus(cluster, "a")) == 7


def test_a_gang_without_enough_gpus_leaves_all_of_them_free() -> None:
    cluster = Cluster([gpu_node("a"), gpu_node("b"), make_gang("g", 5)])
    cluster.add(*(gpu_pod(f"g-{i}", 4, gang="g") for i in range(5)))
    assert_pending(cluster, "g-0", "nvidia.com/gpu")
    assert free_gpus(cluster, "a") == free_gpus(cluster, "b") == tuple(range(8))


def test_a_node_that_becomes_another_machine_offers_its_gpus_again() -> None:
    cluster = Cluster([gpu_node("a", "a100-pcie-bridged", 4), gpu_pod("p", 2)])
    assert_placed(cluster, p="a")
    node = cluster.api.get(Node, "a")
    assert node is not None
    cluster.api.update(gpu_node("a"))
    assert free_gpus(cluster, "a") == tuple(g for g in range(8) if g not in gpus_of(cluster, "p"))


@pytest.mark.parametrize("cached", [True, False])
def test_zones_that_become_known_count_for_the_next_equal_pod(cached: bool) -> None:
    nodes = [make_node("a", cpu=64, gpu=8), make_node("b", cpu=64, gpu=8)]
    cluster = Cluster([*nodes, make_pod("filler", node="b", cpu=4), gpu_pod("p", 2)], cached=cached)
    assert_placed(cluster, p="a")
    cluster.add(gpu_pod("q", 2))
    assert_placed(cluster, q="a")
    cluster.add(_zones("a", 4, 4))
    cluster.add(gpu_pod("r", 2))
    # Its links are assumed, and b is not known to be worse.
    assert_placed(cluster, r="b")


# What is assumed, and nodes that give out parts ------------------------------------------------


def _hami_node(name: str, count: int = 10, scores: int = 0) -> Node:
    """Return a node with eight GPUs on two NUMA nodes, each shared by ``count`` containers.

    :param scores: HAMi's score of each pair, 0 if the device plugin publishes none.
    """
    uuids = [f"GPU-{name}-{gpu}" for gpu in range(8)]
    register = [
        {"id": uuid, "index": gpu, "count": count, "devmem": 81559, "devcore": 100}
        | {"type": "NVIDIA-H100", "numa": gpu // 4, "health": True}
        for gpu, uuid in enumerate(uuids)
    ]
    annotations = {REGISTER: json.dumps(register)}
    if scores:
        pairs = [{"uuid": a, "score": {b: scores for b in uuids if b != a}} for a in uuids]
        annotations["hami.io/node-nvidia-score"] = json.dumps(pairs)
    return make_node(name, cpu=64, memory="512Gi", annotations=annotations, gpu=8 * count)


def _unknown_node(name: str) -> Node:
    return make_node(name, cpu=64, memory="512Gi", gpu=8)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_links_that_are_assumed_never_beat_those_that_are_unknown(count: int) -> None:
    nodes = [_hami_node("a", 1), _unknown_node("b"), make_node("c", cpu=64, memory="512Gi", gpu=8)]
    cluster = Cluster([*nodes, _zones("c", 4, 4), gpu_pod("p", count)])
    assert_placed(cluster, p="b")


def test_links_that_hami_measured_beat_those_that_are_unknown() -> None:
    assert_placed(Cluster([_unknown_node("a"), _hami_node("b", 1, 1810), gpu_pod("p", 8)]), p="b")


def test_among_assumed_machines_the_one_with_room_on_one_numa_node_wins() -> None:
    nodes = [make_node(name, cpu=64, gpu=8) for name in ("a", "b")]
    taken = [gpu_pod(f"{gpu}", 1, node="a", notes={GPUS: str(gpu)}) for gpu in (0, 1, 4, 5)]
    cluster = Cluster([*nodes, _zones("a", 4, 4), _zones("b", 4, 4), *taken, gpu_pod("p", 4)])
    assert_placed(cluster, p="b")


@pytest.mark.parametrize("count", [1, 2, 8])
def test_nodes_that_give_out_parts_are_the_last_choice_for_whole_gpus(count: int) -> None:
    parts = [_hami_node("a", scores=1810)]
    parts.append(
        make_node("c", cpu=64, gpu=32, labels={"nvidia.com/gpu.replicas": "4"}, memory="512Gi")
    )
    used = make_pod("used", node="b", cpu=40, memory="300Gi")
    cluster = Cluster([*parts, _unknown_node("b"), used, gpu_pod("p", count)])
    assert_placed(cluster, p="b")
    cluster.add(gpu_pod("next", 8))
    assert cluster.schedule()["next"] == "a"


def test_where_all_nodes_give_out_parts_whole_gpus_are_spread_as_before() -> None:
    nodes = [_hami_node("a"), _hami_node("b"), make_pod("used", node="a", cpu=8)]
    assert_placed(Cluster([*nodes, gpu_pod("p", 1)]), p="b")


def _zones(node: str, *gpus: int) -> ApiObject:
    """Return a report of a node's NUMA nodes, each with so many GPUs."""
    amounts = [
        {"name": "nvidia.com/gpu", "capacity": n, "allocatable": n, "available": n} for n in gpus
    ]
    zones = [
        {"name": f"node-{numa}", "type": "Node", "resources": [amount]}
        for numa, amount in enumerate(amounts)
    ]
    return make_object(
        {
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": {"name": node},
            "zones": zones,
        }
    )


@pytest.mark.parametrize("cached", [True, False])
def test_a_hard_constraint_is_not_given_up(cached: bool) -> None:
    cluster = Cluster([gpu_node("a", "l40s-pcie")], cached=cached)
    cluster.add(gpu_pod("p", 2, "require-nvlink=true"), gpu_pod("q", 2, "policy=nvlink"))
    assert_pending(cluster, "p", "no 2 of 8 free GPUs are connected by NVLink alone")
    pod = cluster.api.get(Pod, "default/q")
    assert pod is not None
    assert pod.spec.node_name == "a"
    assert pod.metadata.annotations["gpu.topology/relaxed"] == "NVLink alone"


# With claims ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [True, False])
def test_gpus_of_claims_are_not_given_to_pods_that_ask_the_device_plugin(cached: bool) -> None:
    cluster = dra_cluster(gpu_node("a"), dra_slice("a", range(8)), cached=cached)
    cluster.add(claim_pod("c", 4))
    assert_placed(cluster, c="a")
    cluster.add(gpu_pod("p", 4))
    assert_placed(cluster, p="a")
    assert sorted([*claimed(cluster), *gpus_of(cluster, "p")]) == list(range(8))


@pytest.mark.parametrize("cached", [True, False])
def test_claims_do_not_get_what_pods_hold_without_one(cached: bool) -> None:
    cluster = dra_cluster(gpu_node("a"), dra_slice("a", range(8)), cached=cached)
    cluster.add(gpu_pod("p", 4, node="a", notes={GPUS: "0,1,2,3"}))
    cluster.add(claim_pod("c", 4), claim_pod("d", 1))
    assert_placed(cluster, c="a")
    assert claimed(cluster) == [4, 5, 6, 7]
    assert_pending(cluster, "d", "cannot allocate all claims")
    cluster.remove("p")
    cluster.advance(30)
    assert claimed(cluster) == [0, 4, 5, 6, 7]


@pytest.mark.parametrize("restarts", [True, False])
def test_claims_do_not_get_what_pods_hold_where_nobody_gives_out_shares(
    tmp_path: Path, restarts: bool
) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\n"
        "kind: KubeSchedulerConfiguration\n"
        "profiles:\n"
        "- plugins: {multiPoint: {disabled: [{name: DeviceShare}, {name: GPUFragmentation}]}}\n"
    )
    cluster = AnyCluster(profiles=replace(load_profiles(path), any_scheduler=True))
    cluster.add(dra_class(), dra_template(4), gpu_node("a"), dra_slice("a", range(8)))
    cluster.add(gpu_pod("p", 4, node="a", notes={GPUS: "0,1,2,3"}))
    if restarts:
        cluster.restart()
    made_claims(cluster)
    cluster.add(claim_pod("c", 4))
    assert_placed(cluster, c="a")
    assert claimed(cluster) == [4, 5, 6, 7]


def test_a_device_plugin_beside_a_driver_gives_only_the_gpus_that_no_slice_offers() -> None:
    cluster = dra_cluster(gpu_node("a", gpus=4), dra_slice("a", range(4)))
    cluster.add(gpu_pod("p", 4), claim_pod("c", 4))
    assert_placed(cluster, p="a", c="a")
    assert gpus_of(cluster, "p") == (4, 5, 6, 7)
    assert claimed(cluster) == [0, 1, 2, 3]


def test_a_node_without_a_device_plugin_leaves_the_choice_to_claims() -> None:
    cluster = dra_cluster(gpu_node("a", gpus=0), dra_slice("a", range(8)))
    cluster.add(claim_pod("c", 4))
    assert_placed(cluster, c="a")
    found = cluster.snapshot.shared(GpuLedger, GpuLedger)
    assert found.whole_codes().tolist() == [-1]


def test_the_gpus_of_a_claim_are_as_the_annotations_ask() -> None:
    busy = gpu_pod("busy", 2, node="a", notes={GPUS: "0,3"})
    cluster = dra_cluster(gpu_node("a"), dra_slice("a", range(8)), busy)
    cluster.add(claim_pod("c", 2, "min-bandwidth=50"))
    assert_placed(cluster, c="a")
    assert tuple(claimed(cluster)) in {(1, 2), (4, 7), (5, 6), (1, 5), (2, 6)}
    note = cluster.decision("c").pods["default/c"].notes
    assert any("GPUTopology chose the devices" in line for line in note)


@pytest.mark.parametrize("cached", [True, False])
def test_a_claim_that_cannot_be_as_hard_annotations_ask_is_refused(cached: bool) -> None:
    cluster = dra_cluster(gpu_node("a", "l40s-pcie", 0), dra_slice("a", range(8)), cached=cached)
    cluster.add(claim_pod("c", 2, "require-nvlink=true"), claim_pod("d", 2))
    assert_pending(cluster, "c", "plugins forbid every choice of devices")
    assert_placed(cluster, d="a")


def test_a_claim_pod_with_an_annotation_that_cannot_be_read_is_told_so() -> None:
    cluster = dra_cluster(gpu_node("a"), dra_slice("a", range(8)))
    cluster.add(claim_pod("c", 2, "min-bandwidth=fast"))
    assert_pending(cluster, "c", "gpu.topology/min-bandwidth: expected a number of GB/s above 0")


# Names, shares and health --------------------------------------------------------------------


def hami_node(name: str, kind: str = "H100", healthy: Sequence[bool] = (True,) * 4) -> Node:
    """Return a node of four GPUs whose HAMi annotation names them ``name-0`` to ``name-3``."""
    register = [
        {
            "id": f"{name}-{index}",
            "index": index,
            "count": 10,
            "devmem": 81920,
            "devcore": 100,
            "type": f"NVIDIA-NVIDIA {kind} 80GB HBM3",
            "numa": 0,
            "mode": "hami-core",
            "health": ok,
        }
        for index, ok in enumerate(healthy)
    ]
    node = make_node(name, cpu=64, memory="512Gi", gpu=sum(healthy))
    meta = replace(node.metadata, annotations={REGISTER: json.dumps(register)})
    return replace(node, metadata=meta)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(
    ("annotation", "value", "where"),
    [
        ("use-gpuuuid", "b-2", "b"),
        ("nouse-gpuuuid", "a-0,a-1,a-2,a-3", "b"),
        ("use-gputype", "H200", "c"),
        ("nouse-gputype", "H100", "c"),
    ],
)
def test_gpus_are_found_by_name_on_the_node_that_has_them(
    annotation: str, value: str, where: str, cached: bool
) -> None:
    cluster = Cluster([hami_node("a"), hami_node("b"), hami_node("c", "H200")], cached=cached)
    cluster.add(gpu_pod("p", 1, notes={f"nvidia.com/{annotation}": value}))
    assert_placed(cluster, p=where)
    if annotation == "use-gpuuuid":
        assert gpus_of(cluster, "p") == (2,)


def test_names_that_leave_too_few_gpus_are_told() -> None:
    cluster = Cluster([hami_node("a")])
    cluster.add(gpu_pod("p", 2, notes={"nvidia.com/use-gpuuuid": "a-1,a-9"}))
    assert_pending(cluster, "p", "3/4 CardUuidMismatch, 1/4 AllocatedCardsInsufficientRequest")


def test_names_are_not_found_on_nodes_of_unknown_machines() -> None:
    cluster = Cluster([make_node("a", gpu=8)])
    cluster.add(gpu_pod("p", 1, notes={"nvidia.com/use-gputype": "H100"}))
    assert_pending(cluster, "p", "whose GPU topology is not known")


def test_a_gpu_of_which_parts_are_given_is_not_given_whole() -> None:
    part = make_pod(
        "part",
        node="a",
        annotations={"hami.io/vgpu-devices-allocated": "a-0,NVIDIA,20000,30:;"},
        gpu=1,
        **{"nvidia.com/gpumem": 20000},
    )
    cluster = Cluster([hami_node("a"), part, gpu_pod("p", 3)])
    assert_placed(cluster, p="a")
    assert gpus_of(cluster, "p") == (1, 2, 3)


def test_a_pod_keeps_its_gpus_when_one_of_them_fails() -> None:
    cluster = Cluster([hami_node("a"), gpu_pod("p", 2, node="a", notes={GPUS: "2,3"})])
    assert free_gpus(cluster, "a") == (0, 1)
    cluster.api.update(hami_node("a", healthy=(True, True, True, False)))
    assert free_gpus(cluster, "a") == (0, 1)


def test_who_names_its_gpus_late_gets_them_from_who_names_none() -> None:
    cluster = Cluster([gpu_node("a"), gpu_pod("silent", 1, node="a")])
    assert free_gpus(cluster, "a") == (1, 2, 3, 4, 5, 6, 7)
    cluster.add(gpu_pod("named", 1, node="a", notes={GPUS: "0"}))
    cluster.remove("silent")
    assert free_gpus(cluster, "a") == (1, 2, 3, 4, 5, 6, 7)


# Several schedulers --------------------------------------------------------------------------


def test_what_a_bound_pod_states_wins_over_what_was_chosen_for_a_pod_that_is_not_bound() -> None:
    cluster = held_at_permit(gpu_node("a"), gpu_pod("ours", 2))
    assert free_gpus(cluster, "a") == (0, 1, 4, 5, 6, 7)
    cluster.add(gpu_pod("theirs", 2, node="a", notes={GPUS: "3,4"}))
    ledger = cluster.snapshot.shared(GpuLedger, GpuLedger)
    placed = {pod.name: pod for pod, _ in cluster.snapshot.placed.values()}
    assert ledger.holds_gpus(placed["theirs"], "a", (3, 4))
    assert ledger.holds_gpus(placed["ours"], "a", (0, 1))
    assert ledger.is_reserved(placed["theirs"], "a")
    assert not ledger.is_reserved(placed["ours"], "a")


def test_a_pod_that_lost_its_gpus_before_it_was_bound_gets_others() -> None:
    cluster = held_at_permit(gpu_node("a"), gpu_pod("ours", 2))
    cluster.add(gpu_pod("theirs", 2, node="a", notes={GPUS: "3,4"}))
    let_go(cluster, "ours")
    assert "GPUs 2, 3 of a, chosen for it, are no longer its own" in cluster.message("ours")
    cluster.advance(30)
    let_go(cluster, "ours")
    assert_placed(cluster, ours="a", theirs="a")
    assert set(gpus_of(cluster, "ours")).isdisjoint({3, 4})


def test_gpus_that_a_pod_without_a_node_names_are_nobodys() -> None:
    cluster = Cluster([gpu_node("a"), gpu_pod("silent", 1, node="a")])
    cluster.add(gpu_pod("copy", 1, notes={GPUS: "0"}))
    assert_placed(cluster, copy="a")
    assert gpus_of(cluster, "copy") != (0,)


def test_a_mig_device_of_a_claim_takes_its_gpu_from_the_device_plugin() -> None:
    cluster = dra_cluster(hami_node("a"), dra_slice("a", (), parts={2: "a-2"}))
    cluster.add(claim_pod("c", 1))
    assert_placed(cluster, c="a")
    cluster.add(gpu_pod("p", 3))
    assert_placed(cluster, p="a")
    assert gpus_of(cluster, "p") == (0, 1, 3)


# What is said openly -------------------------------------------------------------------------


def test_a_preference_on_an_unknown_machine_is_given_up_openly() -> None:
    cluster = Cluster([make_node("a", gpu=8), gpu_pod("p", 2, "policy=nvlink")])
    assert_placed(cluster, p="a")
    pod = cluster.api.get(Pod, "default/p")
    assert pod is not None
    assert pod.metadata.annotations["gpu.topology/relaxed"] == "NVLink alone"


def test_what_cannot_be_read_of_a_node_is_known_to_the_snapshot() -> None:
    cluster = Cluster([gpu_node("a", "dgx-1x"), gpu_node("b", gpus=4), gpu_pod("p", 1)])
    cluster.schedule()
    assert 'did you mean "dgx-1v"' in cluster.snapshot.problems["a", "GPU topology"]
    assert "offers 4 of 8 GPUs" in cluster.snapshot.problems["b", "GPU topology"]
    cluster.api.update(gpu_node("a"))
    cluster.add(gpu_pod("q", 1))
    cluster.schedule()
    assert ("a", "GPU topology") not in cluster.snapshot.problems


# Jobs over nodes -----------------------------------------------------------------------------


def job_pods(count: int, gpus: int, asks: str) -> list[ApiObject]:
    pods = (gpu_pod(f"g-{i}", gpus, asks, gang="g") for i in range(count))
    return [make_gang("g", count), *pods]


def nodes_of(cluster: AnyCluster) -> list[str]:
    return sorted(cluster.schedule().values())


@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        ("multi-node-policy=pack", ["a", "a"]),
        ("multi-node-policy=spread", ["a", "b"]),
        ("multi-node-policy=best-fit", ["c", "c"]),
        ("max-nodes=1", ["a", "a"]),
        ("min-gpus-per-node=8 multi-node-policy=spread", ["a", "a"]),
    ],
)
def test_the_nodes_of_a_job(asks: str, expected: list[str]) -> None:
    nodes = [gpu_node("a"), gpu_node("b"), gpu_node("c", "a100-pcie-bridged", 4)]
    size = 2 if "best-fit" in asks else 4
    cluster = Cluster([*nodes, *job_pods(2, size, asks)])
    assert nodes_of(cluster) == expected


def test_a_job_stays_pending_rather_than_have_too_few_gpus_on_a_node() -> None:
    cluster = Cluster([gpu_node("a"), gpu_node("b"), *job_pods(3, 4, "min-gpus-per-node=8")])
    assert_pending(cluster, "g-0", "would have 4 GPUs of the job, fewer than its minimum of 8")
    assert free_gpus(cluster, "a") == tuple(range(8))


def test_a_job_that_needs_more_nodes_than_it_may_have_is_told() -> None:
    cluster = Cluster([gpu_node("a"), gpu_node("b"), *job_pods(3, 4, "max-nodes=1")])
    assert nodes_of(cluster) == []
    assert "gpu.topology/max-nodes: 1 node" in cluster.message("g-0")


# Invariants ----------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 100_000), cached=st.booleans())
def test_no_gpu_is_ever_had_twice(seed: int, cached: bool) -> None:
    draw = random.Random(seed)
    machines = ("dgx-1v", "a100-pcie-bridged", "l40s-pcie")
    sizes = {"dgx-1v": 8, "a100-pcie-bridged": 4, "l40s-pcie": 8}
    chosen = {name: draw.choice(machines) for name in "abc"}
    cluster = dra_cluster(
        *(gpu_node(name, kind, sizes[kind]) for name, kind in chosen.items()),
        *(dra_slice(name, range(sizes[kind])) for name, kind in chosen.items()),
        cached=cached,
    )
    alive: list[str] = []
    for step in range(12):
        name, kind = f"p-{step}", draw.random()
        if kind < 0.25 and alive:
            cluster.remove(alive.pop(draw.randrange(len(alive))))
        elif kind < 0.45:
            asks = draw.choice(["", "policy=nvlink", "policy=single-numa"])
            cluster.add(claim_pod(name, draw.choice([1, 2, 4]), asks))
            alive.append(name)
        elif kind < 0.6:
            size = draw.randint(2, 3)
            cluster.add(make_gang(name, size))
            for member in range(size):
                alive.append(f"{name}-{member}")
                cluster.add(gpu_pod(alive[-1], draw.choice([1, 2, 4]), gang=name))
        else:
            asks = draw.choice(["", "policy=nvlink", "policy=spread", "require-nvlink=true"])
            cluster.add(gpu_pod(name, draw.choice([1, 2, 4]), asks, priority=draw.choice([0, 9])))
            alive.append(name)
        cluster.advance(draw.choice([0, 40]))
        alive = [name for name in alive if cluster.api.get(Pod, f"default/{name}")]
        _assert_apart(cluster)


def _assert_apart(cluster: AnyCluster) -> None:
    """Assert that nobody shares a GPU, and that the rest is what the ledger takes for free."""
    had: dict[str, list[int]] = {name: [] for name in "abc"}
    for pod in cluster.api.list(Pod):
        if pod.spec.node_name:
            had[pod.spec.node_name] += named_gpus(pod.metadata.annotations)
    for claim in cluster.api.list(ResourceClaim):
        if claim.status.allocation is not None:
            for one in claim.status.allocation.devices.results:
                had[one.pool].append(int(one.device.split("-")[1]))
    for name, gpus in had.items():
        assert len(gpus) == len(set(gpus)), f"{name}: {sorted(gpus)}"
        row = cluster.snapshot.nodes.row_of[name]
        size = cluster.snapshot.nodes.nodes[row].status.allocatable["nvidia.com/gpu"].units
        assert set(free_gpus(cluster, name)) == set(range(size)) - set(gpus)
