"""RemoteGPUs: pods that use GPUs over the network, near the workers that serve them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api import Node, Pod
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.dialects.tensor_fusion import (
    MAX_LATENCY,
    MIN_BANDWIDTH,
    NIC_BANDWIDTH,
    PREFIX,
    worker_of,
)
from bayplan.errors import InputError
from bayplan.explain.explanation import explain
from bayplan.testing import Cluster, make_gang, make_node, make_pod
from bayplan.testing.cluster import checked_args
from bayplan_plugins.remote_gpus import RemoteGPUs

RACK = "rack"
BLOCK = "block"


def node(name: str, rack: str = "r1", block: str = "b1", gpu: int = 0, **more: Any) -> Node:
    if gpu:
        more["gpu"] = gpu
    return make_node(name, labels={RACK: rack, BLOCK: block}, **more)


def client(
    name: str = "train",
    latency: str = "",
    bandwidth: str = "",
    more: dict[str, str] | None = None,
    **fields: Any,
) -> Pod:
    given = {MAX_LATENCY: latency, MIN_BANDWIDTH: bandwidth, f"{PREFIX}is-local-gpu": "false"}
    annotations = {key: text for key, text in given.items() if text}
    return make_pod(name, annotations={**annotations, **(more or {})}, **fields)


def remote(*objects: Any) -> Cluster:
    """Return a cluster whose kubelet runs pods, and whose operator makes workers."""
    cluster = Cluster()
    start_controllers(cluster.api)
    cluster.add(*objects)
    cluster.advance(1)
    return cluster


def pod_of(cluster: Cluster, name: str) -> Pod:
    found = cluster.api.get(Pod, f"default/{name}")
    assert found is not None
    return found


def distance(cluster: Cluster, name: str = "train") -> str:
    return pod_of(cluster, name).metadata.annotations["bayplan.dev/gpu-distance"]


def restarted(cluster: Cluster) -> Cluster:
    """Return a new scheduler's view of the same objects."""
    again = Cluster()
    start_controllers(again.api)
    again.add(*cluster.api.list(Node), *cluster.api.list(Pod))
    again.advance(1)
    return again


# Where they go -----------------------------------------------------------------------------


def test_a_client_and_its_worker_are_placed_together() -> None:
    cluster = remote(node("gpu", gpu=2, cpu=2), node("far", "r2", "b2"), node("near", cpu=4))
    small = {"cpu": 2}
    cluster.add(client(**small))
    assert cluster.advance(1) == {"train": "near", "train-tf": "gpu"}
    assert distance(cluster) == "rack"
    assert pod_of(cluster, "train-tf").spec.containers[0].resources.requests["nvidia.com/gpu"]


def test_the_same_node_is_nearest() -> None:
    cluster = remote(node("near"), node("gpu", gpu=1), client())
    assert cluster.placements() == {"train": "gpu", "train-tf": "gpu"}
    assert distance(cluster) == "node"


def test_the_gpu_node_near_the_only_place_for_the_client_is_taken() -> None:
    nodes = [node(f"gpu-{n}", f"r{n}", gpu=8, cpu=2) for n in range(1, 5)]
    cluster = remote(*nodes, node("cpu", "r3", cpu=8), client(cpu=4))
    assert cluster.placements() == {"train": "cpu", "train-tf": "gpu-3"}


def test_neither_is_placed_where_one_of_them_has_no_place() -> None:
    cluster = remote(node("cpu"), client())
    assert cluster.placements() == {}
    assert "Insufficient nvidia.com/gpu" in cluster.message("train-tf")
    cluster.add(node("gpu", "r2", gpu=1))
    assert cluster.advance(60) == {"train": "gpu", "train-tf": "gpu"}


@pytest.mark.parametrize(
    ("latency", "bandwidth", "expected"),
    [
        ("5us", "", "more than 5us away from its worker (rack: 10us, 12.5 GB/s)"),
        ("", "20", "less than 20 GB/s away from its worker (rack: 10us, 12.5 GB/s)"),
    ],
)
def test_a_client_says_how_far_its_worker_may_be(
    latency: str, bandwidth: str, expected: str
) -> None:
    wide = {NIC_BANDWIDTH: 50_000}
    cluster = remote(node("gpu", gpu=1, cpu=1, **wide), node("near"), node("far", "r2"))
    cluster.add(client(latency=latency, bandwidth=bandwidth))
    assert cluster.advance(1) == {}
    assert expected in cluster.message("train")
    cluster.add(node("big", "r3", gpu=1, **wide))
    assert cluster.advance(60) == {"train": "big", "train-tf": "big"}


