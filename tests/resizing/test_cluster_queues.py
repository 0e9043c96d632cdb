"""Elastic jobs in Kueue's queues: they grow into quota that nobody waits for, and give it back."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_builders import GPU, bounded, cluster_of, events, job_set, running, template
from kueue_builders import cluster_queue, cohort, flavor, local_queue

from bayplan.api import ApiObject, Job, KueueWorkload, Pod
from bayplan.testing import Cluster, make_node, make_object, make_pod

QUEUE = {"kueue.x-k8s.io/queue-name": "lq"}
ELASTIC = {"kueue.x-k8s.io/elastic-job": "true"}


def job(name: str, pods: int, marks: dict[str, str] | None = None, queue: str = "lq") -> Job:
    content = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"kueue.x-k8s.io/queue-name": queue},
            "annotations": marks or {},
        },
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "parallelism": pods,
            "completions": pods,
            "template": template(restartPolicy="Never"),
        },
    }
    made = make_object(content)
    assert isinstance(made, Job)
    return made


def elastic(name: str, least: int, most: int, now: int = 0, queue: str = "lq") -> Job:
    return job(name, now or least, {**bounded(least, most), **ELASTIC}, queue)


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
    high = job("high", 3)
    cluster.add(with_priority(high, 10))
    cluster.advance(300)
    assert running(cluster, "high-") == 3
    assert running(cluster, "a-") == 3
    assert admitted(cluster) == 6


def with_priority(made: Job, priority: int) -> Job:
    spec = {**template(restartPolicy="Never", priority=priority)}
    content: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": made.metadata.name, "namespace": "default", "labels": QUEUE},
        "spec": {
            "suspend": True,
            "parallelism": made.spec.parallelism,
            "completions": made.spec.completions,
            "template": spec,
        },
    }
    found = make_object(content)
    assert isinstance(found, Job)
    return found


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
