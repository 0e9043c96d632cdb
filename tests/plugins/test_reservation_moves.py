"""Pods that move with a reservation made first, as PodMigrationJobs do, and drained nodes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec.structs import replace
from tests.plugins.test_low_node_load import deployment
from tests.plugins.test_reservation import ALLOCATED, found, web
from tests.plugins.test_reservation import reservation as reservation_of

from bayplan.api import ApiObject, Node, Pod, Reservation
from bayplan.api.times import rfc3339
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.testing import Cluster, assert_pending, make_node, make_object, make_pod

DEVICES = "scheduling.koordinator.sh/device-allocated"


def stage(*nodes: str, **args: Any) -> Cluster:
    cluster = Cluster(plugins={"Reservation": args, "Recovery": {}})
    start_controllers(cluster.api)
    cluster.add(*(make_node(name, 8, "64Gi") for name in nodes))
    cluster.schedule()
    return cluster


def running(cluster: Cluster, app: str) -> Pod:
    (pod,) = [
        one
        for one in cluster.api.list(Pod)
        if one.metadata.labels.get("app") == app and one.metadata.deletion_timestamp is None
    ]
    return pod


def made_first(pod: Pod) -> ApiObject:
    """Return the reservation of a PodMigrationJob: it copies the pod, and avoids its node."""
    template: dict[str, Any] = {
        "metadata": msgspec.json.decode(msgspec.json.encode(pod.metadata)),
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "6"}}}],
        },
    }
    # What another scheduler wrote on the pod is no part of what is to be reserved.
    template["metadata"]["annotations"] = {
        ALLOCATED: '{"name":"before","uid":"before"}',
        DEVICES: '{"gpu":[{"minor":0}]}',
    }
    template["spec"]["nodeName"] = ""
    avoid = {"key": "metadata.name", "operator": "NotIn", "values": [pod.spec.node_name]}
    terms = [{"matchFields": [avoid]}]
    template["spec"]["affinity"] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
        }
    }
    (owner,) = pod.metadata.owner_references
    return make_object(
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Reservation",
            "metadata": {
                "name": "job-uid",
                "labels": {
                    "app.kubernetes.io/created-by": "koord-descheduler",
                    "scheduling.koordinator.sh/reservation-order": "1785000000000",
                },
            },
            "spec": {
                "template": template,
                "owners": [
                    {
                        "controller": {
                            "apiVersion": owner.api_version,
                            "kind": owner.kind,
                            "name": owner.name,
                            "uid": owner.uid,
                            "controller": True,
                            "namespace": "default",
                        }
                    }
                ],
                "allocateOnce": True,
                "ttl": "5m0s",
            },
        }
    )


def test_a_pod_that_is_evicted_goes_where_its_reservation_was_made_first() -> None:
    cluster = stage("a", "b")
    cluster.add(deployment("db", 1, "6"))
    cluster.advance(2)
    old = running(cluster, "db")
    cluster.add(made_first(old))
    cluster.advance(2)
    status = found(cluster, "job-uid").status
    (other,) = {"a", "b"} - {old.spec.node_name}
    assert (status.phase, status.node_name) == ("Available", other)
    # Nobody else gets the room meanwhile.
    cluster.add(make_pod("stranger", 6))
    assert_pending(cluster, "stranger", "Insufficient cpu")
    cluster.api.delete(Pod, old.key)
    cluster.advance(60)
    new = running(cluster, "db")
    assert new.metadata.uid != old.metadata.uid
    assert new.spec.node_name == other
    assert json.loads(new.metadata.annotations[ALLOCATED])["name"] == "job-uid"
    assert found(cluster, "job-uid").status.phase == "Succeeded"
    assert cluster.placements()["stranger"] == old.spec.node_name


def announce(cluster: Cluster, name: str, seconds: float) -> None:
    node = cluster.api.get(Node, name)
    assert node is not None
    at = rfc3339(cluster.api.unix_time + seconds)
    notes = {**node.metadata.annotations, "bayplan.dev/maintenance-at": at}
    cluster.api.update(replace(node, metadata=replace(node.metadata, annotations=notes)))


def test_a_reservation_of_a_node_that_is_drained_stays_and_its_owners_go_elsewhere() -> None:
    cluster = stage("a")
    cluster.add(reservation_of("r", "2", allocateOnce=False))
    cluster.advance(1)
    assert found(cluster, "r").status.node_name == "a"
    cluster.add(make_node("b", 8, "64Gi"))
    announce(cluster, "a", 600)
    cluster.advance(30)
    assert found(cluster, "r").status.phase == "Available"
    cluster.add(web("own", 2))
    cluster.advance(5)
    assert cluster.placements()["own"] == "b"


def test_a_copy_of_a_pod_is_no_pod_that_its_controller_makes_again() -> None:
    cluster = stage("a", "b", "c")
    cluster.add(deployment("db", 1, "6"))
    cluster.advance(2)
    old = running(cluster, "db")
    cluster.add(made_first(old))
    cluster.advance(2)
    kept = found(cluster, "job-uid").status.node_name
    announce(cluster, kept, 600)
    cluster.advance(60)
    # The node that the reservation is on begins its maintenance: nothing of it is evicted.
    assert found(cluster, "job-uid").status.phase == "Available"
    assert list(cluster.scheduler.evictor.evicted) == []


# Reservations for what bayplan moves -------------------------------------------------------


def drained(**args: Any) -> tuple[Cluster, str, str]:
    """Return a cluster whose node goes into maintenance, and both of its nodes."""
    cluster = stage("a", "b", **args)
    cluster.add(deployment("db", 1, "6"))
    cluster.advance(2)
    old = running(cluster, "db").spec.node_name
    (other,) = {"a", "b"} - {old}
    announce(cluster, old, 3600)
    cluster.advance(0.5)
    return cluster, old, other


def test_the_room_of_a_pod_that_moves_is_kept_until_it_is_made_again() -> None:
    cluster, _, other = drained(reserveForMovedPods=True)
    (made,) = cluster.api.list(Reservation)
    assert made.metadata.name.startswith("moved-")
    cluster.add(make_pod("stranger", 6))
    cluster.advance(90)
    new = running(cluster, "db")
    assert new.spec.node_name == other
    (made,) = cluster.api.list(Reservation)
    assert made.status.phase == "Succeeded"
    assert json.loads(new.metadata.annotations[ALLOCATED])["name"] == made.metadata.name
    assert cluster.placements().get("stranger") is None


def test_unless_it_is_asked_for_no_reservation_is_made() -> None:
    cluster, _, other = drained()
    cluster.advance(90)
    assert running(cluster, "db").spec.node_name == other
    assert cluster.api.list(Reservation) == []
