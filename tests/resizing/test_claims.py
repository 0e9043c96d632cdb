"""Elastic jobs whose pods get devices by claims from a template."""

from __future__ import annotations

from typing import Any

from tests.resizing.elastic_builders import bounded, cluster_of, content, events, running

from bayplan.api import ApiObject, Job, ResourceClaim
from bayplan.testing import Cluster, make_node, make_object

DRA = "resource.k8s.io/v1"


def devices_of(node: str, count: int) -> ApiObject:
    return make_object(
        {
            "apiVersion": DRA,
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-gpus"},
            "spec": {
                "driver": "gpu.example.com",
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": f"gpu-{index}"} for index in range(count)],
            },
        }
    )


def claims(each: int = 1) -> list[ApiObject]:
    asked = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": each}}
    return [
        make_object({"apiVersion": DRA, "kind": "DeviceClass", "metadata": {"name": "gpu"}}),
        make_object(
            {
                "apiVersion": DRA,
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": "gpus", "namespace": "default"},
                "spec": {"spec": {"devices": {"requests": [asked]}}},
            }
        ),
    ]


def job(least: int, most: int, name: str = "a") -> ApiObject:
    container = {"name": "main", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
    }
    spec = {
        "completionMode": "Indexed",
        "parallelism": least,
        "completions": least,
        "template": {"spec": pod},
    }
    made = content("batch/v1", "Job", spec, bounded(least, most))
    made["metadata"]["name"] = name
    return make_object(made)


def alone(name: str) -> dict[str, Any]:
    container = {"name": "main", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}
    wanted = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
    spec = {"priority": 100, "containers": [container], "resourceClaims": wanted}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def size(cluster: Cluster, name: str = "a") -> int:
    found = cluster.api.get(Job, f"default/{name}")
    assert found is not None
    return found.spec.parallelism


def test_a_job_grows_to_as_many_replicas_as_get_devices() -> None:
    nodes = [make_node("n0", cpu=64), make_node("n1", cpu=64)]
    slices = [devices_of("n0", 4), devices_of("n1", 3)]
    cluster = cluster_of(*nodes, *slices, *claims(2), job(1, 8))
    cluster.advance(300)
    # Two devices a replica: one of the second node is left over.
    assert (size(cluster), running(cluster, "a-")) == (3, 3)
    sizes = [one.message.partition(":")[0] for one in events(cluster, "Resized")]
    assert sizes == ["1 to 3 replicas"], "it never asks for more than there is"
    held = [
        (one.pool, one.device)
        for claim in cluster.api.list(ResourceClaim)
        if claim.status.allocation is not None
        for one in claim.status.allocation.devices.results
    ]
    assert len(held) == len(set(held)) == 6


def test_two_jobs_that_grow_together_share_the_devices() -> None:
    cluster = cluster_of(
        make_node("n0", cpu=64), devices_of("n0", 6), *claims(), job(1, 8, "a"), job(1, 8, "b")
    )
    cluster.advance(300)
    assert (size(cluster, "a"), size(cluster, "b")) == (3, 3)


def test_a_job_with_claims_gives_devices_back_for_others() -> None:
    cluster = cluster_of(make_node("n0", cpu=64), devices_of("n0", 4), *claims(), job(1, 8))
    cluster.advance(120)
    assert size(cluster) == 4
    cluster.add(make_object({"apiVersion": "v1", "kind": "Pod", **alone("urgent")}))
    cluster.advance(30)
    assert size(cluster) == 3
    assert "urgent" in cluster.placements()
    assert not cluster.scheduler.evictor.evicted
