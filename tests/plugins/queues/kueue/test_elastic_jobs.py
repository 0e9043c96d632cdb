"""Elastic jobs in ClusterQueues: they grow by slices, and shrink at once."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from msgspec.structs import replace
from tests.plugins.queues.kueue.kueue_builders import check, cluster_queue, flavor, local_queue
from tests.plugins.queues.kueue.queued_job_builders import (
    GPU,
    job,
    on_nodes,
    one_queue,
    running,
    started,
    suspended_content,
)

from bayplan.api import (
    KINDS,
    ApiObject,
    ClusterQueue,
    Job,
    JobSet,
    KueueWorkload,
    Node,
    Pod,
    RayCluster,
    RayJob,
)
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
    others = [check(), flavor("f"), queue, local_queue("lq", "cq"), elastic("a", 1)]
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


def autoscaled(cluster: Cluster, replicas: int) -> None:
    """Set the workers of the only Ray cluster, as Ray's autoscaler does."""
    (found,) = cluster.api.list(RayCluster)
    at = "/spec/workerGroupSpecs/0"
    gone = [p.metadata.name for p in cluster.api.list(Pod) if "worker" in p.metadata.name]
    fields = {
        f"{at}/replicas": replicas,
        f"{at}/scaleStrategy": {"workersToDelete": sorted(gone)[replicas:]},
    }
    key = f"default/{found.metadata.name}"
    cluster.api.submit(PatchFields(RayCluster, key, found.metadata.uid, fields))
    cluster.advance(60.0)


