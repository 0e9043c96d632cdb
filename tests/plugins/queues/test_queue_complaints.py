"""What users of Koordinator, of Kueue and of Volcano's strict queues report, and the answers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plugins.queues.koordinator.quota_builders import PREFIX, quota
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, cohort, flavor, local_queue
from tests.plugins.queues.volcano.volcano_worlds import cluster_of, group, pods, queue

from bayplan.api import Pod
from bayplan.testing import Cluster, make_node, make_object, make_pod

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


@pytest.mark.parametrize(("fair", "guest"), [(True, 4), (False, 8)])
def test_fairness_between_quotas_can_be_switched_off(fair: bool, guest: int) -> None:
    """koordinator-sh/koordinator 1837: pods that fit nowhere keep others waiting."""
    args = {"koordinator": {"enableRuntimeQuota": fair}}
    quotas = [quota("owner", 4, 8), quota("guest", 0, 8)]
    cluster = Cluster([make_node("n", gpu=8), *quotas], plugins={"Queues": args})
    nowhere = {"nodeSelector": {"kind": "none"}}
    cluster.add(*(of_quota(f"o{index}", "owner", spec=nowhere) for index in range(4)))
    cluster.add(*(of_quota(f"g{index}", "guest") for index in range(8)))
    assert len(cluster.advance(60)) == guest


def two_pools(strategy: str) -> Cluster:
    """Return a cluster with two flavors of four GPUs; one has a job for all of it and a small one.

    The small one runs, and the large one waits for it.
    """
    kinds = ("old", "new")
    nodes = [make_node(kind, gpu=4, labels={"kind": kind}) for kind in kinds]
    flavors = [flavor(kind, nodeLabels={"kind": kind}) for kind in kinds]
    quotas = {kind: {GPU: 4} for kind in kinds}
    target = cluster_queue("cq", quotas, queueingStrategy=strategy)
    cluster = Cluster([*nodes, *flavors, target, local_queue("lq", "cq")])
    cluster.add(in_pool("first", "old", 1))
    cluster.advance(10)
    cluster.add(in_pool("large", "old", 4))
    cluster.advance(10)
    return cluster


def in_pool(name: str, kind: str, gpu: int) -> Pod:
    labels = {"kueue.x-k8s.io/queue-name": "lq"}
    return make_pod(name, None, None, labels, gpu=gpu, spec={"nodeSelector": {"kind": kind}})


def test_a_strict_head_holds_back_only_those_that_want_the_same_flavors() -> None:
    """kubernetes-sigs/kueue 8309: it blocks other flavors, and without it large jobs starve."""
    cluster = two_pools("StrictFIFO")
    cluster.add(in_pool("behind", "old", 1), in_pool("beside", "new", 3))
    either = make_pod("either", None, None, {"kueue.x-k8s.io/queue-name": "lq"}, gpu=1)
    cluster.add(either)
    assert set(cluster.advance(60)) == {"first", "beside"}
    cluster.add(in_pool("after-either", "new", 1))
    assert set(cluster.advance(60)) == {"first", "beside"}
    cluster.remove("first")
    assert set(cluster.advance(60)) == {"large", "beside"}
    cluster.remove("large")
    assert set(cluster.advance(60)) == {"behind", "beside", "either", "after-either"}


def test_a_best_effort_queue_lets_small_jobs_pass_a_large_one() -> None:
    cluster = two_pools("BestEffortFIFO")
    cluster.add(in_pool("behind", "old", 1), in_pool("beside", "new", 3))
    assert set(cluster.advance(60)) == {"first", "behind", "beside"}


def test_tenants_of_one_queue_come_in_turn_however_many_jobs_one_of_them_has() -> None:
    """kubernetes-sigs/kueue 12653: in the order of creation the first flood starves the rest."""
    scope = {"admissionMode": "UsageBasedAdmissionFairSharing"}
    target = cluster_queue("cq", {"f": {GPU: 1}}, admissionScope=scope)
    sharing = {"usageHalfLifeTime": "10m", "usageSamplingInterval": "1m"}
    cluster = Cluster(
        [
            make_node("n", gpu=1),
            flavor("f"),
            target,
            local_queue("a", "cq"),
            local_queue("b", "cq"),
        ],
        plugins={"Queues": {"kueue": {"admissionFairSharing": sharing}}},
    )
    cluster.add(*(of_local_queue(f"a{index}", "a", 1) for index in range(8)))
    cluster.advance(10)
    cluster.add(*(of_local_queue(f"b{index}", "b", 1) for index in range(3)))
    order = []
    for _ in range(6):
        (running,) = cluster.advance(120)
        order.append(running[0])
        cluster.remove(running)
    assert order == ["a", "b", "a", "b", "a", "b"]


def test_a_queue_that_used_much_before_comes_after_its_sibling_though_neither_uses_any_now() -> (
    None
):
    """kubernetes-sigs/kueue 9734: shares of this moment forget who had the cluster before."""
    args = {"kValue": 1.0, "usage": {"window": "6h", "resolution": "1m"}}
    queues = [kai_queue("before"), kai_queue("now")]
    cluster = Cluster([make_node("n", gpu=8), *queues], plugins={"Queues": {"kai": args}})
    cluster.add(*(of_kai_queue(f"old{index}", "before") for index in range(8)))
    cluster.advance(3600)
    for index in range(8):
        cluster.remove(f"old{index}")
    cluster.advance(60)
    for index in range(8):
        cluster.add(of_kai_queue(f"b{index}", "before"), of_kai_queue(f"n{index}", "now"))
    placed = cluster.advance(600)
    assert len([name for name in placed if name.startswith("n")]) > 4


def test_an_elastic_job_grows_by_what_fits_and_gives_back_what_matters_least() -> None:
    """kubernetes-sigs/kueue 14310: growing all or nothing, and shrinking without an order."""
    group = {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "default"},
        "spec": {"minMember": 2, "queue": "guest"},
    }
    queues = [kai_queue("guest"), kai_queue("owner", 3)]
    cluster = Cluster([make_node("n", gpu=5), *queues, make_object(group)])
    note = {"annotations": {"pod-group-name": "g"}}
    for index in range(8):
        label = {"kai.scheduler/task-priority": str(index)}
        cluster.add(make_pod(f"g{index}", None, None, label, gpu=1, **note))
    assert set(cluster.advance(60)) == {f"g{index}" for index in range(3, 8)}
    cluster.add(*(of_kai_queue(f"o{index}", "owner") for index in range(3)))
    assert set(cluster.advance(300)) == {"g6", "g7", "o0", "o1", "o2"}


def kai_queue(name: str, quota: int = 0) -> Any:
    unlimited = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    gpu = {"quota": quota, "limit": -1, "overQuotaWeight": 1}
    return make_object(
        {
            "apiVersion": "scheduling.run.ai/v2",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": {"resources": {"gpu": gpu, "cpu": unlimited, "memory": unlimited}},
        }
    )


def of_kai_queue(name: str, queue: str) -> Pod:
    return make_pod(name, None, None, {"kai.scheduler/queue": queue}, gpu=1)
