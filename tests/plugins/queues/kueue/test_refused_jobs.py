"""Jobs that cannot be queued as they are, or no more: nothing runs without quota, none is lost."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.plugins.queues.kueue.kueue_builders import check, cluster_queue, flavor, local_queue
from tests.plugins.queues.kueue.queued_job_builders import (
    GPU,
    KINDS,
    job,
    one_queue,
    running,
    runtime,
    started,
    suspended_content,
    workload_of,
)
from tests.plugins.queues.kueue.test_suspended_kinds import make, world

from bayplan.api import KINDS as ALL_KINDS
from bayplan.api import ApiObject, Job, JobSet, KueueWorkload, Pod, RayCluster, RayJob
from bayplan.api.kueue import AdmissionCheckState
from bayplan.api.operated import ClusterTrainingRuntime, MPIJob, RayService, TFJob, TrainJob
from bayplan.dialects.queued_jobs import queued_job, queued_kinds
from bayplan.queues.held_jobs import HeldJobs
from bayplan.testing import Cluster, make_node, make_object

GATE = {"kueue.x-k8s.io/admission-gated-by": "example.com/budget"}


def gate(cluster: Cluster, kind: str, name: str, gates: dict[str, str]) -> None:
    (type_,) = (one for one in queued_kinds() if one.__name__ == kind)
    found = cluster.api.get(type_, f"default/{name}")
    assert found is not None
    cluster.api.update(replace(found, metadata=replace(found.metadata, annotations=gates)))


def found_by(cluster: Cluster, kind: str, name: str) -> Any:
    (type_,) = (one for one in queued_kinds() if one.__name__ == kind)
    return queued_job(
        cluster.api.get(type_, f"default/{name}"),
        lambda of, key: cluster.api.get(of, key),
    )


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_job_gated_while_it_runs_is_restored_once_it_is_preempted(kind: str) -> None:
    cluster = started(*world(), make(kind, "a"))
    cluster.advance(30.0)
    gate(cluster, kind, "a", GATE)
    cluster.advance(30.0)
    assert not found_by(cluster, kind, "a").suspended
    cluster.add(make("Job", "urgent", 10))
    cluster.advance(120.0)
    stopped = found_by(cluster, kind, "a")
    assert stopped.suspended
    for pods in stopped.pods:
        assert pods.template.spec.node_selector == {}
        assert not any(key.startswith("kueue") for key in pods.template.metadata.labels)
    states = {one.type: one.status for one in workload_of(cluster, "a").status.conditions}
    assert states["QuotaReserved"] == "False"
    cluster.api.delete(Job, "default/urgent")
    cluster.advance(60.0)
    assert found_by(cluster, kind, "a").suspended
    gate(cluster, kind, "a", {})
    cluster.advance(60.0)
    assert not found_by(cluster, kind, "a").suspended


def in_live_order(cluster: Cluster) -> list[ApiObject]:
    """Return the objects of a cluster as a live scheduler lists them: by group, pods last."""
    kinds = sorted(ALL_KINDS.values(), key=lambda kind: (kind.group, kind.name))
    kinds.sort(key=lambda kind: kind.type is Pod)
    return [one for kind in kinds for one in cluster.api.list(kind.type)]


def test_after_a_restart_a_train_job_has_its_quota_once() -> None:
    node, queues = make_node("n", gpu=6), one_queue(6)
    cluster = started(make_object(runtime()), node, *queues, make_train_job())
    cluster.advance(30.0)
    again = started(*in_live_order(cluster))
    again.advance(30.0)
    again.add(job("next", 3))
    again.advance(60.0)
    owners = {one.metadata.owner_references[0].kind for one in again.api.list(KueueWorkload)}
    assert owners == {"TrainJob", "Job"}
    assert "next" in running(again)


def test_after_a_restart_the_pods_of_a_train_job_keep_their_quota_until_they_end() -> None:
    preemption = {"withinClusterQueue": "LowerPriority"}
    queue = cluster_queue("cq", {"f": {GPU: 3}}, preemption=preemption)
    cluster = started(
        make_object(runtime()),
        make_node("n", gpu=6),
        flavor("f"),
        queue,
        local_queue("lq", "cq"),
        make_train_job(),
    )
    cluster.advance(30.0)
    again = started(*in_live_order(cluster))
    again.advance(30.0)
    again.add(job("urgent", 3, priority=10))
    again.advance(120.0)
    assert "urgent" in running(again)
    placed = [pod.metadata.name for pod in again.api.list(Pod) if pod.spec.node_name]
    assert len(placed) == 3
    assert all(name.startswith("urgent") for name in placed)


def make_train_job() -> ApiObject:
    return make_object(suspended_content("TrainJob", "a"))


def test_a_train_job_whose_runtime_goes_is_stopped_with_its_job_set() -> None:
    cluster = started(*world(), make("TrainJob", "a"))
    cluster.advance(30.0)
    cluster.api.delete(ClusterTrainingRuntime, "r")
    cluster.advance(10.0)
    cluster.add(make("Job", "urgent", 10))
    cluster.advance(120.0)
    assert [one.spec.suspend for one in cluster.api.list(JobSet)] == [True]
    pods = [pod.metadata.name for pod in cluster.api.list(Pod)]
    assert len(pods) == 3
    assert all(name.startswith("urgent") for name in pods)


def test_a_train_job_waits_for_its_runtime_and_says_so() -> None:
    objects = [one for one in world() if not isinstance(one, ClusterTrainingRuntime)]
    cluster = started(*objects, make("TrainJob", "a"))
    held = HeldJobs(cluster.scheduler.snapshot, lambda key: None)
    assert [one.why for one in held.all()] == ["its ClusterTrainingRuntime r is not there"]
    cluster.add(make_object(runtime()))
    cluster.advance(30.0)
    assert [one.spec["suspend"] for one in cluster.api.list(TrainJob)] == [False]
    assert list(held.all()) == []


@pytest.mark.parametrize("kind", ["RayCluster", "RayJob", "RayService"])
def test_a_cluster_that_sizes_itself_is_held_unless_it_says_that_it_is_elastic(kind: str) -> None:
    """It would be stopped each time that its size changes."""
    content = suspended_content(kind, "s")
    spec = content["spec"]
    own = spec.get("rayClusterConfig") or spec.get("rayClusterSpec") or spec
    own["enableInTreeAutoscaling"] = True
    cluster = started(*world(), make_object(content))
    held = HeldJobs(cluster.scheduler.snapshot, lambda key: None)
    (one,) = held.all()
    assert "enableInTreeAutoscaling: Invalid value" in one.why
    elastic = {**content["metadata"], "annotations": {"kueue.x-k8s.io/elastic-job": "true"}}
    again = started(*world(), make_object({**content, "metadata": elastic}))
    assert list(HeldJobs(again.scheduler.snapshot, lambda key: None).all()) == []


def test_what_a_refused_service_makes_does_not_queue_in_its_place() -> None:
    content = suspended_content("RayService", "s")
    content["spec"]["rayClusterConfig"]["enableInTreeAutoscaling"] = True
    cluster = started(*world(), make_object(content))
    cluster.advance(60.0)
    assert cluster.api.list(KueueWorkload) == []
    assert [one.spec.suspend for one in cluster.api.list(RayCluster)] == [True]
    (service,) = cluster.api.list(RayService)
    version = service.metadata.resource_version
    cluster.advance(600.0)
    assert [one.metadata.resource_version for one in cluster.api.list(RayService)] == [version]


def test_labels_that_a_template_was_copied_with_are_replaced() -> None:
    made = job("copy", 2)
    template = made.spec.template
    old = {"kueue.x-k8s.io/cluster-queue-name": "old"}
    template = replace(template, metadata=replace(template.metadata, labels=old))
    copy = replace(made, spec=replace(made.spec, template=template))
    cluster = started(make_node("n", gpu=4), *one_queue(2), copy)
    cluster.advance(30.0)
    label = "kueue.x-k8s.io/cluster-queue-name"
    assert {pod.metadata.labels[label] for pod in cluster.api.list(Pod)} == {"cq"}


@pytest.mark.parametrize("names", [("w", "W"), ("head", "w")])
def test_pod_sets_of_one_name_are_refused(names: tuple[str, str]) -> None:
    content = suspended_content("RayCluster", "a")
    (group,) = content["spec"]["workerGroupSpecs"]
    content["spec"]["workerGroupSpecs"] = [{**group, "groupName": name} for name in names]
    cluster = started(*world(), make_object(content), make("Job", "good"))
    cluster.advance(30.0)
    (held,) = HeldJobs(cluster.scheduler.snapshot).all()
    assert held.key == "default/a"
    assert "have the name" in held.why
    assert running(cluster) == {"good"}


ODD: list[tuple[str, dict[str, Any]]] = [
    ("TFJob", {"status": {"conditions": None, "replicaStatuses": None}}),
    ("TFJob", {"status": {"conditions": [None], "replicaStatuses": {"Worker": None}}}),
    ("TFJob", {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 2, "template": "x"}}}}),
    ("TFJob", {"spec": {"tfReplicaSpecs": [1]}}),
    ("TrainJob", {"spec": {"runtimeRef": "torch"}}),
    ("TrainJob", {"spec": {"runtimeRef": {"name": "r"}, "trainer": "x"}}),
    ("TrainJob", {"spec": {"runtimeRef": {"name": "r"}, "runtimePatches": ["x"]}}),
    ("TrainJob", {"spec": {"runtimeRef": {"name": "r"}, "workerGroupSpecs": 5}}),
    ("TrainJob", {"spec": {"runtimeRef": {"name": "r"}, "trainer": {"numNodes": 10**11}}}),
    ("RayService", {"spec": {"rayClusterConfig": {"workerGroupSpecs": 5}}}),
    ("RayService", {"spec": {"rayClusterConfig": {"headGroupSpec": {"template": {"spec": 1}}}}}),
    ("MPIJob", {"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 10**9, "template": {}}}}}),
]


@pytest.mark.parametrize("label", [True, False])
@pytest.mark.parametrize(("kind", "change"), ODD)
def test_an_odd_object_takes_no_other_job_with_it(
    kind: str, change: dict[str, Any], label: bool
) -> None:
    (known,) = (one for one in ALL_KINDS.values() if one.type.__name__ == kind)
    content = {**suspended_content(kind, "odd"), **change}
    labels = content["metadata"]["labels"] if label else {}
    odd = known.type(
        metadata=replace(job("odd").metadata, labels=labels),
        spec=content.get("spec", {}),
        status=content.get("status", {}),
    )
    cluster = started(*world(), odd, make("Job", "good"))
    cluster.advance(60.0)
    assert "good" in running(cluster)


def test_workers_go_with_their_launcher_where_the_job_says_so() -> None:
    content = suspended_content("MPIJob", "a")
    content["spec"]["runPolicy"]["cleanPodPolicy"] = "Running"
    cluster = started(*world(), make_object(content))
    cluster.advance(30.0)
    launcher = cluster.api.get(Pod, "default/a-launcher")
    assert launcher is not None
    cluster.api.update(replace(launcher, status=replace(launcher.status, phase="Succeeded")))
    cluster.advance(60.0)
    assert [pod.metadata.name for pod in cluster.api.list(Pod)] == ["a-launcher"]
    (ended,) = cluster.api.list(MPIJob)
    assert "Succeeded" in {one["type"] for one in ended.status["conditions"]}
    cluster.add(make("TFJob", "b"))
    cluster.advance(60.0)
    assert [one.spec["runPolicy"]["suspend"] for one in cluster.api.list(TFJob)] == [False]


def with_checks(*names: str) -> list[ApiObject]:
    checks = {"admissionChecks": [{"name": "budget"}]}
    queue = cluster_queue("cq", {"f": {GPU: 6}}, admissionChecksStrategy=checks)
    jobs = [job(name, 2) for name in names]
    return [make_node("n", gpu=8), check(), flavor("f"), queue, local_queue("lq", "cq"), *jobs]


def ready(cluster: Cluster, name: str, *updates: dict[str, Any]) -> None:
    found = workload_of(cluster, name)
    state = AdmissionCheckState(
        "budget",
        "Ready",
        last_transition_time="2000-01-01T00:00:05Z",
        pod_set_updates=updates,
    )
    cluster.api.update(replace(found, status=replace(found.status, admission_checks=(state,))))


def test_a_job_gated_while_it_waits_for_its_checks_gives_its_quota_back() -> None:
    cluster = started(*with_checks("a"))
    assert {c.type: c.status for c in workload_of(cluster, "a").status.conditions}[
        "QuotaReserved"
    ] == "True"
    gate(cluster, "Job", "a", GATE)
    cluster.advance(60.0)
    ready(cluster, "a")
    cluster.advance(60.0)
    assert running(cluster) == set()
    states = {c.type: c.status for c in workload_of(cluster, "a").status.conditions}
    assert states["QuotaReserved"] == "False"


def test_a_gate_that_comes_and_goes_does_not_activate_a_job() -> None:
    cluster = started(make_node("n", gpu=8), *one_queue(2), job("blk", 2), job("w", 2))
    found = workload_of(cluster, "w")
    cluster.api.update(replace(found, spec=replace(found.spec, active=False)))
    cluster.advance(10.0)
    gate(cluster, "Job", "w", GATE)
    cluster.advance(10.0)
    gate(cluster, "Job", "w", {})
    cluster.advance(10.0)
    cluster.api.delete(Job, "default/blk")
    cluster.advance(60.0)
    assert running(cluster) == set()


@pytest.mark.parametrize(
    "update",
    [{"nodeSelector": "x"}, {"tolerations": ["x"]}, {"labels": {"a": 5}}, {"labels": ["x"]}],
)
def test_an_update_that_is_none_stops_its_own_job_only(update: dict[str, Any]) -> None:
    cluster = started(*with_checks("w", "x", "y"))
    ready(cluster, "w", {"name": "main", **update})
    ready(cluster, "x")
    ready(cluster, "y")
    cluster.advance(60.0)
    assert running(cluster) == {"x", "y"}
    assert "FailedToStart" in {event.reason for _, event in cluster.api.events}


@pytest.mark.parametrize("reference", [{}, "torch", {"name": 5}])
def test_a_runtime_may_come_beside_a_train_job_that_names_none(reference: object) -> None:
    content = suspended_content("TrainJob", "odd")
    odd = TrainJob(
        metadata=replace(job("odd").metadata, labels=content["metadata"]["labels"]),
        spec={**content["spec"], "runtimeRef": reference},
    )
    objects = [one for one in world() if not isinstance(one, ClusterTrainingRuntime)]
    cluster = started(*objects, odd, make("TrainJob", "good"))
    cluster.add(make_object(runtime()))
    cluster.advance(60.0)
    suspended = {one.metadata.name: one.spec["suspend"] for one in cluster.api.list(TrainJob)}
    assert suspended == {"odd": True, "good": False}


def test_a_train_job_whose_runtime_is_gone_runs_on_after_a_restart() -> None:
    cluster = started(*world(), make("TrainJob", "a"))
    cluster.advance(30.0)
    cluster.api.delete(ClusterTrainingRuntime, "r")
    cluster.advance(10.0)
    again = started(*in_live_order(cluster))
    again.advance(60.0)
    assert [one.spec["suspend"] for one in again.api.list(TrainJob)] == [False]
    assert len([pod for pod in again.api.list(Pod) if pod.spec.node_name]) == 3


def test_a_running_job_keeps_its_queue_whatever_its_label_says() -> None:
    cluster = started(*world(), make("TFJob", "a"))
    cluster.advance(30.0)
    (found,) = cluster.api.list(TFJob)
    meta = replace(found.metadata, labels={"kueue.x-k8s.io/queue-name": "nope"})
    cluster.api.update(replace(found, metadata=meta))
    cluster.advance(10.0)
    cluster.api.delete(Pod, "default/a-worker-0")
    cluster.advance(60.0)
    placed = {pod.metadata.name for pod in cluster.api.list(Pod) if pod.spec.node_name}
    assert placed == {"a-chief-0", "a-ps-0", "a-worker-0"}


def test_a_ray_job_that_its_operator_refuses_gives_its_quota_back_until_it_is_mended() -> None:
    cluster = Cluster(world(), plugins={"Queues": {}})
    cluster.add(make("RayJob", "a"))
    cluster.advance(10.0)
    assert not found_by(cluster, "RayJob", "a").suspended

    def say(state: str, message: str = "") -> None:
        found = cluster.api.get(RayJob, "default/a")
        assert found is not None
        status = replace(found.status, job_deployment_status=state, message=message)
        cluster.api.update(replace(found, status=status))
        cluster.advance(30.0)

    def quota() -> tuple[str, str]:
        stated = workload_of(cluster, "a").status.conditions
        (found,) = [one for one in stated if one.type == "QuotaReserved"]
        return found.status, found.reason

    cluster.add(job("next", 3))
    say("ValidationFailed", "no head group")
    assert quota() == ("False", "OnHold")
    assert found_by(cluster, "RayJob", "a").suspended
    assert running(cluster) == {"next"}
    held = HeldJobs(cluster.scheduler.snapshot, lambda key: None)
    why = "status.jobDeploymentStatus: ValidationFailed: no head group"
    assert [one.why for one in held.all()] == [why]
    cluster.api.delete(Job, "default/next")
    say("ValidationFailed", "no head group")
    assert found_by(cluster, "RayJob", "a").suspended
    say("")
    assert quota() == ("True", "QuotaReserved")
    assert not found_by(cluster, "RayJob", "a").suspended


def test_a_ray_job_on_a_cluster_that_is_there_waits_in_no_queue() -> None:
    content = suspended_content("RayJob", "a")
    content["spec"] = {"clusterSelector": {"ray.io/cluster": "c"}, "entrypoint": "x"}
    cluster = Cluster(world(), plugins={"Queues": {}})
    cluster.add(make_object(content))
    cluster.advance(10.0)
    assert cluster.api.list(KueueWorkload) == []
    assert not found_by(cluster, "RayJob", "a").suspended


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"mode": "client"}, "spec.mode: Invalid value"),
        ({"dynamicAllocation": {"enabled": True}}, "spec.dynamicAllocation.enabled: Invalid value"),
    ],
    ids=str,
)
def test_an_application_that_makes_other_pods_than_it_says_is_held(
    change: dict[str, Any], why: str
) -> None:
    content = suspended_content("SparkApplication", "a")
    content["spec"] |= change
    cluster = Cluster(world(), plugins={"Queues": {}})
    cluster.add(make_object(content))
    cluster.advance(10.0)
    held = HeldJobs(cluster.scheduler.snapshot, lambda key: None)
    (found,) = held.all()
    assert found.why.startswith(why)