def ray_job(name: str = "r", most: int = 8, **marks: str) -> RayJob:
    """Return a Ray job with a head and three workers, which Ray's autoscaler sizes."""
    content = suspended_content("RayJob", name)
    content["metadata"]["annotations"] = {**ELASTIC, **marks}
    content["spec"]["rayClusterSpec"]["enableInTreeAutoscaling"] = True
    content["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["maxReplicas"] = most
    made = make_object(content)
    assert isinstance(made, RayJob)
    return made


IN_PARTS = {"kueue.x-k8s.io/elastic-job-scale-up": "partial"}


def test_a_job_that_grows_in_parts_gets_what_there_is_and_waits_for_the_rest() -> None:
    cluster = started(make_node("n1", cpu=64, gpu=16), *ray_queue(7), ray_job(most=16, **IN_PARTS))
    autoscaled(cluster, 5)
    assert (workers(cluster), gated(cluster), ray_sizes(cluster)) == (5, 0, [5])
    autoscaled(cluster, 10)
    assert (workers(cluster), gated(cluster)) == (7, 3)
    part, rest = slices(cluster)
    assert (admitted(part), admitted(rest)) == (7, None)
    assert (bounds(part), bounds(rest)) == ((10, 6), (10, 8))
    assert rest.metadata.annotations[REPLACES] == part.key
    autoscaled(cluster, 12)
    assert (workers(cluster), gated(cluster)) == (7, 5)
    assert [bounds(one) for one in slices(cluster)] == [(10, 6), (12, 8)]
    more = cluster_queue("cq", {"f": {GPU: 12, "cpu": 100, "memory": 2**40}})
    (queue,) = cluster.api.list(ClusterQueue)
    cluster.api.update(replace(queue, spec=more.spec))
    cluster.advance(60.0)
    assert (workers(cluster), gated(cluster)) == (12, 0)
    (left,) = slices(cluster)
    assert admitted(left) == 12
    autoscaled(cluster, 8)
    (left,) = slices(cluster)
    assert (workers(cluster), admitted(left), left.spec.pod_sets[1].count) == (8, 8, 8)


def test_a_job_that_grew_by_a_part_and_wants_no_more_stops_waiting() -> None:
    cluster = started(make_node("n1", cpu=64, gpu=16), *ray_queue(7), ray_job(most=16, **IN_PARTS))
    autoscaled(cluster, 10)
    assert (workers(cluster), len(slices(cluster))) == (7, 2)
    autoscaled(cluster, 7)
    assert (workers(cluster), gated(cluster), ray_sizes(cluster)) == (7, 0, [7])
    autoscaled(cluster, 9)
    assert (workers(cluster), gated(cluster), ray_sizes(cluster)) == (7, 2, [7, 9])
    autoscaled(cluster, 4)
    assert (workers(cluster), gated(cluster), ray_sizes(cluster)) == (4, 0, [4])


def test_a_scheduler_that_starts_anew_knows_what_a_job_grew_by() -> None:
    cluster = started(make_node("n1", cpu=64, gpu=16), *ray_queue(7), ray_job(most=16, **IN_PARTS))
    autoscaled(cluster, 10)
    types = (Node, *(kind.type for kind in KINDS.values() if kind.type not in (Node, Pod)), Pod)
    again = started(*(one for type_ in types for one in cluster.api.list(type_)))
    assert (workers(again), gated(again)) == (7, 3)
    assert [one.key for one in slices(again)] == [one.key for one in slices(cluster)]


def test_a_plain_job_grows_in_parts_too() -> None:
    made = job("a", 2, completions=None, annotations=ELASTIC | IN_PARTS)
    cluster = started(make_node("n1", gpu=8), *one_queue(4), made)
    resize(cluster, "a", 6)
    assert (on_nodes(cluster), gated(cluster)) == ({"a": 4}, 2)


def test_groups_whose_workers_have_several_hosts_grow_as_a_whole() -> None:
    content = suspended_content("RayCluster", "r")
    content["metadata"]["annotations"] = {**ELASTIC, **IN_PARTS}
    content["spec"]["workerGroupSpecs"][0] |= {"numOfHosts": 2, "replicas": 1, "maxReplicas": 8}
    cluster = started(make_node("n1", cpu=64, gpu=8), *one_queue(5), make_object(content))
    assert workers(cluster) == 2
    autoscaled(cluster, 3)
    assert (workers(cluster), gated(cluster)) == (2, 4)


def test_the_last_worker_group_waits_first() -> None:
    content = suspended_content("RayCluster", "r")
    content["metadata"]["annotations"] = {**ELASTIC, **IN_PARTS}
    groups = content["spec"]["workerGroupSpecs"]
    groups[0] |= {"replicas": 1, "maxReplicas": 8}
    groups.append({**groups[0], "groupName": "spare"})
    cluster = started(make_node("n1", cpu=64, gpu=16), *one_queue(8), make_object(content))
    (found,) = cluster.api.list(RayCluster)
    fields = {f"/spec/workerGroupSpecs/{place}/replicas": 5 for place in (0, 1)}
    cluster.api.submit(PatchFields(RayCluster, "default/r", found.metadata.uid, fields))
    cluster.advance(60.0)
    groups_of = [
        pod.metadata.labels.get("ray.io/group")
        for pod in cluster.api.list(Pod)
        if pod.spec.node_name
    ]
    assert Counter(groups_of)["w"] == 5
    assert Counter(groups_of)["spare"] == 3


def admitted(workload: KueueWorkload) -> int | None:
    """Return with how many workers a Workload was admitted."""
    found = workload.status.admission
    return found.pod_set_assignments[1].count if found is not None else None


def bounds(workload: KueueWorkload) -> tuple[int, int | None]:
    return workload.spec.pod_sets[1].count, workload.spec.pod_sets[1].min_count


def ray_queue(gpus: int, **spec: Any) -> list[ApiObject]:
    """Return a queue that also has room for the pod that submits a Ray job's work."""
    quota = {GPU: gpus, "cpu": 100, "memory": 2**40}
    return [flavor("f"), cluster_queue("cq", {"f": quota}, **spec), local_queue("lq", "cq")]


def ray_sizes(cluster: Cluster) -> list[int]:
    """Return how many workers the Workloads of Ray ask for that have not ended."""
    return [p.count for one in slices(cluster) for p in one.spec.pod_sets if p.name == "w"]


def test_a_ray_job_grows_and_shrinks_as_its_autoscaler_says() -> None:
    cluster = started(make_node("n1", cpu=64, gpu=8), *ray_queue(5), ray_job())
    assert (workers(cluster), ray_sizes(cluster)) == (3, [3])
    assert len(cluster.api.list(RayCluster)) == 1
    autoscaled(cluster, 6)
    assert (workers(cluster), gated(cluster), ray_sizes(cluster)) == (3, 3, [3, 6])
    autoscaled(cluster, 5)
    assert (workers(cluster), gated(cluster), ray_sizes(cluster)) == (5, 0, [5])
    (left,) = slices(cluster)
    assert left.metadata.owner_references[0].kind == "RayJob"
    autoscaled(cluster, 2)
    assert (workers(cluster), ray_sizes(cluster)) == (2, [2])
    cluster.add(job("b", 3))
    cluster.advance(60.0)
    assert on_nodes(cluster)["b"] == 3, "what the Ray job gave back is free"


def test_a_preempted_ray_job_comes_back_with_the_size_of_its_own_spec() -> None:
    queues = ray_queue(5, preemption={"withinClusterQueue": "LowerPriority"})
    cluster = started(make_node("n1", cpu=64, gpu=8), *queues, ray_job())
    autoscaled(cluster, 5)
    assert workers(cluster) == 5
    cluster.add(job("high", 2, priority=10))
    cluster.advance(120.0)
    assert on_nodes(cluster)["high"] == 2
    cluster.advance(120.0)
    assert (workers(cluster), ray_sizes(cluster)) == (3, [3])


def test_a_scheduler_that_starts_anew_knows_the_size_of_a_ray_job() -> None:
    cluster = started(make_node("n1", cpu=64, gpu=8), *ray_queue(8), ray_job())
    autoscaled(cluster, 5)
    types = (Node, *(kind.type for kind in KINDS.values() if kind.type not in (Node, Pod)), Pod)
    again = started(*(one for type_ in types for one in cluster.api.list(type_)))
    assert (workers(again), ray_sizes(again)) == (5, [5])
    (found,) = slices(again)
    assert found.metadata.name == slices(cluster)[0].metadata.name


def test_the_container_that_sizes_a_ray_cluster_counts() -> None:
    first, second = ray_job("a"), ray_job("b")
    cluster = started(make_node("n1", cpu=64, gpu=8), *ray_queue(8), first, second)
    (queue,) = cluster.api.list(ClusterQueue)
    (used,) = queue.status.flavors_usage
    cpu = {one.name: one.total for one in used.resources}["cpu"]
    # Each has a submitter and the autoscaler's container, of half a core.
    assert cpu is not None
    assert cpu.milli == 2 * (500 + 500)
    heads = [p for p in cluster.api.list(Pod) if p.metadata.name.endswith("-head")]
    assert {one.name for pod in heads for one in pod.spec.containers} == {"c", "autoscaler"}


def test_a_ray_job_without_autoscaler_has_one_size() -> None:
    content = suspended_content("RayJob", "r")
    content["metadata"]["annotations"] = ELASTIC
    cluster = started(make_node("n1", cpu=64, gpu=8), *ray_queue(8), make_object(content))
    assert (workers(cluster), gated(cluster)) == (3, 0)


def workers(cluster: Cluster) -> int:
    pods = cluster.api.list(Pod)
    return sum(
        p.metadata.labels.get("ray.io/node-type") == "worker" and bool(p.spec.node_name)
        for p in pods
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
