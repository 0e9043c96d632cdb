"""Lanes, shapes and known refusals decide as a queue does that tries every unit in every pass."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass, field

import pytest
from tests.scheduler.one_queue import OneQueue

from bayplan.plugin.events import ClusterEvent
from bayplan.scheduler.queue import UnitQueue
from bayplan.scheduler.queued_unit import Gate, QueuedUnit
from bayplan.snapshot import PodInfo
from bayplan.testing import make_pod


@dataclass
class World:
    """Slots of the cluster by shape, and how many each queue may use and uses."""

    free: dict[str, int]
    limit: dict[str, int]
    used: dict[str, int] = field(default_factory=dict)

    def place(self, lane: str, shape: str, size: int) -> str | None:
        """Place a unit; return what is short, if anything."""
        used = self.used.get(lane, 0)
        if used + size > self.limit[lane]:
            return "queue"
        if size > self.free[shape]:
            return "cluster"
        self.used[lane] = used + size
        self.free[shape] -= size
        return None


class Rules(OneQueue):
    """Units are named ``LANE-SHAPE-SIZE-PRIORITY-NUMBER``; the queue that uses least goes first."""

    def __init__(self, world: World) -> None:
        self.world = world

    def gate(self, pod: PodInfo) -> Gate | None:
        return None

    def reads_at_gate(self, plugin: str, kinds: Set[type]) -> bool:
        return False

    def listens(self, plugins: frozenset[str], event: ClusterEvent) -> bool:
        return True

    def waits_for_victims(self, queued: QueuedUnit) -> bool:
        return False

    def helps(self, queued: QueuedUnit, event: ClusterEvent, subject: PodInfo | None) -> bool:
        return True

    def sort_key(self, queued: QueuedUnit) -> tuple[float, ...]:
        return (-float(parts(queued.key)[3]), queued.added)

    def queue_of(self, queued: QueuedUnit) -> str:
        return parts(queued.key)[0]

    def equivalence(self, queued: QueuedUnit) -> tuple[Hashable, int]:
        _, shape, size, *_ = parts(queued.key)
        return shape, int(size)

    def actions(self, queued: QueuedUnit) -> tuple[int, ...]:
        return (0, 1, 2)

    def may_preempt(self, queued: QueuedUnit, action: int) -> bool:
        return False

    def choose(self, heads: Mapping[str, QueuedUnit], action: int) -> str | None:
        return min(heads, key=lambda lane: (self.world.used.get(lane, 0), lane))


def parts(key: str) -> list[str]:
    return key.removeprefix("default/").split("-")


def job(name: str) -> tuple[str, str, int]:
    lane, shape, size, *_ = parts(name)
    return lane, shape, int(size)


def run_pass(queue: UnitQueue, world: World, now: float) -> list[str]:
    """Try what the queue offers until it offers nothing; return what was placed, in order."""
    placed = []
    while (unit := queue.pop(now)) is not None:
        lane, shape, size = job(unit.key)
        short = world.place(lane, shape, size) if unit.action == 0 else "room"
        if short is None:
            placed.append(unit.key)
            for key in list(unit.ready):
                queue.remove(key)
            queue.settle(unit, now)
            continue
        queue.not_placed(unit, everywhere=short == "cluster", now=now)
        if not queue.next_action(unit):
            queue.park(unit, now)
    return placed


def plain_pass(waiting: list[str], world: World) -> list[str]:
    """Try every unit, in the same order, without anything that is known of others."""
    lines: dict[str, list[str]] = {}
    for key in sorted(waiting, key=lambda one: (-int(parts(one)[3]), int(parts(one)[4]))):
        lines.setdefault(job(key)[0], []).append(key)
    placed = []
    while lines:
        lane = min(lines, key=lambda one: (world.used.get(one, 0), one))
        key = lines[lane].pop(0)
        if not lines[lane]:
            del lines[lane]
        if world.place(*job(key)) is None:
            placed.append(key)
    return placed


@pytest.mark.parametrize("seed", range(40))
def test_passes_place_what_a_try_of_every_unit_places(seed: int) -> None:
    chance = random.Random(seed)
    lanes, shapes = ["a", "b", "c"], ["x", "y"]

    def fresh() -> World:
        chance = random.Random(seed)
        limit = {lane: chance.randint(10, 60) for lane in lanes}
        return World({shape: chance.randint(0, 30) for shape in shapes}, limit)

    mine, plain = fresh(), fresh()
    queue = UnitQueue(Rules(mine), lambda pod: pod.key)
    waiting: list[str] = []
    now, count = 0.0, 0
    for _ in range(12):
        for _ in range(chance.randint(0, 12)):
            size, priority = chance.randint(1, 12), chance.randint(0, 1)
            name = f"{chance.choice(lanes)}-{chance.choice(shapes)}-{size}-{priority}-{count}"
            count += 1
            waiting.append(f"default/{name}")
            queue.add(PodInfo(make_pod(name)), 0.0)
        for world_shape in shapes:
            more = chance.randint(0, 15)
            mine.free[world_shape] += more
            plain.free[world_shape] += more
        if waiting and chance.random() < 0.5:
            gone = waiting.pop(chance.randrange(len(waiting)))
            queue.remove(gone)
        queue.on_event(ClusterEvent.POD_REMOVED, None, now)
        now += 20.0
        placed = run_pass(queue, mine, now)
        assert placed == plain_pass(waiting, plain)
        waiting = [key for key in waiting if key not in placed]
        assert run_pass(queue, mine, now) == []


class Closing(Rules):
    """The queue ``a`` may be gone."""

    def __init__(self) -> None:
        super().__init__(World({}, {}))
        self.gone = False

    def queue_of(self, queued: QueuedUnit) -> str:
        own = super().queue_of(queued)
        return "" if self.gone and own == "a" else own

    def may_preempt(self, queued: QueuedUnit, action: int) -> bool:
        return True

    def choose(self, heads: Mapping[str, QueuedUnit], action: int) -> str | None:
        return next((lane for lane in heads if not self.gone or lane != "a"), None)


def test_a_unit_that_would_make_room_is_tried_when_its_queue_is_gone() -> None:
    rules = Closing()
    queue = UnitQueue(rules, lambda pod: pod.key)
    queue.add(PodInfo(make_pod("a-x-1-0-0")), 0.0)
    unit = queue.pop(0.0)
    assert unit is not None
    assert queue.next_action(unit), "the queue was full"
    rules.gone = True
    again = queue.pop(0.0)
    assert again is unit
    assert unit.action == 0, "it is placed plainly"


def refused(queue: UnitQueue, unit: QueuedUnit | None, now: float) -> None:
    """What the scheduler does with a unit of a queue that an action did not place."""
    assert unit is not None
    queue.not_placed(unit, unit.action == 0, now)
    if not queue.next_action(unit):
        queue.park(unit, now)


def refuse_all(queue: UnitQueue, now: float) -> None:
    """Run a pass in which no unit is placed."""
    while (unit := queue.pop(now)) is not None:
        refused(queue, unit, now)


class TwoActions(Closing):
    """Room may be made in one way; the shape of all units is the same."""

    def actions(self, queued: QueuedUnit) -> tuple[int, ...]:
        return (0, 1)


def test_a_unit_whose_queue_is_gone_before_it_makes_room_is_placed_plainly() -> None:
    rules = TwoActions()
    queue = UnitQueue(rules, lambda pod: pod.key)
    queue.add(PodInfo(make_pod("b-x-1-0-0")), 0.0)
    refuse_all(queue, 0.0)
    queue.on_event(ClusterEvent.POD_REMOVED, None, 0.5)
    refuse_all(queue, 1.0)
    queue.add(PodInfo(make_pod("a-x-1-0-0")), 1.0)
    refuse_all(queue, 1.0)
    rules.gone = True
    queue.on_event(ClusterEvent.OBJECT_CHANGED, None, 1.5)
    # Such units wait until 3.0 to be placed, but those of its queue until 2.0 to make room.
    unit = queue.pop(2.0)
    assert unit is not None
    assert (unit.key, unit.action, unit.queue) == ("default/a-x-1-0-0", 0, "")


def test_a_unit_is_tried_in_the_queue_that_it_has_by_then() -> None:
    rules = TwoActions()
    rules.gone = True
    queue = UnitQueue(rules, lambda pod: pod.key)
    queue.add(PodInfo(make_pod("a-x-1-0-0")), 0.0)
    rules.gone = False
    queue.on_event(ClusterEvent.OBJECT_CHANGED, None, 0.0)
    unit = queue.pop(0.0)
    assert unit is not None
    assert unit.queue == "a"
    assert unit.attempts == 1


def test_a_unit_is_tried_again_if_the_cluster_changed_between_two_of_its_actions() -> None:
    queue = UnitQueue(TwoActions(), lambda pod: pod.key)
    queue.add(PodInfo(make_pod("a-x-1-0-0")), 0.0)
    unit = queue.pop(0.0)
    refused(queue, unit, 0.0)
    queue.on_event(ClusterEvent.POD_REMOVED, None, 0.1)
    # So many others were tried meanwhile that the backoff is over.
    refused(queue, queue.pop(2.0), 2.0)
    again = queue.pop(2.0)
    assert again is unit
    assert again.action == 0
    refused(queue, again, 2.0)
    assert queue.pop(2.0) is None


def test_units_in_line_do_not_wait_until_one_with_nodes_is_bound() -> None:
    queue = UnitQueue(TwoActions(), lambda pod: pod.key)
    for number in range(2):
        queue.add(PodInfo(make_pod(f"a-x-1-0-{number}")), float(number))
    refuse_all(queue, 1.0)
    queue.on_event(ClusterEvent.POD_REMOVED, None, 2.0)
    first = queue.pop(3.0)
    assert first is not None
    queue.has_nodes(first)
    second = queue.pop(3.0)
    assert second is not None
    assert second is not first
