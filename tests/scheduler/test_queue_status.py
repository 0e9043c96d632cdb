"""Statuses of queues and pools are written when they change, whatever the watch shows."""

from __future__ import annotations

import pytest

from bayplan.api import ComputePool, ObjectMeta
from bayplan.api.pools import ComputePoolStatus
from bayplan.cluster.protocol import Done, PatchStatus, WatchHandler, Write
from bayplan.errors import Conflict, Forbidden, Invalid
from bayplan.scheduler.queue_status import QueueStatusWriter
from bayplan.snapshot import Snapshot


class Silent:
    """A cluster whose watch shows nothing of what was written."""

    now = unix_time = 0.0

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.phases: list[str] = []
        self.answers: list[Done] = []

    def watch(self, handler: WatchHandler) -> None:
        raise AssertionError("nobody watches")

    def submit(self, write: Write, done: Done | None = None) -> None:
        assert isinstance(write, PatchStatus)
        assert isinstance(write.status, ComputePoolStatus)
        assert done is not None
        self.phases.append(write.status.phase)
        self.answers.append(done)

    def show(self, phase: str) -> None:
        """Show what somebody has written."""
        made = ComputePool(ObjectMeta(name="p"), status=ComputePoolStatus(phase))
        self.snapshot.set_object("p", made)


def started(phase: str) -> tuple[Silent, QueueStatusWriter]:
    snapshot = Snapshot()
    cluster = Silent(snapshot)
    cluster.show(phase)
    return cluster, QueueStatusWriter(cluster, snapshot)


def says(phase: str) -> list[PatchStatus]:
    return [PatchStatus(ComputePool, "p", ComputePoolStatus(phase))]


def test_a_status_that_goes_back_before_the_watch_has_shown_it_is_written() -> None:
    cluster, writer = started("a")
    for phase in ("a", "b", "b", "a"):
        writer.write(says(phase))
    assert cluster.phases == ["b", "a"]


def test_a_status_that_was_refused_is_written_again() -> None:
    cluster, writer = started("a")
    writer.write(says("b"))
    cluster.answers[0](Conflict("busy"))
    writer.write(says("b"))
    assert cluster.phases == ["b", "b"]


def test_a_status_that_would_be_refused_again_is_said_once_for_each_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, writer = started("a")
    for error in (Invalid("no share"), Invalid("no share"), Conflict("busy"), Forbidden("no role")):
        writer.write(says("b"))
        cluster.answers[-1](error)
    assert [record.getMessage() for record in caplog.records] == [
        "what ComputePool p says of its jobs is refused: no share",
        "what ComputePool p says of its jobs is refused: no role",
    ]


def test_a_status_whose_refusal_comes_late_is_written_again() -> None:
    cluster, writer = started("a")
    writer.write(says("b"))
    writer.write(says("b"))
    cluster.answers[0](Conflict("busy"))
    writer.write(says("b"))
    assert cluster.phases == ["b", "b"]


def test_a_status_of_a_killed_scheduler_that_comes_late_is_corrected() -> None:
    cluster, writer = started("of the dead")
    writer.write(says("own"))
    cluster.show("own")
    writer.write(says("own"))
    cluster.now = 10.0
    cluster.show("of the dead")
    for _ in range(3):
        writer.write(says("own"))
    assert cluster.phases == ["own", "own"]


def test_another_program_that_writes_a_status_has_the_last_word() -> None:
    cluster, writer = started("")
    writer.write(says("own"))
    for second in range(1, 200, 10):
        cluster.now = float(second)
        cluster.show("theirs")
        writer.write(says("own"))
    assert cluster.phases == ["own", "own"], "corrected once, in the first minute"
    writer.write(says("new"))
    cluster.show("theirs")
    writer.write(says("new"))
    assert cluster.phases == ["own", "own", "new"]
