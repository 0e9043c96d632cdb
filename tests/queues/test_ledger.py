"""The ledger follows the snapshot: what it counts equals what counting from nothing gives."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.api import ObjectMeta, Quantity, ResourceClaim, VolcanoPodGroup, VolcanoQueue
from bayplan.api.dra import (
    ConsumerReference,
    DeviceClaim,
    DeviceRequest,
    ResourceClaimSpec,
    ResourceClaimStatus,
)
from bayplan.api.podgroup import ConditionedStatus, VolcanoPodGroupSpec
from bayplan.api.queue import Queue
from bayplan.api.queue_objects import VolcanoQueueSpec, VolcanoQueueStatus
from bayplan.dialects import volcano
from bayplan.queues.claim_users import named_claims
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
            claim=lambda claim, _: {GPU: len(claim.spec.devices.requests)},
        )
        self.ledger = Ledger(
            self.snapshot,
            self._define,
            (VolcanoQueue,),
            (VolcanoPodGroup,),
            rules,
            states=lambda queue: isinstance(queue, VolcanoQueue) and volcano.state_of(queue),
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

    def claim(self, name: str, devices: int, reserved: Iterable[str] = ()) -> None:
        """Make a claim for some devices, reserved for pods in this order."""
        requests = tuple(DeviceRequest(f"r{index}") for index in range(devices))
        consumers = tuple(ConsumerReference("pods", one, f"default/{one}") for one in reserved)
        made = ResourceClaim(
            ObjectMeta(name=name, namespace="default"),
            ResourceClaimSpec(DeviceClaim(requests)),
            ResourceClaimStatus(reserved_for=consumers),
        )
        self.snapshot.set_object(made.key, made)

    def unclaim(self, name: str) -> None:
        """Delete a claim."""
        made = ResourceClaim(ObjectMeta(name=name, namespace="default"))
        self.snapshot.delete_object(made.key, made)

    def pod(
        self,
        name: str,
        queue: str,
        group: str,
        gpus: int,
        fixed: bool,
        ends: bool,
        claims: Iterable[str] = (),
    ) -> None:
        """Add a pod that names claims, or a new version of it."""
        annotations = {key: value for key, value in ((QUEUE, queue), (GROUP, group)) if value}
        named = [{"name": one, "resourceClaimName": one} for one in claims]
        made = make_pod(
            name,
            annotations=annotations,
            priority=int(fixed),
            gpu=gpus,
            spec={"resourceClaims": named},
        )
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
        if GPU in followed.column_of:
            found = followed.used[:, followed.column_of[GPU]]
            assert sum(found[row] for row in followed.roots) == self.held()

    def held(self) -> int:
        """Return the GPUs that pods of queues hold, each claim counted once."""
        ledger, claims = self.ledger, self.snapshot.objects(ResourceClaim)
        holders = [
            pod
            for pod, _ in self.snapshot.placed.values()
            if ledger.row_of(pod) is not None and not pod.terminating
        ]
        named = {key for pod in holders for key in named_claims(pod) if key in claims}
        shared = sum(len(claims[key].spec.devices.requests) for key in named)
        return sum(pod.requests.get(GPU, 0) for pod in holders) + shared


QUEUES = st.sampled_from(["a", "b", "c", "d"])
PARENTS = st.sampled_from(["", "", "a", "b", "gone"])
GROUPS = st.sampled_from(["g", "h"])
PODS = st.sampled_from(["p", "q", "r", "s"])
CLAIMS = st.sampled_from(["x", "y"])
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
        st.lists(CLAIMS, max_size=2, unique=True),
    ),
    st.tuples(st.just("claim"), CLAIMS, st.integers(1, 3), st.lists(PODS, max_size=3, unique=True)),
    st.tuples(st.just("unclaim"), CLAIMS),
    st.tuples(st.just("end"), PODS),
    st.tuples(st.just("place"), PODS, NODES),
    st.tuples(st.just("trial"), st.booleans(), st.lists(st.tuples(PODS, NODES), max_size=4)),
)


@given(st.lists(st.tuples(CHANGES, st.booleans()), max_size=30))
def test_what_is_followed_equals_what_is_counted(changes: list[tuple[tuple, bool]]) -> None:
    world = World()
    world.queue("a")
    world.queue("b", "a")
    world.claim("x", 2)
    for (change, *arguments), looks in changes:
        getattr(world, change)(*arguments)
        if looks:
            world.check()
    world.check()


def shared_claim(*queues: str) -> World:
    """Return a world with a claim for three devices that a pod of each queue uses, in order."""
    world = World()
    world.claim("x", 3)
    for queue in dict.fromkeys(queues):
        world.queue(queue)
    for index, queue in enumerate(queues):
        world.pod(f"p{index}", queue, "", 0, fixed=False, ends=False, claims=["x"])
    return world


def gpus(world: World, field: str = "used") -> list[float]:
    tree = world.ledger.tree
    found: list[float] = getattr(tree, field)[:, tree.column_of[GPU]].tolist()
    return found


def test_a_claim_is_charged_once_and_moves_to_the_next_user_when_the_first_ends() -> None:
    world = shared_claim("a", "b", "b")
    assert gpus(world, "demand") == [3, 0]
    for pod in ("p1", "p0", "p2"):
        world.place(pod, "n0")
    assert gpus(world) == gpus(world, "demand") == [0, 3]
    world.end("p1")
    assert gpus(world) == gpus(world, "demand") == [3, 0]
    world.end("p0")
    assert gpus(world) == gpus(world, "demand") == [0, 3]
    world.end("p2")
    assert gpus(world) == gpus(world, "demand") == [0, 0]


def test_a_claim_is_charged_to_the_first_pod_that_it_is_reserved_for() -> None:
    world = shared_claim("a", "b")
    world.place("p0", "n0")
    world.place("p1", "n0")
    assert gpus(world) == [3, 0]
    world.claim("x", 3, reserved=["p1", "p0"])
    assert gpus(world) == [0, 3]
    world.claim("x", 3, reserved=["p0"])
    assert gpus(world) == [3, 0]


def test_a_trial_that_evicts_the_first_user_of_a_claim_charges_the_next_until_it_ends() -> None:
    world = shared_claim("a", "b", "a")
    for pod in ("p0", "p1"):
        world.place(pod, "n0")
    with world.snapshot.trial():
        world.place("p0", "n0")
        assert gpus(world) == gpus(world, "demand") == [0, 3]
        world.place("p2", "n0")
        world.place("p1", "n0")
        assert gpus(world) == [3, 0]
    assert gpus(world) == gpus(world, "demand") == [3, 0]
    world.pod("p0", "a", "", 0, fixed=False, ends=False, claims=["x"])
    assert gpus(world) == [3, 0]


def test_pods_that_are_placed_together_take_a_claim_once_and_not_if_others_use_it() -> None:
    world = shared_claim("a", "a", "b")
    living = world.snapshot.living
    together = [living["default/p0"], living["default/p1"]]
    column = world.ledger.tree.column_of[GPU]
    assert world.ledger.sum_of(together)[column] == 3
    world.place("p2", "n0")
    assert world.ledger.sum_of(together)[column] == 0
    assert world.ledger.amounts_of(living["default/p2"])[column] == 3
    world.place("p1", "n0")
    assert world.ledger.amounts_of(living["default/p2"])[column] == 0


def test_a_claim_that_comes_after_its_users_is_charged_then() -> None:
    world = shared_claim("a")
    world.unclaim("x")
    world.place("p0", "n0")
    world.check()
    world.claim("x", 2)
    assert gpus(world) == gpus(world, "demand") == [2]


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
    assert world.defined == 1
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


def test_pods_are_counted_again_when_what_they_count_by_changes() -> None:
    snapshot, basis = Snapshot(), 1
    made = VolcanoQueue(ObjectMeta(name="a"), VolcanoQueueSpec())
    snapshot.set_object("a", made)
    rules = PodRules(
        queue_of=lambda pod: "a",
        amounts=lambda pod: {GPU: float(basis)},
        is_fixed=lambda pod: False,
        counts=lambda pod: True,
        basis=lambda: basis,
    )
    define = lambda snapshot: [volcano.queue_of(made)]  # noqa: E731
    ledger = Ledger(snapshot, define, (VolcanoQueue,), (), rules)
    pod = PodInfo(make_pod("p"))
    snapshot.set_living(pod)
    snapshot.add_pod(pod, "n")
    assert ledger.tree.amounts(ledger.tree.used[0])[GPU] == 1.0
    version, basis = ledger.version, 2
    tree = ledger.tree
    assert ledger.version > version
    assert (tree.amounts(tree.used[0])[GPU], tree.amounts(tree.demand[0])[GPU]) == (2.0, 2.0)


def test_objects_that_have_no_say_change_nothing() -> None:
    snapshot, defined = Snapshot(), 0

    def define(snapshot: Snapshot) -> list[Queue]:
        nonlocal defined
        defined += 1
        return [volcano.queue_of(one) for one in snapshot.objects(VolcanoQueue).values()]

    rules = PodRules(lambda pod: "a", lambda pod: {}, lambda pod: False, lambda pod: True)
    ledger = Ledger(
        snapshot, define, (VolcanoQueue,), (), rules, lambda one: one.metadata.name != "other"
    )
    assert len(ledger.tree) == 0
    snapshot.set_object("other", VolcanoQueue(ObjectMeta(name="other"), VolcanoQueueSpec()))
    assert (len(ledger.tree), defined) == (0, 1)
    snapshot.set_object("a", VolcanoQueue(ObjectMeta(name="a"), VolcanoQueueSpec()))
    assert (len(ledger.tree), defined) == (2, 2)


def test_what_others_have_is_exact_again_once_an_absurd_amount_is_gone() -> None:
    world = World()
    world.queue("root")
    for name in ("a", "b"):
        world.queue(name, "root")
    world.pod("fair", "a", "", 3, False, False)
    world.pod("absurd", "b", "", 2**53, False, False)
    for name in ("fair", "absurd"):
        world.place(name, "n0")
    tree = world.ledger.tree
    assert tree.used[tree.row_of["root"], tree.column_of[GPU]] > 2**52
    world.end("absurd")
    tree = world.ledger.tree
    for row in (tree.row_of["root"], tree.row_of["a"]):
        assert tree.used[row, tree.column_of[GPU]] == 3
        assert tree.demand[row, tree.column_of[GPU]] == 3
