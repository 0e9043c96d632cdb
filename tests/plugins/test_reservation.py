"""Reservations: they are placed like pods, kept for their owners, and end in time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api import ApiObject, Pod, Reservation
from bayplan.testing import Cluster, assert_pending, assert_placed, make_node, make_object, make_pod
from bayplan_plugins.reservation import Reservation as ReservationPlugin

AFFINITY = "scheduling.koordinator.sh/reservation-affinity"
ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"
GPU = "nvidia.com/gpu"
ORDER = "scheduling.koordinator.sh/reservation-order"


def reservation(
    name: str,
    cpu: str = "6",
    owners: Any = None,
    labels: dict[str, str] | None = None,
    gang: str = "",
    **spec: Any,
) -> ApiObject:
    """Return a reservation for pods with the label app=web, unless owners are given."""
    template: dict[str, Any] = {
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}]
        }
    }
    if gang:
        template["metadata"] = {"labels": {"pod-group.scheduling.sigs.k8s.io": gang}}
    return make_object(
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Reservation",
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {
                "template": template,
                "owners": owners or [{"labelSelector": {"matchLabels": {"app": "web"}}}],
                **spec,
            },
        }
    )


def cluster_of(*objects: ApiObject, nodes: str = "n", **args: Any) -> Cluster:
    """Return a cluster of nodes with 8 CPUs each."""
    cluster = Cluster(plugins={ReservationPlugin: args})
    cluster.add(*(make_node(name, 8, "64Gi") for name in nodes))
    cluster.add(*objects)
    cluster.schedule()
    return cluster


def web(name: str, cpu: str | int = 6, **more: Any) -> Pod:
    return make_pod(name, cpu, labels={"app": "web"}, **more)


def test_owners_find_a_reservation_that_came_after_pods_like_them() -> None:
    cluster = cluster_of()
    cluster.add(web("first", 1))
    assert_placed(cluster, first="n")
    cluster.add(reservation("kept"))
    cluster.advance(1)
    cluster.add(make_pod("other", 6))
    assert_pending(cluster, "other", "Insufficient cpu")
    cluster.add(web("second"))
    assert_placed(cluster, first="n", second="n")


def test_owners_that_wait_are_tried_once_a_reservation_is_theirs() -> None:
    of_db = [{"labelSelector": {"matchLabels": {"app": "db"}}}]
    cluster = cluster_of(reservation("kept", owners=of_db), web("own"))
    assert_pending(cluster, "own", "Insufficient cpu")
    kept = found(cluster, "kept")
    owners = reservation("kept").spec.owners  # type: ignore[attr-defined]
    cluster.api.update(replace(kept, spec=replace(kept.spec, owners=owners)))
    cluster.advance(20)
    assert_placed(cluster, own="n")


def found(cluster: Cluster, name: str) -> Reservation:
    cluster.schedule()
    one = cluster.api.get(Reservation, name)
    assert one is not None
    return one


def test_a_reservation_gets_a_node_and_keeps_it_for_its_owners() -> None:
    cluster = cluster_of(reservation("r"))
    status = found(cluster, "r").status
    assert (status.phase, status.node_name) == ("Available", "n")
    assert status.allocatable["cpu"].units == 6
    assert {one.type: one.status for one in status.conditions} == {
        "Scheduled": "True",
        "Ready": "True",
    }
    assert cluster.api.list(Pod) == []
    cluster.add(make_pod("other", 6))
    assert_pending(cluster, "other", "Insufficient cpu")
    cluster.add(web("own"))
    assert_placed(cluster, own="n")
    pod = cluster.api.get(Pod, "default/own")
    assert pod is not None
    assert json.loads(pod.metadata.annotations[ALLOCATED])["name"] == "r"
    status = found(cluster, "r").status
    assert status.phase == "Succeeded"
    assert [owner.name for owner in status.current_owners] == ["own"]
    assert status.allocated["cpu"].units == 6


def test_the_first_pod_frees_what_it_leaves_unless_more_may_come() -> None:
    cluster = cluster_of(reservation("r"), web("own", 2), make_pod("other", 6))
    assert_placed(cluster, own="n", other="n")
    cluster = cluster_of(reservation("r", allocateOnce=False), web("own", 2))
    cluster.add(make_pod("other", 3))
    assert_pending(cluster, "other", "Insufficient cpu")
    status = found(cluster, "r").status
    assert (status.phase, status.allocated["cpu"].units) == ("Available", 2)
    cluster.add(web("more", 4))
    assert_placed(cluster, more="n")
    assert {one.name for one in found(cluster, "r").status.current_owners} == {"more", "own"}
    # What an owner leaves is the reservation's again.
    cluster.remove("own")
    assert found(cluster, "r").status.allocated["cpu"].units == 4
    cluster.add(make_pod("late", 4))
    assert_pending(cluster, "late", "Insufficient cpu")


def test_an_owner_may_take_more_than_is_reserved_unless_it_is_restricted() -> None:
    assert_placed(cluster_of(reservation("r", "4", allocatePolicy="Aligned"), web("a", 7)), a="n")
    cluster = cluster_of(reservation("r", "4", allocatePolicy="Restricted"), web("a", 7))
    assert_pending(cluster, "a", "Insufficient cpu")
    cluster.add(web("b", 4))
    assert_placed(cluster, b="n")


def test_a_pod_that_has_to_use_a_reservation_goes_nowhere_else() -> None:
    note = {AFFINITY: json.dumps({"reservationSelector": {"pool": "gold"}})}
    cluster = cluster_of(nodes="ab")
    cluster.add(web("own", 2, annotations=note))
    assert_pending(cluster, "own", "2 node(s) no reservations match reservation affinity")
    cluster.add(reservation("r", "4", labels={"pool": "gold"}))
    node = found(cluster, "r").status.node_name
    cluster.advance(30)
    assert_placed(cluster, own=node)
    named = {AFFINITY: json.dumps({"name": "other"})}
    cluster.add(web("named", 1, annotations=named))
    assert_pending(cluster, "named", "no reservations match reservation affinity")


def test_the_lowest_order_comes_first_then_the_tightest() -> None:
    cluster = cluster_of(
        reservation("large", "6"),
        reservation("small", "3"),
        reservation("last", "3", labels={ORDER: "2"}),
        reservation("first", "7", labels={ORDER: "1"}),
        nodes="abcd",
    )
    for name, expected in (("1", "first"), ("2", "last"), ("3", "small"), ("4", "large")):
        cluster.add(web(f"p{name}", 3))
        cluster.schedule()
        pod = cluster.api.get(Pod, f"default/p{name}")
        assert pod is not None
        assert json.loads(pod.metadata.annotations[ALLOCATED])["name"] == expected


@pytest.mark.parametrize(
    ("spec", "note", "uses"),
    [
        ({"unschedulable": True}, "", False),
        ({"taints": [{"key": "k", "effect": "NoSchedule"}]}, "", False),
        (
            {"taints": [{"key": "k", "effect": "NoSchedule"}]},
            json.dumps({"tolerations": [{"key": "k", "operator": "Exists"}]}),
            True,
        ),
        ({"owners": [{"object": {"name": "own"}}]}, "", True),
        ({"owners": [{"object": {"name": "other"}}]}, "", False),
        ({"owners": [{"controller": {"kind": "Job", "name": "j"}}]}, "", True),
    ],
)
def test_who_may_use_one(spec: dict[str, Any], note: str, uses: bool) -> None:
    cluster = cluster_of(reservation("r", **spec))
    notes = {AFFINITY: note} if note else {}
    cluster.add(web("own", owner="Job/j", annotations=notes))
    assert ("own" in cluster.schedule()) is uses


def test_a_reservation_ends_in_time_and_frees_its_node() -> None:
    cluster = cluster_of(reservation("r", ttl="1h"))
    cluster.add(make_pod("other", 6))
    assert_pending(cluster, "other", "Insufficient cpu")
    cluster.advance(3601)
    cluster.advance(30)
    assert_placed(cluster, other="n")
    status = found(cluster, "r").status
    assert status.phase == "Failed"
    assert [one.reason for one in status.conditions if one.type == "Ready"] == ["Expired"]
    cluster.advance(86500)
    assert cluster.api.get(Reservation, "r") is None


def test_without_garbage_collection_or_end_it_stays() -> None:
    cluster = cluster_of(reservation("r", ttl="0s"), disableGarbageCollection=True)
    cluster.advance(40 * 86400)
    assert found(cluster, "r").status.phase == "Available"


def test_one_that_fits_nowhere_says_why() -> None:
    cluster = cluster_of(reservation("r", "20"))
    (condition,) = found(cluster, "r").status.conditions
    assert (condition.type, condition.status) == ("Scheduled", "False")
    assert "Insufficient cpu" in condition.message
    assert found(cluster, "r").status.phase == "Pending"


def test_a_restarted_scheduler_knows_them_again() -> None:
    cluster = cluster_of(reservation("r", allocateOnce=False), web("own", 2))
    cluster.schedule()
    cluster.restart()
    cluster.add(make_pod("other", 3), web("more", 4))
    assert_pending(cluster, "other", "Insufficient cpu")
    assert_placed(cluster, more="n")
    assert len(found(cluster, "r").status.current_owners) == 2


def test_reservations_of_a_gang_are_placed_together_or_not_at_all() -> None:
    group = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "default"},
        "spec": {"minMember": 3},
    }
    three = [reservation(f"r{i}", "5", gang="g") for i in range(3)]
    cluster = cluster_of(make_object(group), *three, nodes="ab")
    assert {found(cluster, f"r{i}").status.node_name for i in range(3)} == {""}
    cluster.add(make_node("c", 8, "64Gi"))
    cluster.advance(30)
    assert {found(cluster, f"r{i}").status.node_name for i in range(3)} == {"a", "b", "c"}
    # A gang of owners takes all three.
    owners = {**group, "metadata": {"name": "h", "namespace": "default"}}
    cluster.add(make_object(owners), *(web(f"w{i}", 5, gang="h") for i in range(3)))
    assert sorted(cluster.schedule().values()) == ["a", "b", "c"]
    assert {found(cluster, f"r{i}").status.phase for i in range(3)} == {"Succeeded"}


def test_a_reserved_gpu_is_nobody_elses() -> None:
    template = {
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "resources": {"limits": {GPU: "6"}, "requests": {"cpu": "1"}},
                }
            ]
        }
    }
    one = reservation("r", template=template)
    labels = {"bayplan.dev/machine": "dgx-h100"}
    cluster = Cluster(plugins=(ReservationPlugin,))
    cluster.add(make_node("n", 64, "64Gi", labels=labels, **{GPU: 8}), one)
    assert found(cluster, "r").status.node_name == "n"
    cluster.add(make_pod("other", 1, **{GPU: 3}))
    assert_pending(cluster, "other", "Insufficient nvidia.com/gpu")
    cluster.add(web("own", 1, **{GPU: 6}))
    assert_placed(cluster, own="n")
