"""RayServices in queues: one that Ray's autoscaler sizes, and the two clusters of an upgrade."""

from __future__ import annotations

from msgspec.structs import replace
from tests.plugins.queues.kueue.queued_job_builders import started, suspended_content
from tests.plugins.queues.kueue.test_elastic_jobs import (
    ELASTIC,
    autoscaled,
    gated,
    ray_queue,
    ray_sizes,
    slices,
    workers,
)

from bayplan.api import ApiObject, RayCluster
from bayplan.api.operated import RayService
from bayplan.testing import Cluster, make_node, make_object


def ray_service(workers: int = 3) -> ApiObject:
    """Return a service whose cluster of a head and some workers Ray's autoscaler sizes."""
    content = suspended_content("RayService", "s")
    content["metadata"]["annotations"] = ELASTIC
    config = content["spec"]["rayClusterConfig"]
    config["enableInTreeAutoscaling"] = True
    config["workerGroupSpecs"][0] |= {"replicas": workers, "maxReplicas": 16}
    return make_object(content)


def test_a_service_grows_and_shrinks_with_its_cluster() -> None:
    cluster = started(make_node("n1", cpu=64, gpu=16), *ray_queue(6), ray_service())
    cluster.advance(60.0)
    assert (workers(cluster), gated(cluster), ray_sizes(cluster)) == (3, 0, [3])
    autoscaled(cluster, 5)
    assert (workers(cluster), gated(cluster), ray_sizes(cluster)) == (5, 0, [5])
    autoscaled(cluster, 8)
    assert (workers(cluster), gated(cluster), ray_sizes(cluster)) == (5, 3, [5, 8])
    autoscaled(cluster, 2)
    assert (workers(cluster), gated(cluster), ray_sizes(cluster)) == (2, 0, [2])


def upgraded(cluster: Cluster) -> None:
    """Make the next cluster of the only service, as KubeRay does when its spec changes."""
    (service,) = cluster.api.list(RayService)
    (serving,) = cluster.api.list(RayCluster)
    meta = replace(serving.metadata, name="s-next", uid="", resource_version="")
    cluster.add(RayCluster(meta, serving.spec))
    status = {**service.status, "pendingServiceStatus": {"rayClusterName": "s-next"}}
    cluster.api.update(replace(service, status=status))
    cluster.advance(60.0)


def given_up(cluster: Cluster) -> None:
    """End the next cluster of the only service."""
    (service,) = cluster.api.list(RayService)
    status = {key: one for key, one in service.status.items() if key != "pendingServiceStatus"}
    cluster.api.update(replace(service, status=status))
    cluster.api.delete(RayCluster, "default/s-next")
    cluster.advance(120.0)


def test_a_service_that_is_upgraded_gets_quota_for_both_of_its_clusters() -> None:
    cluster = started(make_node("n1", cpu=64, gpu=16), *ray_queue(8), ray_service())
    cluster.advance(60.0)
    upgraded(cluster)
    assert (workers(cluster), gated(cluster), ray_sizes(cluster)) == (6, 0, [6])
    (found,) = slices(cluster)
    assert [(one.name, one.count) for one in found.spec.pod_sets] == [("head", 2), ("w", 6)]
    given_up(cluster)
    assert (workers(cluster), gated(cluster), ray_sizes(cluster)) == (3, 0, [3])


def test_an_upgrade_without_quota_waits_and_the_service_goes_on() -> None:
    cluster = started(make_node("n1", cpu=64, gpu=16), *ray_queue(5), ray_service())
    cluster.advance(60.0)
    upgraded(cluster)
    assert (workers(cluster), ray_sizes(cluster)) == (3, [3, 6])
    assert gated(cluster) > 0


def test_the_next_cluster_of_a_service_that_is_not_elastic_is_not_held() -> None:
    """Its operator ends the one that serves only once the next one is ready."""
    made = make_object(suspended_content("RayService", "s"))
    cluster = started(make_node("n1", cpu=64, gpu=16), *ray_queue(12), made)
    cluster.advance(60.0)
    before = workers(cluster)
    assert before > 0
    upgraded(cluster)
    assert workers(cluster) == 2 * before
