"""The Workloads of replicas of LeaderWorkerSets, which are never suspended."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.plugins.queues.kueue.queued_job_builders import GPU, LABEL, one_queue, started
from tests.plugins.queues.kueue.test_pod_workloads import charged, queued, stated

from bayplan.api import ApiObject, KueueWorkload, Pod, Topology, WorkloadPriorityClass
from bayplan.api.meta import ObjectMeta
from bayplan.api.objects import decode_part
from bayplan.api.operated import LeaderWorkerSet
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.cluster.protocol import Done, PatchStatus, Write
from bayplan.testing import Cluster, make_node, make_object

PRIORITY = "kueue.x-k8s.io/priority-class"


def template(gpu: int = 1) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"limits": {GPU: str(gpu)}}}
    return {"spec": {"containers": [container]}}


def lws(
    replicas: int = 1,
    size: int = 3,
    leader: int | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> ApiObject:
    """Return a set ``l``; ``leader`` is what its leaders ask for, if they have a template."""
    templates = {"size": size, "workerTemplate": template()}
    if leader is not None:
        templates["leaderTemplate"] = template(leader)
    meta = {"name": "l", "namespace": "default", "uid": "u"}
    return make_object(
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {**meta, "labels": {LABEL: "lq", **(labels or {})}},
            "spec": {"replicas": replicas, "leaderWorkerTemplate": templates, **spec},
        }
    )


def topology(*levels: str) -> Topology:
    spec = {"levels": [{"nodeLabel": one} for one in levels]}
    return decode_part(Topology, {"metadata": {"name": "t"}, "spec": spec})


def run(*objects: ApiObject, quota: int = 8, gpus: int = 8) -> Cluster:
    cluster = started(make_node("n", gpu=gpus), *one_queue(quota), *objects)
    cluster.advance(5.0)
    return cluster


def workloads(cluster: Cluster) -> dict[str, KueueWorkload]:
    return {one.metadata.name.rpartition("-")[0]: one for one in cluster.api.list(KueueWorkload)}


def sets_of(found: KueueWorkload) -> dict[str, int]:
    return {one.name: one.count for one in found.spec.pod_sets}


def placed(cluster: Cluster) -> list[str]:
    return sorted(pod.metadata.name for pod in cluster.api.list(Pod) if pod.spec.node_name)


def changed(cluster: Cluster, **spec: Any) -> None:
    found = cluster.api.get(LeaderWorkerSet, "default/l")
    assert found is not None
    cluster.api.update(replace(found, spec={**found.spec, **spec}))
    cluster.advance(60.0)


def made_again(cluster: Cluster) -> None:
    for pod in cluster.api.list(Pod):
        if pod.metadata.name.startswith("l-"):
            cluster.api.delete(Pod, pod.key)
    cluster.advance(60.0)


def test_each_replica_has_a_workload_as_kueue_names_and_writes_it() -> None:
    cluster = run(lws(2, leader=2))
    found = workloads(cluster)
    assert set(found) == {"leaderworkerset-l-0", "leaderworkerset-l-1"}
    one = found["leaderworkerset-l-1"]
    assert sets_of(one) == {"leader": 1, "worker": 2}
    assert one.metadata.annotations == {
        "kueue.x-k8s.io/is-group-workload": "true",
        "kueue.x-k8s.io/component-workload-index": "1",
        "kueue.x-k8s.io/job-owner-gvk": "leaderworkerset.x-k8s.io/v1, Kind=LeaderWorkerSet",
        "kueue.x-k8s.io/job-owner-name": "l",
    }
    (owner,) = one.metadata.owner_references
    assert (owner.kind, owner.name, owner.uid, owner.controller) == (
        "LeaderWorkerSet",
        "l",
        "u",
        None,
    )
    requests = {one.name: one.topology_request for one in one.spec.pod_sets}
    assert requests["leader"] is None
    worker = requests["worker"]
    assert worker is not None
    assert worker.pod_index_label == "leaderworkerset.sigs.k8s.io/worker-index"
    assert charged(cluster) == 8
    assert len(placed(cluster)) == 6


def test_pods_of_one_template_are_one_pod_set() -> None:
    (one,) = workloads(run(lws())).values()
    assert sets_of(one) == {"main": 3}


def test_a_leader_of_the_same_template_is_in_the_domain_of_its_workers() -> None:
    labelled = [(f"n{index}", {"rack": f"r{index // 4}"}) for index in range(8)]
    nodes = [make_node(name, gpu=1, labels=labels) for name, labels in labelled]
    pods = template()
    pods["metadata"] = {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}}
    made: Any = lws(2)
    spec = {**made.spec, "leaderWorkerTemplate": {"size": 3, "workerTemplate": pods}}
    chosen, *queues = one_queue(8, topologyName="t")
    cluster = started(*nodes, topology("rack"), chosen, *queues, replace(made, spec=spec))
    cluster.advance(10.0)
    found = {pod.metadata.name: pod.spec.node_name for pod in cluster.api.list(Pod)}
    assert [found[name] for name in ("l-0", "l-0-1", "l-0-2")] == ["n0", "n1", "n2"]
    assert [found[name] for name in ("l-1", "l-1-1", "l-1-2")] == ["n4", "n5", "n6"]


def test_a_replica_without_quota_waits_as_a_whole() -> None:
    cluster = run(lws(2), quota=4)
    assert placed(cluster) == ["l-0", "l-0-1", "l-0-2"]
    assert charged(cluster) == 3
    assert "couldn't assign flavors" in cluster.message("default/l-1")


def test_a_leader_has_quota_for_the_workers_that_come_once_it_is_ready() -> None:
    cluster = run(lws(2, startupPolicy="LeaderReady"), quota=4)
    assert {sum(sets_of(one).values()) for one in workloads(cluster).values()} == {3}
    assert charged(cluster) == 3
    assert "l-1" not in placed(cluster)


def test_a_replica_keeps_its_quota_while_its_pods_are_made_again() -> None:
    cluster = run(lws(), quota=4)
    cluster.add(queued("other", 4))
    one = workloads(cluster)["leaderworkerset-l-0"]
    made_again(cluster)
    assert placed(cluster) == ["l-0", "l-0-1", "l-0-2"]
    again = workloads(cluster)["leaderworkerset-l-0"]
    assert again.metadata.uid == one.metadata.uid
    assert stated(again)["QuotaReserved"] == stated(one)["QuotaReserved"]
    assert charged(cluster) == 3


def test_the_workload_of_a_replica_that_is_gone_is_deleted() -> None:
    cluster = run(lws(2))
    changed(cluster, replicas=1)
    assert set(workloads(cluster)) == {"leaderworkerset-l-0"}
    assert charged(cluster) == 3


def test_workloads_go_with_their_set() -> None:
    cluster = run(lws(2))
    cluster.api.delete(LeaderWorkerSet, "default/l")
    cluster.advance(60.0)
    assert cluster.api.list(KueueWorkload) == []
    assert charged(cluster) == 0


def preempting() -> Cluster:
    """Return a cluster with a replica in a queue where urgent workloads preempt others."""
    rules = {"withinClusterQueue": "LowerPriority"}
    urgent = WorkloadPriorityClass(7, ObjectMeta(name="urgent"))
    cluster = Cluster((), plugins={"Queues": {}})
    start_controllers(cluster.api)
    flavor, queue, local = one_queue(4)
    queue = replace(queue, spec=replace(queue.spec, preemption=_preemption(queue, rules)))  # type: ignore[attr-defined,type-var]
    cluster.add(make_node("n", gpu=8), flavor, queue, local, urgent, lws())
    cluster.schedule()
    cluster.advance(5.0)
    assert charged(cluster) == 3
    return cluster


def test_a_replica_that_is_preempted_waits_while_its_eviction_is_being_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = preempting()
    submit = cluster.api.submit

    def submit_later(write: Write, done: Done | None = None) -> None:
        """Let a real API server's latency go by before a status is written."""
        if isinstance(write, PatchStatus) and write.type is KueueWorkload:
            cluster.api.clock.call_later(40.0, lambda: submit(write, done))
        else:
            submit(write, done)

    monkeypatch.setattr(cluster.api, "submit", submit_later)
    cluster.add(queued("other", 4, labels={PRIORITY: "urgent"}))
    for _ in range(120):
        cluster.advance(1.0)
        assert len(placed(cluster)) <= 4
        assert not {"other", "l-0"} <= set(placed(cluster))
    assert placed(cluster) == ["other"]


