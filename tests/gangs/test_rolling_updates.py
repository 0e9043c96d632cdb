"""Gangs that take the place of others lie where those were, or near them, if there is room."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.gangs.test_owned import add, owned_by
from tests.gangs.test_owned_topology import GROUP, racks_of, template

from bayplan.api import ApiObject, Pod
from bayplan.testing import Cluster, make_node, make_object, make_pod, make_pods_of

NEAR = {"kueue.x-k8s.io/podset-preferred-topology": "rack", GROUP: "g"}
LWS = "leaderworkerset.sigs.k8s.io"
SET = "disaggregatedset.x-k8s.io"


def racks(nodes: int, names: str = "abcd") -> list[ApiObject]:
    """Return racks of nodes of one core each; two racks lie in one block."""
    return [
        make_node(
            f"{rack}{index}", cpu=1, labels={"rack": rack, "block": "ab" if rack in "ab" else "cd"}
        )
        for rack in names
        for index in range(nodes)
    ]


def filled(made: Cluster, rack: str, nodes: int) -> None:
    """Use nodes of a rack, so that it is the one that packing prefers."""
    for index in range(nodes):
        made.add(make_pod(f"{rack}-busy-{index}", "1", None, node=f"{rack}{index}"))


def worker_set(replicas: int) -> ApiObject:
    update = {"rollingUpdateConfiguration": {"maxSurge": 2}, "type": "RollingUpdate"}
    templates = {"leaderTemplate": template(**NEAR), "workerTemplate": template(**NEAR)}
    spec = {"replicas": replicas, "leaderWorkerTemplate": {"size": 2, **templates}}
    return make_object(
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "l"},
            "spec": {**spec, "rolloutStrategy": update},
        }
    )


def group(owner: Any, number: int) -> list[Pod]:
    """Return the pods of a group of a set, with the numbers that surges have, too."""
    larger = replace(owner, spec={**owner.spec, "replicas": 10})
    made = make_pods_of(larger)
    return [one for one in made if one.metadata.labels[f"{LWS}/group-index"] == str(number)]


def test_a_group_that_an_update_adds_lies_where_the_one_lies_that_it_stands_in_for() -> None:
    """The last groups are updated first: the first that is added stands in for the last."""
    made = Cluster(racks(4, "ab"))
    owner = add(made, worker_set(2))
    filled(made, "a", 2)
    made.add(*group(owner, 0))
    assert {racks_of(made)[f"l-0{one}"] for one in ("", "-1")} == {"a"}
    filled(made, "b", 1)
    made.add(*group(owner, 1))
    assert {racks_of(made)[f"l-1{one}"] for one in ("", "-1")} == {"b"}
    for index in range(2):
        made.remove(f"a-busy-{index}")
    made.remove("b-busy-0")
    made.add(*group(owner, 2))
    assert {racks_of(made)[f"l-2{one}"] for one in ("", "-1")} == {"b"}
    made.add(*group(owner, 3))
    assert {racks_of(made)[f"l-3{one}"] for one in ("", "-1")} == {"a"}


def disaggregated(made: Cluster) -> Any:
    role = {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template()}}
    roles = [{"name": name, "spec": role} for name in ("prefill", "decode")]
    placement = {"type": "ExclusiveSlice", "topology": "rack"}
    spec = {"slices": 1, "roles": roles, "placementPolicy": placement}
    content = {"apiVersion": f"{SET}/v1", "kind": "DisaggregatedSet", "metadata": {"name": "d"}}
    return add(made, make_object({**content, "spec": spec}))


def slice_of(owner: Any, revision: str) -> list[Pod]:
    found = []
    for role in ("prefill", "decode"):
        for index in range(2):
            labels = {f"{SET}/slice": "0", f"{SET}/revision": revision, f"{SET}/role": role}
            labels[f"{LWS}/group-index"] = "0"
            pod = make_pod(f"d-{revision}-{role}-{index}", "1", None, labels=labels)
            found.append(owned_by(pod, owner))
    return found


def test_the_next_revision_of_a_slice_lies_in_the_racks_of_the_one_before() -> None:
    made = Cluster(racks(8, "ab"))
    owner = disaggregated(made)
    filled(made, "b", 2)
    made.add(*slice_of(owner, "1"))
    assert set(racks_of(made).values()) == {"b"}
    made.remove("b-busy-0")
    made.remove("b-busy-1")
    filled(made, "a", 4)
    made.add(*slice_of(owner, "2"))
    found = racks_of(made)
    assert {found[one.metadata.name] for one in slice_of(owner, "2")} == {"b"}


def ray_cluster(name: str, service: Any) -> ApiObject:
    worker = {"groupName": "w", "replicas": 1, "maxReplicas": 1, "template": template(**NEAR)}
    spec = {"headGroupSpec": {"template": template(**NEAR)}, "workerGroupSpecs": [worker]}
    meta = {"name": name}
    content = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": meta, "spec": spec}
    return owned_by(make_object(content), service)


def ray_pods(cluster: Any) -> list[Pod]:
    name = cluster.metadata.name
    kinds = {"head": "headgroup", "worker": "w"}
    return [
        owned_by(
            make_pod(
                f"{name}-{kind}",
                "1",
                None,
                labels={"ray.io/node-type": kind, "ray.io/group": of, "ray.io/cluster": name},
            ),
            cluster,
        )
        for kind, of in kinds.items()
    ]


def test_the_next_cluster_of_a_ray_service_lies_in_the_rack_of_the_one_that_serves() -> None:
    made = Cluster(racks(4, "ab"))
    service = add(
        made,
        make_object(
            {
                "apiVersion": "ray.io/v1",
                "kind": "RayService",
                "metadata": {"name": "s"},
                "spec": {"rayClusterConfig": {"headGroupSpec": {"template": template()}}},
            }
        ),
    )
    filled(made, "b", 1)
    first = add(made, ray_cluster("one", service))
    made.add(*ray_pods(first))
    assert set(racks_of(made).values()) == {"b"}
    made.remove("b-busy-0")
    filled(made, "a", 2)
    second = add(made, ray_cluster("two", service))
    made.add(*ray_pods(second))
    found = racks_of(made)
    assert {found["two-head"], found["two-worker"]} == {"b"}


def pod_gang(name: str, **more: Any) -> ApiObject:
    constraint = {"topologyConstraint": {"packConstraint": {"preferred": "rack"}}}
    spec = {"podgroups": [{"name": f"{name}-c", "minReplicas": 2}], **constraint, **more}
    meta = {"name": name, "annotations": {"grove.io/topology-name": "dc"}}
    version = "scheduler.grove.io/v1alpha1"
    return make_object({"apiVersion": version, "kind": "PodGang", "metadata": meta, "spec": spec})


def pods_of_gang(name: str) -> list[Pod]:
    labels = {"grove.io/podgang": name, "grove.io/podclique": f"{name}-c"}
    return [make_pod(f"{name}-{index}", "1", None, labels=labels) for index in range(2)]


TOPOLOGY = {
    "apiVersion": "kai.scheduler/v1alpha1",
    "kind": "Topology",
    "metadata": {"name": "dc"},
    "spec": {"levels": [{"nodeLabel": "block"}, {"nodeLabel": "rack"}]},
}


def test_a_pod_gang_lies_where_the_one_was_whose_place_it_is_to_reuse() -> None:
    made = Cluster([make_object(TOPOLOGY), *racks(4)])
    filled(made, "d", 2)
    made.add(pod_gang("one"), *pods_of_gang("one"))
    assert set(racks_of(made).values()) == {"d"}
    made.add(pod_gang("two", reuseReservationRef={"name": "one"}))
    for name in ("d-busy-0", "d-busy-1", "one-0", "one-1"):
        made.remove(name)
    filled(made, "a", 2)
    made.add(*pods_of_gang("two"))
    assert {racks_of(made)[f"two-{index}"] for index in range(2)} == {"d"}


def test_a_gang_whose_place_is_taken_lies_near_it() -> None:
    """The rack is full, so the other rack of its block is next, however free it is."""
    made = Cluster([make_object(TOPOLOGY), *racks(4)])
    filled(made, "d", 2)
    made.add(pod_gang("one"), *pods_of_gang("one"))
    assert set(racks_of(made).values()) == {"d"}
    filled(made, "a", 2)
    filled(made, "b", 3)
    made.add(pod_gang("two", reuseReservationRef={"name": "one"}), *pods_of_gang("two"))
    assert {racks_of(made)[f"two-{index}"] for index in range(2)} == {"c"}


@pytest.mark.parametrize("same", [True, False])
def test_pods_that_are_made_again_under_other_names_come_back_to_their_rack(same: bool) -> None:
    """Also where what owns them says in between how many of them are ready."""
    made = Cluster(racks(4, "ab"))
    owner = add(made, worker_set(1))
    filled(made, "b", 2)
    made.add(*group(owner, 0))
    before = racks_of(made)
    assert before["l-0"] == "b"
    for name in ("l-0", "l-0-1"):
        made.remove(name)
    made.api.update(replace(owner, status={"readyReplicas": 0}))
    made.schedule()
    for index in range(2):
        made.remove(f"b-busy-{index}")
    filled(made, "a", 2)
    found = group(owner, 0)
    if not same:
        found = [
            replace(one, metadata=replace(one.metadata, name=f"{one.metadata.name}-x"))
            for one in found
        ]
    made.add(*found)
    after = racks_of(made)
    assert {after[one.metadata.name] for one in found} == {"b"}
