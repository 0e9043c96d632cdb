"""Kueue's quota for every kind of job that can be suspended."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, flavor, local_queue
from tests.plugins.queues.kueue.queued_job_builders import (
    KINDS,
    runtime,
    started,
    suspended_content,
    workload_of,
)

from bayplan.api import ApiObject, Pod
from bayplan.dialects.queued_jobs import queued_job, queued_kinds
from bayplan.testing import Cluster, make_node, make_object

GPU = "nvidia.com/gpu"


def make(kind: str, name: str, priority: int = 0) -> ApiObject:
    return make_object(suspended_content(kind, name, f"p{priority}"))


def world() -> list[ApiObject]:
    """Return a queue for one of two jobs, whose flavor has a label."""
    preemption = {"withinClusterQueue": "LowerPriority"}
    version = "kueue.x-k8s.io/v1beta2"
    classes = [
        make_object(
            {
                "apiVersion": version,
                "kind": "WorkloadPriorityClass",
                "metadata": {"name": f"p{value}"},
                "value": value,
            }
        )
        for value in (0, 10)
    ]
    quota = {GPU: 4, "cpu": 100, "memory": 2**40}
    queue = cluster_queue("cq", {"f": quota}, preemption=preemption)
    nodes = [make_node("n1", cpu=64, gpu=8, labels={"k": "f"}), make_node("n2", cpu=64, gpu=8)]
    queues = [flavor("f", nodeLabels={"k": "f"}), queue, local_queue("lq", "cq")]
    return [make_object(runtime()), *nodes, *classes, *queues]


def suspended(cluster: Cluster, kind: str) -> dict[str, bool]:
    (type_,) = (one for one in queued_kinds() if one.__name__ == kind)
    return {one.metadata.name: queued_job(one).suspended for one in cluster.api.list(type_)}


def gpus(cluster: Cluster) -> int:
    return sum(
        int(one.amount)
        for pod in cluster.api.list(Pod)
        if pod.spec.node_name == "n1"
        for container in pod.spec.containers
        if (one := container.resources.limits.get(GPU)) is not None
    )


def test_every_kind_is_tried() -> None:
    assert {one.__name__ for one in queued_kinds()} == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_waits_runs_where_its_flavor_is_and_makes_way(kind: str) -> None:
    cluster = started(*world(), make(kind, "a"))
    cluster.advance(30.0)
    assert suspended(cluster, kind) == {"a": False}
    assert gpus(cluster) == 3
    cluster.add(make(kind, "b"))
    cluster.advance(30.0)
    assert suspended(cluster, kind) == {"a": False, "b": True}
    cluster.add(make(kind, "c", 10))
    cluster.advance(120.0)
    assert suspended(cluster, kind) == {"a": True, "b": True, "c": False}
    assert gpus(cluster) == 3
    (type_,) = (one for one in queued_kinds() if one.__name__ == kind)
    first = cluster.api.get(type_, "default/a")
    assert first is not None
    assert not any(pods.template.spec.node_selector for pods in queued_job(first).pods)
    cluster.api.delete(type_, "default/c")
    cluster.advance(120.0)
    assert list(suspended(cluster, kind).values()).count(False) == 1
    assert gpus(cluster) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_workload_has_a_pod_set_for_each_template(kind: str) -> None:
    cluster = started(*world(), make(kind, "a"))
    sets = {one.name: one.count for one in workload_of(cluster, "a").spec.pod_sets}
    ray = {"head": 1, "w": 3}
    assert (
        sets
        == {
            "AppWrapper": {"a-0": 1, "a-1": 2},
            "Job": {"main": 3},
            "JobSet": {"driver": 1, "workers": 3},
            "JAXJob": {"worker": 3},
            "MPIJob": {"launcher": 1, "worker": 2},
            "PaddleJob": {"master": 1, "worker": 2},
            "PyTorchJob": {"master": 1, "worker": 2},
            "SparkApplication": {"driver": 1, "executor": 2},
            "TFJob": {"chief": 1, "ps": 1, "worker": 1},
            "XGBoostJob": {"master": 1, "worker": 2},
            "RayCluster": ray,
            "RayService": ray,
            "TrainJob": {"node": 3},
            "RayJob": {**ray, "submitter": 1},
        }[kind]
    )


def test_the_jobs_of_a_role_are_admitted_only_where_its_topology_has_room_for_all() -> None:
    nodes = [
        make_node(f"{rack}{index}", gpu=1, labels={"rack": rack, "k": "f"})
        for rack in "ab"
        for index in range(2)
    ]
    topology = make_object(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Topology",
            "metadata": {"name": "dc"},
            "spec": {"levels": [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]},
        }
    )
    queue = cluster_queue("cq", {"f": {GPU: 4}})
    queues = [flavor("f", nodeLabels={"k": "f"}, topologyName="dc"), queue]
    cluster = started(*nodes, topology, *queues, local_queue("lq", "cq"))
    for name, replicas, pods in (("wide", 2, 2), ("narrow", 2, 1)):
        cluster.add(make_object(gathered_set(name, replicas, pods)))
    cluster.advance(60.0)
    assert suspended(cluster, "JobSet") == {"wide": True, "narrow": False}
    placed = [pod for pod in cluster.api.list(Pod) if pod.spec.node_name]
    assert len({pod.metadata.labels["job-name"] for pod in placed}) == len(placed) == 2
    assert len({pod.spec.node_name[0] for pod in placed}) == 1
    assert workload_of(cluster, "wide").status.admission is None


def gathered_set(name: str, replicas: int, pods: int) -> dict[str, Any]:
    """Return a JobSet whose only role asks for one rack."""
    container = {"name": "c", "image": "i", "resources": {"limits": {GPU: 1}}}
    template = {
        "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }
    job = {"parallelism": pods, "completions": pods, "template": template}
    group = {"name": "workers", "replicas": replicas, "template": {"spec": job}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"kueue.x-k8s.io/queue-name": "lq"},
        },
        "spec": {"replicatedJobs": [group], "suspend": True},
    }
