"""Which leaving pods a search takes off their nodes: fewer than all, with the same answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.plugins.queues.kai import test_kai_actions as kai
from tests.plugins.queues.volcano import volcano_worlds as volcano

from bayplan.api import Pod
from bayplan.testing import Cluster, make_node
from bayplan_plugins.queues.leaving import LeavingPods

GPUS = 4
LONG = 3600

Jobs = list[tuple[int, int]]
"""Pods and GPUs of each."""


def kai_cluster(nodes: int, lent: Jobs) -> Cluster:
    cluster = kai.world(nodes, GPUS, kai.queue("lender", 0), kai.queue("owner", nodes * GPUS))
    for index, (pods, gpus) in enumerate(lent):
        kai.add_job(cluster, f"low{index}", "lender", pods, gpus)
    cluster.advance(1)
    return cluster


def kai_asks(cluster: Cluster, asked: Jobs) -> None:
    for index, (pods, gpus) in enumerate(asked):
        kai.add_job(cluster, f"high{index}", "owner", pods, gpus)


def volcano_cluster(nodes: int, lent: Jobs) -> Cluster:
    queues = [
        volcano.queue("lender", {"gpu": 0}),
        volcano.queue("owner", {"gpu": nodes * GPUS}),
    ]
    machines = [make_node(f"n{index}", gpu=GPUS) for index in range(nodes)]
    actions = {"policy": "capacity", "actions": "enqueue, allocate, preempt, reclaim"}
    cluster = volcano.cluster_of([*machines, *queues], actions)
    for index, (pods, gpus) in enumerate(lent):
        cluster.add(volcano.group(f"low{index}", "lender", pods))
        cluster.add(*volcano.pods(f"low{index}", pods, gpu=gpus))
    cluster.advance(1)
    return cluster


def volcano_asks(cluster: Cluster, asked: Jobs) -> None:
    for index, (pods, gpus) in enumerate(asked):
        cluster.add(volcano.group(f"high{index}", "owner", pods))
        cluster.add(*volcano.pods(f"high{index}", pods, gpu=gpus))


WORLDS = {"kai": (kai_cluster, kai_asks), "volcano": (volcano_cluster, volcano_asks)}


def leave(cluster: Cluster, leaving: set[int]) -> None:
    """Let some of the running pods begin to end, by their place among all."""
    for index, pod in enumerate(sorted(cluster.api.list(Pod), key=lambda one: one.key)):
        if index in leaving and pod.spec.node_name:
            meta = replace(
                pod.metadata,
                deletion_timestamp=cluster.api.timestamp(),
                deletion_grace_period_seconds=LONG,
            )
            cluster.api.update(replace(pod, metadata=meta))


def answers(
    make: Callable[[int, Jobs], Cluster],
    ask: Callable[[Cluster, Jobs], None],
    case: tuple[int, Jobs, set[int], Jobs],
    all_leave: bool,
) -> tuple[list[str], dict[str, str]]:
    """Return who is evicted, in order, and which nodes are nominated."""
    nodes, lent, leaving, asked = case
    everyone = mock.patch.object(LeavingPods, "helping", lambda self, asking: list(self._pods))
    with everyone if all_leave else nullcontext():
        cluster = make(nodes, lent)
        leave(cluster, leaving)
        ask(cluster, asked)
        cluster.advance(5)
        victims = [one.pod for one in cluster.scheduler.evictor.evicted]
        pods = cluster.api.list(Pod)
        return victims, {pod.key: pod.status.nominated_node_name for pod in pods}


JOBS = st.lists(st.tuples(st.integers(1, 2), st.integers(1, GPUS)), min_size=1, max_size=5)


@pytest.mark.parametrize("system", WORLDS)
@settings(max_examples=40, deadline=None)
@given(case=st.tuples(st.integers(1, 3), JOBS, st.sets(st.integers(0, 9), max_size=5), JOBS))
def test_the_answer_is_that_of_a_search_without_any_leaving_pod(
    system: str, case: tuple[int, Jobs, set[int], Jobs]
) -> None:
    make, ask = WORLDS[system]
    assert answers(make, ask, case, all_leave=False) == answers(make, ask, case, all_leave=True)


@pytest.mark.parametrize("system", WORLDS)
def test_what_a_victim_and_a_leaving_pod_free_together_counts(system: str) -> None:
    make, ask = WORLDS[system]
    case: tuple[int, Jobs, set[int], Jobs] = (1, [(1, 2), (1, 2)], {0}, [(1, 4)])
    victims, nominated = answers(make, ask, case, all_leave=False)
    assert victims == ["default/low1-0"]
    assert nominated["default/high0-0"] == "n0"
