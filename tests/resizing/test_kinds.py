"""Every kind of elastic job starts at its minimum, grows, and shrinks, by fields of its own."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.resizing.elastic_builders import (
    ELASTIC,
    GPU,
    cluster_of,
    elastic,
    events,
    pytorch,
    ray,
    running,
    volcano,
)

from bayplan.api import AiElasticJob, ElasticJob, Pod, RayCluster, Service, VolcanoJob
from bayplan.testing import Cluster, make_node, make_object, make_pod


def on_one(gpus: int, content: Any) -> Cluster:
    """Return a cluster of one node with a job."""
    return cluster_of(make_node("n0", cpu=64, **{GPU: gpus}), make_object(content))


@pytest.mark.parametrize("kind", ELASTIC)
def test_a_job_grows_to_its_maximum_and_gives_up_what_is_needed(kind: str) -> None:
    node = make_node("n0", cpu=64, **{GPU: 8})
    cluster = cluster_of(node, make_object(ELASTIC[kind]()))
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
    cluster = on_one(6, ray(2))
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
    cluster = cluster_of(
        make_node("n0", cpu=64, **{GPU: 8}), make_object(pytorch(metrics=[metric]))
    )
    (told,) = events(cluster, "NotResized")
    assert "an autoscaler sets its replicas" in told.message
    assert running(cluster, "a-") == 4


def test_rays_autoscaler_keeps_its_field_and_gets_a_ceiling() -> None:
    cluster = cluster_of(
        make_node("n0", cpu=64, **{GPU: 4}), make_object(ray(enableInTreeAutoscaling=True))
    )
    (told,) = events(cluster, "NotResized")
    assert "bayplan.dev/max-replicas" in told.message


def test_a_volcano_job_keeps_its_gang_at_the_minimum() -> None:
    cluster = on_one(8, volcano())
    cluster.advance(70)
    found = cluster.api.get(VolcanoJob, "default/a")
    assert found is not None
    assert (found.spec.tasks[0].replicas, found.spec.min_available) == (6, 2)


def test_an_elastic_job_has_stable_names_and_a_service() -> None:
    cluster = cluster_of(
        make_node("n0", cpu=64, **{GPU: 3}), make_object(elastic(pool="west", priority=7))
    )
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
    cluster = cluster_of(
        make_node("n0", cpu=64, **{GPU: 2}), make_object(elastic(version, backoffLimit=2))
    )
    for failures in (1, 2, 3):
        fail(cluster, "default/a-1")
        # What failed before is made again later each time.
        cluster.advance(60)
        found = cluster.api.get(kind, "default/a")
        assert found is not None
        assert found.status.failed == failures
        assert found.status.phase == ("Failed" if failures == 3 else "Running")
    assert running(cluster, "a-") == 0


def fail(cluster: Any, key: str) -> None:
    pod = cluster.api.get(Pod, key)
    cluster.api.update(replace(pod, status=replace(pod.status, phase="Failed")))
    cluster.api.deliver()
