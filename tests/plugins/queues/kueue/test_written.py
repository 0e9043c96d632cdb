"""Writes of Workloads that the cluster refuses."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from bayplan.cluster.protocol import Done, Event, Write
from bayplan.errors import ClusterError, Conflict, Forbidden, Terminating
from bayplan_plugins.queues.kueue.written import Written


class Desk:
    """Refuses what is written, in a time that a test sets."""

    def __init__(self, error: ClusterError) -> None:
        self.now = 0.0
        self.tries = 0
        self._error = error

    def submit(self, write: Write, done: Done) -> None:
        self.tries += 1
        done(self._error)


def tried(error: ClusterError, *times: float) -> list[int]:
    """Return how often one write had been tried at each time."""
    desk: Any = Desk(error)
    written, found = Written(desk, lambda key: None), []
    for now in times:
        desk.now = now
        written.once("ns/w", "create", 1, Event("ns/w", "Normal", "R", "m"))
        found.append(desk.tries)
    return found


@pytest.mark.parametrize(
    ("error", "level"),
    [(Forbidden("no"), logging.WARNING), (Terminating("it goes"), logging.INFO)],
    ids=["forbidden", "namespace that goes"],
)
def test_what_may_not_be_written_is_tried_again_much_later(
    error: ClusterError, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "bayplan.queues.kueue"):
        assert tried(error, 0.0, 1.0, 61.0) == [1, 1, 2]
    assert {one.levelno for one in caplog.records} == {level}


def test_a_write_of_what_has_changed_is_tried_again_at_once() -> None:
    assert tried(Conflict("changed"), 0.0, 1.0) == [1, 2]
