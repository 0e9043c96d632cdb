"""The ledger follows the snapshot: what it counts equals what counting from nothing gives."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.api import ObjectMeta, Quantity, VolcanoPodGroup, VolcanoQueue
from bayplan.api.podgroup import ConditionedStatus, VolcanoPodGroupSpec
from bayplan.api.queue import Queue
from bayplan.api.queue_objects import VolcanoQueueSpec, VolcanoQueueStatus
from bayplan.dialects import volcano
from bayplan.queues.ledger import Ledger, PodRules
from bayplan.snapshot import PodInfo, Snapshot
from bayplan.testing import make_node, make_pod

GPU = "nvidia.com/gpu"
QUEUE = "scheduling.volcano.sh/queue-name"
GROUP = "scheduling.k8s.io/group-name"


class World:
    """A snapshot with a ledger, and the changes that a cluster makes to it."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.defined = 0
        rules = PodRules(
            queue_of=self._queue_of,
            amounts=lambda pod: pod.requests,
            is_fixed=lambda pod: pod.priority > 0,
            counts=lambda pod: not pod.terminating,
        )
        self.ledger = Ledger(
            self.snapshot, self._define, (VolcanoQueue,), (VolcanoPodGroup,), rules
        )
        for name in ("n0", "n1"):
            self.snapshot.set_node(make_node(name, gpu=8))
        self.snapshot.sync()

    def _define(self, snapshot: Snapshot) -> Iterable[Queue]:
        self.defined += 1
        return [volcano.queue_of(one) for one in snapshot.objects(VolcanoQueue).values()]

    def _queue_of(self, pod: PodInfo) -> str | None:
        if pod.gang is not None:
            group = self.snapshot.objects(VolcanoPodGroup).get(pod.gang)
            if group is not None:
                return group.spec.queue
        return pod.annotations.get(QUEUE)

    # Changes -----------------------------------------------------------------------------

    def queue(self, name: str, parent: str = "", weight: int = 1, state: str = "") -> None:
        """Define a queue."""
        made = VolcanoQueue(
            ObjectMeta(name=name),
            VolcanoQueueSpec(weight, parent=parent),
            VolcanoQueueStatus(state),
        )
        self.snapshot.set_object(name, made)

    def report(self, name: str, pending: int) -> None:
        """Change the status of a queue only."""
        queue = self.snapshot.objects(VolcanoQueue).get(name)
        if queue is not None:
            self.snapshot.set_object(
                name, replace(queue, status=replace(queue.status, pending=pending))
            )

    def drop(self, name: str) -> None:
        """Delete a queue."""
        self.snapshot.delete_object(name, VolcanoQueue(ObjectMeta(name=name)))

    def group(self, name: str, queue: str, phase: str = "") -> None:
        """Define a pod group."""
        meta = ObjectMeta(name=name, namespace="default")
        group = VolcanoPodGroup(meta, VolcanoPodGroupSpec(queue=queue), ConditionedStatus(phase))
        self.snapshot.set_object(f"default/{name}", group)

    def ungroup(self, name: str) -> None:
        """Delete a pod group."""
        meta = ObjectMeta(name=name, namespace="default")
        self.snapshot.delete_object(f"default/{name}", VolcanoPodGroup(meta))

    def pod(self, name: str, queue: str, group: str, gpus: int, fixed: bool, ends: bool) -> None:
        """Add a pod, or a new version of it."""
        annotations = {key: value for key, value in ((QUEUE, queue), (GROUP, group)) if value}
        made = make_pod(name, annotations=annotations, priority=int(fixed), gpu=gpus)
        if ends:
            stamp = "2026-01-01T00:00:00Z"
            made = replace(made, metadata=replace(made.metadata, deletion_timestamp=stamp))
        info = PodInfo(made)
        self.snapshot.set_living(info)
        if info.key in self.snapshot.placed:
            self.snapshot.replace_pod(info)

    def end(self, name: str) -> None:
        """Delete a pod."""
        key = f"default/{name}"
        self.snapshot.remove_pod(key)
        self.snapshot.end_living(key)

    def place(self, name: str, node: str) -> None:
        """Place a pod, or take it off its node."""
        key = f"default/{name}"
        if key in self.snapshot.placed:
            self.snapshot.remove_pod(key)
        elif key in self.snapshot.living:
            self.snapshot.add_pod(self.snapshot.living[key], node)

    def trial(self, keep: bool, moves: list[tuple[str, str]]) -> None:
        """Place and remove pods in a trial, with one inside."""
        with self.snapshot.trial() as outer:
            for name, node in moves:
                self.place(name, node)
            self.check()
            with self.snapshot.trial():
                for name, node in reversed(moves):
                    self.place(name, node)
                self.check()
            if keep:
                outer.keep()

    def check(self) -> None:
        """Compare what was followed with what is counted now."""
        followed, counted = self.ledger.tree, self.ledger.recounted()
        assert followed.queues == counted.queues
        width = len(followed.resources)
        for field in ("used", "fixed", "demand"):
            assert np.array_equal(getattr(followed, field), getattr(counted, field)[:, :width])


