"""What users of Koordinator, of Kueue and of Volcano's strict queues report, and the answers."""

from __future__ import annotations

from typing import Any

import pytest
from kueue_builders import cluster_queue, cohort, flavor, local_queue
from quota_builders import PREFIX, quota
from volcano_worlds import cluster_of, group, pods, queue

from bayplan.api import Pod
from bayplan.testing import Cluster, make_node, make_pod

GPU = "nvidia.com/gpu"


def of_quota(name: str, team: str, **more: Any) -> Pod:
    labels = {f"{PREFIX}name": team, **more.pop("labels", {})}
    return make_pod(name, None, None, labels, gpu=1, **more)


def of_local_queue(name: str, team: str, gpu: int) -> Pod:
    return make_pod(name, None, None, {"kueue.x-k8s.io/queue-name": team}, gpu=gpu)


@pytest.mark.parametrize(("strategy", "passes"), [("fifo", False), ("traverse", True)])
def test_a_strict_queue_waits_for_its_first_job_and_holds_back_no_other(
    strategy: str, passes: bool
) -> None:
    """volcano-sh/volcano 4690, 3950."""
    queues = [queue("strict", dequeueStrategy=strategy), queue("other")]
    large = [group("large", "strict", 1), *pods("large", 1, gpu=4)]
    cluster = cluster_of([make_node("n", gpu=2), *queues, *large])
    cluster.advance(1)
    small = [group("small", "strict", 1), *pods("small", 1, gpu=1)]
    beside = [group("beside", "other", 1), *pods("beside", 1, gpu=1)]
    cluster.add(*small, *beside)
    placed = cluster.advance(60)
    assert "beside-0" in placed
    assert ("small-0" in placed) is passes


def test_lent_quota_comes_back_to_its_owner() -> None:
    """koordinator-sh/koordinator 1355, 2432."""
    cluster = Cluster([make_node("n", gpu=4), quota("owner", 4, 4), quota("guest", 0, 4)])
    cluster.add(*(of_quota(f"g{index}", "guest", priority=9) for index in range(4)))
    assert len(cluster.schedule()) == 4
    cluster.add(*(of_quota(f"o{index}", "owner") for index in range(4)))
    assert set(cluster.advance(120)) == {f"o{index}" for index in range(4)}


def test_no_unit_is_lost_where_there_is_less_than_all_are_owed() -> None:
    """koordinator-sh/koordinator 2393: seven of eight GPUs are used after scaling."""
    quotas = [quota(name, 3, 8) for name in "abc"]
    cluster = Cluster([make_node("n", gpu=8), *quotas])
    cluster.add(*(of_quota(f"{name}{index}", name) for name in "abc" for index in range(3)))
    assert len(cluster.advance(60)) == 8


def test_what_may_not_be_preempted_stays_within_the_quotas_own_and_is_never_reclaimed() -> None:
    """koordinator-sh/koordinator 1473."""
    fixed = {f"{PREFIX}preemptible": "false"}
    cluster = Cluster([make_node("n", gpu=4), quota("owner", 2, 4), quota("guest", 2, 4)])
    cluster.add(*(of_quota(f"f{index}", "guest", labels=fixed) for index in range(4)))
    assert len(cluster.schedule()) == 2, "fixed pods never borrow"
    cluster.add(*(of_quota(f"o{index}", "owner", priority=9) for index in range(4)))
    assert set(cluster.advance(60)) >= {"f0", "f1", "o0", "o1"}


def test_a_strict_head_that_waits_leaves_idle_quota_to_other_queues() -> None:
    """kubernetes-sigs/kueue 4809."""
    strict = cluster_queue(
        "strict", {"f": {GPU: (4, 0, None)}}, "co", queueingStrategy="StrictFIFO"
    )
    other = cluster_queue("other", {"f": {GPU: 4}}, "co")
    locals_ = [local_queue(name, name) for name in ("strict", "other")]
    cluster = Cluster([make_node("n", gpu=8), flavor("f"), cohort("co"), strict, other, *locals_])
    cluster.add(of_local_queue("large", "strict", 6))
    cluster.advance(10)
    cluster.add(of_local_queue("small", "strict", 1))
    cluster.add(*(of_local_queue(f"o{index}", "other", 1) for index in range(6)))
    assert set(cluster.advance(60)) == {f"o{index}" for index in range(6)}


def test_queues_do_not_preempt_each_other_in_turn() -> None:
    """kubernetes-sigs/kueue 3779, 10131: preemption in loops, of more than is needed."""
    policy = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}
    queues = [cluster_queue(name, {"f": {GPU: 4}}, "co", preemption=policy) for name in "ab"]
    locals_ = [local_queue(name, name) for name in "ab"]
    cluster = Cluster([make_node("n", gpu=8), flavor("f"), cohort("co"), *queues, *locals_])
    cluster.add(*(of_local_queue(f"a{index}", "a", 1) for index in range(8)))
    cluster.advance(10)
    cluster.add(*(of_local_queue(f"b{index}", "b", 1) for index in range(8)))
    for _ in range(12):
        cluster.advance(20)
        for pod in cluster.api.list(Pod):
            if pod.metadata.deletion_timestamp is not None:
                cluster.remove(pod.key)
                cluster.add(of_local_queue(pod.metadata.name, "a", 1))
    assert len(cluster.scheduler.evictor.evicted) == 4
    placed = cluster.advance(600)
    assert len(cluster.scheduler.evictor.evicted) == 4
    assert len([name for name in placed if name.startswith("b")]) == 4
