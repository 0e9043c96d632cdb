"""Reservations that take over running pods, and pods that want a reservation of just their size."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.plugins.test_reservation import ALLOCATED, GPU, cluster_of, found, reservation

from bayplan.api import ApiObject, Pod
from bayplan.testing import Cluster, assert_pending, assert_placed, make_pod

EXACT = "scheduling.koordinator.sh/exact-match-reservation"
REQUIRED = {"scheduling.koordinator.sh/pre-allocation-required": "true"}
CLUSTERWIDE = {"mode": "Cluster", "enableMultiple": True}


def taking_over(name: str, cpu: str = "6", **spec: Any) -> ApiObject:
    """Return a reservation for many owners that takes over pods."""
    given = {"preAllocation": True, "allocatePolicy": "Restricted", "allocateOnce": False, **spec}
    return reservation(name, cpu, **given)


def web(name: str, cpu: int = 6, **more: Any) -> Pod:
    return make_pod(name, cpu, None, labels={"app": "web"}, **more)


def owners(cluster: Cluster, name: str) -> list[str]:
    return sorted(one.name for one in found(cluster, name).status.current_owners)


def allocated(cluster: Cluster, key: str) -> str:
    pod = cluster.api.get(Pod, key)
    assert pod is not None
    text = pod.metadata.annotations.get(ALLOCATED)
    return str(json.loads(text)["name"]) if text else ""


def why(cluster: Cluster, name: str) -> str:
    (message,) = [
        one.message for one in found(cluster, name).status.conditions if one.type == "Scheduled"
    ]
    return message


def test_a_reservation_takes_over_a_pod_on_a_full_node_and_keeps_what_it_leaves() -> None:
    cluster = cluster_of(web("old", 4, node="n"), make_pod("other", 2, node="n"))
    cluster.add(taking_over("r"))
    cluster.advance(5)
    status = found(cluster, "r").status
    assert (status.phase, status.node_name) == ("Available", "n")
    assert status.allocatable["cpu"].units == 6
    assert status.allocated["cpu"].units == 4
    assert owners(cluster, "r") == ["old"]
    assert allocated(cluster, "default/old") == "r"
    # All of the node is in use or kept.
    assert cluster.snapshot.nodes.used("cpu").tolist() == [8000]
    cluster.add(make_pod("stranger", 1))
    assert_pending(cluster, "stranger", "Insufficient cpu")
    cluster.add(web("new", 2))
    assert_placed(cluster, new="n")
    # Once the pod has gone, what it used is kept.
    cluster.api.delete(Pod, "default/old")
    cluster.advance(60)
    assert_pending(cluster, "stranger", "Insufficient cpu")
    assert owners(cluster, "r") == ["new"]
    cluster.add(web("next", 4))
    assert_placed(cluster, next="n")


def test_without_pre_allocation_the_same_reservation_waits() -> None:
    cluster = cluster_of(web("old", 4, node="n"), taking_over("r", preAllocation=False))
    cluster.schedule()
    assert found(cluster, "r").status.phase in ("", "Pending")


def test_one_pod_is_taken_over_unless_more_may_be() -> None:
    pods = [web("a", 3, node="n"), web("b", 3, node="n"), make_pod("c", 2, node="n")]
    cluster = cluster_of(*pods, taking_over("r"))
    cluster.advance(5)
    assert found(cluster, "r").status.node_name == ""
    cluster = cluster_of(*pods, taking_over("r", preAllocationPolicy={"enableMultiple": True}))
    cluster.advance(5)
    assert owners(cluster, "r") == ["a", "b"]
    assert cluster.snapshot.nodes.used("cpu").tolist() == [8000]


def test_the_node_that_is_used_most_by_owners_is_taken() -> None:
    pods = [web("small", 1, node="a"), web("large", 5, node="b")]
    cluster = cluster_of(*pods, taking_over("r"), nodes="ab")
    cluster.advance(5)
    assert (found(cluster, "r").status.node_name, owners(cluster, "r")) == ("b", ["large"])


@pytest.mark.parametrize(("prefers", "node"), [(False, "b"), (True, "a")])
def test_room_may_come_before_pods(prefers: bool, node: str) -> None:
    config = {"preferNoPreAllocatedPods": prefers}
    pods = [make_pod("other", 1, node="b"), web("own", 1, node="b")]
    cluster = cluster_of(*pods, taking_over("r"), nodes="ab", preAllocationConfig=config)
    cluster.advance(5)
    assert found(cluster, "r").status.node_name == node


def test_where_it_is_required_a_reservation_waits_for_a_pod_to_take_over() -> None:
    cluster = cluster_of(taking_over("r", labels=REQUIRED))
    cluster.schedule()
    assert "no pod match reservation with pre allocation required" in why(cluster, "r")
    cluster.add(web("own", 2, node="n"))
    cluster.advance(60)
    assert (found(cluster, "r").status.node_name, owners(cluster, "r")) == ("n", ["own"])


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"allocatePolicy": "Aligned"}, "pre allocation is unsupported"),
        ({"preAllocationPolicy": {"mode": "Cluster"}}, "cluster mode pre-allocation"),
    ],
)
def test_what_is_not_supported_is_said(spec: dict[str, Any], text: str) -> None:
    cluster = cluster_of(web("own", 4, node="n"), taking_over("r", **spec))
    cluster.schedule()
    assert text in why(cluster, "r")


def test_all_of_a_cluster_with_a_label_may_be_taken_over_the_most_important_first() -> None:
    label = {"pod.koordinator.sh/is-pre-allocatable": "true"}

    def batch(name: str, priority: str) -> Pod:
        notes = {"pod.koordinator.sh/pre-allocatable-priority": priority}
        return make_pod(name, 2, None, labels=label, annotations=notes, node="n")

    pods = [
        batch("low", "1"),
        batch("high", "9"),
        batch("broken", "much"),
        make_pod("o", 2, node="n"),
    ]
    cluster = cluster_of(
        *pods,
        taking_over("r", "4", preAllocationPolicy=CLUSTERWIDE),
        preAllocationConfig={"enableClusterMode": True},
    )
    cluster.advance(5)
    assert owners(cluster, "r") == ["high", "low"]


@pytest.mark.parametrize(
    "pod",
    [
        web("own", 4, node="n", **{GPU: 1}),
        web("own", 7, node="n"),
        web("own", 4, node="n", annotations={ALLOCATED: '{"name":"x","uid":"x"}'}),
        make_pod("own", 4, node="n"),
    ],
    ids=["with devices", "larger than the reservation", "with another one", "no owner"],
)
def test_other_pods_are_left_alone(pod: Pod) -> None:
    cluster = cluster_of(pod, taking_over("r"))
    cluster.advance(5)
    assert found(cluster, "r").status.node_name == ""
    assert not cluster.snapshot.placed.keys() - {"default/own"}


# Just the size -----------------------------------------------------------------------------


def exactly(*names: str) -> dict[str, str]:
    return {EXACT: json.dumps({"resourceNames": list(names)})}


@pytest.mark.parametrize(
    ("cpu", "names", "expected"),
    [(6, ["cpu"], "r"), (4, ["cpu"], ""), (4, [], "r"), (4, ["memory"], ""), (6, [GPU], "r")],
)
def test_a_pod_may_want_a_reservation_of_just_its_size(
    cpu: int, names: list[str], expected: str
) -> None:
    cluster = cluster_of(reservation("r"), nodes="ab")
    cluster.add(web("own", cpu, annotations=exactly(*names)))
    cluster.schedule()
    assert allocated(cluster, "default/own") == expected


def test_a_wish_that_cannot_be_read_keeps_the_pod_with_a_reason() -> None:
    cluster = cluster_of(reservation("r"))
    cluster.add(web("own", annotations={EXACT: '{"resourceNames": 4}'}))
    assert_pending(cluster, "own", EXACT)
