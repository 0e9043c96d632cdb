"""What cannot be read of a node's GPUs is told once: in the log, on the node, and by explain."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.live.stage import Stage, stage

from bayplan.api import Node
from bayplan.cluster.protocol import Event
from bayplan.explain.explanation import explain
from bayplan.live.unread_nodes import UnreadNodes
from bayplan.snapshot import Snapshot
from bayplan.testing import make_node, make_pod
from bayplan.topology.machine.readers.hami_register import REGISTER

WRONG = '[{"id": "GPU-0", "count": -1}]'
TEXT = f"annotation {REGISTER}: [0].count: expected a whole number from 0 to 2147483647"


def hami_node(name: str, register: str) -> Node:
    return make_node(name, annotations={REGISTER: register}, gpu=10)


def told(made: Stage) -> list[tuple[str, str]]:
    """Return the events about nodes, each with the node's name."""
    about = [event for event in made.events() if event["involvedObject"]["kind"] == "Node"]
    found = [(event["involvedObject"]["name"], event["message"]) for event in about]
    return sorted(one for one in found if one[1].startswith("GPUs: "))


async def test_a_register_that_cannot_be_read_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "bayplan.live")
    async with stage([hami_node(name, WRONG) for name in ("n0", "n1")]) as made:
        app = await made.start()
        asked: dict[str, Any] = {"gpu": 1, "nvidia.com/gpumem": 1000}
        made.create(make_pod("p", **asked))
        await made.run_out(5)
        made.create(make_pod("q", **asked))
        await made.run_out(30)
        assert made.placements() == {}
        assert told(made) == [(name, f"GPUs: {TEXT}") for name in ("n0", "n1")]
        lines = [one.getMessage() for one in caplog.records if "GPUs of" in one.getMessage()]
        assert lines == [f"GPUs of nodes n0, n1: {TEXT}"]
        assert app.live is not None
        about = explain(app.live.scheduler, made.pods()["default/p"])
        assert f"GPUs of nodes n0, n1: {TEXT}" in about.unread
        made.advance_to(40)
        made.cluster.update(hami_node("n1", "[1]"))
        made.create(make_pod("r", **asked))
        await made.run_out(60)
        assert len(told(made)) == 3


class Teller:
    """UnreadNodes with a snapshot, and what it told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.snapshot = Snapshot()
        self._unread = UnreadNodes(self.events.append)

    def at(self, now: float, **problems: str) -> list[str]:
        """Return what is told of nodes at a time; "" ends a problem."""
        for node, text in problems.items():
            self.snapshot.set_problem(node, "GPUs", text)
        before = len(self.events)
        self._unread.look(self.snapshot, now)
        return [f"{event.pod} {event.message}" for event in self.events[before:]]


def test_a_problem_is_told_again_only_when_it_is_another_one() -> None:
    teller = Teller()
    assert teller.at(0, n="a", m="a") == ["m GPUs: a", "n GPUs: a"]
    assert teller.at(2, m="b") == ["m GPUs: b"]
    assert teller.at(4, n="") == []
    assert teller.at(6, n="a") == []


def test_a_problem_that_comes_back_after_a_while_is_told_again() -> None:
    teller = Teller()
    assert teller.at(0, n="a") == ["n GPUs: a"]
    teller.at(2, n="")
    teller.at(700, m="b")
    assert teller.at(702, n="a") == ["n GPUs: a"]


def test_a_text_that_changes_all_the_time_is_told_rarely_and_its_last_form_at_last() -> None:
    teller = Teller()
    heard = [teller.at(30.0 * beat, n=f"at {beat}") for beat in range(19)]
    assert [len(one) for one in heard] == [1] * 5 + [0] * 14
    assert teller.at(599) == []
    assert teller.at(601) == ["n GPUs: at 18"]
    assert teller.at(603) == []


def test_what_had_to_be_assumed_is_logged_and_makes_no_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "bayplan.live")
    teller = Teller()
    teller.snapshot.set_problem("n", "GPU topology", "assumed: 10 GB/s", assumed=True)
    assert teller.at(0) == []
    assert [one.getMessage() for one in caplog.records] == [
        "GPU topology of node n: assumed: 10 GB/s"
    ]


def test_problems_of_a_node_that_is_gone_are_forgotten() -> None:
    snapshot = Snapshot()
    snapshot.set_node(make_node("n"))
    snapshot.sync()
    snapshot.set_problem("n", "GPUs", "a")
    snapshot.delete_node("n")
    snapshot.sync()
    assert not snapshot.problems