def test_a_replica_that_is_preempted_comes_back_when_there_is_quota() -> None:
    cluster = preempting()
    cluster.add(queued("other", 4, labels={PRIORITY: "urgent"}))
    cluster.advance(60.0)
    assert placed(cluster) == ["other"]
    assert stated(workloads(cluster)["leaderworkerset-l-0"])["QuotaReserved"][0] == "False"
    cluster.api.delete(Pod, "default/other")
    cluster.advance(60.0)
    assert placed(cluster) == ["l-0", "l-0-1", "l-0-2"]
    assert charged(cluster) == 3


def _preemption(queue: Any, rules: dict[str, str]) -> Any:
    return replace(queue.spec.preemption, within_cluster_queue=rules["withinClusterQueue"])


def test_a_replica_has_the_priority_that_its_set_names() -> None:
    urgent = WorkloadPriorityClass(7, ObjectMeta(name="urgent"))
    (one,) = workloads(run(urgent, lws(labels={PRIORITY: "urgent"}))).values()
    assert one.spec.priority == 7
    assert one.spec.priority_class_ref is not None
    assert one.spec.priority_class_ref.kind == "WorkloadPriorityClass"


def test_a_replica_of_another_size_waits_again_once_its_pods_are_gone() -> None:
    cluster = run(lws(), quota=6)
    changed(cluster, leaderWorkerTemplate={"size": 3, "workerTemplate": template(2)})
    made_again(cluster)
    assert charged(cluster) == 6
    (one,) = workloads(cluster).values()
    assert stated(one)["QuotaReserved"][0] == "True"
    assert placed(cluster) == ["l-0", "l-0-1", "l-0-2"]


