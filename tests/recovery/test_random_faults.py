"""Random faults, with kills of the scheduler in between: no gang is stranded, nobody goes twice."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.recovery.test_recovery import World, racks

from bayplan.api import Node, Pod
from bayplan.testing import make_node

GRACE, LOST_AFTER, ENDING_GRACE, POD_GRACE = 60.0, 30.0, 300.0, 10.0
_STEP = 10.0
_SLACK = 2 * _STEP + POD_GRACE
GANGS = {"one": 4, "two": 3, "three": 2}


class Faults:
    """A cluster in which things go wrong, and what its gangs hold over time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(0, grace=GRACE, lostAfter=LOST_AFTER, endingGrace=ENDING_GRACE)
        self.world.add(*racks(4, 4, 3))
        for name, size in GANGS.items():
            self.world.gang(name, size)
        self.added = 0
        self.below: dict[str, float] = {}
        """Since when a gang holds nodes, but too few."""

    def happens(self) -> None:
        """Let one thing go wrong, or be mended."""
        names = [node.metadata.name for node in self.world.api.list(Node)]
        kind = self.random.choice(
            ("silent", "silent", "back", "back", "gone", "new", "kill", "pod")
        )
        if kind in ("silent", "back") and names:
            self.world.ready(self.random.choice(names), "Unknown" if kind == "silent" else "True")
        elif kind == "gone" and len(names) > 6:
            self.world.api.vanish_node(self.random.choice(names))
        elif kind == "new" and len(names) < 12:
            self.added += 1
            labels = {"rack": self.random.choice("abc")}
            self.world.add(make_node(f"x{self.added}", gpu=8, labels=labels))
        elif kind == "kill":
            self.world.kill()
        elif kind == "pod":
            pods = self.world.api.list(Pod)
            if pods:
                self.world.cluster.remove(self.random.choice(pods).metadata.name)

    def passes(self, seconds: float) -> None:
        """Let time pass, and see how long gangs hold nodes for nothing."""
        end = self.world.api.now + seconds
        while self.world.api.now < end:
            self.world.passes(_STEP)
            self._look()

    def _look(self) -> None:
        now = self.world.api.now
        nodes = {node.metadata.name for node in self.world.api.list(Node)}
        held: Counter[str] = Counter()
        for pod in self.world.api.list(Pod):
            if pod.spec.node_name in nodes and pod.metadata.deletion_timestamp is None:
                held[pod.metadata.name.rpartition("-")[0]] += 1
        for name, size in GANGS.items():
            if 0 < held[name] < size:
                since = self.below.setdefault(name, now)
                assert now - since <= ENDING_GRACE + LOST_AFTER + GRACE + _SLACK, name
            else:
                self.below.pop(name, None)

    def running(self) -> dict[str, int]:
        """Return how many pods of each gang have a node and do not end."""
        pods = self.world.api.list(Pod)
        kept = [pod for pod in pods if pod.metadata.deletion_timestamp is None]
        on_nodes = [pod.metadata.name for pod in kept if pod.spec.node_name]
        return dict(Counter(name.rpartition("-")[0] for name in on_nodes))

    @property
    def evicted(self) -> list[str]:
        return [
            one.pod for one in (*self.world.evicted, *self.world.cluster.scheduler.evictor.evicted)
        ]


@pytest.mark.parametrize("seed", range(25))
def test_no_gang_is_stranded_and_nobody_is_evicted_twice(seed: int) -> None:
    faults = Faults(seed)
    faults.passes(30)
    for _ in range(30):
        faults.happens()
        faults.passes(faults.random.choice((10.0, 10.0, 40.0, 100.0)))
    assert max(Counter(faults.evicted).values(), default=0) <= 1
    # Once nothing more goes wrong, and there are nodes enough, every job runs.
    for node in faults.world.api.list(Node):
        faults.world.ready(node.metadata.name, "True")
    faults.world.add(*(make_node(f"late{number}", gpu=8) for number in range(9)))
    faults.passes(900)
    assert not faults.below
    assert faults.running() == GANGS
