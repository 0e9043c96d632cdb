"""What jobs give up first: pods beyond their minimum, their roles' and that of sub-groups."""

from __future__ import annotations

from typing import Any

from tests.plugins.queues.volcano.volcano_worlds import (
    cluster_of,
    evictions,
    group,
    pods,
    queue,
)

from bayplan.api import ApiObject
from bayplan.testing import Cluster, make_node, make_object, make_pod

GANG_PREEMPT = {
    "actions": "allocate, gangpreempt",
    "tiers": [{"plugins": [{"name": name} for name in ("priority", "gang", "conformance")]}],
}


def importance(name: str, value: int) -> ApiObject:
    return make_object(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
    )


def full(cores: int, *objects: ApiObject, asks: int) -> Cluster:
    """Return a cluster whose only node is full, and a gang of high priority that wants some."""
    cluster = cluster_of(
        [
            importance("low", 1),
            importance("high", 10),
            make_node("n0", cpu=cores),
            queue("q"),
            *objects,
            group("urgent", "q", asks, priorityClassName="high"),
            *pods("urgent", asks, cpu=1),
        ],
        GANG_PREEMPT,
    )
    cluster.schedule()
    return cluster


def victim(name: str, labels: dict[str, str] | None = None, **annotations: str) -> ApiObject:
    return make_pod(
        name,
        memory=None,
        node="n0",
        labels=labels,
        annotations={"scheduling.k8s.io/group-name": name.split("-")[0], **annotations},
    )


def low(name: str, least: int, **spec: Any) -> ApiObject:
    return group(name, "q", least, priorityClassName="low", **spec)


def test_no_gang_ends_while_others_can_spare_pods() -> None:
    cluster = full(
        4,
        *(low(name, 1) for name in ("a", "b")),
        *(victim(f"{name}-{index}") for name in ("a", "b") for index in (0, 1)),
        asks=2,
    )
    assert sorted(name.split("-")[0] for name in evictions(cluster)) == ["a", "b"]


def test_a_gang_ends_where_no_other_can_spare_enough() -> None:
    cluster = full(
        3,
        low("a", 1),
        low("b", 1),
        victim("a-0"),
        victim("b-0"),
        victim("b-1"),
        asks=3,
    )
    assert sorted(evictions(cluster)) == ["a-0", "b-0", "b-1"]


def test_a_role_keeps_its_minimum() -> None:
    task = "volcano.sh/task-spec"
    cluster = full(
        4,
        low("a", 3, minTaskMember={"ps": 1, "worker": 2}),
        *(victim(f"a-{index}", **{task: "worker"}) for index in range(3)),
        victim("a-9", **{task: "ps"}),
        asks=1,
    )
    assert evictions(cluster) == ["a-2"]


def test_what_goes_is_of_one_sub_group_so_that_another_one_stays_whole() -> None:
    policy = {
        "name": "parts",
        "labelSelector": {},
        "matchLabelKeys": ["part"],
        "subGroupSize": 2,
        "minSubGroups": 1,
    }
    cluster = full(
        4,
        low("a", 2, subGroupPolicy=[policy]),
        *(victim(f"a-{index}", {"part": str(index % 2)}) for index in range(4)),
        asks=2,
    )
    assert sorted(evictions(cluster)) == ["a-1", "a-3"]
