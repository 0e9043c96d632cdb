"""Pods that cannot end on a silent node are deleted by force where their authors allow it."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace
from tests.recovery.test_recovery import World

from bayplan.api import Pod
from bayplan.cluster.protocol import DeleteObject, Done, Event, Write
from bayplan.errors import ClusterError
from bayplan.testing import make_pod

SAFE = {"kueue.x-k8s.io/safe-to-forcefully-delete": "true"}


def ending(world: World, name: str, *finalizers: str, **annotations: str) -> None:
    """Let a pod run on n0, whose kubelet falls silent, and delete it; its grace is ten seconds."""
    pod = make_pod(name, gpu=1, node="n0", annotations=annotations)
    meta = replace(pod.metadata, finalizers=finalizers)
    pod = replace(pod, metadata=meta, spec=replace(pod.spec, termination_grace_period_seconds=10))
    world.add(pod)
    world.passes(5)
    world.ready("n0", "Unknown")
    world.passes(1)
    world.api.delete(Pod, f"default/{name}")


def forced(world: World) -> list[Event]:
    return [one for _, one in world.api.events if one.reason == "ForcefullyDeleted"]


def test_a_pod_that_may_go_goes_a_minute_after_its_grace_period() -> None:
    world = World(2)
    ending(world, "safe", **SAFE)
    world.passes(68)
    assert world.api.get(Pod, "default/safe") is not None
    world.passes(4)
    assert world.api.get(Pod, "default/safe") is None
    (event,) = forced(world)
    assert event.message == (
        "recovery: node n0 is silent, and kueue.x-k8s.io/safe-to-forcefully-delete allows it"
    )


def test_a_node_has_to_count_as_lost_before_its_pods_are_deleted_by_force() -> None:
    world = World(2, lostAfter=200)
    ending(world, "safe", **SAFE)
    world.passes(190)
    assert world.api.get(Pod, "default/safe") is not None
    world.passes(20)
    assert world.api.get(Pod, "default/safe") is None


def test_a_pod_of_an_author_who_does_not_say_so_stays() -> None:
    world = World(2)
    ending(world, "unsafe", **dict.fromkeys(SAFE, "yes"))
    world.passes(3600)
    assert world.api.get(Pod, "default/unsafe") is not None


def test_a_pod_that_finalizers_keep_has_failed() -> None:
    world = World(2)
    ending(world, "safe", "example.com/kept", **SAFE)
    world.passes(140)
    pod = world.api.get(Pod, "default/safe")
    assert pod is not None
    assert (pod.status.phase, pod.status.reason) == ("Failed", "ForcefullyDeleted")


def test_a_node_that_is_back_ends_its_pods_itself() -> None:
    world = World(2)
    ending(world, "safe", **SAFE)
    world.passes(30)
    world.ready("n0", "True")
    world.passes(60)
    assert world.api.get(Pod, "default/safe") is None
    assert forced(world) == []


def test_when_most_nodes_are_silent_nothing_is_deleted() -> None:
    world = World(1)
    ending(world, "safe", **SAFE)
    world.passes(3600)
    assert world.api.get(Pod, "default/safe") is not None


def test_a_kill_in_between_changes_nothing() -> None:
    world = World(2)
    ending(world, "safe", "example.com/kept", **SAFE)
    world.passes(75)
    world.kill()
    world.passes(120)
    pod = world.api.get(Pod, "default/safe")
    assert pod is not None
    assert pod.status.phase == "Failed"


def test_a_missing_right_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(2)
    submit = world.api.submit

    def refusing(write: Write, done: Done | None = None) -> None:
        if isinstance(write, DeleteObject):
            assert done is not None
            done(ClusterError('pods "safe" is forbidden: cannot delete resource "pods"'))
        else:
            submit(write, done)

    monkeypatch.setattr(world.api, "submit", refusing)
    ending(world, "safe", **SAFE)
    with caplog.at_level(logging.WARNING):
        world.passes(600)
    assert [one for one in caplog.messages if "by force" in one] == [
        'Recovery cannot delete pod default/safe by force: pods "safe" is forbidden: '
        'cannot delete resource "pods"'
    ]
