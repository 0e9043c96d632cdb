"""An API server accepts the objects that bayplan sends, and reads of them what bayplan means."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.cluster.apiserver.faces import Client
from tests.controlplane.installation import BUILT_IN, path_of
from tests.controlplane.live_cluster import Content
from tests.controlplane.plane import ControlPlane

from bayplan.api import KINDS, ApiObject, Kind, ObjectMeta, Quantity, ResourceSlice, decode_object
from bayplan.api.dra import (
    CapacityRange,
    CapacityRequestPolicy,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    ResourcePool,
    ResourceSliceSpec,
)
from bayplan.api.pod import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm

SAMPLES: list[Content] = yaml.safe_load(Path(__file__).with_name("samples.yaml").read_text())
NO_SAMPLE = {
    "CompositePodGroup": "of Kubernetes 1.37",
    "HorizontalPodAutoscaler": "bayplan reads too little of one to send it",
    "ResourceSlice": "the API server requires all that bayplan sends of one; see below",
    "Service": "bayplan reads too little of one to send it",
}

NEW = {"metadata.uid", "metadata.creationTimestamp", "metadata.generation"}
"""What an API server adds to every new object."""
_COUNTED = {
    f"spec.devices.requests[].{how}.{field}"
    for how in ("exactly", "firstAvailable[]")
    for field in ("allocationMode", "count")
}
OF_SERVER = {
    "DaemonSet": {"metadata.annotations", "spec.updateStrategy.rollingUpdate"},
    "Deployment": {"spec.strategy.rollingUpdate"},
    "DeviceTaintRule": {"spec.taint.timeAdded"},
    "Job": {"metadata.labels", "spec.template.metadata.labels"},
    "Namespace": {"metadata.labels"},
    "PersistentVolume": {"metadata.finalizers", "status.phase"},
    "PersistentVolumeClaim": {"metadata.finalizers", "status.phase"},
    "Pod": {"spec.priority", "spec.preemptionPolicy", "status.conditions"},
    "PodGroup": {"metadata.finalizers", "spec.disruptionMode"},
    "ResourceClaim": _COUNTED,
    "ResourceClaimTemplate": {f"spec.{path}" for path in _COUNTED},
}
"""What it adds to those of a kind, where bayplan says nothing."""
DEPENDING = {
    # The labels have the uid. One pod has to succeed, whether completions are 1 or missing.
    "Job": {*OF_SERVER["Job"], "spec.completions"},
    # Where there is no type, the partition is spelled out: 0, which it is anyway.
    "StatefulSet": {"spec.updateStrategy.rollingUpdate"},
}
"""What it adds only where other defaults are left out, too."""


def _created(client: Client, kind: Kind, content: Content) -> ApiObject:
    """Return what would be stored."""
    answer = client.post(path_of(content, name=False), content, dryRun="All")
    assert answer.code == 201, answer
    return decode_object(kind, answer.json)


def _sent(obj: ApiObject, head: Content) -> Content:
    content = msgspec.to_builtins(obj, enc_hook=lambda quantity: quantity.text)
    return {"apiVersion": head["apiVersion"], "kind": head["kind"], **content}


def _differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield the JSON paths at which two objects differ."""
    if isinstance(before, msgspec.Struct) and type(before) is type(after):
        for field in msgspec.structs.fields(before):
            old, new = getattr(before, field.name), getattr(after, field.name)
            yield from _differences(old, new, f"{path}.{field.encode_name}".lstrip("."))
    elif isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
        for old, new in zip(before, after, strict=True):
            yield from _differences(old, new, f"{path}[]")
    elif before != after:
        yield path


def test_every_built_in_kind_has_a_sample() -> None:
    built_in = {kind.name for kind in KINDS.values() if kind.group in BUILT_IN}
    assert {sample["kind"] for sample in SAMPLES} == built_in - NO_SAMPLE.keys()


@pytest.mark.parametrize("number", range(len(SAMPLES)), ids=lambda n: str(SAMPLES[n]["kind"]))
def test_what_is_sent_is_stored_and_means_the_same_with_and_without_defaults(
    number: int, plane: ControlPlane
) -> None:
    sample = SAMPLES[number]
    kind = KINDS[sample["apiVersion"].rpartition("/")[0], sample["kind"]]
    meta = {"name": "a", **({"namespace": "default"} if kind.namespaced else {})}
    given = {**sample, "metadata": meta}
    meant = decode_object(kind, given)
    stored = _created(plane.client, kind, _sent(meant, given))
    assert set(_differences(meant, stored)) <= NEW | OF_SERVER.get(kind.name, set())
    bare = _created(plane.client, kind, given)
    assert set(_differences(bare, stored)) <= NEW | DEPENDING.get(kind.name, set())


# Slices ----------------------------------------------------------------------------------------

POOL = ResourcePool("p", 1)
SOME_NODES = NodeSelector((NodeSelectorTerm((NodeSelectorRequirement("a", "Exists"),)),))


def on_node(*devices: Device, pool: ResourcePool = POOL) -> ResourceSliceSpec:
    """Return the spec of a slice with devices of one node."""
    return ResourceSliceSpec("example.com", pool, "n", devices=devices)


def anywhere(*devices: Device) -> ResourceSliceSpec:
    """Return the spec of a slice with devices that all nodes can use."""
    return ResourceSliceSpec("example.com", POOL, all_nodes=True, devices=devices)


