"""Which events are written first, how many a second, and which not at all."""

from __future__ import annotations

from bayplan.cluster.kubernetes.event_queue import EventQueue
from bayplan.cluster.kubernetes.pending_write import PendingWrite
from bayplan.cluster.kubernetes.rate_limiter import RateLimiter
from bayplan.cluster.protocol import Event


def event(name: str, type_: str = "Normal") -> PendingWrite:
    return PendingWrite(Event(name, type_, "Reason", "text"), None)


def names(jobs: list[PendingWrite]) -> list[str]:
    return [job.write.pod for job in jobs if isinstance(job.write, Event)]


def taken(queue: EventQueue, now: float) -> list[str]:
    """Return all events that may be written now."""
    found = []
    while (job := queue.take(now)) is not None:
        found.append(job)
    return names(found)


def test_warnings_go_first_and_the_rest_in_order() -> None:
    queue = EventQueue(None)
    for name, type_ in (("a", "Normal"), ("w", "Warning"), ("b", "Normal"), ("v", "Warning")):
        queue.add(event(name, type_))
    assert queue.wait(0.0) == 0
    assert taken(queue, 0.0) == ["w", "v", "a", "b"]
    assert queue.wait(0.0) is None


def test_a_burst_is_written_at_once_and_the_rest_a_few_a_second() -> None:
    queue = EventQueue(RateLimiter(per_second=2, burst=3))
    for index in range(6):
        queue.add(event(str(index)))
    assert taken(queue, 0.0) == ["0", "1", "2"]
    assert queue.wait(0.0) == 0.5
    assert taken(queue, 0.4) == []
    assert taken(queue, 1.0) == ["3", "4"]
    queue.hurry()
    assert taken(queue, 1.0) == ["5"]


def test_of_too_many_the_oldest_that_is_no_warning_is_dropped() -> None:
    queue = EventQueue(None, most=3)
    dropped = [
        queue.add(event(name, type_))
        for name, type_ in (
            ("w", "Warning"),
            ("a", "Normal"),
            ("b", "Normal"),
            ("c", "Normal"),
            ("v", "Warning"),
            ("x", "Warning"),
            ("y", "Warning"),
        )
    ]
    assert names([job for job in dropped if job is not None]) == ["a", "b", "c", "w"]
    assert taken(queue, 0.0) == ["v", "x", "y"]
