"""Elastic jobs in ClusterQueues: they grow by slices, and shrink at once."""

from __future__ import annotations

from typing import Any

from kueue_builders import cluster_queue, flavor, local_queue
from queued_job_builders import GPU, job, on_nodes, one_queue, running, started

from bayplan.api import Job, KueueWorkload, Pod
from bayplan.cluster.protocol import PatchFields
from bayplan.testing import Cluster, make_node

ELASTIC = {"kueue.x-k8s.io/elastic-job": "true"}
GATE = "kueue.x-k8s.io/elastic-job"
REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"


def elastic(name: str, pods: int, **spec: Any) -> Job:
    spec = {"completions": None, **spec}
    return job(name, pods, annotations=ELASTIC, **spec)


def resize(cluster: Cluster, name: str, pods: int) -> None:
    found = cluster.api.get(Job, f"default/{name}")
    assert found is not None
    fields = {"/spec/parallelism": pods}
    cluster.api.submit(PatchFields(Job, f"default/{name}", found.metadata.uid, fields))
    cluster.advance(60.0)


def slices(cluster: Cluster) -> list[KueueWorkload]:
    """Return the Workloads that have not ended."""
    found = cluster.api.list(KueueWorkload)
    return [one for one in found if "Finished" not in said(one)]


def said(workload: KueueWorkload) -> dict[str, str]:
    return {one.type: one.reason for one in workload.status.conditions if one.status == "True"}


def gated(cluster: Cluster) -> int:
    return sum(
        any(gate.name == GATE for gate in pod.spec.scheduling_gates)
        for pod in cluster.api.list(Pod)
    )


def test_a_job_that_grows_gets_a_slice_that_replaces_the_old_one() -> None:
    cluster = started(make_node("n1", gpu=8), *one_queue(6), elastic("a", 2))
    (first,) = slices(cluster)
    assert on_nodes(cluster) == {"a": 2}
    pods = {pod.metadata.name for pod in cluster.api.list(Pod)}
    resize(cluster, "a", 5)
    (second,) = slices(cluster)
    assert second.metadata.annotations[REPLACES] == first.key
    assert second.spec.pod_sets[0].count == 5
    old = cluster.api.get(KueueWorkload, first.key)
    assert old is not None and said(old)["Finished"] == "WorkloadSliceReplaced"
    assert on_nodes(cluster) == {"a": 5}
    assert pods < {pod.metadata.name for pod in cluster.api.list(Pod)}, "those that ran stay"
    assert gated(cluster) == 0


def test_new_pods_wait_at_the_gate_until_quota_is_there() -> None:
    cluster = started(make_node("n1", gpu=8), *one_queue(4), elastic("a", 2), job("b", 2))
    assert on_nodes(cluster) == {"a": 2, "b": 2}
    resize(cluster, "a", 3)
    assert on_nodes(cluster) == {"a": 2, "b": 2}
    assert gated(cluster) == 1
    assert [one.spec.pod_sets[0].count for one in slices(cluster)] in (
        [2, 2, 3],
        [2, 3, 2],
        [3, 2, 2],
    )
    cluster.api.delete(Job, "default/b")
    cluster.advance(60.0)
    assert on_nodes(cluster) == {"a": 3}
    assert gated(cluster) == 0


def test_a_job_that_shrinks_frees_its_quota_at_once() -> None:
    cluster = started(make_node("n1", gpu=8), *one_queue(4), elastic("a", 4), job("b", 2))
    (first, _) = slices(cluster)
    assert on_nodes(cluster) == {"a": 4}
    resize(cluster, "a", 2)
    assert on_nodes(cluster) == {"a": 2, "b": 2}
    found = cluster.api.get(KueueWorkload, first.key)
    assert found is not None and found.status.admission is not None
    assert found.spec.pod_sets[0].count == 2
    (given,) = found.status.admission.pod_set_assignments
    assert (given.count, given.resource_usage[GPU].text) == (2, "2")
    assert len(slices(cluster)) == 2


def test_a_job_that_shrinks_while_it_waits_to_grow_stops_waiting() -> None:
    cluster = started(make_node("n1", gpu=8), *one_queue(4), elastic("a", 3))
    resize(cluster, "a", 5)
    assert len(slices(cluster)) == 2
    resize(cluster, "a", 2)
    (left,) = slices(cluster)
    assert left.spec.pod_sets[0].count == 2
    assert on_nodes(cluster) == {"a": 2}


def test_a_slice_that_waits_follows_its_job() -> None:
    cluster = started(make_node("n1", gpu=8), *one_queue(5), elastic("a", 3))
    resize(cluster, "a", 7)
    resize(cluster, "a", 5)
    (left,) = slices(cluster)
    assert left.spec.pod_sets[0].count == 5
    assert on_nodes(cluster) == {"a": 5}
    assert len(cluster.api.list(KueueWorkload)) == 2


def test_a_preempted_elastic_job_goes_as_a_whole_and_comes_back_with_its_size() -> None:
    queues = [
        flavor("f", nodeLabels={"kind": "a"}),
        cluster_queue("cq", {"f": {GPU: 4}}, preemption={"withinClusterQueue": "LowerPriority"}),
        local_queue("lq", "cq"),
    ]
    node = make_node("n1", gpu=8, labels={"kind": "a"})
    cluster = started(node, *queues, elastic("a", 3))
    resize(cluster, "a", 4)
    resize(cluster, "a", 6)
    assert on_nodes(cluster) == {"a": 4}
    cluster.add(job("high", 2, priority=10))
    cluster.advance(120.0)
    assert on_nodes(cluster) == {"high": 2}
    found = cluster.api.get(Job, "default/a")
    assert found is not None
    assert found.spec.template.spec.node_selector == {}
    assert found.spec.template.spec.scheduling_gates == ()
    assert running(cluster) == {"high"}
    resize(cluster, "a", 2)
    assert on_nodes(cluster) == {"a": 2, "high": 2}


def test_a_job_that_is_not_elastic_waits_anew_with_its_new_size() -> None:
    cluster = started(make_node("n1", gpu=8), *one_queue(4), job("a", 2, completions=None))
    resize(cluster, "a", 4)
    assert on_nodes(cluster) == {"a": 4}
    (found,) = cluster.api.list(KueueWorkload)
    assert found.spec.pod_sets[0].count == 4
    resize(cluster, "a", 5)
    assert running(cluster) == set()
    assert on_nodes(cluster) == {}


def test_a_scheduler_that_starts_anew_knows_the_slices() -> None: ...
