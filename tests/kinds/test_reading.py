"""How an object is read by the row of its kind."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.kinds import (
    KINDS_OF_WORKLOADS,
    PodTemplates,
    When,
    WorkloadKind,
    minimum_of,
    pods_of,
    role_of,
    roles_of,
)

OWN = WorkloadKind(
    "example.com",
    "Training",
    (
        PodTemplates("template", each="spec.parts", count=("replicas", "hosts"), absent="off"),
        PodTemplates("spec.helper", "helper", later=(When("spec.mode", "Late"),)),
    ),
    ("spec.least",),
)


def own(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "t", "namespace": "default"}, "spec": spec}


def counts(kind: WorkloadKind, content: dict[str, Any]) -> dict[str, int]:
    return {role.name: role.count for role in roles_of(kind, content)}


def test_each_entry_of_a_list_is_a_role_and_its_factors_are_multiplied() -> None:
    parts = [
        {"name": "A", "replicas": 3, "hosts": 2, "template": {}},
        {"name": "b", "template": {}},
        {"name": "c", "replicas": 4, "off": True, "template": {}},
        {"name": "no-template", "replicas": 4},
    ]
    assert counts(OWN, own(parts=parts)) == {"a": 6, "b": 1}


def test_each_entry_of_a_map_is_a_role_named_by_its_key() -> None:
    assert counts(OWN, own(parts={"Worker": {"replicas": 5, "template": {}}})) == {"worker": 5}


@pytest.mark.parametrize(("mode", "later"), [("Late", True), ("Early", False), (None, False)])
def test_a_role_comes_later_where_its_condition_holds(mode: str | None, later: bool) -> None:
    (helper,) = roles_of(OWN, own(helper={}, mode=mode))
    assert helper.later is later


@pytest.mark.parametrize("number", [-1, "3", True, 2.5, 10**9])
def test_what_is_no_number_of_pods_is_refused_with_its_path(number: object) -> None:
    with pytest.raises(ValueError, match=r"spec\.parts\[0\]\.replicas: expected a number of pods"):
        roles_of(OWN, own(parts=[{"name": "a", "replicas": number, "template": {}}]))
    with pytest.raises(ValueError, match=r"spec\.least: expected a number of pods"):
        minimum_of(OWN, own(least=number))


@pytest.mark.parametrize("content", [{}, {"spec": None}, {"spec": []}, {"spec": {"parts": 3}}])
def test_an_object_that_lacks_everything_has_no_pods(content: dict[str, Any]) -> None:
    assert roles_of(OWN, content) == ()


def lws(**spec: Any) -> dict[str, Any]:
    template = {"size": 3, "workerTemplate": {"spec": {}}, **spec.pop("template", {})}
    return own(leaderWorkerTemplate=template, **spec)


LWS = KINDS_OF_WORKLOADS["leaderworkerset.x-k8s.io", "LeaderWorkerSet"]


def test_a_leader_worker_set_has_a_leader_and_workers_in_each_of_its_groups() -> None:
    plans = list(pods_of(LWS, lws(replicas=2)))
    assert [plan.name for plan in plans] == ["t-0", "t-0-1", "t-0-2", "t-1", "t-1-1", "t-1-2"]
    roles = roles_of(LWS, lws())
    found = [role_of(roles, plan.labels) for plan in plans]
    assert [role.name for role in found if role is not None] == ["leader", "worker", "worker"] * 2


def test_workers_that_are_made_once_their_leader_is_ready_come_later() -> None:
    roles = roles_of(LWS, lws(startupPolicy="LeaderReady"))
    assert {role.name: role.later for role in roles} == {"leader": False, "worker": True}


def test_a_group_of_one_has_no_workers() -> None:
    assert counts(LWS, lws(template={"size": 1})) == {"leader": 1}


def test_the_pods_of_a_suspended_job_are_not_made() -> None:
    kind = KINDS_OF_WORKLOADS["kubeflow.org", "TFJob"]
    specs = {"Worker": {"replicas": 2, "template": {}}}
    assert len(list(pods_of(kind, own(tfReplicaSpecs=specs)))) == 2
    assert list(pods_of(kind, own(tfReplicaSpecs=specs, runPolicy={"suspend": True}))) == []


@pytest.mark.parametrize(
    ("group", "count", "least"),
    [
        ({"replicas": 4}, 4, 4),
        ({"replicas": 1, "minReplicas": 3}, 3, 3),
        ({"minReplicas": 2}, 2, 2),
        ({"replicas": 10, "minReplicas": 1, "maxReplicas": 2}, 2, 1),
        ({"replicas": 10, "maxReplicas": 2}, 2, 2),
        ({"minReplicas": 2, "numOfHosts": 3}, 6, 6),
    ],
)
def test_the_replicas_of_a_ray_group_are_within_its_bounds(
    group: dict[str, int], count: int, least: int
) -> None:
    groups = [{"groupName": "g", "template": {}, **group}]
    kind = KINDS_OF_WORKLOADS["ray.io", "RayCluster"]
    (role,) = roles_of(kind, own(workerGroupSpecs=groups))
    assert (role.count, role.least) == (count, least)


def test_no_more_pods_than_there_are_can_be_of_another_role() -> None:
    kind = WorkloadKind("e.com", "E", (PodTemplates("spec.a", "a", count=("spec.n",), less=3),))
    assert counts(kind, own(a={}, n=1)) == {}


def test_the_groups_of_a_ray_cluster_need_their_least_replicas_of_all_their_hosts() -> None:
    groups = [
        {"groupName": "A", "replicas": 4, "minReplicas": 2, "numOfHosts": 2, "template": {}},
        {"groupName": "b", "replicas": 3, "minReplicas": 0, "template": {}},
        {"groupName": "c", "replicas": 3, "suspend": True, "template": {}},
    ]
    head = {"template": {}}
    roles = roles_of(
        KINDS_OF_WORKLOADS["ray.io", "RayCluster"],
        own(headGroupSpec=head, workerGroupSpecs=groups),
    )
    found = {role.name: (role.count, role.least) for role in roles}
    assert found == {"head": (1, 1), "a": (8, 4), "b": (3, 3)}
    assert role_of(roles, {"ray.io/group": "A", "ray.io/node-type": "worker"}) == roles[1]
