"""Disruption budgets: healthy pods, wanted pods, and evictions that count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples

from bayplan.api import Pod, PodDisruptionBudget
from bayplan.cluster.embedded import disruption
from bayplan.cluster.embedded.disruption import DisruptionController
from bayplan.cluster.embedded.disruption_budgets import (
    disruptions_allowed,
    health,
    take_disruption,
)
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.errors import TooManyDisruptions
from bayplan.testing import make_object, make_pod


def budget(allowed: int = 0, name: str = "b", **spec: Any) -> PodDisruptionBudget:
    found = make_object(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "a"}}, **spec},
            "status": {"disruptionsAllowed": allowed},
        }
    )
    assert isinstance(found, PodDisruptionBudget)
    return found


def running(name: str, phase: str = "Running", **labels: str) -> Pod:
    pod = make_pod(name, node="n", labels={"app": "a", **labels})
    return replace(pod, status=replace(pod.status, phase=phase))


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({"minAvailable": 2}, 2),
        ({"minAvailable": "50%"}, 3),
        ({"maxUnavailable": 1}, 4),
        ({"maxUnavailable": "30%"}, 3),
        ({}, 4),
    ],
)
def test_counts_and_percentages_say_how_many_must_stay(spec: Any, wanted: int) -> None:
    pods = [running(f"p{index}") for index in range(4)] + [running("pending", "Pending")]
    assert health(budget(**spec), pods) == (4, wanted)
    assert disruptions_allowed(budget(**spec), pods) == max(0, 4 - wanted)


def test_finished_and_other_pods_do_not_count() -> None:
    pods = [running("a"), running("done", "Succeeded"), make_pod("other", node="n")]
    assert health(budget(minAvailable=1), pods) == (1, 1)


def test_an_eviction_counts_against_every_budget_of_a_pod() -> None:
    cluster = MemoryCluster()
    for name in ("b", "c"):
        cluster.create(budget(allowed=1, name=name))
    take_disruption(cluster, running("p"))
    assert [one.status.disruptions_allowed for one in cluster.list(PodDisruptionBudget)] == [0, 0]


def test_an_eviction_that_one_budget_forbids_counts_against_none() -> None:
    cluster = MemoryCluster()
    cluster.create(budget(allowed=1, name="b"))
    cluster.create(budget(allowed=0, name="c"))
    with pytest.raises(TooManyDisruptions, match="default/c"):
        take_disruption(cluster, running("p"))
    assert [one.status.disruptions_allowed for one in cluster.list(PodDisruptionBudget)] == [1, 0]


def test_a_pending_pod_may_always_be_evicted() -> None:
    cluster = MemoryCluster()
    cluster.create(budget(allowed=0))
    take_disruption(cluster, running("p", "Pending"))


# The controller ----------------------------------------------------------------------------------

APPS = st.sampled_from(["a", "b"])
NAMES = st.sampled_from(["x", "y", "z"])
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), NAMES, st.none() | st.tuples(APPS, st.booleans())),
        st.tuples(st.just("budget"), NAMES, st.none() | st.tuples(APPS, st.integers(0, 2))),
        st.tuples(st.sampled_from(["wait", "lose", "find"])),
    ),
    max_size=14,
)


def settle(cluster: MemoryCluster) -> None:
    while cluster.deliver() or cluster.clock.next_time() == cluster.now:
        cluster.clock.advance(cluster.now)


def put(cluster: MemoryCluster, obj: Pod | PodDisruptionBudget) -> None:
    """Create an object, or change it as others do."""
    known = cluster.get(type(obj), f"default/{obj.metadata.name}")
    if known is None:
        cluster.create(obj)
    elif isinstance(known, Pod):
        meta = replace(known.metadata, labels=obj.metadata.labels)
        cluster.update(replace(known, metadata=meta, status=obj.status))
    else:
        cluster.update(replace(known, spec=obj.spec))


@examples(150)
@given(CHANGES)
def test_whatever_comes_and_goes_all_budgets_are_current(changes: list[Any]) -> None:
    cluster = MemoryCluster()
    DisruptionController(cluster)
    for kind, *what in [*changes, ("find",)]:
        if kind in ("lose", "find"):
            (cluster.break_watch if kind == "lose" else cluster.resume_watch)()
        elif kind == "wait":
            settle(cluster)
        elif what[1] is None:
            type_: Any = Pod if kind == "pod" else PodDisruptionBudget
            if cluster.get(type_, f"default/{what[0]}") is not None:
                cluster.delete(type_, f"default/{what[0]}", 0)
        elif kind == "pod":
            app, runs = what[1]
            put(cluster, running(what[0], "Running" if runs else "Pending", app=app))
        else:
            app, least = what[1]
            selector = {"matchLabels": {"app": app}}
            put(cluster, budget(name=what[0], selector=selector, minAvailable=least))
    settle(cluster)

    for one in cluster.list(PodDisruptionBudget):
        assert one.status.disruptions_allowed == disruptions_allowed(one, cluster.list(Pod))


def test_a_pod_that_changes_has_only_its_own_budgets_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = MemoryCluster()
    DisruptionController(cluster)
    for number in range(9):
        selector = {"matchLabels": {"app": f"a{number}"}}
        cluster.create(budget(name=f"b{number}", selector=selector, minAvailable=0))
        cluster.create(running(f"p{number}", app=f"a{number}"))
    settle(cluster)
    counted: list[tuple[str, int]] = []

    def count(one: PodDisruptionBudget, pods: list[Pod]) -> int:
        counted.append((one.metadata.name, len(pods)))
        return disruptions_allowed(one, pods)

    monkeypatch.setattr(disruption, "disruptions_allowed", count)
    cluster.delete(Pod, "default/p3", 0)
    settle(cluster)

    assert {name for name, _ in counted} == {"b3"}
    assert all(pods <= 1 for _, pods in counted)
