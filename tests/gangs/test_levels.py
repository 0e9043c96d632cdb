"""Workloads of several levels: pods in groups, groups in roles, roles that start together."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api import Pod
from bayplan.api.operated import DisaggregatedSet, LeaderWorkerSet, PodCliqueSet
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.testing import Cluster, make_node, make_object, make_pod


def template(priority: int = 0) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    return {"spec": {"containers": [container], "priority": priority}}


def role(name: str, replicas: int, size: int, **spec: Any) -> dict[str, Any]:
    groups = {"size": size, "workerTemplate": template()}
    return {"name": name, "spec": {"replicas": replicas, "leaderWorkerTemplate": groups, **spec}}


def serving(*roles: dict[str, Any], **spec: Any) -> Any:
    return make_object(
        {
            "apiVersion": "disaggregatedset.x-k8s.io/v1",
            "kind": "DisaggregatedSet",
            "metadata": {"name": "s"},
            "spec": {"roles": list(roles), **spec},
        }
    )


def groups(replicas: int, size: int, priority: int = 0) -> Any:
    return make_object(
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "l"},
            "spec": {
                "replicas": replicas,
                "leaderWorkerTemplate": {"size": size, "workerTemplate": template(priority)},
            },
        }
    )


def started(*objects: Any, **racks: int) -> Cluster:
    """Return a cluster with nodes of one core each, so many in each rack, with its controllers."""
    nodes = [
        make_node(f"{rack}{index}", cpu=1, labels={"rack": rack})
        for rack, count in racks.items()
        for index in range(count)
    ]
    made = Cluster(nodes)
    start_controllers(made.api)
    made.add(*objects)
    made.advance(5.0)
    return made


def placed(made: Cluster) -> dict[str, int]:
    """Return the number of pods with a node by role, or else by the name of what owns them."""
    found: dict[str, int] = {}
    for pod in made.api.list(Pod):
        name = pod.metadata.labels.get("disaggregatedset.x-k8s.io/role") or pod.metadata.name
        if pod.spec.node_name:
            found[name] = found.get(name, 0) + 1
    return found


def racks_of(made: Cluster, text: str) -> set[str]:
    """Return the racks of the pods whose names have a text in them."""
    pods = [pod for pod in made.api.list(Pod) if pod.spec.node_name]
    return {pod.spec.node_name[0] for pod in pods if text in pod.metadata.name}


# Roles that start together -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (4, {}),
        (5, {"prefill": 2, "decode": 3}),
        (6, {"prefill": 2, "decode": 3}),
        (7, {"prefill": 4, "decode": 3}),
        (10, {"prefill": 4, "decode": 6}),
    ],
)
def test_roles_start_with_a_group_of_each_and_more_groups_come_whole(
    free: int, expected: dict[str, int]
) -> None:
    made = started(serving(role("prefill", 2, 2), role("decode", 2, 3)), a=free)
    assert placed(made) == expected


def test_a_group_more_comes_whole_once_there_is_room() -> None:
    made = started(serving(role("prefill", 1, 2), role("decode", 2, 3)), a=6)
    assert placed(made) == {"prefill": 2, "decode": 3}
    made.add(make_node("b0", cpu=1, labels={"rack": "b"}))
    made.advance(60.0)
    assert placed(made) == {"prefill": 2, "decode": 3}
    made.add(make_node("b1", cpu=1, labels={"rack": "b"}))
    made.advance(60.0)
    assert placed(made) == {"prefill": 2, "decode": 6}


def test_a_role_grows_by_whole_groups() -> None:
    made = started(serving(role("prefill", 1, 2), role("decode", 1, 2)), a=7)
    assert placed(made) == {"prefill": 2, "decode": 2}
    owner = made.api.get(DisaggregatedSet, "default/s")
    assert owner is not None
    roles = [role("prefill", 1, 2), role("decode", 3, 2)]
    made.api.update(replace(owner, spec={**owner.spec, "roles": roles}))
    made.advance(60.0)
    assert placed(made) == {"prefill": 2, "decode": 4}


def test_slices_start_by_themselves_each_in_a_domain() -> None:
    policy = {"type": "ExclusiveSlice", "topology": "rack"}
    owner = serving(role("prefill", 1, 2), role("decode", 1, 1), slices=2, placementPolicy=policy)
    made = started(owner, a=3, b=2, c=2)
    assert placed(made) == {"prefill": 2, "decode": 1}
    assert racks_of(made, "s-") == {"a"}
    made.add(make_node("c9", cpu=1, labels={"rack": "c"}))
    made.advance(60.0)
    assert racks_of(made, "s-") == {"a", "c"}


def test_where_workers_come_after_their_leader_each_group_is_by_itself() -> None:
    roles = (role("prefill", 1, 3, startupPolicy="LeaderReady"), role("decode", 1, 2))
    made = started(serving(*roles), a=3)
    # The leader waits for nobody; its workers, who come then, wait for each other.
    assert placed(made) == {"prefill": 1, "decode": 2}
    made.add(*(make_node(f"b{index}", cpu=1) for index in range(2)))
    made.advance(60.0)
    assert placed(made) == {"prefill": 3, "decode": 2}


# Groups of leaders -------------------------------------------------------------------------------


def test_preemption_takes_one_group_and_leaves_the_others() -> None:
    made = started(groups(3, 2), a=6)
    assert len(made.placements()) == 6
    made.add(make_pod("urgent", cpu=1, priority=100))
    made.advance(60.0)
    left = {name.rpartition("-")[0] or name for name in made.placements() if name != "urgent"}
    pods = [pod.metadata.name for pod in made.api.list(Pod) if pod.spec.node_name]
    assert "urgent" in pods
    by_group = {index: sum(one.startswith(f"l-{index}") for one in pods) for index in range(3)}
    assert sorted(by_group.values()) == [0, 2, 2], left


def test_a_group_that_is_made_again_keeps_its_domain_and_others_stay() -> None:
    owner = groups(2, 2)
    own = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    own["kueue.x-k8s.io/podset-group-name"] = "g"
    worker = {**template(), "metadata": {"annotations": own}}
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": worker}}
    made = started(replace(owner, spec=spec), a=2, b=2, c=3)
    before = {name: node[0] for name, node in made.placements().items()}
    assert len(set(before.values())) == 2
    for name in ("l-1", "l-1-1"):
        made.api.delete(Pod, f"default/{name}")
    made.advance(60.0)
    after = {name: node[0] for name, node in made.placements().items()}
    assert after["l-0"] == before["l-0"]
    assert after["l-1"] == after["l-1-1"]


def test_replicas_come_in_whole_groups_when_an_autoscaler_asks_for_more() -> None:
    made = started(groups(1, 2), a=5)
    assert len(made.placements()) == 2
    owner = made.api.get(LeaderWorkerSet, "default/l")
    assert owner is not None
    made.api.update(replace(owner, spec={**owner.spec, "replicas": 4}))
    made.advance(60.0)
    assert len(made.placements()) == 4


# Grove -------------------------------------------------------------------------------------------


def cliques(replicas: int = 1, **group: Any) -> Any:
    def clique(name: str, pods: int, least: int) -> dict[str, Any]:
        spec = {"roleName": name, "replicas": pods, "minAvailable": least}
        return {"name": name, "spec": {**spec, "podSpec": template()["spec"]}}

    scaling = {"name": "pair", "cliqueNames": ["decode"], "replicas": 2, "minAvailable": 1, **group}
    return make_object(
        {
            "apiVersion": "grove.io/v1alpha1",
            "kind": "PodCliqueSet",
            "metadata": {"name": "g"},
            "spec": {
                "replicas": replicas,
                "template": {
                    "cliques": [clique("prefill", 3, 2), clique("decode", 2, 2)],
                    "podCliqueScalingGroups": [scaling],
                },
            },
        }
    )


@pytest.mark.parametrize(
    ("free", "prefill", "decode"), [(3, 0, 0), (4, 2, 2), (5, 3, 2), (6, 3, 2), (7, 3, 4)]
)
def test_cliques_start_with_their_minimums_and_scaled_groups_come_later(
    free: int, prefill: int, decode: int
) -> None:
    made = started(cliques(), a=free)
    names = list(made.placements())
    assert sum("prefill" in name for name in names) == prefill
    assert sum("decode" in name for name in names) == decode


def test_each_replica_of_a_scaling_group_lies_in_a_domain_of_its_own() -> None:
    pack = {"pack": {"required": "rack"}}
    made = started(cliques(topologyConstraint=pack), a=3, b=2, c=2, d=2)
    assert len(racks_of(made, "pair-0-decode")) == 1
    assert len(racks_of(made, "pair-1-decode")) == 1


def test_a_set_that_shrinks_gives_up_its_last_replicas() -> None:
    made = started(cliques(2), a=14)
    assert len(made.placements()) == 14
    owner = made.api.get(PodCliqueSet, "default/g")
    assert owner is not None
    made.api.update(replace(owner, spec={**owner.spec, "replicas": 1}))
    made.advance(60.0)
    assert len(made.placements()) == 7
    assert all(name.startswith("g-0-") for name in made.placements())
