"""What holds for all queues, cohorts and workloads, however they are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.plugins.queues.kueue.kueue_builders import (
    NOW,
    Limits,
    cluster_queue,
    cohort,
    flavor,
    load,
    local_queue,
    release,
    settle,
    workload,
)

from bayplan.api.kueue import KueueWorkload
from bayplan_plugins.queues.kueue import Admission, FairRule, Settings
from bayplan_plugins.queues.kueue.lifecycle import next_change
from bayplan_plugins.queues.kueue.quotas import QuotaForest
from bayplan_plugins.queues.kueue.store import KueueObject
from bayplan_plugins.queues.kueue.workloads import local_queue_key

FLAVORS = ("a", "b")
POLICIES = st.sampled_from(("Any", "LowerPriority", "Never"))
ORDERS = st.sampled_from(("BestEffortFIFO", "StrictFIFO"))
MOSTLY_NONE = [st.none() | st.none() | st.integers(0, most) for most in range(5)]


@dataclass(frozen=True)
class Given:
    """A drawn world."""

    objects: list[KueueObject]
    workloads: list[KueueWorkload]

    def half(self, second: int) -> list[KueueWorkload]:
        """Return the workloads that come first, or those that come later."""
        size = len(self.workloads) // 2
        return self.workloads[second * size : (second + 1) * size]


@st.composite
def limits(draw: st.DrawFn, inside: bool) -> Limits:
    nominal = draw(st.integers(0, 4))
    borrow = draw(MOSTLY_NONE[4]) if inside else None
    lend = draw(MOSTLY_NONE[nominal]) if inside else None
    return nominal, borrow, lend


INSIDE, ALONE = limits(True), limits(False)


@st.composite
def worlds(draw: st.DrawFn, within: tuple[str, ...] = ("Never", "LowerPriority")) -> Given:
    """Draw up to three cohorts in a tree, some queues in them, and workloads for these.

    The second half of the workloads is the more important one: it comes later, to take quota back.
    """
    count = draw(st.integers(1, 3))
    objects: list[KueueObject] = [flavor(name) for name in FLAVORS]
    used = FLAVORS[: draw(st.integers(1, 2))]
    for number in range(count):
        parent = f"c{draw(st.integers(0, number - 1))}" if number else ""
        own = draw(st.integers(0, 3)) == 3
        given = {name: {"cpu": draw(INSIDE if parent else ALONE)} for name in used} if own else {}
        objects.append(cohort(f"c{number}", parent, given))
    queues = draw(st.integers(1, 4))
    for number in range(queues):
        alone = draw(st.integers(0, 5)) == 5
        home = "" if alone else f"c{draw(st.integers(0, count - 1))}"
        given = {name: {"cpu": draw(INSIDE if home else ALONE)} for name in used}
        objects += _queue(draw, f"q{number}", home, given, within)
    size = draw(st.integers(1, 6))
    jobs = [
        workload(
            f"w{number}",
            f"q{draw(st.integers(0, queues - 1))}",
            {"cpu": draw(st.integers(1, 3))},
            priority=draw(st.integers(0, 1)) + number // size,
            created=number,
        )
        for number in range(2 * size)
    ]
    return Given(objects, jobs)


def _queue(
    draw: st.DrawFn,
    name: str,
    home: str,
    given: dict[str, Any],
    within: tuple[str, ...],
) -> list[KueueObject]:
    reclaim = draw(POLICIES)
    preemption: dict[str, Any] = {
        "reclaimWithinCohort": reclaim,
        "withinClusterQueue": draw(st.sampled_from(within)),
    }
    if reclaim != "Never" and draw(st.booleans()):
        preemption["borrowWithinCohort"] = {"policy": "LowerPriority"}
    order = draw(ORDERS)
    queue = cluster_queue(name, given, home, preemption=preemption, queueingStrategy=order)
    return [queue, local_queue(name, name)]


def check_limits(forest: QuotaForest) -> None:
    """Check that nobody uses more than its quota and what it may borrow."""
    for row, queue in enumerate(forest.tree.queues):
        for name, used in forest.used[row].items():
            subtree = forest.subtree[row].get(name, 0)
            most = queue.borrowed.amounts.get(name)
            assert used >= 0
            if forest.parent[row] < 0:
                assert used <= subtree, f"{queue.name} uses more of {name} than there is"
            elif most is not None:
                # What is lent to siblings never counts against the queue's own limit.
                assert used <= subtree + most, f"{queue.name} borrows too much of {name}"
            assert used <= forest.potential(row, name)


def check_lending(forest: QuotaForest) -> None:
    """Check that a cohort counts of each member just what this uses beyond what it keeps."""
    for row in range(len(forest.tree.queues)):
        members = [child for child, parent in enumerate(forest.parent) if parent == row]
        if not members:
            continue
        for name in {name for child in members for name in forest.used[child]}:
            counted = 0.0
            for child in members:
                own = forest.subtree[child].get(name, 0)
                lent = forest.tree.queues[child].lent.amounts.get(name, own)
                kept = max(0, own - lent)
                counted += max(0, forest.used[child].get(name, 0) - kept)
            assert forest.used[row].get(name, 0) == counted


def check_settling(world: Given, chosen: Settings) -> None:
    """Check that both halves come to rest, one after the other."""
    admission = load(Admission(chosen), world.objects)
    for part in (0, 1):
        load(admission, world.half(part))
        settle(admission, 60)


def recomputed(admission: Admission) -> QuotaForest:
    """Return quotas and usage as if all objects had just come."""
    fresh = Admission(admission.settings)
    store = admission.store
    load(fresh, [*store.flavors.values(), *store.cohorts.values()])
    load(fresh, [*store.cluster_queues.values(), *store.local_queues.values()])
    load(fresh, list(store.workloads.values()))
    return fresh.store.forest()


def check_counts(admission: Admission) -> None:
    """Check that what is counted change by change is what a look at all finds."""
    store = admission.store
    holding = [one for by in store.reserving.values() for one in by.values()]
    for key in store.local_queues:
        own = {one.key: one for one in holding if local_queue_key(one.workload) == key}
        assert store.reserving_of(key) == own
        for line in store.pending.values():
            waiting = sum(local_queue_key(one.workload) == key for one in line)
            assert line.count_of(key) == waiting
    times = (next_change(one, admission.settings.pods_ready) for one in store.workloads.values())
    assert store.next_change() == min((at for at in times if at is not None), default=None)


def without_zeros(forest: QuotaForest) -> dict[str, dict[str, float]]:
    return {
        queue.name: {name: used for name, used in forest.used[row].items() if used}
        for row, queue in enumerate(forest.tree.queues)
    }


@given(worlds(), st.booleans(), st.lists(st.integers(0, 9), max_size=6))
@settings(max_examples=150)
def test_limits_hold_and_usage_is_exact_whatever_comes_and_goes(
    world: Given, fair: bool, gone: list[int]
) -> None:
    admission = load(Admission(Settings(fair_sharing=fair)), world.objects)
    for part in (0, 1):
        load(admission, world.half(part))
        for _ in range(6):
            release(admission, admission.cycle(NOW))
            forest = admission.store.forest()
            check_limits(forest)
            check_lending(forest)
            check_counts(admission)
            assert without_zeros(forest) == without_zeros(recomputed(admission))
        for number in gone:
            found = admission.store.workloads.get(f"default/w{number}")
            if found is not None:
                admission.delete(found, NOW)
        check_counts(admission)
        assert without_zeros(admission.store.forest()) == without_zeros(recomputed(admission))


@given(worlds())
@settings(max_examples=150)
def test_a_stable_demand_settles_without_fair_sharing(world: Given) -> None:
    check_settling(world, Settings())


@given(worlds())
@settings(max_examples=150)
def test_a_stable_demand_settles_with_fair_sharing(world: Given) -> None:
    # Kueue's second rule lets workloads of several sizes take turns (FairRule.INITIAL_SHARE).
    check_settling(world, Settings(fair_sharing=True, fair_rules=(FairRule.FINAL_SHARE,)))


@given(worlds(within=("Never",)))
@settings(max_examples=60)
def test_a_cycle_takes_nobody_away_in_vain(world: Given) -> None:
    admission = load(Admission(), world.objects)
    for number in range(20):
        if number in (0, 10):
            load(admission, world.half(number // 10))
        result = admission.cycle(NOW)
        preemptors = {e.workload.key for e in result.outcome.entries if e.victims}
        release(admission, result)
        if not result.evicted:
            continue
        following = admission.cycle(NOW)
        assert preemptors & set(following.admitted), "nobody was admitted in their place"
        release(admission, following)


@st.composite
def edits(draw: st.DrawFn) -> list[tuple[str, str, str]]:
    """Draw what happens to queues, flavors and cohorts: kind, name, and a stop policy."""
    kinds = ("ClusterQueue", "LocalQueue", "no ClusterQueue", "no LocalQueue", "no ResourceFlavor")
    one = st.tuples(
        st.sampled_from((*kinds, "in a cycle")),
        st.sampled_from([f"q{number}" for number in range(4)]),
        st.sampled_from(("None", "Hold", "HoldAndDrain")),
    )
    return draw(st.lists(one, min_size=1, max_size=6))


def edit(admission: Admission, kind: str, name: str, stop: str) -> None:
    store = admission.store
    queue, local = store.cluster_queues.get(name), store.local_queues.get(f"default/{name}")
    if kind == "in a cycle":
        for number, parent in (("0", "c1"), ("1", "c0")):
            admission.set(cohort(f"c{number}", parent, {}), NOW)
    elif kind == "no ResourceFlavor":
        gone = store.flavors.get("a")
        if gone is not None:
            admission.delete(gone, NOW)
    elif queue is not None and kind.endswith("ClusterQueue"):
        spec = replace(queue.spec, stop_policy=stop)
        made = replace(queue, spec=spec)
        (admission.delete if kind.startswith("no") else admission.set)(made, NOW)
    elif local is not None and kind.endswith("LocalQueue"):
        changed = replace(local, spec=replace(local.spec, stop_policy=stop))
        (admission.delete if kind.startswith("no") else admission.set)(changed, NOW)


@settings(max_examples=150)
@given(worlds(), edits())
def test_what_no_change_concerns_would_be_found_as_it_was(
    world: Given, changes: list[tuple[str, str, str]]
) -> None:
    """One that knows nothing of what changed looks at all, and finds nothing left to do."""
    admission = load(Admission(), (*world.objects, *world.workloads))
    admission.tick(NOW)
    settle(admission, 100)
    for kind, name, stop in changes:
        edit(admission, kind, name, stop)
        while admission.tick(NOW).changed:
            pass
        store = admission.store
        known = (store.flavors, store.cohorts, store.cluster_queues, store.local_queues)
        every = [obj for some in (*known, store.workloads) for obj in some.values()]
        assert not load(Admission(), every).tick(NOW).changed
