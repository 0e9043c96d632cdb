"""Preparations: what plugins write and wait for before a unit is bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.scheduler.fake_cluster import FakeCluster

from bayplan.cluster.protocol import Event
from bayplan.errors import Conflict, PluginError
from bayplan.plugin.base import Preparation
from bayplan.scheduler.pre_bind import Preparations

UNIT = "default/job"
POD = "default/job-0"


class Desk:
    """Preparations on a fake cluster, and how they ended: "done", or a reason and its kind."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.preparations = Preparations(self.cluster)
        self.ends: list[object] = []

    def begin(self, *made: Preparation, unit: str = UNIT, pods: Sequence[str] = (POD,)) -> None:
        self.preparations.begin(
            unit,
            frozenset(pods),
            made,
            lambda: self.ends.append("done"),
            lambda why, error: self.ends.append((why, "error" if error else "refusal")),
        )

    def written(self) -> list[str]:
        return [event.reason for event in self.cluster.of(Event)]

    def answer(self, error: Conflict | None = None) -> None:
        self.cluster.answer(Event, error)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def writes(*names: str) -> list[Event]:
    return [Event(POD, "Normal", name, "") for name in names]


def until(*answers: bool | str) -> Callable[[], bool | str]:
    """Return a ``ready`` that gives these answers in turn."""
    left = iter(answers)
    return lambda: next(left)


# Writes ----------------------------------------------------------------------------------------


def test_writes_go_out_one_after_the_other_and_then_the_unit_is_ready(desk: Desk) -> None:
    desk.begin(Preparation(writes("first", "second")))
    assert desk.written() == ["first"]
    desk.answer()
    assert desk.written() == ["first", "second"]
    assert desk.ends == []
    assert len(desk.preparations) == 1
    desk.answer()
    assert desk.ends == ["done"]
    assert len(desk.preparations) == 0


def test_pods_do_not_wait_for_each_other_but_their_unit_waits_for_all(desk: Desk) -> None:
    desk.begin(Preparation(writes("a")), Preparation(writes("b")))
    assert desk.written() == ["a", "b"]
    desk.answer()
    assert desk.ends == []
    desk.answer()
    assert desk.ends == ["done"]


def test_a_write_that_fails_ends_the_preparation_and_nothing_more_is_written(desk: Desk) -> None:
    desk.begin(Preparation(writes("a", "never")), Preparation(writes("b", "never")))
    desk.answer(Conflict("it changed"))
    assert desk.ends == [("it changed", "error")]
    desk.answer()
    assert desk.written() == ["a", "b"]
    assert len(desk.ends) == 1


def test_a_unit_with_nothing_to_write_is_ready_at_once(desk: Desk) -> None:
    desk.begin(Preparation([], until(True)))
    assert desk.ends == ["done"]


def test_what_follows_is_written_once_all_is_ready_and_before_the_unit_goes_on(desk: Desk) -> None:
    ready = until(False, True)
    desk.begin(
        Preparation(writes("a"), ready, 10.0, then=lambda: writes("then a")),
        Preparation([], until(True), 10.0, then=lambda: writes("then b")),
    )
    desk.answer()
    assert desk.written() == ["a", "then b"]
    desk.answer()
    assert (desk.written(), desk.ends) == (["a", "then b", "then a"], [])
    desk.answer()
    assert desk.ends == ["done"]
    assert len(desk.preparations) == 0


def test_what_follows_may_fail(desk: Desk) -> None:
    desk.begin(Preparation([], until(True), 10.0, then=lambda: writes("then")))
    desk.answer(Conflict("it changed"))
    assert desk.ends == [("it changed", "error")]


def test_a_refusal_at_once_keeps_other_pods_from_writing() -> None:
    class Refusing(FakeCluster):
        """Answers each write at once, with an error."""

        def submit(self, write: object, done: object = None) -> None:
            super().submit(write, done)  # type: ignore[arg-type]
            self.answer(Event, Conflict("no"))

    desk = Desk()
    desk.cluster = Refusing()
    desk.preparations = Preparations(desk.cluster)
    desk.begin(Preparation(writes("a")), Preparation(writes("b")))
    assert desk.written() == ["a"]
    assert desk.ends == [("no", "error")]


# Waiting ---------------------------------------------------------------------------------------


def test_readiness_is_asked_only_after_all_writes(desk: Desk) -> None:
    desk.begin(Preparation([], until("asked too early")), Preparation(writes("a")))
    desk.preparations.recheck()
    assert desk.ends == []
    desk.answer()
    assert desk.ends == [("asked too early", "refusal")]


