"""What tells only a state of the moment: held, replaced, and sent in the end."""

from __future__ import annotations

import asyncio

import pytest

from bayplan.api import KaiPodGroup, PodCondition, Reservation, VolcanoPodGroup
from bayplan.api.podgroup import ConditionedStatus
from bayplan.api.reservation import ReservationStatus
from bayplan.cluster.kubernetes.held_writes import HeldWrites
from bayplan.cluster.kubernetes.pending_write import PendingWrite
from bayplan.cluster.protocol import (
    Bind,
    Event,
    Evict,
    PatchAnnotations,
    PatchPodStatus,
    PatchStatus,
    ReserveClaim,
    Write,
)
from bayplan.errors import ClusterError, Stopped

WAITING = Event("default/p", "Warning", "FailedScheduling", "no room", passing=True)


def waits(message: str, nominated: str | None = None) -> PatchPodStatus:
    condition = PodCondition("PodScheduled", "False", "Unschedulable", message)
    return PatchPodStatus("default/p", "uid", condition, nominated)


class Held:
    """Held writes, what was sent of them and when, and what was answered without being sent."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.busy = False
        self.sent: list[Write] = []
        self.times: list[float] = []
        self.answers: list[ClusterError | None] = []
        self._started = asyncio.get_running_loop().time()
        self.writes = HeldWrites(
            seconds, lambda: self.busy, self._release, lambda _, error: self.answers.append(error)
        )

    def _release(self, job: PendingWrite) -> None:
        self.sent.append(job.write)
        self.times.append(asyncio.get_running_loop().time() - self._started)

    def submit(self, *writes: Write) -> None:
        for write in writes:
            job = PendingWrite(write, None)
            if not self.writes.hold(job):
                self._release(job)


async def test_why_a_pod_waits_is_written_once_it_has_waited_for_a_second() -> None:
    held = Held()
    held.submit(waits("no room"), WAITING)
    assert held.sent == []
    await asyncio.sleep(2)
    assert held.sent == [waits("no room"), WAITING]
    assert held.times == pytest.approx([1, 1], abs=0.1)


@pytest.mark.parametrize(
    "placing",
    [
        Bind("default/p", "uid", "n"),
        ReserveClaim("default/c", "c", "default/p", "uid", None),
        Evict("default/p", "uid", "for a better one"),
    ],
    ids=lambda write: type(write).__name__,
)
async def test_why_a_pod_waits_is_not_written_when_it_is_placed_meanwhile(placing: Write) -> None:
    held = Held()
    held.submit(waits("no room"), WAITING, placing)
    await asyncio.sleep(5)
    assert held.sent == [placing]
    # The scheduler forgets that it has told the reason, in case the placement fails.
    assert all(isinstance(error, Stopped) for error in held.answers)


async def test_why_a_reservation_waits_is_not_written_when_it_is_placed_meanwhile() -> None:
    held = Held()
    waiting = Event(
        "r", "Warning", "FailedScheduling", "no room", passing=True, about="Reservation"
    )
    placed = PatchStatus(Reservation, "r", ReservationStatus("Available"), awaited=True)
    held.submit(waiting, placed)
    await asyncio.sleep(5)
    assert held.sent == [placed]


async def test_a_newer_reason_replaces_the_older_one_and_is_not_held_longer() -> None:
    held = Held()
    held.submit(waits("one member of two"), WAITING)
    await asyncio.sleep(0.7)
    held.submit(waits("no room"))
    await asyncio.sleep(2)
    assert held.sent == [waits("no room")]
    assert held.times == pytest.approx([1], abs=0.1)
    assert held.answers == [None, None]


async def test_a_nomination_is_written_at_once() -> None:
    held = Held()
    held.submit(waits("no room"), waits("waits for its victims", "n"))
    assert held.sent == [waits("waits for its victims", "n")]


async def test_a_status_that_others_await_is_written_at_once() -> None:
    held = Held()
    passing = PatchStatus(VolcanoPodGroup, "default/g", ConditionedStatus("Pending"))
    awaited = PatchStatus(VolcanoPodGroup, "default/g", ConditionedStatus("Inqueue"), awaited=True)
    held.submit(passing, awaited)
    assert held.sent == [awaited]
    held.submit(passing)
    assert held.sent == [awaited]


async def test_other_pods_and_other_events_are_not_touched() -> None:
    held = Held()
    told = Event("default/p", "Normal", "Scheduled", "it is bound")
    held.submit(waits("no room"), Bind("default/q", "uid", "n"), told)
    assert held.sent == [Bind("default/q", "uid", "n"), told]
    await asyncio.sleep(2)
    assert held.sent[2:] == [waits("no room")]


async def test_while_pods_are_placed_reasons_wait_up_to_ten_seconds() -> None:
    held = Held()
    held.busy = True
    held.submit(waits("no room"))
    await asyncio.sleep(9)
    assert held.sent == []
    await asyncio.sleep(3)
    assert held.sent == [waits("no room")]


async def test_held_writes_can_be_sent_at_once_or_forgotten() -> None:
    held = Held()
    held.submit(waits("no room"), WAITING)
    held.writes.send_all()
    assert held.sent == [waits("no room"), WAITING]
    held.submit(waits("still none"))
    assert [job.write for job in held.writes.stop()] == [waits("still none")]
    await asyncio.sleep(2)
    assert len(held.sent) == 2


async def test_a_newer_write_takes_over_the_annotations_that_wait() -> None:
    held = Held()
    held.submit(PatchAnnotations(KaiPodGroup, "default/g", {"a": "1", "b": "1"}))
    held.submit(PatchAnnotations(KaiPodGroup, "default/g", {"b": None, "c": "2"}))
    await asyncio.sleep(2)
    assert held.sent == [
        PatchAnnotations(KaiPodGroup, "default/g", {"a": "1", "b": None, "c": "2"})
    ]
