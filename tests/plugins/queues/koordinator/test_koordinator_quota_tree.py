"""Trees of quotas: requests that go up, shares that come down, and the incremental way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.plugins.queues.koordinator.quota_builders import GPU, defined, gpus, pod

from bayplan.dialects.koordinator.elastic_quota import (
    DEFAULT_QUOTA,
    ROOT_QUOTA,
    QuotaDefinition,
    ResourceList,
)
from bayplan_plugins.queues.koordinator.division import Siblings, divide, scaled_min
from bayplan_plugins.queues.koordinator.manager import QuotaManager


def tree(*definitions: QuotaDefinition, total: int = 16) -> QuotaManager:
    manager = QuotaManager(default_max=gpus(100))
    manager.total = gpus(total)
    for definition in definitions:
        manager.set_quota(definition)
    return manager


def runtime(manager: QuotaManager, name: str) -> int:
    found = manager.runtime(name)
    assert found is not None
    return found[GPU]


def test_idle_quota_is_lent_and_comes_back() -> None:
    manager = tree(defined("owner", 8), defined("guest", 8))
    manager.ask("guest", gpus(16))
    assert runtime(manager, "guest") == 16
    manager.ask("owner", gpus(8))
    assert (runtime(manager, "guest"), runtime(manager, "owner")) == (8, 8)


def test_a_request_goes_up_no_further_than_max() -> None:
    manager = tree(defined("dept", 8, 12), defined("team", 4, 6, "dept"))
    manager.ask("team", gpus(20))
    assert manager.quotas["dept"].asked.every == gpus(6)
    assert manager.quotas[ROOT_QUOTA].asked.every == gpus(6)
    assert runtime(manager, "team") == 6


def test_a_quota_that_does_not_lend_asks_for_its_min() -> None:
    manager = tree(replace(defined("dept", 8), lends=False), defined("guest"))
    manager.ask("guest", gpus(16))
    assert runtime(manager, "guest") == 8
    assert manager.quotas[ROOT_QUOTA].asked.every == gpus(24)


def test_what_the_default_quota_uses_is_not_divided() -> None:
    manager = tree(defined("team"))
    manager.use(DEFAULT_QUOTA, gpus(6))
    manager.ask("team", gpus(16))
    assert runtime(manager, "team") == 10
    assert manager.runtime(ROOT_QUOTA) == gpus(10)


def test_no_unit_is_lost_when_mins_exceed_what_there_is() -> None:
    # Each min is scaled to 5 of 16, and the unit that is left goes to one of them.
    manager = tree(*(defined(name, 8) for name in ("a", "b", "c")))
    for name in ("a", "b", "c"):
        manager.ask(name, gpus(8))
    assert sorted(runtime(manager, name) for name in ("a", "b", "c")) == [5, 5, 6]


def test_asking_about_one_quota_scales_its_siblings_as_well() -> None:
    first, second = (tree(*(defined(name, 8) for name in "abc")) for _ in range(2))
    for manager in (first, second):
        for name in "abc":
            manager.ask(name, gpus(8))
    runtime(second, "c")
    runtime(second, "b")
    assert runtime(first, "a") == runtime(second, "a")


def test_mins_are_left_alone_where_they_are_not_scaled() -> None:
    manager = QuotaManager(scale_min=False)
    manager.total = gpus(8)
    for name in ("a", "b"):
        manager.set_quota(defined(name, 8))
        manager.ask(name, gpus(8))
    assert (runtime(manager, "a"), runtime(manager, "b")) == (8, 8)


def test_pods_count_in_their_quota_and_above_it() -> None:
    manager = tree(defined("dept"), defined("team", parent="dept"))
    one, other = pod("one", 2, node="n"), pod("other", 3, preemptible=False)
    manager.set_pod("team", one)
    manager.set_pod("team", other)
    dept = manager.quotas["dept"]
    assert (dept.asked.every, dept.used.every) == (gpus(5), gpus(2))
    assert (dept.asked.non_preemptible, dept.used.non_preemptible) == (gpus(3), {})
    manager.assign("team", other)
    assert (dept.used.every, dept.used.non_preemptible) == (gpus(5), gpus(3))
    manager.set_pod("team", other)
    assert dept.used.every == gpus(5)
    manager.remove_pod("team", other)
    assert (dept.asked.every, dept.used.every) == (gpus(2), gpus(2))
    assert dept.used.non_preemptible == gpus(0)


def test_a_resource_that_max_comes_to_name_counts_for_the_pods_that_are_there() -> None:
    manager = tree(defined("team"))
    manager.set_pod("team", pod("one", 2, node="n"))
    manager.set_quota(replace(defined("team"), maximum={GPU: 8, "cpu": 4000}))
    team = manager.quotas["team"]
    assert team.used.every == {GPU: 2, "cpu": 1000}
    assert team.pods["team/one"].assigned


def test_a_child_may_come_before_its_parent() -> None:
    manager = tree(defined("team", parent="dept"))
    manager.ask("team", gpus(4))
    assert manager.runtime("team") == gpus(0)
    assert manager.problem("team") == 'quota "team" has the parent "dept", which does not exist'
    manager.set_quota(defined("dept"))
    assert runtime(manager, "team") == 4
    assert manager.problem("team") is None


def test_a_cycle_gets_nothing_and_says_so() -> None:
    manager = tree(defined("a", parent="b"), defined("b", parent="a"), defined("c"))
    manager.ask("a", gpus(4))
    manager.ask("c", gpus(4))
    assert manager.problem("a") == "quotas are their own ancestors: a -> b -> a"
    assert (runtime(manager, "a"), runtime(manager, "c")) == (0, 4)


def test_a_broken_object_and_a_missing_quota_are_named() -> None:
    manager = tree(replace(defined("team"), problem="$.spec.min[cpu]: is not in spec.max"))
    assert manager.problem("team") == 'quota "team": $.spec.min[cpu]: is not in spec.max'
    assert manager.problem("none") == 'quota "none" does not exist'
    assert manager.runtime("none") is None


def test_a_quota_that_is_deleted_takes_what_it_counts_along() -> None:
    manager = tree(defined("dept"), defined("team", parent="dept"))
    manager.set_pod("team", pod("one", 2, node="n"))
    assert [one.metadata.name for one in manager.delete_quota("team")] == ["one"]
    assert manager.quotas["dept"].used.every == gpus(0)
    assert manager.quotas[ROOT_QUOTA].asked.every == gpus(0)
    with pytest.raises(KeyError):
        manager.delete_quota("team")


def test_what_pods_have_is_guaranteed_up_to_the_root() -> None:
    manager = QuotaManager(guarantee=True)
    manager.total = gpus(16)
    for definition in (defined("dept", 4), defined("team", 2, parent="dept"), defined("guest")):
        manager.set_quota(definition)
    manager.set_pod("team", pod("one", 6, node="n"))
    manager.ask("guest", gpus(16))
    assert manager.quotas["team"].guaranteed == gpus(6)
    assert manager.quotas["dept"].guaranteed == gpus(6)
    assert (runtime(manager, "guest"), runtime(manager, "team")) == (10, 6)


# Incremental and plain ---------------------------------------------------------------------

NAMES = [f"q{index}" for index in range(6)]
AMOUNTS = st.integers(0, 12)
CHANGES = st.one_of(
    st.tuples(
        st.just("quota"),
        st.sampled_from(NAMES),
        st.integers(-1, 4),
        AMOUNTS,
        AMOUNTS,
        st.booleans(),
    ),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(
        st.just("pod"), st.sampled_from(NAMES), st.integers(0, 9), st.integers(1, 5), st.booleans()
    ),
    st.tuples(st.just("gone"), st.sampled_from(NAMES), st.integers(0, 9)),
    st.tuples(st.just("total"), st.integers(0, 40)),
)


def change(manager: QuotaManager, step: tuple[object, ...]) -> None:
    match step:
        case ("quota", str(name), int(parent), int(least), int(more), bool(lends)):
            # A parent has a smaller number, so there are no cycles.
            above = NAMES[parent] if 0 <= parent < NAMES.index(name) else ""
            definition = defined(name, least, least + more, above)
            manager.set_quota(replace(definition, lends=lends))
        case ("delete", str(name)) if name in manager.quotas:
            manager.delete_quota(name)
        case ("pod", str(name), int(number), int(amount), bool(placed)):
            manager.set_pod(name, pod(f"p{number}", amount, node="n" if placed else ""))
        case ("gone", str(name), int(number)):
            manager.remove_pod(name, pod(f"p{number}"))
        case ("total", int(amount)):
            manager.total = gpus(amount)


class Plain:
    """All sums and shares from nothing: the definitions and the pods."""

    def __init__(self, manager: QuotaManager) -> None:
        self.own = {name: quota.definition for name, quota in manager.quotas.items()}
        self.pods = {name: list(quota.pods.values()) for name, quota in manager.quotas.items()}
        self.total = manager.total.get(GPU, 0)

    def children(self, name: str) -> list[str]:
        return sorted(one for one, own in self.own.items() if own.parent == name and one in NAMES)

    def asked(self, name: str) -> int:
        pods = sum(one.requests.get(GPU, 0) for one in self.pods[name])
        return pods + sum(self.limited(child) for child in self.children(name))

    def limited(self, name: str) -> int:
        own = self.own[name]
        request = self.asked(name)
        if not own.lends:
            request = max(request, own.minimum[GPU])
        return min(request, own.maximum[GPU])

    def used(self, name: str) -> int:
        pods = sum(one.requests.get(GPU, 0) for one in self.pods[name] if one.assigned)
        return pods + sum(self.used(child) for child in self.children(name))

    def shares(self, parent: str = ROOT_QUOTA, total: int | None = None) -> dict[str, int]:
        total = self.total if total is None else total
        children = self.children(parent)
        mins: ResourceList = gpus(sum(self.own[child].minimum[GPU] for child in children))
        own = [self.own[child] for child in children]
        siblings = Siblings(
            children,
            [one.weight[GPU] for one in own],
            [self.limited(child) for child in children],
            [scaled_min(one.minimum, gpus(total), mins, {})[GPU] for one in own],
            [one.lends for one in own],
        )
        parts = divide(siblings, total)
        found = dict(zip(children, parts, strict=True))
        for child, part in list(found.items()):
            found |= self.shares(child, part)
        return found


@settings(deadline=None)
@given(st.lists(CHANGES, max_size=30), st.lists(st.sampled_from(NAMES), max_size=8))
def test_the_incremental_way_is_the_plain_one(
    steps: list[tuple[object, ...]], asked: list[str]
) -> None:
    manager = QuotaManager()
    manager.total = gpus(20)
    for number, step in enumerate(steps):
        change(manager, step)
        if number < len(asked):
            manager.runtime(asked[number])
    plain = Plain(manager)
    shares = plain.shares()
    for name in NAMES:
        if name not in manager.quotas:
            assert manager.runtime(name) is None
            continue
        quota = manager.quotas[name]
        assert quota.asked.every.get(GPU, 0) == plain.asked(name)
        assert quota.used.every.get(GPU, 0) == plain.used(name)
        assert runtime(manager, name) == shares.get(name, 0)


@settings(deadline=None)
@given(st.lists(CHANGES, max_size=30))
def test_shares_hold_their_promises(steps: list[tuple[object, ...]]) -> None:
    manager = QuotaManager()
    manager.total = gpus(20)
    for step in steps:
        change(manager, step)
    for parent in (ROOT_QUOTA, *NAMES):
        if manager.problem(parent):
            continue
        has = (manager.runtime(parent) or {}).get(GPU, 0)
        children = manager.children(parent)
        found = {child.name: runtime(manager, child.name) for child in children}
        # Children together have no more than their parent.
        assert sum(found.values()) <= has
        enough = sum(child.definition.minimum[GPU] for child in children) <= has
        for child in children:
            own = child.definition
            assert found[child.name] <= own.maximum[GPU]
            if enough:
                wanted = min(child.limited_request.get(GPU, 0), own.minimum[GPU])
                assert found[child.name] >= wanted