def test_another_way_is_found_where_the_best_node_for_the_worker_is_too_far() -> None:
    # The worker prefers the first node; the client only fits in the rack of the second.
    nodes = [node("gpu-1", "r1", gpu=8, cpu=64), node("gpu-2", "r2", gpu=1, cpu=1)]
    taint = ["only=clients:NoSchedule"]
    cluster = remote(*nodes, node("cpu", "r2", taints=taint))
    spec = {"tolerations": [{"key": "only", "operator": "Exists"}], "nodeSelector": {RACK: "r2"}}
    cluster.add(client(latency="10us", cpu=4, spec=spec))
    assert cluster.advance(1) == {"train": "cpu", "train-tf": "gpu-2"}


def test_the_decision_says_the_distance_and_why() -> None:
    cluster = remote(node("gpu", gpu=1, cpu=1), node("cpu", "r2"), client())
    notes = cluster.decision("train").pods["default/train"].notes
    assert notes == (
        "its worker default/train-tf is on gpu (block: 20us, 12.5 GB/s); "
        "no node and no rack has room for both",
    )


# What the worker takes ---------------------------------------------------------------------


def test_the_worker_counts_on_its_node_until_the_client_is_gone() -> None:
    template = "{spec: {containers: [{name: w, resources: {requests: {cpu: 3, memory: 2Gi}}}]}}"
    cluster = remote(node("gpu", gpu=2, **{NIC_BANDWIDTH: 12_500}), node("cpu", "r2"))
    more = {f"{PREFIX}worker-pod-template": template}
    cluster.add(client(bandwidth="10", cpu=6, more=more))
    assert cluster.advance(1) == {"train": "cpu", "train-tf": "gpu"}
    row = cluster.snapshot.row("gpu")
    used = {name: row.used(name) for name in ("cpu", "nvidia.com/gpu", NIC_BANDWIDTH)}
    assert used == {"cpu": 3000, "nvidia.com/gpu": 1, NIC_BANDWIDTH: 10_000}
    again = restarted(cluster).snapshot.row("gpu")
    assert {name: again.used(name) for name in used} == used
    cluster.remove("train")
    cluster.advance(120)
    assert cluster.api.list(Pod) == []
    assert [cluster.snapshot.row("gpu").used(name) for name in used] == [0, 0, 0]


def test_the_nics_of_a_node_serve_so_many_clients() -> None:
    cluster = remote(node("gpu", gpu=8, cpu=64, **{NIC_BANDWIDTH: 25_000}))
    cluster.add(*(client(f"c{n}", bandwidth="10") for n in range(3)))
    assert len(cluster.advance(1)) == 4
    assert "Insufficient bayplan.dev/nic-bandwidth" in cluster.message("c2-tf")


def test_a_client_that_succeeds_releases_its_worker() -> None:
    cluster = remote(node("gpu", gpu=1), client(more={"bayplan.dev/duration": "60s"}))
    cluster.advance(120)
    assert pod_of(cluster, "train").status.phase == "Succeeded"
    assert [pod.metadata.name for pod in cluster.api.list(Pod)] == ["train"]


def test_a_worker_that_is_gone_is_replaced_near_its_client() -> None:
    nodes = (node("gpu-1", gpu=1, cpu=1), node("gpu-2", "r2", gpu=1), node("gpu-3", gpu=1, cpu=1))
    cluster = remote(*nodes, node("cpu"))
    cluster.add(client(latency="10us", cpu=7, spec={"nodeSelector": {RACK: "r1"}}))
    assert cluster.advance(1)["train"] == "cpu"
    before = cluster.placements()["train-tf"]
    taken = make_pod("other", gpu=1, cpu=1, priority=10, spec={"nodeName": before})
    cluster.remove("train-tf")
    cluster.add(taken)
    after = cluster.advance(60)["train-tf"]
    assert {before, after} == {"gpu-1", "gpu-3"}


def test_a_worker_from_elsewhere_is_used() -> None:
    own = replace(worker_of(client()).metadata, name="mine", owner_references=())
    cluster = remote(node("gpu", gpu=1), replace(worker_of(client()), metadata=own), client())
    assert cluster.placements() == {"mine": "gpu", "train": "gpu"}


def test_explain_says_that_a_wider_limit_would_help() -> None:
    cluster = remote(node("gpu", gpu=1, cpu=1), node("far", "r2", "b2"))
    cluster.add(client(cpu=2, latency="20us"))
    cluster.advance(1)
    about = explain(cluster.scheduler, pod_of(cluster, "train"))
    assert "would fit without bayplan.dev/gpu-max-latency" in str(about)


# Restarts ----------------------------------------------------------------------------------


