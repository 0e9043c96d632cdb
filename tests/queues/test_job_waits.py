"""How long jobs wait, from the events that a snapshot shows."""

from __future__ import annotations

from bayplan.api import ObjectMeta, VolcanoPodGroup
from bayplan.queues.job_waits import JobWaits
from bayplan.snapshot import PodInfo, Snapshot
from bayplan.testing import make_pod


class Clock:
    now = 0.0


def followed() -> tuple[Snapshot, JobWaits, Clock, list[tuple[str, float]]]:
    snapshot, clock, waited = Snapshot(), Clock(), []
    waits = JobWaits(
        snapshot,
        lambda: clock.now,
        lambda: clock.now,
        lambda pod, seconds: waited.append((pod.key, seconds)),
    )
    return snapshot, waits, clock, waited


def pod(name: str, node: str = "", gang: str | None = None) -> PodInfo:
    made = PodInfo(make_pod(name, node=node))
    made.gang = gang
    return made


def test_a_pod_waits_until_it_has_a_node() -> None:
    snapshot, waits, clock, waited = followed()
    snapshot.set_living(pod("a"))
    clock.now = 5
    # A new version of a pod that still waits.
    snapshot.set_living(pod("a"))
    clock.now = 8
    assert [seconds for _, seconds in waits.waiting()] == [8]
    snapshot.set_living(pod("a", "n"))
    assert waited == [("default/a", 8)]
    assert not list(waits.waiting())


def test_a_job_starts_with_its_first_pod_and_waits_again_once_all_are_gone() -> None:
    snapshot, waits, clock, waited = followed()
    for name in ("a", "b"):
        snapshot.set_living(pod(name, gang="default/g"))
    clock.now = 3
    for name in ("a", "b"):
        snapshot.set_living(pod(name, "n", gang="default/g"))
    assert waited == [("default/a", 3)]
    snapshot.set_living(pod("c", gang="default/g"))
    snapshot.end_living("default/a")
    assert not list(waits.waiting())
    clock.now = 10
    snapshot.end_living("default/b")
    clock.now = 14
    assert [(one.key, seconds) for one, seconds in waits.waiting()] == [("default/c", 4)]
    snapshot.set_living(pod("c", "n", gang="default/g"))
    assert waited[1:] == [("default/c", 4)]


def test_what_is_first_seen_on_a_node_has_not_waited() -> None:
    snapshot, waits, _, waited = followed()
    snapshot.set_living(pod("a", "n"))
    assert not waited
    assert not list(waits.waiting())


def test_a_job_waits_from_when_its_group_came_and_after_an_eviction_from_then_on() -> None:
    snapshot, _, clock, waited = followed()
    group = VolcanoPodGroup(
        ObjectMeta(name="g", namespace="default", creation_timestamp="1970-01-01T00:00:10Z")
    )
    snapshot.set_object("default/g", group)
    clock.now = 60
    snapshot.set_living(pod("a", gang="default/g"))
    clock.now = 70
    snapshot.set_living(pod("a", "n", gang="default/g"))
    assert waited == [("default/a", 60)]
    clock.now = 100
    snapshot.end_living("default/a")
    clock.now = 130
    snapshot.set_living(pod("b", gang="default/g"))
    clock.now = 140
    snapshot.set_living(pod("b", "n", gang="default/g"))
    assert waited[1:] == [("default/b", 40)]


def test_what_is_gone_is_forgotten() -> None:
    snapshot, waits, _, waited = followed()
    snapshot.set_living(pod("a"))
    snapshot.end_living("default/a")
    assert not list(waits.waiting())
    assert not waited
