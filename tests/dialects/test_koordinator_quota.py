"""Koordinator's quotas in bayplan's words."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bayplan.api import ElasticQuota, ElasticQuotaProfile, LabelSelector, Node, ObjectMeta, Pod
from bayplan.api.elastic_quota import ElasticQuotaProfileSpec, ElasticQuotaSpec
from bayplan.api.node import NodeStatus
from bayplan.api.quantity import Quantity
from bayplan.api.queue import Queue
from bayplan.dialects.koordinator.elastic_quota import (
    DEFAULT_QUOTA,
    QuotaDefinition,
    QuotaNames,
    definition_of,
    is_preemptible,
    quantity_of,
    queue_of,
    tree_root_of,
)

PREFIX = "quota.scheduling.koordinator.sh/"


def as_queue(stated: ElasticQuota) -> Queue:
    return queue_of(definition_of(stated), stated.metadata)


def quota(
    least: Mapping[str, str] | None = None,
    most: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> ElasticQuota:
    return ElasticQuota(
        ObjectMeta(
            name="team",
            namespace="quotas",
            labels={PREFIX + key: value for key, value in (labels or {}).items()},
            annotations={PREFIX + key: value for key, value in (annotations or {}).items()},
        ),
        ElasticQuotaSpec(
            min={name: Quantity(text) for name, text in (least or {}).items()},
            max={name: Quantity(text) for name, text in (most or {}).items()},
        ),
    )


def pod(namespace: str, labels: Mapping[str, str] | None = None) -> Pod:
    named = {PREFIX + key: value for key, value in (labels or {}).items()}
    return Pod(ObjectMeta(name="p", namespace=namespace, labels=named))


def test_a_quota_is_a_queue() -> None:
    queue = as_queue(quota({"cpu": "8"}, {"cpu": "16", "nvidia.com/gpu": "4"}, {"parent": "dept"}))
    assert (queue.name, queue.parent, queue.source) == ("team", "dept", "ElasticQuota quotas/team")
    assert (queue.deserved.of("cpu"), queue.limit.of("cpu")) == (8000, 16000)
    assert queue.limit.of("memory") == float("inf")
    assert (queue.weight.of("cpu"), queue.weight.of("nvidia.com/gpu")) == (16000, 4)
    assert queue.lent.of("cpu") == float("inf")
    assert queue.guaranteed.of("cpu") == 0


def test_the_children_of_the_root_quota_are_roots() -> None:
    assert as_queue(quota(labels={"parent": "koordinator-root-quota"})).parent == ""
    assert as_queue(quota()).parent == ""


def test_a_quota_that_does_not_lend_keeps_its_min() -> None:
    queue = as_queue(quota({"cpu": "8"}, {"cpu": "16"}, {"allow-lent-resource": "false"}))
    assert queue.lent.of("cpu") == 0
    assert queue.guaranteed.of("cpu") == 8000


def test_weights_are_those_of_the_annotation_unless_they_are_zero_or_unreadable() -> None:
    most = {"cpu": "16"}
    weight = {"shared-weight": '{"cpu": 3}'}
    assert definition_of(quota({}, most, annotations=weight)).weight == {"cpu": 3000}
    for text in ('{"cpu": 0}', "{", "3"):
        found = definition_of(quota({}, most, annotations={"shared-weight": text}))
        assert found.weight == {"cpu": 16000}


def test_what_is_wrong_with_an_object_is_the_queues_problem() -> None:
    assert as_queue(quota({"cpu": "9"}, {"cpu": "8"})).problem == (
        "$.spec.min[cpu]: 9 is more than spec.max has, 8"
    )


@pytest.mark.parametrize(
    ("namespace", "labels", "name"),
    [
        ("any", {"name": "label"}, "label"),
        ("home", {}, "home"),
        ("shared", {}, "lists-1"),
        ("elsewhere", {}, DEFAULT_QUOTA),
    ],
)
def test_a_pod_names_its_quota(namespace: str, labels: dict[str, str], name: str) -> None:
    names = QuotaNames()
    names.add(QuotaDefinition("home", "home"))
    names.add(QuotaDefinition("elsewhere", "quotas"))
    names.add(QuotaDefinition("lists-2", "quotas", namespaces=("shared",)))
    names.add(QuotaDefinition("lists-1", "quotas", namespaces=("shared",)))
    assert names.named_by(pod(namespace, labels)) == name


def test_a_quota_that_is_removed_is_named_no_longer() -> None:
    names = QuotaNames()
    own = QuotaDefinition("home", "home", namespaces=("other",))
    names.add(own)
    names.remove(own)
    assert names.named_by(pod("home")) == names.named_by(pod("other")) == DEFAULT_QUOTA


def test_without_a_default_quota_only_the_label_counts() -> None:
    names = QuotaNames(default="")
    names.add(QuotaDefinition("home", "home"))
    assert names.named_by(pod("home")) == ""
    assert names.named_by(pod("home", {"name": "home"})) == "home"


def test_only_the_label_makes_a_pod_non_preemptible() -> None:
    assert is_preemptible(pod("any"))
    assert not is_preemptible(pod("any", {"preemptible": "false"}))


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("cpu", 1500, "1500m"),
        ("cpu", 2000, "2"),
        ("cpu", 2_000_000, "2k"),
        ("memory", 80 * 2**30, "80Gi"),
        ("memory", 1000, "1000"),
        ("memory", 0, "0"),
        ("nvidia.com/gpu", 8, "8"),
        ("pods", 3_000_000, "3M"),
    ],
)
def test_amounts_are_written_as_kubernetes_writes_them(
    resource: str, amount: int, text: str
) -> None:
    assert quantity_of(resource, amount) == text


def node(name: str, zone: str) -> Node:
    allocatable = {"cpu": Quantity("10"), "nvidia.com/gpu": Quantity("8")}
    return Node(
        ObjectMeta(name=name, labels={"zone": zone}), status=NodeStatus(allocatable=allocatable)
    )


def test_a_profile_makes_the_root_of_a_tree() -> None:
    profile = ElasticQuotaProfile(
        ObjectMeta(
            name="zone-a",
            namespace="quotas",
            annotations={f"{PREFIX}resource-keys": '["cpu", "nvidia.com/gpu", "memory"]'},
        ),
        ElasticQuotaProfileSpec(
            quota_name="a-root",
            quota_labels={"team": "x"},
            resource_ratio="0.9",
            node_selector=LabelSelector(match_labels={"zone": "a"}),
        ),
    )
    root = tree_root_of(profile, [node("1", "a"), node("2", "a"), node("3", "b")])
    definition = definition_of(root)
    assert definition.minimum == {"cpu": 18000, "nvidia.com/gpu": 14, "memory": 0}
    assert definition.total == {"cpu": 18000, "nvidia.com/gpu": 14}
    assert definition.is_tree_root
    # The FNV-1a hash of "quotas/zone-a", in 64 bits.
    assert definition.tree == "4557575143012194701"
    assert root.metadata.labels["team"] == "x"
    assert root.metadata.labels[f"{PREFIX}profile"] == "zone-a"
    assert definition.maximum["memory"] == (2**63 - 1) // 5


def test_a_profile_keeps_the_tree_id_that_it_names() -> None:
    profile = ElasticQuotaProfile(
        ObjectMeta(name="p", labels={f"{PREFIX}tree-id": "mine"}),
        ElasticQuotaProfileSpec(quota_name="root"),
    )
    assert definition_of(tree_root_of(profile, [node("1", "a")])).tree == "mine"
    assert definition_of(tree_root_of(profile, [node("1", "a")])).total == {}