def test_a_restart_between_two_bindings_finishes_the_pair() -> None:
    cluster = remote(node("gpu", gpu=1, cpu=1), node("near"), node("far", "r2"), client(cpu=4))
    bound = pod_of(cluster, "train-tf")
    again = Cluster()
    start_controllers(again.api)
    pending = client(cpu=4, latency="10us")
    meta = replace(pending.metadata, uid=pod_of(cluster, "train").metadata.uid)
    again.add(*cluster.api.list(Node), bound, replace(pending, metadata=meta))
    assert again.advance(1) == {"train": "near", "train-tf": "gpu"}


def test_a_restart_makes_no_second_worker() -> None:
    cluster = remote(node("gpu", gpu=2), client())
    again = restarted(cluster)
    assert again.placements() == cluster.placements()


# Gangs of clients --------------------------------------------------------------------------


def test_a_gang_of_clients_gets_all_workers_or_nothing() -> None:
    nodes = (node("gpu", gpu=3, cpu=64), node("cpu", cpu=64))
    cluster = remote(*nodes, make_gang("g", 8))
    cluster.add(*(client(f"c{n}", gang="g") for n in range(4)))
    assert cluster.advance(1) == {}
    cluster.add(node("more", "r2", gpu=1))
    placed = cluster.advance(60)
    assert len(placed) == 8


def test_members_beyond_the_minimum_come_in_pairs() -> None:
    cluster = remote(node("gpu", gpu=3, cpu=64), make_gang("g", 4))
    cluster.add(*(client(f"c{n}", gang="g") for n in range(4)))
    placed = cluster.advance(1)
    assert len(placed) == 6
    assert all(f"{name}-tf" in placed for name in placed if not name.endswith("-tf"))


def test_clients_of_one_workload_are_near_to_all_its_workers() -> None:
    same = {f"{PREFIX}workload": "shared"}
    cluster = remote(node("gpu-1", gpu=1, cpu=2), node("gpu-2", gpu=1, cpu=2), node("gpu-3", "r2"))
    cluster.add(node("cpu"), client("a", "10us", more=same, cpu=3))
    cluster.add(client("b", "10us", more=same, cpu=3))
    placed = cluster.advance(1)
    assert placed == {"a": "cpu", "b": "cpu", "a-tf": placed["a-tf"], "b-tf": placed["b-tf"]}
    assert {placed["a-tf"], placed["b-tf"]} == {"gpu-1", "gpu-2"}


# Bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (MAX_LATENCY, "soon", "expected a time above 0 such as 25us or 1.5ms, got"),
        (MAX_LATENCY, "0us", "expected a time above 0"),
        (MIN_BANDWIDTH, "-1", "expected a number of GB/s above 0, got"),
        (MIN_BANDWIDTH, "1e400", "expected a number of GB/s above 0"),
        (f"{PREFIX}gpu-count", "0", "expected a whole number from 1 to 64"),
        (f"{PREFIX}gpu-count", "9" * 5000, "expected a whole number from 1 to 64"),
        (f"{PREFIX}worker-pod-template", "{spec: 3}", "expected a pod template in YAML"),
        (f"{PREFIX}worker-pod-template", "{", "expected a pod template in YAML"),
        (
            f"{PREFIX}worker-pod-template",
            "{spec: {containers: [{name: w, resources: {requests: {cpu: -4}}}]}}",
            "expected an amount of cpu of 0 or more in container w",
        ),
        (f"{PREFIX}workload", "a b", "expected a name of up to 63 letters"),
    ],
)
def test_an_annotation_that_cannot_be_read_is_named(name: str, text: str, expected: str) -> None:
    cluster = remote(node("gpu", gpu=1), client(more={name: text}))
    assert cluster.placements() == {}
    assert f"annotation {name}: {expected}" in cluster.message("train")
    assert len(cluster.message("train")) < 400


def test_a_client_that_also_wants_a_gpu_of_its_node_is_told() -> None:
    cluster = remote(node("gpu", gpu=2), client(gpu=1))
    assert "expected no nvidia.com/gpu beside" in cluster.message("train")


def test_a_link_that_no_distance_offers_is_told() -> None:
    cluster = remote(node("gpu", gpu=1), client(latency="1us"))
    assert "no distance to a worker is what the pod asks for (node: 5us" in cluster.message("train")


@pytest.mark.parametrize(
    ("distances", "expected"),
    [
        ([], "distances"),
        ([{"name": "a", "latency": 0, "bandwidth": 1}] * 2, "latency"),
        ([{"name": "a", "latency": 1, "bandwidth": 1}] * 2, "defined twice"),
        ([{"name": n, "latency": 1, "bandwidth": 1} for n in "abc"], "expected layers"),
    ],
)
def test_distances_are_checked(distances: list[Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        checked_args(RemoteGPUs, {"distances": distances})
