"""A pod group whose pods are still being made says that it waits for them, and warns of nothing."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api import ApiObject, NativePodGroup
from bayplan.testing import Cluster, make_node, make_object

GROUPS = {
    "scheduling.sigs.k8s.io/v1alpha1": {"minMember": 4},
    "scheduling.x-k8s.io/v1alpha1": {"minMember": 4},
    "scheduling.volcano.sh/v1beta1": {"minMember": 4},
    "scheduling.run.ai/v2alpha2": {"minMember": 4},
    "scheduling.k8s.io/v1alpha2": {"schedulingPolicy": {"gang": {"minCount": 4}}},
}
OWNER = {"apiVersion": "v1", "kind": "ReplicaSet", "name": "set", "uid": "u", "controller": True}


def group_of(version: str) -> ApiObject:
    meta = {"name": "job", "namespace": "default"}
    made = {"apiVersion": version, "kind": "PodGroup", "metadata": meta, "spec": GROUPS[version]}
    return make_object(made)


def member(version: str, index: int, owner: dict[str, Any] | None = None) -> ApiObject:
    meta: dict[str, Any] = {"name": f"job-{index}", "namespace": "default"}
    spec: dict[str, Any] = {"containers": [{"name": "c"}]}
    if version.startswith("scheduling.k8s.io"):
        spec["schedulingGroup"] = {"podGroupName": "job"}
    elif version.startswith("scheduling.volcano.sh"):
        meta["annotations"] = {"scheduling.k8s.io/group-name": "job"}
    elif version.startswith("scheduling.run.ai"):
        meta["annotations"] = {"pod-group-name": "job"}
    else:
        own = "pod-group.scheduling.sigs.k8s.io"
        label = "scheduling.x-k8s.io/pod-group" if "x-k8s" in version else own
        meta["labels"] = {label: "job"}
    if owner is not None:
        meta["ownerReferences"] = [owner]
    return make_object({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


def said(cluster: Cluster) -> list[tuple[str, str]]:
    events = [one for _, one in cluster.api.events if one.about == "PodGroup"]
    return [(one.type, one.message) for one in events]


@pytest.mark.parametrize("version", GROUPS)
def test_a_group_does_not_warn_while_its_pods_are_made(version: str) -> None:
    cluster = Cluster([make_node("n"), group_of(version)])
    for index in range(4):
        cluster.add(member(version, index))
        cluster.advance(2)
    assert len(cluster.placements()) == 4
    assert {type_ for type_, _ in said(cluster)} == {"Normal"}
    if "run.ai" not in version:
        ((_, message),) = said(cluster)
        assert message == 'gang "default/job" is waiting for members: 1 of 4 exist'


@pytest.mark.parametrize("version", GROUPS)
def test_a_group_whose_pods_all_exist_warns_that_they_do_not_fit(version: str) -> None:
    cluster = Cluster([make_node("n", pods=3), group_of(version)])
    for index in range(4):
        cluster.add(member(version, index))
        cluster.advance(2)
    assert (said(cluster)[0][0], said(cluster)[-1][0]) == ("Normal", "Warning")
    assert "0/1 nodes are available" in said(cluster)[-1][1]


def test_a_group_of_kubernetes_asks_for_no_nodes_while_pods_are_missing() -> None:
    """Who adds nodes for groups reads the reason."""
    version = "scheduling.k8s.io/v1alpha2"
    cluster = Cluster([make_node("n", pods=3), group_of(version), member(version, 0)])
    cluster.advance(2)

    def reason() -> str:
        group = cluster.api.get(NativePodGroup, "default/job")
        assert group is not None
        return group.status.conditions[0].reason

    assert reason() == "NotReadyForScheduling"
    cluster.add(*(member(version, index) for index in range(1, 4)))
    cluster.advance(2)
    assert reason() == "Unschedulable"


def test_a_group_whose_controllers_make_too_few_pods_warns() -> None:
    version = "scheduling.sigs.k8s.io/v1alpha1"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    meta = {"name": "set", "namespace": "default", "uid": "u"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta, "spec": spec}
    cluster = Cluster([make_node("n"), group_of(version), make_object(owner)])
    cluster.add(member(version, 0, OWNER), member(version, 1, OWNER))
    cluster.advance(2)
    text = 'gang "default/job" needs 4 members, but its controllers make 2 at most'
    assert said(cluster)[-1] == ("Warning", text)


def test_a_group_whose_pods_are_made_by_an_operator_waits_for_them() -> None:
    version = "scheduling.sigs.k8s.io/v1alpha1"
    owner = {**OWNER, "apiVersion": "example.com/v1", "kind": "Training"}
    cluster = Cluster([make_node("n"), group_of(version), member(version, 0, owner)])
    cluster.advance(2)
    text = 'gang "default/job" is waiting for members: 1 of 4 exist'
    assert said(cluster) == [("Normal", text)]