def test_a_change_of_an_object_of_the_unit_asks_again(desk: Desk) -> None:
    desk.begin(Preparation([], until(False, False, True), seconds=60))
    desk.preparations.recheck(["default/other"])
    desk.preparations.recheck([POD])
    assert desk.ends == []
    desk.preparations.recheck()
    assert desk.ends == ["done"]


def test_what_is_ready_is_not_asked_again(desk: Desk) -> None:
    desk.begin(Preparation([], until(True)), Preparation([], until(False, True), seconds=60))
    desk.preparations.recheck([POD])
    assert desk.ends == ["done"]


def test_a_text_refuses_the_unit(desk: Desk) -> None:
    desk.begin(Preparation([], until(False, "the volume is gone"), seconds=60))
    desk.preparations.recheck([POD])
    assert desk.ends == [("the volume is gone", "refusal")]
    assert len(desk.preparations) == 0


def test_a_plugin_that_raises_while_it_is_asked_is_an_error(desk: Desk) -> None:
    error = PluginError("Volumes", "pre_bind", ValueError("boo"))

    def ready() -> bool:
        raise error

    desk.begin(Preparation([], ready))
    assert desk.ends == [(error, "error")]


def test_a_unit_that_is_not_ready_in_time_is_refused(desk: Desk) -> None:
    desk.cluster.now = 100.0
    desk.begin(
        Preparation([], lambda: False, seconds=10), Preparation([], lambda: False, seconds=30)
    )
    assert desk.preparations.next_times() == [110.0]
    desk.cluster.now = 109.0
    desk.preparations.tick()
    assert desk.ends == []
    desk.cluster.now = 110.0
    desk.preparations.tick()
    assert desk.ends == [("was not ready to be bound in time", "refusal")]
    assert desk.preparations.next_times() == []


def test_the_time_limit_does_not_cut_off_a_write(desk: Desk) -> None:
    desk.begin(Preparation(writes("a"), until(True), seconds=10))
    desk.cluster.now = 50.0
    desk.preparations.tick()
    assert desk.ends == []
    desk.answer()
    assert desk.ends == ["done"]


# Cancelling ------------------------------------------------------------------------------------


def test_a_cancelled_unit_ends_once_and_ignores_late_answers(desk: Desk) -> None:
    desk.begin(Preparation(writes("a", "never")))
    desk.preparations.cancel(UNIT, "a pod is gone")
    desk.preparations.cancel(UNIT, "twice")
    desk.answer()
    assert desk.ends == [("a pod is gone", "error")]
    assert desk.written() == ["a"]


def test_any_pod_of_a_unit_cancels_it(desk: Desk) -> None:
    desk.begin(Preparation(writes("a")), pods=(POD, "default/job-1"))
    assert not desk.preparations.cancel_pod("default/other", "no")
    assert desk.preparations.cancel_pod("default/job-1", "preempted")
    assert desk.ends == [("preempted", "error")]
    assert not desk.preparations.cancel_pod(POD, "again")


def test_a_unit_may_be_prepared_again_after_it_was_cancelled(desk: Desk) -> None:
    desk.begin(Preparation(writes("a")))
    desk.preparations.cancel(UNIT, "changed")
    desk.begin(Preparation(writes("b")))
    # The first answer belongs to the cancelled preparation.
    desk.answer()
    assert desk.ends == [("changed", "error")]
    desk.answer()
    assert desk.ends == [("changed", "error"), "done"]


def test_only_what_follows_an_object_is_asked_after_its_change(desk: Desk) -> None:
    asked: list[str] = []

    def follower(name: str, *followed: str) -> Preparation:
        def ready() -> bool:
            asked.append(name)
            return False

        subjects = frozenset((str, one) for one in followed)
        return Preparation(ready=ready, seconds=9.0, follows=subjects if followed else None)

    desk.begin(follower("a", "x", "y"), unit="a", pods=["a"])
    desk.begin(follower("b", "y"), unit="b", pods=["b"])
    desk.begin(follower("any"), unit="any", pods=["any"])
    asked.clear()

    desk.preparations.recheck_followers([(str, "x")])
    assert sorted(asked) == ["a", "any"]
    asked.clear()
    desk.preparations.cancel("a", "gone")
    desk.preparations.recheck_followers([(str, "x"), (str, "y")])
    assert sorted(asked) == ["any", "b"]
