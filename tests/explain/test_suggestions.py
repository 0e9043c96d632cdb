"""What would help a pending unit: told only if it is true."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.api import Node, Pod
from bayplan.explain.suggestions import Diagnosis
from bayplan.testing import Cluster, make_gang, make_node, make_object, make_pod, random_pod


def advice(cluster: Cluster, unit: str) -> list[str]:
    cluster.schedule()
    profile = next(iter(cluster.scheduler.profiles.values()))
    diagnosis = Diagnosis(profile.runtime, profile.evaluator, profile.cycle, cluster.snapshot)
    found = cluster.scheduler.pending_unit(f"default/{unit}")
    assert found is not None
    before = cluster.snapshot.nodes.used("cpu").tolist()
    texts = [one.text for one in diagnosis.suggest(found, cluster.api.now)]
    assert cluster.snapshot.nodes.used("cpu").tolist() == before
    return texts


def test_the_node_that_needs_least_is_named() -> None:
    cluster = Cluster([make_node("a", cpu=8), make_node("b", cpu=8)])
    cluster.add(make_pod("x", "7", None, node="a"), make_pod("y", "6", None, node="b"))
    cluster.add(make_pod("p", "4", None))
    assert advice(cluster, "p") == ["would fit if 2 CPUs were freed on b"]


def test_a_node_that_is_refused_for_two_reasons_is_not_offered() -> None:
    cluster = Cluster([make_node("a", cpu=8, taints=["k=v:NoSchedule"]), make_node("b", cpu=8)])
    cluster.add(make_pod("x", "5", None, node="a"), make_pod("y", "8", None, node="b"))
    cluster.add(make_pod("p", "4", None))
    assert advice(cluster, "p") == ["would fit if 4 CPUs were freed on b"]


def test_a_toleration_is_offered() -> None:
    cluster = Cluster([make_node("a", taints=["team=x:NoSchedule"])])
    cluster.add(make_pod("p"))
    assert advice(cluster, "p") == ["would fit on a if the pod tolerated team=x:NoSchedule"]


def test_what_no_node_offers_is_said() -> None:
    cluster = Cluster([make_node("a", cpu=8)])
    cluster.add(make_pod("p", "1", None, gpu=1))
    assert advice(cluster, "p") == ["cannot fit: no node offers nvidia.com/gpu"]


def rack_cluster() -> Cluster:
    topology = make_object(
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "ClusterNetworkTopology",
            "metadata": {"name": "default"},
            "spec": {
                "networkTopologySpec": [
                    {"topologyLayer": "Rack", "labelKey": ["rack"]},
                    {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "Rack"},
                ]
            },
        }
    )
    nodes = [make_node(f"n-{i}", cpu=1, labels={"rack": "ab"[i // 3]}) for i in range(6)]
    return Cluster([topology, *nodes])


def gang(size: int, strategy: str = "MustGather") -> list[Any]:
    spec = json.dumps({"gatherStrategy": [{"layer": "Rack", "strategy": strategy}]})
    key = "gang.scheduling.koordinator.sh/network-topology-spec"
    pods = [make_pod(f"job-{i}", "1", None, gang="job") for i in range(size)]
    return [make_gang("job", size, {key: spec}), *pods]


def test_a_gang_is_told_what_to_relax_and_what_to_free() -> None:
    cluster = rack_cluster()
    cluster.add(make_pod("busy", "1", None, node="n-4"), *gang(4))
    # Neither rack has four nodes, so no freeing can help.
    assert advice(cluster, "job") == [
        "can never fit with the nodes as they are: of its 4 pods the largest domain, Rack/a, "
        "has room for 3; it would without MustGather at Rack",
        "would fit without MustGather at Rack",
        "would fit if Rack/a had 1 more node like n-0",
    ]
    cluster = rack_cluster()
    cluster.add(make_pod("one", "1", None, node="n-0"), make_pod("two", "1", None, node="n-4"))
    cluster.add(*gang(3))
    assert advice(cluster, "job") == [
        "would fit without MustGather at Rack",
        "would fit if 1 CPU was freed on n-0 (in Rack/a)",
    ]


def test_many_equal_changes_are_told_as_one() -> None:
    cluster = Cluster([make_node(f"n-{i}", cpu=4) for i in range(20)])
    cluster.add(*(make_pod(f"busy-{i}", "3", None, node=f"n-{i}") for i in range(20)))
    cluster.add(
        make_gang("job", 20), *(make_pod(f"j-{i}", "2", None, gang="job") for i in range(20))
    )
    assert advice(cluster, "job") == [
        "would fit if busy-0, busy-1, busy-2, busy-3, busy-4, busy-5, busy-6, busy-7 and 2 more "
        "ended on 10 nodes"
    ]


def test_a_gang_that_is_short_of_members_is_told_how_many() -> None:
    cluster = Cluster([make_node("n")])
    cluster.add(make_gang("job", 3), make_pod("job-0", gang="job"))
    assert advice(cluster, "job") == ["would be tried once 2 more members existed"]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 10_000))
def test_following_the_first_advice_places_the_pod(seed: int) -> None:
    draw = random.Random(seed)
    nodes = [make_node(f"n-{i}", cpu=draw.choice([2, 4]), pods=6) for i in range(3)]
    cluster = Cluster(nodes)
    cluster.add(*(random_pod(draw, f"p-{i}") for i in range(10)))
    cluster.schedule()
    cluster.add(make_pod("asked", "2", None, priority=10, spec={"preemptionPolicy": "Never"}))
    if "asked" in cluster.schedule():
        return
    (first, *_) = advice(cluster, "asked")
    assert first.startswith("would fit if ")
    node = first.split(" freed on ")[1]
    # Free everything there: more than was asked for, so it has to fit.
    for pod in cluster.api.list(Pod):
        if pod.spec.node_name == node:
            cluster.remove(pod.key)
    assert cluster.advance(20).get("asked") is not None


@pytest.mark.parametrize("strategy", ["MustGather", "PreferGather"])
def test_advice_leaves_everything_as_it_was(strategy: str) -> None:
    cluster = rack_cluster()
    cluster.add(*(make_pod(f"busy-{i}", "1", None, node=f"n-{i}") for i in range(5)))
    cluster.add(*gang(3, strategy))
    placed = cluster.schedule()
    advice(cluster, "job")
    assert cluster.schedule() == placed
    assert len(cluster.api.list(Node)) == 6
