"""Every kind of elastic job starts at its minimum, grows, and shrinks, by fields of its own."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_builders import GPU, bounded, cluster_of, events, running, template

from bayplan.api import AiElasticJob, ElasticJob, Pod, RayCluster, Service, VolcanoJob
from bayplan.testing import make_node, make_object, make_pod


def obj(version: str, kind: str, spec: dict[str, Any], annotations: dict[str, str]) -> Any:
    meta = {"name": "a", "namespace": "default", "annotations": annotations}
    return make_object({"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec})


def pytorch(**policy: Any) -> Any:
    worker = {"replicas": 4, "template": template()}
    elastic = {"minReplicas": 2, "maxReplicas": 6, **policy}
    spec = {"pytorchReplicaSpecs": {"Worker": worker}, "elasticPolicy": elastic}
    return obj("kubeflow.org/v1", "PyTorchJob", spec, bounded())


def ray(hosts: int = 1, **spec: Any) -> Any:
    group = {
        "groupName": "w",
        "replicas": 2,
        "minReplicas": 2,
        "maxReplicas": 6 // hosts,
        "numOfHosts": hosts,
        "template": template(),
    }
    head = {"template": template(0)}
    given = {"headGroupSpec": head, "workerGroupSpecs": [group], **spec}
    return obj("ray.io/v1", "RayCluster", given, bounded())


def volcano() -> Any:
    task = {"name": "w", "replicas": 4, "minAvailable": 2, "template": template()}
    return obj("batch.volcano.sh/v1alpha1", "Job", {"tasks": [task]}, bounded(most=6))


def job_set() -> Any:
    spec = {"parallelism": 2, "completions": 2, "template": template(restartPolicy="Never")}
    group = {"name": "w", "replicas": 1, "template": {"spec": spec}}
    return obj("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [group]}, bounded(2, 6))


def elastic(version: str = "bayplan.dev/v1alpha1", least: int = 2, **spec: Any) -> Any:
    scaling = {"minReplicas": least, "maxReplicas": 6, "gpuPerReplica": 1}
    return obj(version, "ElasticJob", {"scaling": scaling, "template": template(0), **spec}, {})


KINDS = {
    "pytorch": pytorch,
    "ray": ray,
    "volcano": volcano,
    "jobset": job_set,
    "elastic": elastic,
    "ai-elastic": lambda: elastic("ai.example.com/v1"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_grows_to_its_maximum_and_gives_up_what_is_needed(kind: str) -> None:
    node = make_node("n0", cpu=64, **{GPU: 8})
    cluster = cluster_of(node, KINDS[kind]())
    cluster.advance(70)
    heads = int(kind == "ray")
    assert running(cluster, "a-") == 6 + heads, cluster.api.reports
    cluster.add(make_pod("other", "1", None, **{GPU: 5}))
    cluster.advance(45)
    assert "other" in cluster.placements()
    assert running(cluster, "a-") == 3 + heads
    cluster.add(make_pod("more", "1", None, **{GPU: 2}))
    cluster.advance(45)
    assert running(cluster, "a-") == 3 + heads, "below the minimum it would be of no use"
    assert not cluster.scheduler.evictor.evicted


def test_a_ray_cluster_names_the_workers_that_go() -> None:
    cluster = cluster_of(make_node("n0", cpu=64, **{GPU: 6}), ray(2))
    cluster.advance(70)
    assert running(cluster, "a-") == 7
    found = {pod.metadata.name for pod in cluster.api.list(Pod)}
    cluster.add(make_pod("other", "1", None, **{GPU: 1}))
    cluster.advance(15)
    assert running(cluster, "a-") == 5, "both hosts of a replica"
    owner = cluster.api.get(RayCluster, "default/a")
    assert owner is not None
    gone = set(owner.spec.worker_group_specs[0].scale_strategy.workers_to_delete)
    assert len(gone) == 2
    assert gone < found
    assert not gone & {pod.metadata.name for pod in cluster.api.list(Pod)}


def test_another_writer_of_the_size_is_left_alone() -> None:
    metric = {"type": "Resource"}
    cluster = cluster_of(make_node("n0", cpu=64, **{GPU: 8}), pytorch(metrics=[metric]))
    (told,) = events(cluster, "NotResized")
    assert "an autoscaler sets its replicas" in told.message
    assert running(cluster, "a-") == 4


def test_rays_autoscaler_keeps_its_field_and_gets_a_ceiling() -> None:
    cluster = cluster_of(make_node("n0", cpu=64, **{GPU: 4}), ray(enableInTreeAutoscaling=True))
    (told,) = events(cluster, "NotResized")
    assert "bayplan.dev/max-replicas" in told.message


def test_a_volcano_job_keeps_its_gang_at_the_minimum() -> None:
    cluster = cluster_of(make_node("n0", cpu=64, **{GPU: 8}), volcano())
    cluster.advance(70)
    found = cluster.api.get(VolcanoJob, "default/a")
    assert found is not None
    assert (found.spec.tasks[0].replicas, found.spec.min_available) == (6, 2)


def test_an_elastic_job_has_stable_names_and_a_service() -> None:
    cluster = cluster_of(make_node("n0", cpu=64, **{GPU: 3}), elastic(pool="west", priority=7))
    assert {"a-0", "a-1", "a-2"} <= set(cluster.placements())
    service = cluster.api.get(Service, "default/a")
    assert service is not None
    pod = cluster.api.get(Pod, "default/a-0")
    assert pod is not None
    assert service.spec.selector.items() <= pod.metadata.labels.items()
    assert pod.metadata.labels["bayplan.dev/pool"] == "west"
    assert pod.spec.priority == 7
    cluster.api.delete(ElasticJob, "default/a")
    cluster.advance(1)
    assert cluster.api.list(Pod) == cluster.api.list(Service) == []


@pytest.mark.parametrize("kind", [ElasticJob, AiElasticJob])
def test_an_elastic_job_replaces_what_fails_within_its_limit(kind: type[ElasticJob]) -> None:
    version = "ai.example.com/v1" if kind is AiElasticJob else "bayplan.dev/v1alpha1"
    cluster = cluster_of(make_node("n0", cpu=64, **{GPU: 2}), elastic(version, backoffLimit=2))
    for failures in (1, 2, 3):
        fail(cluster, "default/a-1")
        cluster.advance(5)
        found = cluster.api.get(kind, "default/a")
        assert found is not None
        assert found.status.failed == failures
        assert found.status.phase == ("Failed" if failures == 3 else "Running")
    assert running(cluster, "a-") == 0


def fail(cluster: Any, key: str) -> None:
    from msgspec.structs import replace

    pod = cluster.api.get(Pod, key)
    cluster.api.update(replace(pod, status=replace(pod.status, phase="Failed")))
    cluster.api.deliver()