QUEUES = st.sampled_from(["a", "b", "c", "d"])
PARENTS = st.sampled_from(["", "", "a", "b", "gone"])
GROUPS = st.sampled_from(["g", "h"])
PODS = st.sampled_from(["p", "q", "r", "s"])
NODES = st.sampled_from(["n0", "n1", "unknown"])
CHANGES = st.one_of(
    st.tuples(
        st.just("queue"), QUEUES, PARENTS, st.integers(-1, 2), st.sampled_from(["", "Closed"])
    ),
    st.tuples(st.just("report"), QUEUES, st.integers(0, 3)),
    st.tuples(st.just("drop"), QUEUES),
    st.tuples(st.just("group"), GROUPS, QUEUES, st.sampled_from(["", "Running"])),
    st.tuples(st.just("ungroup"), GROUPS),
    st.tuples(
        st.just("pod"),
        PODS,
        st.sampled_from(["", "a", "b", "c"]),
        st.sampled_from(["", "", "g", "h"]),
        st.integers(0, 2),
        st.booleans(),
        st.sampled_from([False] * 4 + [True]),
    ),
    st.tuples(st.just("end"), PODS),
    st.tuples(st.just("place"), PODS, NODES),
    st.tuples(st.just("trial"), st.booleans(), st.lists(st.tuples(PODS, NODES), max_size=4)),
)


@given(st.lists(st.tuples(CHANGES, st.booleans()), max_size=30))
def test_what_is_followed_equals_what_is_counted(changes: list[tuple[tuple, bool]]) -> None:
    world = World()
    world.queue("a")
    world.queue("b", "a")
    for (change, *arguments), looks in changes:
        getattr(world, change)(*arguments)
        if looks:
            world.check()
    world.check()


def test_a_queue_that_is_deleted_and_comes_back_counts_what_still_runs() -> None:
    world = World()
    world.queue("a")
    world.pod("p", "a", "", 2, fixed=False, ends=False)
    world.place("p", "n0")
    assert world.ledger.tree.used.sum(axis=0)[world.ledger.tree.column_of[GPU]] == 2
    world.drop("a")
    assert len(world.ledger.tree) == 0
    assert world.ledger.row_of(world.snapshot.living["default/p"]) is None
    world.queue("a")
    tree = world.ledger.tree
    assert tree.used[0, tree.column_of[GPU]] == tree.demand[0, tree.column_of[GPU]] == 2


def test_a_queue_that_becomes_a_parent_keeps_what_its_jobs_use() -> None:
    world = World()
    world.queue("a")
    world.pod("p", "a", "", 2, fixed=False, ends=False)
    world.place("p", "n0")
    world.check()
    world.queue("b", "a")
    world.pod("q", "b", "", 1, fixed=False, ends=False)
    world.place("q", "n0")
    tree = world.ledger.tree
    assert tree.used[:, tree.column_of[GPU]].tolist() == [3, 1]


def test_a_broken_queue_counts_what_runs_and_others_go_on() -> None:
    world = World()
    world.queue("a")
    world.queue("b", "gone")
    for name, queue in (("p", "a"), ("q", "b")):
        world.pod(name, queue, "", 1, fixed=False, ends=False)
        world.place(name, "n0")
    tree = world.ledger.tree
    assert tree.used[:, tree.column_of[GPU]].tolist() == [1, 1]
    assert [queue.problem for queue in tree.queues] == [None, 'its parent "gone" does not exist']


def test_a_status_builds_the_tree_again_only_where_it_changes_a_queue() -> None:
    world = World()
    world.queue("a")
    tree, version = world.ledger.tree, world.ledger.version
    world.report("a", pending=3)
    assert world.ledger.tree is tree
    assert world.ledger.version == version
    assert world.defined == 2
    world.queue("a", state="Closed")
    assert world.ledger.tree is not tree
    assert world.ledger.version > version


def test_resources_of_definitions_have_columns_before_anybody_uses_them() -> None:
    world = World()
    spec = VolcanoQueueSpec(capability={GPU: Quantity("8")})
    world.snapshot.set_object("a", VolcanoQueue(ObjectMeta(name="a"), spec))
    assert world.ledger.tree.resources == [GPU]


def test_jobs_wait_or_run_in_their_queue_and_above() -> None:
    world = World()
    world.queue("a")
    world.queue("b", "a")
    world.group("g", "b")
    for name in ("p", "q"):
        world.pod(name, "", "g", 1, fixed=False, ends=False)
    world.pod("r", "b", "", 1, fixed=False, ends=False)
    assert world.ledger.jobs() == ({0: 2, 1: 2}, {})
    world.place("p", "n0")
    assert world.ledger.jobs() == ({0: 1, 1: 1}, {0: 1, 1: 1})
