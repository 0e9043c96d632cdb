"""Virtual time: everything that is due happens, in order, and the clock stops at the last of it."""

from __future__ import annotations

import pytest
from tests.scheduler.parts import profiles_of

from bayplan import Args, NodeRow, Plugin, hookimpl
from bayplan.api import Pod
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import Bind
from bayplan.errors import Conflict
from bayplan.scheduler.scheduler import Scheduler
from bayplan.scheduler.virtual_time import VirtualTime
from bayplan.testing import make_node, make_pod


class Single(Plugin[Args]):
    """Takes one pod on each node."""

    @hookimpl
    def filter_node(self, node: NodeRow) -> str | None:
        return "full" if node.pods else None


class Desk:
    """An embedded cluster with one node, its scheduler, and their time."""

    def __init__(self) -> None:
        self.api = MemoryCluster()
        self.api.create(make_node("n"))
        self.scheduler = Scheduler(self.api, profiles_of(Single))
        self.steps = 0
        self.time = VirtualTime(self.api, self.scheduler, self._stepped)

    def _stepped(self) -> None:
        self.steps += 1

    def note_at(self, at: float, idle: bool = False) -> list[float]:
        """Return a list that gets the time when the clock reaches ``at``."""
        reached: list[float] = []
        self.api.clock.call_at(at, lambda: reached.append(self.api.now), idle)
        return reached

    def node_of(self, pod: str) -> str:
        found = self.api.get(Pod, f"default/{pod}")
        assert found is not None
        return found.spec.node_name


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_settling_does_what_can_be_done_now_and_moves_no_clock(desk: Desk) -> None:
    desk.api.create(make_pod("p"))
    desk.api.create(make_pod("q"))
    later = desk.note_at(1.0)
    desk.time.settle()
    assert sorted((desk.node_of("p"), desk.node_of("q"))) == ["", "n"]
    assert desk.api.now == 0.0
    assert later == []
    assert desk.scheduler.unconfirmed == 0


def test_every_step_of_the_scheduler_is_reported(desk: Desk) -> None:
    desk.time.settle()
    before = desk.steps
    desk.api.create(make_pod("p"))
    desk.time.settle()
    assert desk.steps > before
    settled = desk.steps
    desk.time.settle()
    assert desk.steps == settled


def test_a_delay_passes_and_its_pod_is_tried_again(desk: Desk) -> None:
    desk.api.faults.fail_next(Bind, Conflict("no"))
    desk.api.create(make_pod("p"))
    desk.time.advance(0.5)
    assert desk.node_of("p") == ""
    assert desk.api.now == 0.0
    desk.time.advance(60.0)
    assert desk.node_of("p") == "n"
    # The clock stops where the last thing was due, not at the end.
    assert desk.api.now == 1.0


def test_what_is_due_at_the_end_is_done_and_nothing_later(desk: Desk) -> None:
    first, second = desk.note_at(2.0), desk.note_at(2.5)
    desk.time.advance(2.0)
    assert (first, second) == ([2.0], [])
    assert desk.api.now == 2.0


def test_the_scheduler_acts_between_two_times_of_the_cluster(desk: Desk) -> None:
    seen: list[str] = []
    desk.api.clock.call_at(1.0, lambda: desk.api.create(make_pod("p")))
    desk.api.clock.call_at(2.0, lambda: seen.append(desk.node_of("p")))
    desk.time.advance(2.0)
    assert seen == ["n"]


def test_nobody_waits_for_what_is_idle(desk: Desk) -> None:
    reached = desk.note_at(5.0, idle=True)
    desk.time.advance(10.0, idle=False)
    assert reached == []
    assert desk.api.now < 5.0
    desk.time.advance(10.0)
    assert reached == [5.0]
