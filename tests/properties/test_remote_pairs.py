"""Clients and workers: placed together wherever two nodes near enough take them, or not at all."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.damaged import damaged_by
from tests.examples import examples

from bayplan.api import Node, Pod
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.dialects.tensor_fusion import (
    MAX_LATENCY,
    MIN_BANDWIDTH,
    NIC_BANDWIDTH,
    PREFIX,
    client_problem,
    link_of,
)
from bayplan.testing import Cluster, make_node, make_pod
from bayplan_plugins.remote_gpus.settings import RemoteGPUsArgs

CLASSES = RemoteGPUsArgs().distances
LATENCIES = {5: "node", 10: "rack", 20: "block", 200: "farther"}
WORKER_CPU = 1000


def class_of(one: Node, other: Node) -> str:
    if one.metadata.name == other.metadata.name:
        return "node"
    for layer in ("rack", "block"):
        if one.metadata.labels[layer] == other.metadata.labels[layer]:
            return layer
    return "farther"


def latency(one: Node, other: Node) -> float:
    return next(c.latency for c in CLASSES if c.name == class_of(one, other))


NODES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 1), st.sampled_from(["r1", "r2", "r3", "r4"])),
    min_size=1,
    max_size=5,
)


def nodes_of(drawn: list[tuple[int, int, str]]) -> list[Node]:
    """Return nodes: CPUs, GPUs, rack. Two racks make a block."""
    blocks = {"r1": "b1", "r2": "b1", "r3": "b2", "r4": "b2"}
    return [
        make_node(f"n{n}", cpu=cpu, labels={"rack": rack, "block": blocks[rack]}, gpu=gpu)
        for n, (cpu, gpu, rack) in enumerate(drawn)
    ]


def client(name: str, cpu: int, most: int) -> Pod:
    annotations = {f"{PREFIX}is-local-gpu": "false", MAX_LATENCY: f"{most}us"}
    return make_pod(name, cpu=cpu, memory=None, annotations=annotations)


def cluster_of(*objects: Any) -> Cluster:
    cluster = Cluster()
    start_controllers(cluster.api)
    cluster.add(*objects)
    cluster.advance(1)
    return cluster


@examples(60)
@given(NODES, st.integers(1, 3), st.sampled_from(sorted(LATENCIES)))
def test_a_pair_is_placed_at_the_least_distance_that_there_is_room_at(
    drawn: list[tuple[int, int, str]], cpu: int, most: int
) -> None:
    nodes = nodes_of(drawn)
    possible = []
    for worker, own in itertools.product(nodes, nodes):
        need = {worker.metadata.name: 1}
        need[own.metadata.name] = need.get(own.metadata.name, 0) + cpu
        cpus = {one.metadata.name: one.status.allocatable["cpu"].units for one in nodes}
        fits = all(cpus[name] >= amount for name, amount in need.items())
        if fits and worker.status.allocatable["nvidia.com/gpu"].units:
            possible.append(latency(worker, own))
    placed = cluster_of(*nodes, client("c", cpu, most)).placements()
    best = min(possible, default=float("inf"))
    if best > most:
        assert placed == {}
        return
    by_name = {one.metadata.name: one for one in nodes}
    assert latency(by_name[placed["c-tf"]], by_name[placed["c"]]) == best


@examples(30)
@given(NODES, st.lists(st.tuples(st.integers(1, 2), st.sampled_from(sorted(LATENCIES)))))
def test_no_client_runs_without_its_worker_or_too_far_from_it(
    drawn: list[tuple[int, int, str]], clients: list[tuple[int, int]]
) -> None:
    nodes = nodes_of(drawn)
    by_name = {one.metadata.name: one for one in nodes}
    cluster = cluster_of(*nodes, *(client(f"c{n}", *one) for n, one in enumerate(clients[:6])))
    chance = Random(len(clients))
    for _ in range(3):
        placed = cluster.placements()
        for number, (_, most) in enumerate(clients[:6]):
            worker, own = placed.get(f"c{number}-tf"), placed.get(f"c{number}")
            assert (worker is None) == (own is None)
            if worker is not None and own is not None:
                assert latency(by_name[worker], by_name[own]) <= most
        for node in cluster.snapshot.view():
            assert node.free("cpu") >= 0
            assert node.free("nvidia.com/gpu") >= 0
        gone = sorted(name for name in placed if not name.endswith("-tf"))
        if gone:
            cluster.remove(chance.choice(gone))
        cluster.advance(60)


TEXTS = {
    MAX_LATENCY: ("25us", "1.5ms"),
    MIN_BANDWIDTH: ("10", "0.5"),
    f"{PREFIX}gpu-count": ("1", "2"),
    f"{PREFIX}workload": ("train",),
    f"{PREFIX}worker-pod-template": (
        "spec: {containers: [{name: w, resources: {requests: {cpu: 500m}}}]}",
        '{"spec": {"nodeSelector": {"rack": "r1"}, "containers": [{"name": "w", "image": "i"}]}}',
    ),
}


@examples(40)
@given(st.integers(0, 2**32))
def test_a_text_gives_a_message_or_a_pair(seed: int) -> None:
    chance = Random(seed)
    offered: dict[str, Any] = {"gpu": 8, NIC_BANDWIDTH: 10**6}
    cluster = cluster_of(make_node("n", cpu=64, labels={"rack": "r1"}, **offered))
    for number in range(20):
        name = chance.choice(sorted(TEXTS))
        text = damaged_by(chance, *TEXTS[name])
        annotations = {f"{PREFIX}is-local-gpu": "false", name: text}
        pod = make_pod(f"c{number}", cpu=None, memory=None, annotations=annotations)
        cluster.add(pod)
        placed = cluster.advance(1)
        problem = client_problem(pod)
        if problem is not None:
            assert f"c{number}" not in placed
            assert name in problem
            assert problem in cluster.message(f"c{number}")
            assert len(problem) < 500
        else:
            assert link_of(pod).max_latency > 0
        cluster.remove(f"c{number}")
        cluster.advance(60)