def test_a_restart_goes_on_from_the_workloads_of_replicas() -> None:
    before = run(lws(2), quota=4)
    kinds = (LeaderWorkerSet, KueueWorkload, Pod)
    kept = [one for kind in kinds for one in before.api.list(kind)]
    cluster = Cluster((), plugins={"Queues": {}})
    cluster.add(make_node("n", gpu=8), *one_queue(4), *kept)
    cluster.schedule()
    cluster.advance(5.0)
    uids = {one.key: one.metadata.uid for one in before.api.list(KueueWorkload)}
    assert {one.key: one.metadata.uid for one in cluster.api.list(KueueWorkload)} == uids
    assert charged(cluster) == 3


def test_a_set_that_kueues_webhook_would_refuse_waits_and_says_why() -> None:
    cluster = run(lws(labels={"kueue.x-k8s.io/max-exec-time-seconds": "soon"}))
    assert placed(cluster) == []
    assert "expected a number of seconds" in cluster.message("default/l-0")


def test_a_set_that_a_controller_gates_waits_for_it() -> None:
    gated = lws()
    marks = {"kueue.x-k8s.io/admission-gated-by": "example.com/gate"}
    gated = replace(gated, metadata=replace(gated.metadata, annotations=marks))  # type: ignore[attr-defined,type-var]
    cluster = run(gated)
    assert placed(cluster) == []
    assert "waits for example.com/gate" in cluster.message("default/l-0")


def test_pods_that_kueues_manager_has_marked_are_of_the_same_workload() -> None:
    before = run(lws(leader=2), quota=4)
    (one,) = workloads(before).values()
    marks = {
        "kueue.x-k8s.io/pod-group-name": one.metadata.name,
        "kueue.x-k8s.io/pod-group-total-count": "3",
        "kueue.x-k8s.io/pod-group-serving": "true",
    }
    kept: list[ApiObject] = [*before.api.list(LeaderWorkerSet), one]
    for pod in before.api.list(Pod):
        role = "leader" if pod.metadata.name == "l-0" else "worker"
        annotations = {**marks, "kueue.x-k8s.io/role-hash": role}
        labels = {**pod.metadata.labels, LABEL: "lq"}
        meta = replace(pod.metadata, annotations=annotations, labels=labels)
        kept.append(replace(pod, metadata=meta))
    cluster = Cluster((), plugins={"Queues": {}})
    start_controllers(cluster.api)
    cluster.add(make_node("n", gpu=8), *one_queue(4), *kept)
    cluster.schedule()
    cluster.advance(5.0)
    assert charged(cluster) == 4
    # Nobody marks those that are made again.
    made_again(cluster)
    assert placed(cluster) == ["l-0", "l-0-1", "l-0-2"]
    (again,) = workloads(cluster).values()
    assert again.metadata.uid == one.metadata.uid
    assert stated(again)["QuotaReserved"] == stated(one)["QuotaReserved"]
    assert charged(cluster) == 4
