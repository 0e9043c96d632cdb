"""Pods leave nodes that fail, that are tainted, and that are gone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.passing_time import pass_time

from bayplan.api import Node, Pod, Taint
from bayplan.api.node import NodeCondition
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.testing import make_node, make_pod

Content = dict[str, Any]


class Stage:
    """A node with a pod, and the controllers."""

    def __init__(self, **spec: Any) -> None:
        self.cluster = MemoryCluster()
        start_controllers(self.cluster)
        self.cluster.create(make_node("n"))
        self.cluster.create(make_pod("p", spec={"nodeName": "n", **spec}))
        self.advance(0)

    def advance(self, seconds: float) -> None:
        pass_time(self.cluster, seconds)

    @property
    def node(self) -> Node:
        found = self.cluster.get(Node, "n")
        assert found is not None
        return found

    @property
    def pod(self) -> Pod | None:
        return self.cluster.get(Pod, "default/p")

    def taint(self, *taints: Taint) -> None:
        self.cluster.update(replace(self.node, spec=replace(self.node.spec, taints=taints)))
        self.advance(0)

    def say(self, kind: str, status: str) -> None:
        """Let the node have a condition."""
        node = self.node
        conditions = (NodeCondition(kind, status),)
        self.cluster.update(replace(node, status=replace(node.status, conditions=conditions)))
        self.advance(0)

    @property
    def told(self) -> list[str]:
        return [e.message for _, e in self.cluster.events if e.reason == "TaintManagerEviction"]

    @property
    def is_ending(self) -> bool:
        return self.pod is None or self.pod.metadata.deletion_timestamp is not None


def test_an_untolerated_taint_evicts_at_once_and_says_why() -> None:
    stage = Stage()
    stage.taint(Taint("maintenance", "NoExecute"))
    pod = stage.pod
    assert pod is not None
    assert pod.metadata.deletion_timestamp is not None
    (condition,) = [c for c in pod.status.conditions if c.type == "DisruptionTarget"]
    assert (condition.status, condition.reason) == ("True", "DeletionByTaintManager")
    assert condition.message == "Taint manager: deleting due to NoExecute taint"
    assert stage.told == ["Marking for deletion Pod default/p"]
    stage.advance(30)
    assert stage.pod is None


@pytest.mark.parametrize("effect", ["NoSchedule", "PreferNoSchedule"])
def test_other_taints_evict_nobody(effect: Any) -> None:
    stage = Stage()
    stage.taint(Taint("maintenance", effect))
    assert not stage.is_ending


def test_a_toleration_holds_as_long_as_it_says() -> None:
    bears = {"key": "maintenance", "operator": "Exists", "tolerationSeconds": 60}
    stage = Stage(tolerations=[bears])
    stage.taint(Taint("maintenance", "NoExecute"))
    stage.advance(59)
    assert not stage.is_ending
    stage.advance(1)
    assert stage.is_ending


def test_a_toleration_without_an_end_holds_for_ever() -> None:
    stage = Stage(tolerations=[{"key": "maintenance", "operator": "Exists"}])
    stage.taint(Taint("maintenance", "NoExecute"))
    stage.advance(100_000)
    assert not stage.is_ending


def test_a_taint_that_goes_in_time_evicts_nobody() -> None:
    bears = {"key": "maintenance", "operator": "Exists", "tolerationSeconds": 60}
    stage = Stage(tolerations=[bears])
    stage.taint(Taint("maintenance", "NoExecute"))
    stage.advance(30)
    stage.taint()
    stage.advance(100)
    assert not stage.is_ending
    assert stage.told == ["Cancelling deletion of Pod default/p"]


def test_a_pod_that_comes_to_a_tainted_node_goes_again() -> None:
    stage = Stage()
    stage.taint(Taint("maintenance", "NoExecute"))
    stage.cluster.create(make_pod("late", spec={"nodeName": "n"}))
    stage.advance(31)
    assert stage.cluster.list(Pod) == []


@pytest.mark.parametrize(
    ("kind", "status", "key", "effects"),
    [
        ("Ready", "False", "not-ready", {"NoSchedule", "NoExecute"}),
        ("Ready", "Unknown", "unreachable", {"NoSchedule", "NoExecute"}),
        ("DiskPressure", "True", "disk-pressure", {"NoSchedule"}),
        ("MemoryPressure", "True", "memory-pressure", {"NoSchedule"}),
        ("PIDPressure", "True", "pid-pressure", {"NoSchedule"}),
        ("NetworkUnavailable", "True", "network-unavailable", {"NoSchedule"}),
    ],
)
def test_conditions_become_taints_and_back(
    kind: str, status: str, key: str, effects: set[str]
) -> None:
    stage = Stage()
    mine = Taint("example.com/mine", "NoSchedule")
    stage.taint(mine)
    stage.say(kind, status)
    found = [t for t in stage.node.spec.taints if t != mine]
    assert {t.key for t in found} == {f"node.kubernetes.io/{key}"}
    assert {t.effect for t in found} == effects
    stage.say(kind, "True" if kind == "Ready" else "False")
    assert stage.node.spec.taints == (mine,)


def test_pods_stay_on_a_failed_node_for_five_minutes() -> None:
    stage = Stage()
    stage.say("Ready", "Unknown")
    stage.advance(299)
    assert not stage.is_ending
    stage.advance(1)
    assert stage.is_ending


def test_pods_of_a_failed_node_are_not_ready() -> None:
    stage = Stage()

    def ready() -> list[str]:
        assert stage.pod is not None
        return [c.status for c in stage.pod.status.conditions if c.type == "Ready"]

    assert ready() == ["True"]
    stage.say("Ready", "False")
    assert ready() == ["False"]
    stage.say("Ready", "True")
    assert ready() == ["True"]


def test_pods_of_a_deleted_node_are_collected() -> None:
    stage = Stage()
    seen: list[Pod] = []
    stage.cluster.watch(
        lambda event: seen.append(event.obj) if isinstance(event.obj, Pod) else None
    )
    stage.cluster.delete(Node, "n")
    stage.advance(39)
    assert stage.pod is not None
    stage.advance(1)
    assert stage.pod is None
    (condition,) = [c for c in seen[-1].status.conditions if c.type == "DisruptionTarget"]
    assert (condition.reason, condition.message) == (
        "DeletionByPodGC",
        "PodGC: node no longer exists",
    )
    assert seen[-1].status.phase == "Failed"


def test_a_node_that_is_back_in_time_keeps_its_pods() -> None:
    stage = Stage()
    stage.cluster.delete(Node, "n")
    stage.advance(20)
    stage.cluster.create(make_node("n"))
    stage.advance(100)
    assert stage.pod is not None
