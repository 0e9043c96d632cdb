"""Elastic jobs in Kueue's queues: they grow into quota that nobody waits for, and give it back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, cohort, flavor, local_queue
from tests.resizing.elastic_builders import GPU, bounded, cluster_of, events, job_set, running
from tests.resizing.queued_elastic_builders import ELASTIC, QUEUE, elastic, job, with_priority

from bayplan.api import ApiObject, Job, KueueWorkload, Pod
from bayplan.testing import Cluster, make_node, make_object, make_pod


def one_queue(quota: int) -> list[ApiObject]:
    return [flavor("f"), cluster_queue("cq", {"f": {GPU: quota}}), local_queue("lq", "cq")]


def admitted(cluster: Cluster) -> int:
    """Return how many pods have quota."""
    total = 0
    for one in cluster.api.list(KueueWorkload):
        stated = {c.type for c in one.status.conditions if c.status == "True"}
        if "QuotaReserved" in stated and "Finished" not in stated:
            assert one.status.admission is not None
            total += sum(s.count or 0 for s in one.status.admission.pod_set_assignments)
    return total


def node() -> ApiObject:
    return make_node("n1", cpu=64, **{GPU: 8})


def test_a_job_grows_as_far_as_its_queue_has_quota() -> None:
    cluster = cluster_of(node(), *one_queue(5), elastic("a", 2, 8))
    cluster.advance(200)
    assert running(cluster, "a-") == 5
    assert admitted(cluster) == 5
    assert [one.message for one in events(cluster, "Resized")] == [
        "2 to 5 replicas: there is idle capacity"
    ]


def test_a_job_that_waits_is_set_to_its_minimum_first() -> None:
    cluster = cluster_of(node(), *one_queue(3), elastic("a", 2, 8, now=8))
    cluster.advance(200)
    assert running(cluster, "a-") == 3


def test_jobs_of_one_cohort_grow_into_what_all_have_idle() -> None:
    queues = [cluster_queue(name, {"f": {GPU: 3}}, "co") for name in "ab"]
    locals_ = [local_queue(f"l{name}", name) for name in "ab"]
    jobs = [elastic(name, 1, 8, queue=f"l{name}") for name in "ab"]
    cluster = cluster_of(node(), flavor("f"), cohort("co"), *queues, *locals_, *jobs)
    cluster.advance(300)
    assert running(cluster, "a-") + running(cluster, "b-") == 6
    assert admitted(cluster) == 6


def test_no_job_grows_into_quota_that_others_wait_for() -> None:
    cluster = cluster_of(node(), *one_queue(5), elastic("a", 2, 8), job("wide", 4))
    cluster.advance(300)
    assert running(cluster, "a-") == 2
    cluster.api.delete(Job, "default/wide")
    cluster.advance(200)
    assert running(cluster, "a-") == 5


def test_what_a_job_gives_up_for_others_is_its_queues_quota_again() -> None:
    cluster = cluster_of(node(), *one_queue(6), elastic("a", 2, 8))
    cluster.advance(200)
    assert running(cluster, "a-") == 6
    # Of no queue: it needs nodes only.
    cluster.add(make_pod("other", "1", None, **{GPU: 4}))
    cluster.advance(30)
    assert running(cluster, "other") == 1
    assert running(cluster, "a-") == 4
    assert admitted(cluster) == 4


def test_a_preempted_job_comes_back_at_its_minimum() -> None:
    preemption = {"withinClusterQueue": "LowerPriority"}
    queue = cluster_queue("cq", {"f": {GPU: 6}}, preemption=preemption)
    cluster = cluster_of(node(), flavor("f"), queue, local_queue("lq", "cq"), elastic("a", 2, 8))
    cluster.advance(200)
    assert running(cluster, "a-") == 6
    cluster.add(with_priority(job("high", 5), 10))
    cluster.advance(300)
    assert (running(cluster, "a-"), running(cluster, "high-")) == (0, 5)
    assert not events(cluster, "Shrinking"), "what it has beyond its minimum is not enough"
    cluster.api.delete(Job, "default/high")
    cluster.advance(200)
    assert running(cluster, "a-") == 6
    resized = [one.message for one in events(cluster, "Resized")]
    assert "6 to 2 replicas: it starts at its minimum" in resized


@pytest.mark.parametrize("reclaims", [False, True])
def test_a_job_shrinks_instead_of_being_preempted(reclaims: bool) -> None:
    within = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
    queues = [
        cluster_queue("ca", {"f": {GPU: 3 if reclaims else 6}}, "co", preemption=within),
        cluster_queue("cb", {"f": {GPU: 3 if reclaims else 0}}, "co", preemption=within),
    ]
    locals_ = [local_queue("lq", "ca"), local_queue("lb", "cb")]
    made = elastic("a", 2, 8)
    cluster = cluster_of(node(), flavor("f"), cohort("co"), *queues, *locals_, made)
    cluster.advance(300)
    before = {pod.metadata.name for pod in cluster.api.list(Pod)}
    assert running(cluster, "a-") == 6
    cluster.add(job("b", 3, queue="lb") if reclaims else with_priority(job("b", 3), 10))
    cluster.advance(300)
    assert (running(cluster, "a-"), running(cluster, "b-")) == (3, 3)
    assert len(before & {pod.metadata.name for pod in cluster.api.list(Pod)}) == 3
    assert len(events(cluster, "Shrinking")) == 1


def test_who_may_preempt_does_not_wait_for_what_goes_to_another_one() -> None:
    preemption = {"withinClusterQueue": "LowerPriority"}
    queue = cluster_queue("cq", {"f": {GPU: 6}}, preemption=preemption)
    cluster = cluster_of(node(), flavor("f"), queue, local_queue("lq", "cq"), elastic("a", 2, 8))
    cluster.advance(200)
    first, second = (with_priority(job(name, 3), 10) for name in "bc")
    cluster.add(first, second)
    cluster.advance(400)
    assert [running(cluster, f"{name}-") for name in "abc"] == [0, 3, 3]
    assert admitted(cluster) == 6


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_a_job_that_is_not_elastic_for_kueue_is_not_resized(kind: str) -> None:
    if kind == "Job":
        made: ApiObject = job("a", 2, bounded(2, 6))
    else:
        content = job_set()
        content["metadata"] |= {"labels": QUEUE, "annotations": {**bounded(2, 6), **ELASTIC}}
        made = make_object(content)
    cluster = cluster_of(node(), *one_queue(8), made)
    cluster.advance(200)
    assert sum(bool(pod.spec.node_name) for pod in cluster.api.list(Pod)) == 2
    (found,) = {one.message for one in events(cluster, "NotResized")}
    said = {
        "Job": 'annotation "kueue.x-k8s.io/elastic-job"',
        "JobSet": "no JobSet grows while it runs",
    }
    assert said[kind] in found


def test_a_job_gives_up_what_it_has_beyond_its_minimum_for_one_that_waits_for_quota() -> None:
    cluster = cluster_of(node(), *one_queue(6), elastic("a", 2, 8))
    cluster.advance(200)
    assert running(cluster, "a-") == 6
    cluster.add(job("b", 3))
    cluster.advance(4)
    assert running(cluster, "b-") == 0, "the replicas that go were told so before"
    cluster.advance(60)
    assert (running(cluster, "a-"), running(cluster, "b-")) == (3, 3)
    assert admitted(cluster) == 6
    assert [one.message for one in events(cluster, "Shrinking")] == [
        "3 replicas will go for default/b"
    ]
    cluster.advance(600)
    assert (running(cluster, "a-"), running(cluster, "b-")) == (3, 3)
    cluster.api.delete(Job, "default/b")
    cluster.advance(300)
    assert running(cluster, "a-") == 6


def test_no_job_shrinks_in_vain_for_one_that_waits_for_quota() -> None:
    cluster = cluster_of(node(), *one_queue(6), elastic("a", 2, 8))
    cluster.advance(200)
    cluster.add(job("wide", 5))
    cluster.advance(300)
    assert (running(cluster, "a-"), running(cluster, "wide-")) == (6, 0)
    assert not events(cluster, "Shrinking")


def test_jobs_that_wait_for_quota_are_served_one_after_the_other() -> None:
    cluster = cluster_of(node(), *one_queue(8), elastic("a", 1, 8))
    cluster.advance(200)
    assert running(cluster, "a-") == 8
    cluster.add(job("b", 2), job("c", 3))
    cluster.advance(300)
    found = [running(cluster, f"{name}-") for name in "abc"]
    assert found == [3, 2, 3]
    assert admitted(cluster) == 8


@pytest.mark.parametrize(("asked", "found"), [(2, (4, 2)), (3, (6, 0))])
def test_a_job_gives_back_what_its_queue_borrows_and_no_more(
    asked: int, found: tuple[int, int]
) -> None:
    """Queue "lb" has two GPUs of its own; with three its job would borrow itself."""
    queues = [cluster_queue(f"c{name}", {"f": {GPU: n}}, "co") for name, n in (("a", 4), ("b", 2))]
    locals_ = [local_queue(f"l{name}", f"c{name}") for name in "ab"]
    made = elastic("a", 1, 8, queue="la")
    cluster = cluster_of(node(), flavor("f"), cohort("co"), *queues, *locals_, made)
    cluster.advance(300)
    assert running(cluster, "a-") == 6
    cluster.add(job("b", asked, queue="lb"))
    cluster.advance(300)
    assert (running(cluster, "a-"), running(cluster, "b-")) == found


def test_a_scheduler_that_starts_anew_goes_on_with_what_was_told_to_go() -> None:
    cluster = cluster_of(node(), *one_queue(6), elastic("a", 2, 8))
    cluster.advance(200)
    cluster.add(job("b", 3))
    cluster.advance(4)
    assert len(events(cluster, "Shrinking")) == 1
    kinds = (Job, KueueWorkload, Pod)
    there = [node(), *one_queue(6), *(one for type_ in kinds for one in cluster.api.list(type_))]
    again = cluster_of(*there)
    again.advance(400)
    assert (running(again, "a-"), running(again, "b-")) == (3, 3)


@pytest.mark.parametrize(("least", "found"), [(2, [4, 2, 2]), (5, [6, 2, 0])])
def test_a_job_shrinks_before_another_one_is_preempted(least: int, found: list[int]) -> None:
    preemption = {"withinClusterQueue": "LowerPriority"}
    queue = cluster_queue("cq", {"f": {GPU: 8}}, preemption=preemption)
    made = elastic("a", least, 8)
    spec = made.spec.template.spec
    important = replace(made.spec.template, spec=replace(spec, priority=10))
    made = replace(made, spec=replace(made.spec, template=important))
    cluster = cluster_of(node(), flavor("f"), queue, local_queue("lq", "cq"), made)
    cluster.add(with_priority(job("low", 2), 0))
    cluster.advance(300)
    assert (running(cluster, "a-"), running(cluster, "low-")) == (6, 2)
    low = {pod.metadata.name for pod in cluster.api.list(Pod) if "low" in pod.metadata.name}
    cluster.add(with_priority(job("high", 2), 5))
    cluster.advance(300)
    assert [running(cluster, f"{name}-") for name in ("a", "high", "low")] == found
    spared = low <= {pod.metadata.name for pod in cluster.api.list(Pod)}
    assert spared == (least == 2), "what is beyond a minimum is taken only if it is enough"
    told = [one.message for one in events(cluster, "Shrinking")]
    assert ("2 replicas will go for default/high" in told) == (least == 2)
