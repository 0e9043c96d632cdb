"""Random faults, with kills of the scheduler in between: no gang is stranded, nobody goes twice.

Nodes, GPUs, NICs and leaf switches fail and are repaired, and maintenance is announced.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from msgspec.structs import replace
from tests.recovery.test_recovery import World, job, racks

from bayplan.api import ApiObject, Job, Node, Pod
from bayplan.api.times import rfc3339
from bayplan.dialects.kueue import SAFE_TO_DELETE
from bayplan.dialects.maintenance import MAINTENANCE_AT
from bayplan.plugin.base import Eviction
from bayplan.simulation.broken_parts import BrokenParts, Repair
from bayplan.testing import make_gang, make_node

GRACE, LOST_AFTER, ENDING_GRACE, POD_GRACE = 60.0, 30.0, 300.0, 10.0
_STEP = 10.0
_SLACK = 2 * _STEP + POD_GRACE
STORIES = int(os.environ.get("BAYPLAN_FAULT_STORIES", "25"))
"""How many stories are played."""
_KINDS = (
    *("silent", "silent", "back", "back", "gone", "new", "kill", "pod"),
    *("gpu", "gpu", "nic", "switch", "repair", "repair", "repair", "maintenance"),
)
GANGS = {"one": 4, "two": 3, "three": 2}


def stays(pod: Pod) -> bool:
    """Tell whether a pod has neither failed nor ends."""
    return pod.status.phase != "Failed" and pod.metadata.deletion_timestamp is None


class Faults:
    """A cluster in which things go wrong, and what its gangs hold over time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(0, grace=GRACE, lostAfter=LOST_AFTER, endingGrace=ENDING_GRACE)
        self.world.add(*racks(4, 4, 3))
        for name, size in GANGS.items():
            self.world.add(make_gang(name, size), self._job(name, size, seed % 3 == 0))
        self.added = 0
        self._parts: BrokenParts | None = None
        self.repairs: list[Repair] = []
        self.below: dict[str, float] = {}
        """Since when a gang holds nodes, but too few."""

    @staticmethod
    def _job(name: str, size: int, safe: bool) -> ApiObject:
        """Return a Job; ``safe``: its pods may be deleted by force where a kubelet is silent."""
        made = job(name, size)
        assert isinstance(made, Job)
        template = made.spec.template
        meta = replace(template.metadata, annotations={SAFE_TO_DELETE: str(safe).lower()})
        return replace(made, spec=replace(made.spec, template=replace(template, metadata=meta)))

    def happens(self) -> None:
        """Let one thing go wrong, or be mended."""
        names = [node.metadata.name for node in self.world.api.list(Node)]
        kind = self.random.choice(_KINDS)
        if kind in ("gpu", "nic", "switch", "repair") and names:
            self.breaks(kind, names)
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
        elif kind == "maintenance" and names:
            self.maintains(self.random.choice(names))
        elif kind == "pod":
            pods = self.world.api.list(Pod)
            if pods:
                self.world.cluster.remove(self.random.choice(pods).metadata.name)

    def breaks(self, kind: str, names: list[str]) -> None:
        """Let a GPU, a NIC or a leaf switch fail, or repair one of these."""
        made: list[Repair | None] = []
        name = self.random.choice(names)
        if kind == "gpu":
            made.append(self.parts.lose_gpu(name, str(self.random.randrange(8))))
        elif kind == "nic":
            made.append(self.parts.cut_off(name))
        elif kind == "switch":
            rack = self.random.choice("abc")
            made += [self.parts.silence(one) for one in names if one.startswith(rack)]
        elif self.repairs:
            self.repairs.pop(self.random.randrange(len(self.repairs)))()
        self.repairs += [one for one in made if one is not None]

    @property
    def parts(self) -> BrokenParts:
        """What breaks: it follows the scheduler, which may be another one now."""
        if self._parts is None or self._parts.snapshot is not self.world.cluster.scheduler.snapshot:
            before = self._parts
            snapshot = self.world.cluster.scheduler.snapshot
            if before is None:
                self._parts = BrokenParts(self.world.api, snapshot, lambda uid: None)
            else:
                self._parts = replace(before, snapshot=snapshot)
        return self._parts

    def maintains(self, name: str) -> None:
        """Announce the maintenance of a node, or take it back."""
        node = self.world.api.get(Node, name)
        assert node is not None
        own = dict(node.metadata.annotations)
        if own.pop(MAINTENANCE_AT, None) is None:
            own[MAINTENANCE_AT] = rfc3339(self.world.api.unix_time + 3600)
        self.world.api.update(replace(node, metadata=replace(node.metadata, annotations=own)))

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
            if pod.spec.node_name in nodes and stays(pod):
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
        on_nodes = [pod.metadata.name for pod in pods if pod.spec.node_name and stays(pod)]
        return dict(Counter(name.rpartition("-")[0] for name in on_nodes))

    @property
    def evictions(self) -> list[Eviction]:
        return [*self.world.evicted, *self.world.cluster.scheduler.evictor.evicted]


@pytest.mark.parametrize("seed", range(STORIES))
def test_no_gang_is_stranded_and_nobody_is_evicted_twice(seed: int) -> None:
    faults = Faults(seed)
    faults.passes(30)
    for _ in range(30):
        faults.happens()
        faults.passes(faults.random.choice((10.0, 10.0, 40.0, 100.0)))
    evicted = Counter(one.pod for one in faults.evictions)
    assert max(evicted.values(), default=0) <= 1
    whys = [one.reason for one in faults.evictions]
    assert all(why.startswith(("recovery: ", "maintenance: ")) for why in whys), whys
    # Once nothing more goes wrong, and there are nodes enough, every job runs.
    for repair in faults.repairs:
        repair()
    for node in faults.world.api.list(Node):
        faults.world.ready(node.metadata.name, "True")
        if MAINTENANCE_AT in node.metadata.annotations:
            faults.maintains(node.metadata.name)
    faults.world.add(*(make_node(f"late{number}", gpu=8) for number in range(9)))
    faults.passes(900)
    assert not faults.below
    assert faults.running() == GANGS
