"""Elastic jobs in ClusterQueues: they grow by slices, and shrink at once."""

from __future__ import annotations

import hashlib
from typing import Any

from kueue_builders import cluster_queue, flavor, local_queue
from msgspec.structs import replace
from queued_job_builders import GPU, job, on_nodes, one_queue, running, started, suspended_content

from bayplan.api import KINDS, Job, JobSet, KueueWorkload, Node, Pod, RayCluster
from bayplan.api.kueue import AdmissionCheckState
from bayplan.cluster.protocol import PatchFields
from bayplan.testing import Cluster, make_node, make_object

ELASTIC = {"kueue.x-k8s.io/elastic-job": "true"}
GATE = "kueue.x-k8s.io/elastic-job"
SLICE = "kueue.x-k8s.io/workload-slice-name"
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
    assert old is not None
    assert said(old)["Finished"] == "WorkloadSliceReplaced"
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
    assert found is not None
    assert found.status.admission is not None
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


def test_a_scheduler_that_starts_anew_knows_the_slices() -> None:
    cluster = started(make_node("n1", gpu=8), *one_queue(5), elastic("a", 2), job("b", 2))
    resize(cluster, "a", 3)
    resize(cluster, "a", 4)
    assert len(slices(cluster)) == 3
    types = (Node, *(kind.type for kind in KINDS.values() if kind.type not in (Node, Pod)), Pod)
    again = started(*(one for type_ in types for one in cluster.api.list(type_)))
    assert on_nodes(again) == {"a": 3, "b": 2}
    assert len(slices(again)) == 3
    again.api.delete(Job, "default/b")
    again.advance(60.0)
    assert on_nodes(again) == {"a": 4}
    names = [one.metadata.name for one in again.api.list(KueueWorkload)]
    assert len(names) == len(set(names)) == 3


def test_a_slice_keeps_the_flavor_of_the_old_one() -> None:
    flavors = {"f": {GPU: 3}, "g": {GPU: 8}}
    queues = [
        flavor("f", nodeLabels={"kind": "f"}),
        flavor("g", nodeLabels={"kind": "g"}),
        cluster_queue("cq", flavors),
        local_queue("lq", "cq"),
    ]
    nodes = [make_node(kind, gpu=8, labels={"kind": kind}) for kind in "fg"]
    cluster = started(*nodes, *queues, elastic("a", 2))
    resize(cluster, "a", 4)
    assert on_nodes(cluster) == {"a": 2}
    resize(cluster, "a", 3)
    assert on_nodes(cluster) == {"a": 3}
    assert set(cluster.placements().values()) == {"f"}


def test_new_pods_wait_for_the_admission_checks_of_their_slice() -> None:
    checks = {"admissionChecks": [{"name": "budget"}]}
    queue = cluster_queue("cq", {"f": {GPU: 4}}, admissionChecksStrategy=checks)
    others = [flavor("f"), queue, local_queue("lq", "cq"), elastic("a", 1)]
    cluster = started(make_node("n1", gpu=8), *others)
    pass_checks(cluster)
    assert on_nodes(cluster) == {"a": 1}
    resize(cluster, "a", 3)
    assert running(cluster) == {"a"}
    assert (on_nodes(cluster), gated(cluster)) == ({"a": 1}, 2)
    pass_checks(cluster)
    assert (on_nodes(cluster), gated(cluster)) == ({"a": 3}, 0)


def pass_checks(cluster: Cluster) -> None:
    (found,) = slices(cluster)
    ready = AdmissionCheckState("budget", "Ready", last_transition_time="2000-01-01T00:00:05Z")
    cluster.api.update(replace(found, status=replace(found.status, admission_checks=(ready,))))
    cluster.advance(60.0)


def test_a_slice_that_somebody_deletes_is_made_again() -> None:
    cluster = started(make_node("n1", gpu=8), *one_queue(4), elastic("a", 2))
    resize(cluster, "a", 3)
    resize(cluster, "a", 5)
    found = slices(cluster)
    assert len(found) == 2
    for one in found:
        cluster.api.delete(KueueWorkload, one.key)
        cluster.advance(60.0)
        assert {w.key for w in slices(cluster)} == {w.key for w in found}
    assert on_nodes(cluster) == {"a": 3}
    resize(cluster, "a", 4)
    (left,) = slices(cluster)
    assert said(left)["Admitted"]
    assert on_nodes(cluster) == {"a": 4}


