"""Kubernetes' trees of pod groups: so many groups of each level, each in its own domain."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api import ApiObject, CompositePodGroup, NativePodGroup, Pod
from bayplan.testing import Cluster, make_node, make_object, make_pod


def composite(name: str, parent: str = "", least: int = 0, **spec: Any) -> ApiObject:
    """Return a composite group; without a minimum, one whose groups need not run together."""
    policy = {"gang": {"minGroupCount": least}} if least else {"basic": {}}
    own = {"schedulingPolicy": policy, **spec}
    if parent:
        own["parentCompositePodGroupName"] = parent
    content = {"apiVersion": "scheduling.k8s.io/v1alpha3", "kind": "CompositePodGroup"}
    return make_object({**content, "metadata": {"name": name}, "spec": own})


def group(name: str, parent: str, least: int, topology: str = "", **spec: Any) -> ApiObject:
    own = {"schedulingPolicy": {"gang": {"minCount": least}}, **spec}
    own["parentCompositePodGroupName"] = parent
    if topology:
        own["schedulingConstraints"] = {"topology": [{"key": topology}]}
    content = {"apiVersion": "scheduling.k8s.io/v1alpha3", "kind": "PodGroup"}
    return make_object({**content, "metadata": {"name": name}, "spec": own})


def pods(name: str, count: int) -> list[Pod]:
    spec = {"schedulingGroup": {"podGroupName": name}}
    return [make_pod(f"{name}-{index}", cpu=1, spec=spec) for index in range(count)]


def cluster(**racks: int) -> Cluster:
    nodes = [
        make_node(f"{rack}{index}", cpu=1, labels={"rack": rack, "zone": rack[0]})
        for rack, count in racks.items()
        for index in range(count)
    ]
    return Cluster(nodes)


def counts(made: Cluster) -> dict[str, int]:
    """Return the number of pods with a node in each group."""
    found: dict[str, int] = {}
    for name in made.schedule():
        key = name.rpartition("-")[0]
        found[key] = found.get(key, 0) + 1
    return found


@pytest.mark.parametrize(("free", "expected"), [(4, {}), (5, {"prefill": 2, "decode": 3})])
def test_the_groups_of_a_tree_start_together(free: int, expected: dict[str, int]) -> None:
    made = cluster(a1=free)
    made.add(composite("root", least=2), group("prefill", "root", 2), group("decode", "root", 3))
    made.add(*pods("prefill", 2), *pods("decode", 3))
    assert counts(made) == expected


@pytest.mark.parametrize(
    ("free", "expected"), [(1, []), (2, [2]), (3, [2]), (4, [2, 2]), (6, [2, 2, 2])]
)
def test_so_many_groups_are_enough_and_others_come_whole(free: int, expected: list[int]) -> None:
    made = cluster(a1=free)
    made.add(composite("root", least=1), *(group(f"r{index}", "root", 2) for index in range(3)))
    made.add(*(pod for index in range(3) for pod in pods(f"r{index}", 2)))
    assert sorted(counts(made).values()) == expected


def test_a_group_that_lacks_pods_does_not_keep_a_tree_that_needs_fewer_groups_waiting() -> None:
    made = cluster(a1=4)
    made.add(composite("root", least=1), group("one", "root", 2), group("two", "root", 2))
    made.add(*pods("one", 2), *pods("two", 1))
    assert counts(made) == {"one": 2}
    made.add(make_pod("two-1", cpu=1, spec={"schedulingGroup": {"podGroupName": "two"}}))
    assert counts(made) == {"one": 2, "two": 2}


def test_a_tree_waits_for_the_groups_that_it_needs() -> None:
    made = cluster(a1=4)
    made.add(composite("root", least=2), group("one", "root", 2), group("two", "root", 2))
    made.add(*pods("one", 2))
    assert counts(made) == {}
    assert "(a group of the same tree)" in made.message("one-0")


def test_each_level_lies_in_a_domain_of_its_own() -> None:
    zone = {"schedulingConstraints": {"topology": [{"key": "zone"}]}}
    made = cluster(a1=2, b1=1, b2=1, c1=2, c2=1)
    made.add(
        composite("root", least=2, **zone),
        group("prefill", "root", 2, topology="rack"),
        group("decode", "root", 1, topology="rack"),
        *pods("prefill", 2),
        *pods("decode", 1),
    )
    found = made.schedule()
    assert {found["prefill-0"][:2], found["prefill-1"][:2]} == {"c1"}
    assert found["decode-0"][:2] == "c2"


def test_a_tree_of_three_levels_needs_what_each_level_says() -> None:
    made = cluster(a1=3)
    made.add(composite("root", least=2))
    for side in ("left", "right"):
        made.add(composite(side, "root", least=1))
        made.add(*(group(f"{side}{index}", side, 2) for index in range(2)))
        made.add(*(pod for index in range(2) for pod in pods(f"{side}{index}", 2)))
    assert counts(made) == {}
    made.add(make_node("a19", cpu=1, labels={"rack": "a1", "zone": "a"}))
    made.advance(30.0)
    found = counts(made)
    assert sum(found.values()) == 4
    assert {name[:-1] for name in found} == {"left", "right"}


def test_a_group_waits_for_the_composite_group_that_it_names() -> None:
    made = cluster(a1=2)
    made.add(group("one", "root", 2), *pods("one", 2))
    assert counts(made) == {}
    assert "waits for CompositePodGroup default/root, which does not exist" in made.message("one-0")
    made.add(composite("root", least=1))
    assert counts(made) == {"one": 2}


LEVELS = ("root", "up", "higher", "high", "top")


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        ([composite("root", "up", 1), composite("up", "root", 1)], "is part of itself"),
        (
            [composite(one, up, 1) for one, up in zip(LEVELS, (*LEVELS[1:], ""), strict=True)],
            "has more than 4 levels",
        ),
        (
            [
                composite("root", "up", 1, workloadRef={"workloadName": "a", "templateName": "t"}),
                composite("up", "", 1, workloadRef={"workloadName": "b", "templateName": "t"}),
            ],
            "of several Workloads: a, b",
        ),
        ([composite("root", schedulingPolicy={})], "expected exactly one of basic and gang"),
    ],
)
def test_a_tree_that_is_none_is_invalid_as_a_whole(objects: list[ApiObject], expected: str) -> None:
    made = cluster(a1=2)
    made.add(*objects, group("one", "root", 2), *pods("one", 2))
    assert counts(made) == {}
    assert expected in made.message("one-0")


def test_groups_of_a_basic_tree_do_not_wait_for_each_other() -> None:
    made = cluster(a1=2)
    made.add(composite("root"), group("one", "root", 2), group("two", "root", 3))
    made.add(*pods("one", 2), *pods("two", 3))
    assert counts(made) == {"one": 2}


def test_a_group_whose_tree_has_gone_waits() -> None:
    made = cluster(a1=1)
    made.add(composite("root", least=1), group("one", "root", 2), *pods("one", 2))
    assert counts(made) == {}
    made.api.delete(CompositePodGroup, "default/root")
    made.add(make_node("b", cpu=1))
    made.advance(30.0)
    assert counts(made) == {}


def test_modes_of_disruption_are_objects_in_kubernetes_1_37() -> None:
    made = cluster(a1=2)
    made.add(composite("root", least=1), group("one", "root", 2, disruptionMode={"all": {}}))
    made.add(*pods("one", 2))
    assert counts(made) == {"one": 2}
    gang = made.scheduler.gangs.all()["default/one"].gang
    assert gang is not None
    assert gang.whole


def test_a_group_of_1_37_is_reported_as_scheduled_for_ever() -> None:
    made = cluster(a1=1)
    made.add(composite("root", least=1), group("one", "root", 2), *pods("one", 2))
    made.advance(1.0)

    def condition() -> tuple[str, str]:
        found = made.api.get(NativePodGroup, "default/one")
        assert found is not None
        (only,) = found.status.conditions
        return only.type, only.status

    assert condition() == ("PodGroupInitiallyScheduled", "False")
    made.add(make_node("b", cpu=1))
    made.advance(60.0)
    assert condition() == ("PodGroupInitiallyScheduled", "True")
    made.remove("one-0")
    made.add(make_pod("one-9", cpu=4, spec={"schedulingGroup": {"podGroupName": "one"}}))
    made.advance(60.0)
    assert condition() == ("PodGroupInitiallyScheduled", "True")
