"""Disruption budgets: healthy pods, wanted pods, and evictions that count."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api import Pod, PodDisruptionBudget
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
