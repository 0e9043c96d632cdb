"""Which writes are sent first."""

from __future__ import annotations

from bayplan.api import PodCondition
from bayplan.api.queue_objects import KaiQueue, KaiQueueStatus
from bayplan.cluster.kubernetes.pending_write import PendingWrite, name_of
from bayplan.cluster.kubernetes.write_queue import WriteQueue
from bayplan.cluster.protocol import Bind, PatchPodStatus, PatchStatus, Write


def names(queue: WriteQueue) -> list[str]:
    found = []
    while (job := queue.take()) is not None:
        found.append(name_of(job.write)[1])
    return found


def reason(pod: str) -> Write:
    return PatchPodStatus(pod, "", PodCondition("PodScheduled", "False"), None)


def status(queue: str) -> Write:
    return PatchStatus(KaiQueue, queue, KaiQueueStatus())


def filled(*writes: Write) -> WriteQueue:
    queue = WriteQueue()
    for write in writes:
        queue.add(PendingWrite(write, None))
    return queue


def test_a_binding_goes_before_all_that_is_only_told() -> None:
    assert names(filled(reason("p"), status("q"), Bind("b", "", "n"))) == ["b", "p", "q"]


def test_neither_the_reasons_of_many_pods_nor_many_queues_keep_the_others_back() -> None:
    reasons = [reason(f"p{number}") for number in range(4)]
    statuses = [status(f"q{number}") for number in range(4)]
    in_turn = ["p0", "q0", "p1", "p2", "p3"]
    assert names(filled(*reasons, statuses[0])) == in_turn
    assert names(filled(reasons[0], *statuses)) == ["p0", "q0", "q1", "q2", "q3"]


def test_what_is_refused_at_a_stop_is_everything_that_waits() -> None:
    queue = filled(reason("p"), status("q"), Bind("b", "", "n"))
    assert len(queue) == len(queue.clear()) == 3
    assert len(queue) == 0