NOTHING = Quantity("0")
SLICES = {
    "a pool of one slice": on_node(pool=ResourcePool("p")),
    "a pool of several": on_node(pool=ResourcePool("p", 0, 2)),
    "a device without anything": on_node(Device("a")),
    "attributes that are zero": on_node(
        Device(
            "a",
            {
                "int": DeviceAttribute(integer=0),
                "bool": DeviceAttribute(boolean=False),
                "string": DeviceAttribute(string=""),
                "version": DeviceAttribute(version="0.0.0"),
            },
        )
    ),
    "attributes": on_node(
        Device(
            "a",
            {
                "int": DeviceAttribute(integer=-(2**63)),
                "bool": DeviceAttribute(boolean=True),
                "string": DeviceAttribute(string="a"),
                "example.com/version": DeviceAttribute(version="1.2.3"),
            },
        )
    ),
    "capacity of nothing": on_node(Device("a", capacity={"a": DeviceCapacity(NOTHING)})),
    "counters": ResourceSliceSpec(
        "example.com",
        POOL,
        "n",
        shared_counters=(
            CounterSet("a", {"some": Counter(Quantity("1Gi")), "none": Counter(NOTHING)}),
        ),
    ),
    "consumed counters": on_node(
        Device("a", consumes_counters=(DeviceCounterConsumption("a", {"none": Counter(NOTHING)}),))
    ),
    "taints": on_node(
        Device(
            "a",
            taints=(
                DeviceTaint("a", "NoSchedule", time_added="2026-01-01T00:00:00Z"),
                DeviceTaint("a", "NoExecute", "b", "2026-01-01T00:00:00Z"),
                DeviceTaint("a", "None", time_added="2026-01-01T00:00:00Z"),
            ),
        )
    ),
    "capacity that is shared": on_node(
        Device(
            "a",
            capacity={
                "any": DeviceCapacity(Quantity("8"), CapacityRequestPolicy()),
                "range": DeviceCapacity(
                    Quantity("8"),
                    CapacityRequestPolicy(NOTHING, valid_range=CapacityRange(NOTHING)),
                ),
                "steps": DeviceCapacity(
                    Quantity("8"),
                    CapacityRequestPolicy(
                        Quantity("1"),
                        valid_range=CapacityRange(Quantity("1"), Quantity("8"), Quantity("1")),
                    ),
                ),
                "values": DeviceCapacity(
                    Quantity("8Gi"),
                    CapacityRequestPolicy(Quantity("1Gi"), (Quantity("1Gi"), Quantity("2Gi"))),
                ),
            },
            allow_multiple_allocations=True,
        )
    ),
    "devices of different nodes": ResourceSliceSpec(
        "example.com",
        POOL,
        per_device_node_selection=True,
        devices=(
            Device("a", node_name="n"),
            Device("b", all_nodes=True),
            Device("c", node_selector=SOME_NODES),
        ),
    ),
    "devices of some nodes": ResourceSliceSpec(
        "example.com", POOL, node_selector=SOME_NODES, devices=(Device("a"),)
    ),
    "devices that are bound to a node": anywhere(
        Device(
            "a",
            binds_to_node=True,
            binding_conditions=("example.com/ready",),
            binding_failure_conditions=("example.com/failed",),
        )
    ),
}


def _slice(spec: ResourceSliceSpec) -> Content:
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    return _sent(ResourceSlice(spec, ObjectMeta(name="a")), head)


@pytest.mark.parametrize("spec", SLICES.values(), ids=SLICES)
def test_a_slice_is_stored_as_it_is_sent(spec: ResourceSliceSpec, plane: ControlPlane) -> None:
    stored = _created(plane.client, KINDS["resource.k8s.io", "ResourceSlice"], _slice(spec))
    assert isinstance(stored, ResourceSlice)
    assert stored.spec == spec


def test_a_taint_without_a_time_gets_one(plane: ControlPlane) -> None:
    spec = on_node(Device("a", taints=(DeviceTaint("a", "NoSchedule"),)))
    stored = _created(plane.client, KINDS["resource.k8s.io", "ResourceSlice"], _slice(spec))
    assert isinstance(stored, ResourceSlice)
    assert list(_differences(spec, stored.spec)) == ["devices[].taints[].timeAdded"]


BEHIND_GATES = {
    "lists": (
        on_node(Device("a", {"a": DeviceAttribute(integers=(0,))})),
        "exactly one value must be specified",
    ),
    "node allocatable resources": (
        on_node(
            Device(
                "a",
                capacity={"a": DeviceCapacity(Quantity("8"))},
                node_allocatable_resource_mappings={"cpu": {"capacityKey": "a"}},
            )
        ),
        "",
    ),
}
"""What Kubernetes 1.36 knows only with a feature gate: without, it refuses it, or leaves it out."""


@pytest.mark.parametrize(("spec", "refusal"), BEHIND_GATES.values(), ids=BEHIND_GATES)
def test_a_slice_with_what_the_api_server_does_not_know_is_refused_or_stored_without(
    spec: ResourceSliceSpec, refusal: str, plane: ControlPlane
) -> None:
    answer = plane.client.post(
        "/apis/resource.k8s.io/v1/resourceslices", _slice(spec), dryRun="All"
    )
    if refusal:
        assert answer.code == 422
        assert refusal in answer.json["message"]
    else:
        assert answer.code == 201
        (device,) = answer.json["spec"]["devices"]
        assert device == {"name": "a", "capacity": {"a": {"value": "8"}}}


@pytest.mark.parametrize("field", ["allNodes", "perDeviceNodeSelection"])
def test_a_slice_that_spells_out_what_it_is_not_is_refused(field: str, plane: ControlPlane) -> None:
    content = _slice(on_node(Device("a")))
    content["spec"][field] = False
    answer = plane.client.post("/apis/resource.k8s.io/v1/resourceslices", content, dryRun="All")
    assert answer.code == 422
    assert "must be either unset or set to true" in answer.json["message"]
