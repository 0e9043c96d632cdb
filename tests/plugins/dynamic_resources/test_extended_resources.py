"""Extended resources that device classes serve."""

from __future__ import annotations

from tests.plugins.gpus.gpu_builders import (
    cluster,
    device_class,
    devices,
    gpu,
    gpu_cluster,
    ledger,
    message,
    node,
    obj,
    pod,
    slice_of,
)

from bayplan.api import (
    Pod,
    ResourceClaim,
)
from bayplan.cluster.protocol import Bind
from bayplan.errors import Conflict


def test_a_class_serves_an_extended_resource() -> None:
    made = cluster(
        device_class(extendedResourceName="example.com/gpu"),
        node("a"),
        slice_of("a", [gpu(0), gpu(1)]),
    )
    resources = {"requests": {"example.com/gpu": "2"}, "limits": {"example.com/gpu": "2"}}
    made.add(pod("p", resources=resources), pod("q", resources=resources))
    assert made.schedule() == {"p": "a"}
    (found,) = made.api.list(ResourceClaim)
    assert found.metadata.annotations == {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert devices(made, "p") == ["gpu-0", "gpu-1"]
    placed = made.api.get(Pod, "default/p")
    assert placed is not None
    status = placed.status.extended_resource_claim_status
    assert status is not None
    assert [m.request_name for m in status.request_mappings] == ["container-0-request-0"]
    assert "2 in use" in message(made, "q")


def test_a_refused_binding_leaves_one_claim_for_the_extended_resources() -> None:
    made = cluster(
        device_class(extendedResourceName="example.com/gpu"),
        node("a"),
        slice_of("a", [gpu(0), gpu(1)]),
    )
    made.api.faults.fail_next(Bind, Conflict("the API server is busy"))
    resources = {"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}}
    made.add(pod("p", resources=resources))
    made.schedule()
    made.advance(10)
    assert made.placements() == {"p": "a"}
    assert len(made.api.list(ResourceClaim)) == 1
    assert len(ledger(made).state.devices) == 1


def test_a_device_plugin_on_the_node_comes_first() -> None:
    served = obj(
        "Node",
        "",
        "v1",
        metadata={"name": "a"},
        status={"allocatable": {"cpu": "32", "pods": "50", "example.com/gpu": "2"}},
    )
    made = cluster(device_class(extendedResourceName="example.com/gpu"), served)
    resources = {"requests": {"example.com/gpu": "2"}, "limits": {"example.com/gpu": "2"}}
    made.add(pod("p", resources=resources))
    assert made.schedule() == {"p": "a"}
    assert made.api.list(ResourceClaim) == []


def test_every_class_serves_its_implicit_resource() -> None:
    made = gpu_cluster({"a": 1})
    name = "deviceclass.resource.kubernetes.io/gpu"
    made.add(pod("p", resources={"requests": {name: "1"}, "limits": {name: "1"}}))
    assert made.schedule() == {"p": "a"}
    assert devices(made, "p") == ["gpu-0"]


def test_more_than_32_extended_resources_are_refused_and_not_forgotten() -> None:
    made = cluster(
        device_class(extendedResourceName="example.com/gpu"),
        node("a"),
        slice_of("a", [gpu(i) for i in range(40)]),
    )
    resources = {"requests": {"example.com/gpu": "33"}, "limits": {"example.com/gpu": "33"}}
    made.add(pod("p", resources=resources))
    assert made.schedule() == {}
    assert "number of requested devices 33 exceeds the claim limit" in message(made, "p")
