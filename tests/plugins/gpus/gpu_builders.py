"""Builders for tests with devices: classes, slices, claims, pods that use them, and clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bayplan.api import (
    DeviceClass,
    Node,
    Pod,
    PodCondition,
    PodGroup,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from bayplan.api.objects import KINDS, decode_object
from bayplan.cluster.embedded.claims import ClaimController
from bayplan.cluster.embedded.kubelet import VirtualKubelet
from bayplan.testing import Cluster
from bayplan_plugins.device_ledger.ledger import DeviceLedger
from bayplan_plugins.dynamic_resources.node_allocator import NodeAllocation, NodeAllocator

DRA = "resource.k8s.io"
GPU = "gpu.example.com"
NUMA = "resource.kubernetes.io/numaNode"
Content = dict[str, Any]


def obj(kind: str, group: str, version: str, **content: Any) -> Any:
    api_version = f"{group}/{version}".lstrip("/")
    return decode_object(KINDS[group, kind], {"apiVersion": api_version, **content})


def device_class(name: str = "gpu", expression: str = "true", **spec: Any) -> DeviceClass:
    selectors = [{"cel": {"expression": expression}}]
    found = obj(
        "DeviceClass", DRA, "v1", metadata={"name": name}, spec={"selectors": selectors, **spec}
    )
    assert isinstance(found, DeviceClass)
    return found


def gpu(index: int, **attributes: int | str) -> Content:
    values: Content = {"index": {"int": index}}
    for name, value in attributes.items():
        key = NUMA if name == "numa" else name
        values[key] = {"int": value} if isinstance(value, int) else {"string": value}
    return {"name": f"gpu-{index}", "attributes": values}


def slice_of(node: str, devices: list[Content], **spec: Any) -> ResourceSlice:
    content = {"driver": GPU, "pool": {"name": node}, "nodeName": node, "devices": devices}
    found = obj(
        "ResourceSlice",
        DRA,
        "v1",
        metadata={"name": spec.pop("name", f"slice-{node}")},
        spec={key: value for key, value in {**content, **spec}.items() if value is not None},
    )
    assert isinstance(found, ResourceSlice)
    return found


def node(name: str, **labels: str) -> Node:
    status = {"allocatable": {"cpu": "32", "pods": "50"}}
    found = obj("Node", "", "v1", metadata={"name": name, "labels": labels}, status=status)
    assert isinstance(found, Node)
    return found


def request(name: str = "gpu", count: int = 1, **exactly: Any) -> Content:
    return {"name": name, "exactly": {"deviceClassName": "gpu", "count": count, **exactly}}


def template(name: str, *requests: Content, **devices: Any) -> ResourceClaimTemplate:
    spec = {"spec": {"devices": {"requests": list(requests), **devices}}}
    found = obj("ResourceClaimTemplate", DRA, "v1", metadata={"name": name}, spec=spec)
    assert isinstance(found, ResourceClaimTemplate)
    return found


def claim(name: str, *requests: Content, **devices: Any) -> ResourceClaim:
    spec = {"devices": {"requests": list(requests), **devices}}
    found = obj("ResourceClaim", DRA, "v1", metadata={"name": name}, spec=spec)
    assert isinstance(found, ResourceClaim)
    return found


def pod(
    name: str,
    from_template: str | None = None,
    from_claim: str | None = None,
    gang: str = "",
    **spec: Any,
) -> Pod:
    claims = []
    if from_template:
        claims.append({"name": "own", "resourceClaimTemplateName": from_template})
    if from_claim:
        claims.append({"name": "shared", "resourceClaimName": from_claim})
    labels = {"pod-group.scheduling.sigs.k8s.io": gang} if gang else {}
    resources = spec.pop("resources", {"requests": {"cpu": "1"}})
    content = {"resourceClaims": claims, "containers": [{"name": "c", "resources": resources}]}
    found = obj(
        "Pod", "", "v1", metadata={"name": name, "labels": labels}, spec={**content, **spec}
    )
    assert isinstance(found, Pod)
    return found


def group(name: str, members: int, layer: str = "", strategy: str = "MustGather") -> PodGroup:
    annotations = {}
    if layer:
        rule = f'{{"gatherStrategy": [{{"layer": "{layer}", "strategy": "{strategy}"}}]}}'
        annotations = {"gang.scheduling.koordinator.sh/network-topology-spec": rule}
    found = obj(
        "PodGroup",
        "scheduling.sigs.k8s.io",
        "v1alpha1",
        metadata={"name": name, "annotations": annotations},
        spec={"minMember": members},
    )
    assert isinstance(found, PodGroup)
    return found


def cluster(*objects: Any, **options: Any) -> Cluster:
    """Return a cluster whose claims are generated and whose pods are run."""
    made = Cluster(**options)
    ClaimController(made.api)
    VirtualKubelet(made.api)
    made.add(*objects)
    return made


def gpu_cluster(gpus: Mapping[str, int | list[Content]], *objects: Any, **options: Any) -> Cluster:
    """Return a cluster with the class "gpu" and nodes that publish GPUs.

    :param gpus: by node its devices, or how many plain GPUs it has.
    """
    slices = [
        slice_of(name, [gpu(i) for i in range(own)] if isinstance(own, int) else own)
        for name, own in gpus.items()
    ]
    nodes = [node(name) for name in gpus]
    return cluster(device_class(), *nodes, *slices, *objects, **options)


def looks_at_nodes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each look at a node's devices for claims adds the node's name."""
    looks = []
    allocate = NodeAllocator.allocate

    def noted(self: NodeAllocator, *args: Any) -> NodeAllocation:
        looks.append(args[2].metadata.name)
        return allocate(self, *args)

    monkeypatch.setattr(NodeAllocator, "allocate", noted)
    return looks


def devices(made: Cluster, pod_name: str) -> list[str]:
    """Return the devices of all claims that are reserved for a pod."""
    return sorted(
        result.device
        for one in made.api.list(ResourceClaim)
        if any(reference.name == pod_name for reference in one.status.reserved_for)
        and one.status.allocation is not None
        for result in one.status.allocation.devices.results
    )


def scheduled(made: Cluster, pod_name: str) -> PodCondition:
    """Return a pod's condition PodScheduled; an empty one where it has none."""
    found = made.api.get(Pod, f"default/{pod_name}")
    assert found is not None
    empty = PodCondition("PodScheduled", "Unknown", "", "")
    return next((c for c in found.status.conditions if c.type == "PodScheduled"), empty)


def message(made: Cluster, pod_name: str) -> str:
    return scheduled(made, pod_name).message


def reason(made: Cluster, pod_name: str) -> str:
    return scheduled(made, pod_name).reason


def ledger(made: Cluster) -> DeviceLedger:
    return made.snapshot.shared(DeviceLedger, DeviceLedger)
