"""Limits, quotas, order and protection in ``fair-share``, beyond KAI's own tables."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from bayplan.api.queue import UNLIMITED, Queue, Share
from bayplan.queues.tree import QueueTree
from bayplan_plugins.queues.kai.capacity import (
    LIMIT,
    QUOTA,
    is_preemptible,
    job_over_capacity,
)
from bayplan_plugins.queues.kai.min_runtime import (
    ReclaimResolution,
    preempt_min_runtime,
    reclaim_min_runtime,
)
from bayplan_plugins.queues.kai.ordering import compare, standing
from bayplan_plugins.queues.kai.shares import FairShares

GPU = "nvidia.com/gpu"


def gpus(amount: float) -> Share:
    return Share({GPU: amount}, other=UNLIMITED)


def department() -> QueueTree:
    return QueueTree(
        [
            Queue("root", deserved=gpus(8), limit=gpus(10), preempt_min_runtime=60.0),
            Queue("team", parent="root", deserved=gpus(4), limit=gpus(8)),
            Queue("other", parent="root", deserved=gpus(4), reclaim_min_runtime=30.0),
        ],
        ["cpu", GPU],
    )


def test_a_refusal_names_the_ancestor_the_resource_and_the_numbers() -> None:
    tree = department()
    tree.use(tree.row_of["other"], np.array([0.0, 7.0]))
    row = tree.row_of["team"]
    assert job_over_capacity(tree, row, np.array([1000.0, 3.0]), preemptible=True) is None
    excess = job_over_capacity(tree, row, np.array([1000.0, 4.0]), preemptible=True)
    assert excess is not None
    assert (excess.bound, excess.ancestor, excess.queue) == (LIMIT, "root", "team")
    assert (excess.most, excess.used, excess.requested) == (10, 7, 4)
    assert excess.missing == 1


def test_only_what_cannot_be_preempted_has_to_fit_the_quota() -> None:
    tree = department()
    row = tree.row_of["team"]
    tree.use(row, np.array([0.0, 3.0]), fixed=True)
    request = np.array([0.0, 2.0])
    assert job_over_capacity(tree, row, request, preemptible=True) is None
    excess = job_over_capacity(tree, row, request, preemptible=False)
    assert excess is not None
    assert (excess.bound, excess.most, excess.used) == (QUOTA, 4, 3)


@pytest.mark.parametrize(
    ("said", "priority", "expected"),
    [
        (None, 99, True),
        (None, 100, False),
        ("", 50, True),
        ("preemptible", 125, True),
        ("non-preemptible", 50, False),
    ],
)
def test_priority_decides_unless_the_job_says(
    said: str | None, priority: int, expected: bool
) -> None:
    assert is_preemptible(said, priority) is expected


def test_minimum_runtimes_come_from_the_nearest_queue_that_has_one() -> None:
    tree = department()
    team, other = tree.row_of["team"], tree.row_of["other"]
    assert preempt_min_runtime(tree, team) == 60
    assert reclaim_min_runtime(tree, other, team, ReclaimResolution.COMMON_ANCESTOR) == 30
    assert reclaim_min_runtime(tree, team, other, ReclaimResolution.QUEUE, default=5) == 5


def test_below_the_common_ancestor_the_branch_decides() -> None:
    tree = QueueTree(
        [
            Queue("left", reclaim_min_runtime=10.0),
            Queue("right"),
            Queue("leaf", parent="left", reclaim_min_runtime=99.0),
            Queue("taker", parent="right"),
        ]
    )
    leaf, taker = tree.row_of["leaf"], tree.row_of["taker"]
    assert reclaim_min_runtime(tree, leaf, taker, ReclaimResolution.COMMON_ANCESTOR) == 10
    assert reclaim_min_runtime(tree, leaf, taker, ReclaimResolution.QUEUE) == 99


def test_queues_are_ordered_by_quota_then_priority_then_dominant_share() -> None:
    tree = QueueTree(
        [
            Queue("over", deserved=gpus(1), priority=200),
            Queue("half", deserved=gpus(4)),
            Queue("idle", deserved=gpus(4), created=2.0),
            Queue("small", deserved=gpus(2), created=2.0),
            Queue("first", deserved=gpus(4), priority=150),
        ],
        [GPU],
    )
    shares = FairShares(tree, tree.deserved.copy(), np.array([16.0]))
    tree.use(tree.row_of["half"], np.array([2.0]))
    tree.use(tree.row_of["over"], np.array([1.0]))
    jobs = {"over": 1.0, "half": 1.0, "idle": 1.0, "small": 0.5, "first": 4.0}
    standings = {
        name: standing(shares, tree.row_of[name], np.array([job])) for name, job in jobs.items()
    }
    ordered = sorted(
        standings, key=functools.cmp_to_key(lambda a, b: compare(standings[a], standings[b]))
    )
    assert ordered == ["first", "small", "idle", "half", "over"]
