"""Volcano's policies on random queues and jobs: limits hold, shares are met, and all settles."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.plugins.queues.volcano.volcano_worlds import cluster_of, group, pods, queue, settle

from bayplan.queues.tree import EPSILON
from bayplan.testing import Cluster, make_node
from bayplan_plugins.queues.volcano.policy import VolcanoPolicy

GPUS = 8
CPUS = 16


def policy_of(cluster: Cluster) -> VolcanoPolicy:
    queues = cluster.profile.runtime.plugins["Queues"]
    found = [one for one in queues.policies if one.system == "volcano"]  # type: ignore[attr-defined]
    policy: VolcanoPolicy = found[0]
    return policy


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    """Draw queues and jobs: shares that add up to the cluster at most, jobs of 1 to 4 pods."""
    names = [f"q{index}" for index in range(draw(st.integers(2, 4)))]
    total, cpus = 2 * GPUS, 2 * CPUS
    queues = []
    for name in names:
        deserved = draw(st.integers(0, total))
        total -= deserved
        cpu = draw(st.integers(0, cpus))
        cpus -= cpu
        queues.append(
            {
                "name": name,
                "deserved": deserved,
                "cpu": cpu,
                "guarantee": draw(st.integers(0, deserved)),
                "capability": draw(st.none() | st.integers(max(1, deserved), 2 * GPUS)),
                "priority": draw(st.integers(0, 1)),
            }
        )
    jobs = []
    for index in range(draw(st.integers(2, 8))):
        count = draw(st.integers(1, 4))
        jobs.append(
            {
                "name": f"j{index}",
                "queue": draw(st.sampled_from(names)),
                "pods": count,
                "least": draw(st.integers(0, count)),
                "gpu": draw(st.sampled_from([1, 1, 1, 2, 4])),
                "cpu": draw(st.integers(0, 6)),
                "late": draw(st.booleans()),
            }
        )
    return {"queues": queues, "jobs": jobs}


def objects(world: dict[str, Any], late: bool, cpu: bool) -> list[Any]:
    """Return the objects of the jobs that come at once, or late; ``cpu`` lets them ask for CPU."""
    found: list[Any] = []
    for job in world["jobs"]:
        if job["late"] is late:
            found.append(group(job["name"], job["queue"], job["least"]))
            more = {"cpu": job["cpu"]} if cpu else {}
            found += pods(job["name"], job["pods"], gpu=job["gpu"], **more)
    return found


def made(world: dict[str, Any], configuration: dict[str, Any], cpu: bool = False) -> Cluster:
    """Return a cluster of two nodes whose early jobs have settled, and then the late ones."""
    queues = [
        queue(
            one["name"],
            deserved={"gpu": one["deserved"], **({"cpu": one["cpu"]} if cpu else {})},
            guarantee={"gpu": one["guarantee"]},
            capability=None if one["capability"] is None else {"gpu": one["capability"]},
            priority=one["priority"],
        )
        for one in world["queues"]
    ]
    nodes = [make_node(f"n{index}", cpu=CPUS, gpu=GPUS) for index in range(2)]
    early = objects(world, late=False, cpu=cpu)
    cluster = cluster_of([*nodes, *queues, *early], configuration)
    settle(cluster)
    cluster.add(*objects(world, late=True, cpu=cpu))
    settle(cluster)
    return cluster


def check(world: dict[str, Any], cluster: Cluster) -> None:
    """Check the limits, and the columns against those counted from nothing."""
    policy = policy_of(cluster)
    tree = policy.ledger.tree
    column = tree.column_of["nvidia.com/gpu"]
    for one in world["queues"]:
        if one["capability"] is not None:
            used = tree.used[tree.row_of[one["name"]], column]
            assert used <= one["capability"] + EPSILON
    recounted = policy.ledger.recounted()
    width = len(recounted.resources)
    assert np.allclose(tree.used[:, :width], recounted.used)
    assert np.allclose(tree.demand[:, :width], recounted.demand)


@settings(max_examples=40, deadline=None)
@given(worlds())
def test_by_capacity_all_settles_within_the_limits(world: dict[str, Any]) -> None:
    cluster = made(world, {"policy": "capacity"})
    check(world, cluster)


@settings(max_examples=25, deadline=None)
@given(worlds())
def test_by_proportion_all_settles_within_the_limits(world: dict[str, Any]) -> None:
    cluster = made(world, {"policy": "proportion"})
    check(world, cluster)


@settings(max_examples=40, deadline=None)
@given(worlds())
def test_single_pods_get_what_their_queue_deserves(world: dict[str, Any]) -> None:
    for job in world["jobs"]:
        job |= {"least": 0, "gpu": 1}
    cluster = made(world, {"policy": "capacity"})
    check(world, cluster)
    tree = policy_of(cluster).ledger.tree
    column = tree.column_of["nvidia.com/gpu"]
    for one in world["queues"]:
        row = tree.row_of[one["name"]]
        owed = min(float(one["deserved"]), float(tree.demand[row, column]))
        assert tree.used[row, column] >= owed - EPSILON, f"{one['name']} has less than it deserves"


@settings(max_examples=40, deadline=None)
@given(worlds(), st.sampled_from(["capacity", "proportion"]))
def test_queues_that_divide_two_resources_settle(world: dict[str, Any], policy: str) -> None:
    cluster = made(world, {"policy": policy}, cpu=True)
    check(world, cluster)


def _queue(name: str, deserved: int, priority: int) -> dict[str, Any]:
    return {"name": name, "deserved": deserved, "priority": priority}


def _job(name: str, queue: str, pods: int, least: int, gpu: int, late: bool) -> dict[str, Any]:
    job = {"name": name, "queue": queue, "pods": pods, "least": least, "gpu": gpu}
    return {**job, "cpu": 0, "late": late}


LOST_AND_NOT_TRIED = {
    "queues": [_queue("q0", 5, 0), _queue("q1", 5, 1), _queue("q2", 2, 0)],
    "jobs": [
        _job("j0", "q1", 3, 0, 2, late=True),
        _job("j1", "q1", 2, 2, 1, late=False),
        _job("j2", "q2", 1, 0, 1, late=True),
        _job("j3", "q0", 2, 2, 2, late=True),
        _job("j4", "q2", 3, 2, 2, late=False),
    ],
}
"""A job that lost its nodes and was not tried since was taken for one that is placed."""


@settings(max_examples=30, deadline=None)
@given(worlds(), st.integers(0, 2), st.booleans())
@example(LOST_AND_NOT_TRIED, 2, True)
def test_queues_of_a_tree_settle_within_the_limits_of_their_ancestors(
    world: dict[str, Any], level: int, whole: bool
) -> None:
    teams = ("left", "right")
    parents = [queue(name, deserved={"gpu": GPUS}, capability={"gpu": GPUS + 4}) for name in teams]
    leaves = [
        queue(
            one["name"],
            deserved={"gpu": one["deserved"]},
            parent=teams[index % 2],
            priority=one["priority"],
        )
        for index, one in enumerate(world["queues"])
    ]
    capacity = {"name": "capacity", "enableHierarchy": True}
    capacity["arguments"] = {"ancestorReclaimLevel": level}
    gang = {"name": "gang", "enableReclaimable": not whole}
    configuration = {
        "actions": "enqueue, allocate, reclaim",
        "tiers": [{"plugins": [gang, capacity]}],
    }
    nodes = [make_node(f"n{index}", cpu=CPUS, gpu=GPUS) for index in range(2)]
    early = objects(world, late=False, cpu=False)
    cluster = cluster_of([*nodes, queue("root"), *parents, *leaves, *early], configuration)
    settle(cluster)
    cluster.add(*objects(world, late=True, cpu=False))
    settle(cluster)
    tree = policy_of(cluster).ledger.tree
    if "nvidia.com/gpu" in tree.column_of:
        column = tree.column_of["nvidia.com/gpu"]
        for name in teams:
            assert tree.used[tree.row_of[name], column] <= GPUS + 4 + EPSILON