def test_all_slices_go_with_their_job() -> None:
    cluster = started(make_node("n1", gpu=8), *one_queue(4), elastic("a", 2), job("b", 4))
    resize(cluster, "a", 3)
    resize(cluster, "a", 6)
    assert [one.spec.pod_sets[0].count for one in slices(cluster)] == [4, 3, 6]
    cluster.api.delete(Job, "default/a")
    cluster.advance(60.0)
    (left,) = cluster.api.list(KueueWorkload)
    assert left.metadata.owner_references[0].name == "b"
    assert on_nodes(cluster) == {"b": 4}


def test_slices_are_named_as_kueue_names_them() -> None:
    made = replace(elastic("a", 2), metadata=replace(elastic("a", 2).metadata, generation=7))
    cluster = started(make_node("n1", gpu=8), *one_queue(4), made)
    (found,) = slices(cluster)
    owner = found.metadata.owner_references[0]
    told = "\n".join(("Job", "batch", "a", owner.uid, "7"))
    digits = hashlib.sha1(told.encode(), usedforsecurity=False).hexdigest()[:5]
    assert found.metadata.name == f"job-a-{digits}"
    assert found.metadata.annotations[GATE] == "true"
    resize(cluster, "a", 4)
    (second,) = slices(cluster)
    assert second.metadata.annotations[SLICE] == found.metadata.name


def test_workers_of_a_ray_cluster_grow_and_shrink() -> None:
    content = suspended_content("RayCluster", "r")
    content["metadata"]["annotations"] = ELASTIC
    cluster = started(make_node("n1", cpu=64, gpu=8), *one_queue(5), make_object(content))
    assert workers(cluster) == 3

    def scale(replicas: int) -> None:
        found = cluster.api.get(RayCluster, "default/r")
        assert found is not None
        at = "/spec/workerGroupSpecs/0"
        fields = {f"{at}/replicas": replicas, f"{at}/maxReplicas": 8}
        cluster.api.submit(PatchFields(RayCluster, "default/r", found.metadata.uid, fields))
        cluster.advance(60.0)

    scale(6)
    assert (workers(cluster), gated(cluster)) == (3, 3)
    scale(5)
    assert (workers(cluster), gated(cluster)) == (5, 0)
    scale(2)
    (left,) = slices(cluster)
    assert [(one.name, one.count) for one in left.spec.pod_sets] == [("head", 1), ("w", 2)]
    assert workers(cluster) == 2


def workers(cluster: Cluster) -> int:
    pods = cluster.api.list(Pod)
    return sum(
        p.metadata.labels["ray.io/node-type"] == "worker" and bool(p.spec.node_name) for p in pods
    )


def test_a_ray_cluster_with_another_group_waits_anew() -> None:
    content = suspended_content("RayCluster", "r")
    content["metadata"]["annotations"] = ELASTIC
    cluster = started(make_node("n1", cpu=64, gpu=8), *one_queue(4), make_object(content))
    found = cluster.api.get(RayCluster, "default/r")
    assert found is not None
    (group,) = found.spec.worker_group_specs
    more = replace(group, group_name="x", replicas=2)
    cluster.api.update(replace(found, spec=replace(found.spec, worker_group_specs=(group, more))))
    cluster.advance(60.0)
    (left,) = slices(cluster)
    assert [(one.name, one.count) for one in left.spec.pod_sets] == [
        ("head", 1),
        ("w", 3),
        ("x", 2),
    ]
    assert said(left).get("Evicted") == "NoMatchingWorkload"
    assert workers(cluster) == 0


def test_a_kind_that_kueue_has_no_slices_for_waits_anew() -> None:
    content = suspended_content("JobSet", "s")
    content["metadata"]["annotations"] = ELASTIC
    cluster = started(make_node("n1", cpu=64, gpu=8), *one_queue(8), make_object(content))
    (first,) = slices(cluster)
    found = cluster.api.get(JobSet, "default/s")
    assert found is not None
    driver, group = found.spec.replicated_jobs
    more = (driver, replace(group, replicas=4))
    cluster.api.update(replace(found, spec=replace(found.spec, replicated_jobs=more)))
    cluster.advance(60.0)
    (left,) = slices(cluster)
    assert left.key == first.key
    assert [one.count for one in left.spec.pod_sets] == [1, 4]
    assert said(left)["Admitted"]
