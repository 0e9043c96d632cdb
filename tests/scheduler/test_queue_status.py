"""Statuses of queues and pools are written when they change, whatever the watch shows."""

from __future__ import annotations

from bayplan.api import ComputePool, ObjectMeta
from bayplan.api.pools import ComputePoolStatus
from bayplan.cluster.protocol import Done, PatchStatus, WatchHandler, Write
from bayplan.errors import Conflict
from bayplan.scheduler.queue_status import QueueStatusWriter
from bayplan.snapshot import Snapshot


class Silent:
    """A cluster whose watch shows nothing of what was written."""

    now = unix_time = 0.0

    def __init__(self) -> None:
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


def started(phase: str) -> tuple[Silent, QueueStatusWriter]:
    cluster, snapshot = Silent(), Snapshot()
    snapshot.set_object("p", ComputePool(ObjectMeta(name="p"), status=ComputePoolStatus(phase)))
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
