"""The unit queue: order, delays, gates, and what wakes a refused unit."""

from __future__ import annotations

from collections.abc import Set

from tests.scheduler.one_queue import OneQueue

from bayplan.plugin.events import ClusterEvent
from bayplan.scheduler.queue import FLUSH_AFTER, UnitQueue
from bayplan.scheduler.queued_unit import Gate, QueuedUnit
from bayplan.snapshot import PodInfo
from bayplan.testing import make_pod


def info(name: str, priority: int = 0, gang: str | None = None) -> PodInfo:
    return PodInfo(make_pod(name, priority=priority, gang=gang))


class Rules(OneQueue):
    """Order by priority; gates hold back the names in ``closed``; ``helpful`` events help."""

    def __init__(self) -> None:
        self.closed: set[str] = set()
        self.helpful = ClusterEvent.ANY

    def gate(self, pod: PodInfo) -> Gate | None:
        return Gate("closed", "Gates") if pod.name in self.closed else None

    def reads_at_gate(self, plugin: str, kinds: Set[type]) -> bool:
        return True

    def sort_key(self, queued: QueuedUnit) -> tuple[float, ...]:
        return (-max(pod.priority for pod in queued.pods.values()), queued.added)

    def listens(self, plugins: frozenset[str], event: ClusterEvent) -> bool:
        return True

    def waits_for_victims(self, queued: QueuedUnit) -> bool:
        return False

    def helps(self, queued: QueuedUnit, event: ClusterEvent, subject: PodInfo | None) -> bool:
        return bool(event & self.helpful)


class Queue(UnitQueue):
    def __init__(self) -> None:
        self.rules = Rules()
        super().__init__(self.rules, lambda pod: pod.gang or pod.key)

    def names(self, now: float = 0.0) -> list[str]:
        found = []
        while (unit := self.pop(now)) is not None:
            found.append(unit.key.removeprefix("default/"))
        return found


def refused(queue: Queue, now: float = 0.0) -> QueuedUnit:
    unit = queue.pop(now)
    assert unit is not None
    queue.refuse(unit, {"Fit"}, now)
    return unit


def test_priority_comes_first_then_arrival() -> None:
    queue = Queue()
    for at, (name, priority) in enumerate([("a", 0), ("b", 5), ("c", 5), ("d", 9)]):
        queue.add(info(name, priority), float(at))
    assert queue.names(9.0) == ["d", "b", "c", "a"]


def test_members_of_a_gang_are_one_unit() -> None:
    queue = Queue()
    queue.add(info("job-0", gang="job"), 0.0)
    queue.add(info("job-1", gang="job"), 0.0)
    unit = queue.pop(0.0)
    assert unit is not None
    assert sorted(unit.ready) == ["default/job-0", "default/job-1"]
    assert queue.pop(0.0) is None


def test_a_refused_unit_waits_for_an_event_and_its_delay() -> None:
    queue = Queue()
    queue.add(info("a"), 0.0)
    refused(queue)
    assert queue.pop(100.0) is None
    queue.on_event(ClusterEvent.POD_REMOVED, None, 0.5)
    # The first delay is one second.
    assert queue.names(0.9) == []
    assert queue.next_time() == 1.0
    assert queue.names(1.0) == ["a"]


def test_an_event_after_the_delay_wakes_at_once() -> None:
    queue = Queue()
    queue.add(info("a"), 0.0)
    refused(queue)
    queue.on_event(ClusterEvent.POD_REMOVED, None, 5.0)
    assert queue.names(5.0) == ["a"]


def test_an_event_that_cannot_help_wakes_nobody() -> None:
    queue = Queue()
    queue.rules.helpful = ClusterEvent.NODE_ADDED
    queue.add(info("a"), 0.0)
    refused(queue)
    queue.on_event(ClusterEvent.POD_REMOVED, None, 5.0)
    assert queue.names(5.0) == []


def test_delays_double_up_to_the_maximum() -> None:
    queue = Queue()
    queue.add(info("a"), 0.0)
    now, delays = 0.0, []
    for _ in range(6):
        unit = refused(queue, now)
        delays.append(unit.retry_at - now)
        queue.on_event(ClusterEvent.NODE_ADDED, None, now)
        now = unit.retry_at
    assert delays == [1, 2, 4, 8, 10, 10]


def test_without_any_event_a_unit_is_tried_again_after_five_minutes() -> None:
    queue = Queue()
    queue.add(info("a"), 0.0)
    refused(queue)
    assert queue.next_time() == FLUSH_AFTER
    assert queue.names(FLUSH_AFTER) == ["a"]


def test_a_gated_pod_is_not_tried_until_its_gate_opens() -> None:
    queue = Queue()
    queue.rules.closed = {"a"}
    queue.add(info("a"), 0.0)
    assert queue.names() == []
    queue.rules.closed = set()
    queue.recheck("default/a", 1.0)
    assert queue.names(1.0) == ["a"]


def test_a_gate_that_closes_again_holds_the_unit_back() -> None:
    queue = Queue()
    queue.add(info("a"), 0.0)
    queue.rules.closed = {"a"}
    queue.recheck("default/a", 0.0)
    assert queue.names() == []


def test_a_removed_pod_is_never_tried() -> None:
    queue = Queue()
    queue.add(info("a"), 0.0)
    queue.remove("default/a")
    assert queue.names() == []
    assert "default/a" not in queue


def test_a_changed_pod_is_tried_with_its_new_object() -> None:
    queue = Queue()
    queue.add(info("a", priority=1), 0.0)
    changed = info("a", priority=2)
    queue.add(changed, 0.0)
    unit = queue.pop(0.0)
    assert unit is not None
    assert unit.ready == {"default/a": changed}


def test_a_try_that_was_broken_off_is_repeated_at_once_and_does_not_count() -> None:
    queue = Queue()
    queue.add(info("a"), 0.0)
    queue.add(info("b"), 0.0)
    unit = queue.pop(2.0)
    assert unit is not None
    queue.try_again(unit)
    again = queue.pop(2.0)
    assert again is unit
    assert again.attempts == 1


def test_an_error_is_retried_after_the_delay_without_any_event() -> None:
    queue = Queue()
    queue.add(info("a"), 0.0)
    unit = queue.pop(0.0)
    assert unit is not None
    queue.retry(unit, 0.0)
    assert queue.names(0.5) == []
    assert queue.names(1.0) == ["a"]
