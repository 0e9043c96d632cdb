"""Pods with claims on the embedded cluster: what their users see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bayplan import Plugin, hookimpl
from bayplan.api import (
    DeviceClass,
    DeviceTaintRule,
    Node,
    Pod,
    PodGroup,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from bayplan.api.dra import AllocatedDeviceStatus, Condition, DeviceId
from bayplan.api.objects import KINDS, decode_object
from bayplan.cluster.embedded.claims import ClaimController
from bayplan.cluster.embedded.kubelet import VirtualKubelet
from bayplan.cluster.protocol import Bind, ReleaseClaim, ReserveClaim
from bayplan.errors import Conflict
from bayplan.testing import Cluster
from bayplan_plugins.dynamic_resources.ledger import DeviceLedger

DRA = "resource.k8s.io"
GPU = "gpu.example.com"
NUMA = "resource.kubernetes.io/numaNode"
BELOW_3 = f'device.attributes["{GPU}"].index < 3'
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
    made = Cluster(**options)
    ClaimController(made.api)
    VirtualKubelet(made.api)
    made.add(*objects)
    return made


def devices(made: Cluster, pod_name: str) -> list[str]:
    """Return the devices of all claims that are reserved for a pod."""
    return sorted(
        result.device
        for one in made.api.list(ResourceClaim)
        if any(reference.name == pod_name for reference in one.status.reserved_for)
        and one.status.allocation is not None
        for result in one.status.allocation.devices.results
    )


def message(made: Cluster, pod_name: str) -> str:
    found = made.api.get(Pod, f"default/{pod_name}")
    assert found is not None
    return next((c.message for c in found.status.conditions if c.type == "PodScheduled"), "")


def ledger(made: Cluster) -> DeviceLedger:
    return made.snapshot.shared(DeviceLedger, DeviceLedger)


# One pod -------------------------------------------------------------------------------------


def test_a_pod_gets_a_claim_from_its_template_and_a_device() -> None:
    made = cluster(device_class(), node("a"), slice_of("a", [gpu(0)]), template("one", request()))
    made.add(pod("p", "one"))
    assert made.schedule() == {"p": "a"}
    (found,) = made.api.list(ResourceClaim)
    assert found.metadata.finalizers == ("resource.kubernetes.io/delete-protection",)
    assert [r.name for r in found.status.reserved_for] == ["p"]
    assert found.status.allocation is not None
    assert found.status.allocation.node_selector is not None
    assert devices(made, "p") == ["gpu-0"]


def test_the_allocation_is_written_before_the_pod_is_bound() -> None:
    made = cluster(device_class(), node("a"), slice_of("a", [gpu(0)]), template("one", request()))
    order: list[str] = []

    def watch(event: Any) -> None:
        if isinstance(event.obj, ResourceClaim):
            has = event.obj.status.allocation is not None
            order.append(
                "allocated" if has else "finalizer" if event.obj.metadata.finalizers else ""
            )
        elif isinstance(event.obj, Pod) and event.obj.spec.node_name:
            order.append("bound")

    made.api.watch(watch)
    made.add(pod("p", "one"))
    made.schedule()
    assert [step for step in dict.fromkeys(order) if step] == ["finalizer", "allocated", "bound"]


def test_a_pod_waits_for_the_claim_that_it_names() -> None:
    made = cluster(device_class(), node("a"), slice_of("a", [gpu(0)]))
    made.add(pod("p", from_claim="mine"))
    assert made.schedule() == {}
    assert message(made, "p") == 'waiting for resource claim "mine", which does not exist'
    made.add(claim("mine", request()))
    assert made.schedule() == {"p": "a"}


def test_a_pod_waits_for_the_template_of_its_claim() -> None:
    made = cluster(device_class(), node("a"), slice_of("a", [gpu(0)]))
    made.add(pod("p", "one"))
    made.schedule()
    assert 'waiting for resource claim "own" to be created' in message(made, "p")
    made.add(template("one", request()))
    assert made.schedule() == {"p": "a"}


def test_the_message_counts_what_took_devices_out() -> None:
    tainted = {**gpu(1), "taints": [{"key": "hot", "effect": "NoSchedule"}]}
    made = cluster(
        device_class(expression=f'device.attributes["{GPU}"].index < 9'),
        node("a"),
        slice_of("a", [gpu(0), tainted, gpu(2), gpu(3), gpu(9)]),
        template("one", request()),
        template("two", request(count=2, selectors=[{"cel": {"expression": BELOW_3}}])),
    )
    made.add(pod("first", "one"))
    made.schedule()
    made.add(pod("p", "two"))
    made.schedule()
    assert (
        "claim own: request gpu needs 2 devices of class gpu, 1 of 4 can be had: 1 not selected, "
        "1 tainted, 1 in use; 1 more would be enough"
    ) in message(made, "p")


def test_an_unknown_class_is_named() -> None:
    made = cluster(node("a"), slice_of("a", [gpu(0)]), template("one", request()), pod("p", "one"))
    made.schedule()
    assert "request gpu: could not retrieve device class gpu: not found" in message(made, "p")
    made.add(device_class())
    made.advance(20)
    assert made.placements() == {"p": "a"}


def test_an_expression_that_does_not_compile_is_told_with_its_place() -> None:
    made = cluster(
        device_class(expression="device.drivr == 'x'"),
        node("a"),
        slice_of("a", [gpu(0)]),
        template("one", request()),
        pod("p", "one"),
    )
    made.schedule()
    assert "class gpu: selector #0: CEL compile error" in message(made, "p")
    assert "1:7: undefined field 'drivr'" in message(made, "p")


def test_an_attribute_missing_on_one_node_refuses_that_node_only() -> None:
    made = cluster(
        device_class(expression=f'device.attributes["{GPU}"].model == "H100"'),
        node("a"),
        node("b"),
        slice_of("a", [gpu(0)]),
        slice_of("b", [gpu(0, model="H100")]),
        template("one", request()),
        pod("p", "one"),
    )
    assert made.schedule() == {"p": "b"}
    made.add(pod("q", "one"))
    made.schedule()
    assert (
        "request gpu needs 1 device of class gpu, none of the node's 1 device is of it (class gpu: "
        "selector #0: CEL runtime error: no such key: model (on device gpu-0))"
    ) in message(made, "q")


def test_an_expression_that_costs_too_much_refuses_its_pods_only() -> None:
    loop = "[1,2,3,4,5,6,7,8,9].all(x, "
    made = cluster(
        device_class("gpu", loop * 7 + "true" + ")" * 7),
        device_class("cheap"),
        node("a"),
        slice_of("a", [gpu(0)]),
        template("dear", request()),
        template("cheap", request(deviceClassName="cheap")),
        pod("p", "dear"),
        pod("q", "cheap"),
    )
    assert made.schedule() == {"q": "a"}
    assert "cost limit exceeded" in message(made, "p")


def test_more_than_32_devices_in_a_claim_are_refused() -> None:
    made = cluster(
        device_class(),
        node("a"),
        slice_of("a", [gpu(i) for i in range(40)]),
        template("many", request(count=33)),
        pod("p", "many"),
    )
    made.schedule()
    assert "number of requested devices 33 exceeds the claim limit of 32" in message(made, "p")


def test_a_pool_that_is_half_published_is_named() -> None:
    half = slice_of("a", [gpu(0)], pool={"name": "a", "resourceSliceCount": 2})
    made = cluster(device_class(), node("a"), half, template("one", request()), pod("p", "one"))
    made.schedule()
    assert f"1 in pool {GPU}/a, which is being updated" in message(made, "p")
    rest = slice_of("a", [gpu(1)], name="rest", pool={"name": "a", "resourceSliceCount": 2})
    made.add(rest)
    made.advance(20)
    assert made.placements() == {"p": "a"}


def test_two_devices_of_one_name_make_a_pool_invalid() -> None:
    pool = {"name": "a", "resourceSliceCount": 2}
    made = cluster(
        device_class(),
        node("a"),
        slice_of("a", [gpu(0)], pool=pool),
        slice_of("a", [gpu(0)], name="again", pool=pool),
        template("one", request()),
        pod("p", "one"),
    )
    made.schedule()
    assert 'which is invalid: two devices are named "gpu-0"' in message(made, "p")


def test_the_alternative_that_is_preferred_decides_between_nodes() -> None:
    alternatives = [
        {"name": "big", "deviceClassName": "gpu", "count": 2},
        {"name": "small", "deviceClassName": "gpu", "count": 1},
    ]
    made = cluster(
        device_class(),
        node("a"),
        node("b"),
        slice_of("a", [gpu(0)]),
        slice_of("b", [gpu(0), gpu(1)]),
        template("either", {"name": "gpu", "firstAvailable": alternatives}),
        pod("p", "either"),
    )
    assert made.schedule() == {"p": "b"}
    assert devices(made, "p") == ["gpu-0", "gpu-1"]


def test_a_single_device_comes_from_the_group_that_is_broken_already() -> None:
    made = cluster(
        device_class(),
        node("a"),
        slice_of("a", [gpu(i, numa=i // 4) for i in range(8)]),
        template("one", request()),
        template("four", request(count=4), constraints=[{"matchAttribute": NUMA}]),
    )
    for name in ("p", "q", "r"):
        made.add(pod(name, "one"))
    made.add(pod("four", "four"))
    assert len(made.schedule()) == 4
    assert devices(made, "four") == ["gpu-4", "gpu-5", "gpu-6", "gpu-7"]


def test_the_node_that_stays_whole_is_left_for_others() -> None:
    made = cluster(
        device_class(),
        node("a"),
        node("b"),
        slice_of("a", [gpu(i, numa=0) for i in range(4)]),
        slice_of("b", [gpu(i, numa=0) for i in range(4)]),
        template("one", request()),
        template("four", request(count=4)),
    )
    made.add(pod("p", "one"))
    made.schedule()
    made.add(pod("q", "one"))
    made.schedule()
    made.add(pod("four", "four"))
    placed = made.schedule()
    assert placed["p"] == placed["q"] != placed["four"]


# Claims with a life of their own --------------------------------------------------------------


def test_pods_share_a_claim_on_the_node_of_its_devices() -> None:
    made = cluster(
        device_class(),
        node("a"),
        node("b"),
        slice_of("b", [gpu(0)]),
        claim("shared", request()),
        pod("p", from_claim="shared"),
        pod("q", from_claim="shared"),
    )
    assert made.schedule() == {"p": "b", "q": "b"}
    (found,) = made.api.list(ResourceClaim)
    assert [r.name for r in found.status.reserved_for] == ["p", "q"]


def test_the_claims_of_a_finished_pod_are_released() -> None:
    made = cluster(device_class(), node("a"), slice_of("a", [gpu(0)]), template("one", request()))
    made.add(pod("p", "one"), pod("q", "one"))
    made.schedule()
    made.remove("p")
    made.advance(20)
    assert made.placements() == {"q": "a"}
    assert [c.metadata.name.rpartition("-")[0] for c in made.api.list(ResourceClaim)] == ["q-own"]


def test_a_taint_rule_keeps_a_device_from_new_claims() -> None:
    rule = obj(
        "DeviceTaintRule",
        DRA,
        "v1beta2",
        metadata={"name": "broken"},
        spec={
            "deviceSelector": {"device": "gpu-0"},
            "taint": {"key": "k", "effect": "NoSchedule"},
        },
    )
    assert isinstance(rule, DeviceTaintRule)
    made = cluster(
        device_class(), node("a"), slice_of("a", [gpu(0), gpu(1)]), template("one", request()), rule
    )
    made.add(pod("p", "one"))
    made.schedule()
    assert devices(made, "p") == ["gpu-1"]


def test_admin_access_needs_a_labelled_namespace_and_holds_nothing() -> None:
    made = cluster(
        device_class(),
        node("a"),
        slice_of("a", [gpu(0)]),
        template("one", request()),
        template("admin", request(adminAccess=True)),
        pod("p", "one"),
    )
    made.schedule()
    made.add(pod("monitor", "admin"))
    made.schedule()
    assert "asks for admin access, which needs the label" in message(made, "monitor")
    labels = {"resource.kubernetes.io/admin-access": "true"}
    made.add(obj("Namespace", "", "v1", metadata={"name": "default", "labels": labels}))
    made.add(pod("observer", "admin"))
    made.schedule()
    assert made.placements()["observer"] == "a"
    assert devices(made, "observer") == ["gpu-0"]


def with_conditions() -> Cluster:
    device = {**gpu(0), "bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]}
    made = cluster(device_class(), node("a"), slice_of("a", [device]), template("one", request()))
    made.add(pod("p", "one"))
    return made


def test_binding_waits_for_the_conditions_of_the_devices() -> None:
    device = {**gpu(0), "bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]}
    made = cluster(
        device_class(),
        node("a"),
        slice_of("a", [device]),
        template("one", request()),
        pod("p", "one"),
    )
    assert made.schedule() == {}
    (found,) = made.api.list(ResourceClaim)
    assert found.status.allocation is not None
    set_condition(made, "attached")
    assert made.schedule() == {"p": "a"}


def set_condition(made: Cluster, name: str) -> None:
    from msgspec.structs import replace

    (found,) = made.api.list(ResourceClaim)
    status = AllocatedDeviceStatus(GPU, "a", "gpu-0", conditions=(Condition(name, "True"),))
    made.api.update(replace(found, status=replace(found.status, devices=(status,))))
    made.api.deliver()


def test_a_device_that_fails_gives_the_pod_back() -> None:
    device = {**gpu(0), "bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]}
    made = cluster(
        device_class(),
        node("a"),
        slice_of("a", [device]),
        template("one", request()),
        pod("p", "one"),
    )
    made.schedule()
    set_condition(made, "broken")
    made.schedule()
    assert "device gpu-0 failed: condition broken holds" in message(made, "p")
    (found,) = made.api.list(ResourceClaim)
    assert found.status.allocation is None
    assert ledger(made).state.devices == set()


def test_a_claim_that_another_scheduler_allocated_meanwhile_is_respected() -> None:
    made = cluster(device_class(), node("a"), slice_of("a", [gpu(0)]), template("one", request()))
    made.api.faults.fail_next(ReserveClaim, Conflict("claim got allocated elsewhere"))
    made.add(pod("p", "one"))
    assert made.schedule() == {}
    assert "allocated elsewhere" in message(made, "p")
    assert ledger(made).state.devices == set()
    made.advance(5)
    assert made.placements() == {"p": "a"}


def test_an_allocation_that_keeps_its_pod_off_every_node_is_taken_back() -> None:
    made = cluster(device_class(), node("a"), node("b", zone="x"), claim("mine", request()))
    made.add(slice_of("a", [gpu(0)]))
    made.add(pod("p", from_claim="mine"))
    made.schedule()
    made.remove("p")
    made.schedule()
    made.add(slice_of("b", [gpu(0)]))
    made.add(pod("q", from_claim="mine", nodeSelector={"zone": "x"}))
    made.schedule()
    made.advance(20)
    assert made.placements() == {"q": "b"}


# Extended resources --------------------------------------------------------------------------


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
    made = cluster(device_class(), node("a"), slice_of("a", [gpu(0)]))
    name = "deviceclass.resource.kubernetes.io/gpu"
    made.add(pod("p", resources={"requests": {name: "1"}, "limits": {name: "1"}}))
    assert made.schedule() == {"p": "a"}
    assert devices(made, "p") == ["gpu-0"]


# Gangs ---------------------------------------------------------------------------------------


def test_members_exchange_devices_so_that_all_fit() -> None:
    picky = request(selectors=[{"cel": {"expression": f'device.attributes["{GPU}"].index == 0'}}])
    made = cluster(
        device_class(),
        node("a"),
        slice_of("a", [gpu(0), gpu(1)]),
        template("any", request()),
        template("first", picky),
        group("g", 2),
        pod("g-0", "any", gang="g"),
        pod("g-1", "first", gang="g"),
    )
    assert len(made.schedule()) == 2
    assert devices(made, "g-0") == ["gpu-1"]
    assert devices(made, "g-1") == ["gpu-0"]


def test_members_exchange_network_devices_across_nodes() -> None:
    picky = request(selectors=[{"cel": {"expression": f'device.attributes["{GPU}"].index == 0'}}])
    made = cluster(
        device_class(),
        node("a", zone="x"),
        node("b", zone="y"),
        slice_of("net", [gpu(0), gpu(1)], nodeName=None, allNodes=True),
        template("any", request()),
        template("first", picky),
        group("g", 2),
        pod("g-0", "any", gang="g", nodeSelector={"zone": "x"}),
        pod("g-1", "first", gang="g", nodeSelector={"zone": "y"}),
    )
    assert len(made.schedule()) == 2
    assert devices(made, "g-1") == ["gpu-0"]


def test_a_gang_that_does_not_fit_leaves_no_device_taken() -> None:
    made = cluster(
        device_class(),
        node("a"),
        slice_of("a", [gpu(0), gpu(1)]),
        template("one", request()),
        group("g", 3),
        *(pod(f"g-{i}", "one", gang="g") for i in range(3)),
    )
    assert made.schedule() == {}
    assert ledger(made).state.devices == set()
    assert not ledger(made).in_flight
    made.add(pod("p", "one"))
    assert made.schedule() == {"p": "a"}


def test_a_gang_gathers_in_one_nvlink_domain() -> None:
    made = cluster(
        device_class(), template("tray", request(count=4)), group("g", 2, "nvlinkDomain")
    )
    for index in range(4):
        domain = f"fabric.{index // 2}"
        made.add(node(f"n{index}"))
        made.add(slice_of(f"n{index}", [gpu(i, nvlinkDomain=domain) for i in range(4)]))
    made.add(pod("p", "tray"))
    made.schedule()
    made.add(pod("g-0", "tray", gang="g"), pod("g-1", "tray", gang="g"))
    placed = made.schedule()
    assert {placed["g-0"], placed["g-1"]} == {"n2", "n3"}


def test_nvlink_domains_lie_inside_of_the_networks_layers() -> None:
    from bayplan.testing import make_network

    rules = (
        '{"gatherStrategy": [{"layer": "spine", "strategy": "MustGather"}, '
        '{"layer": "nvlinkDomain", "strategy": "PreferGather"}]}'
    )
    annotations = {"gang.scheduling.koordinator.sh/network-topology-spec": rules}
    gang = obj(
        "PodGroup",
        "scheduling.sigs.k8s.io",
        "v1alpha1",
        metadata={"name": "g", "annotations": annotations},
        spec={"minMember": 2},
    )
    made = cluster(device_class(), template("tray", request(count=4)), make_network(spine="spine"))
    made.add(gang)
    for index in range(6):
        made.add(node(f"n{index}", spine=f"s{index // 4}"))
        domain = f"fabric.{index // 2}"
        made.add(slice_of(f"n{index}", [gpu(i, nvlinkDomain=domain) for i in range(4)]))
    made.add(pod("busy", "tray"))
    made.schedule()
    made.add(pod("g-0", "tray", gang="g"), pod("g-1", "tray", gang="g"))
    placed = made.schedule()
    assert placed["busy"] == "n0"
    assert {placed["g-0"], placed["g-1"]} in ({"n2", "n3"}, {"n4", "n5"})


def test_without_the_attribute_a_nodes_clique_label_is_its_nvlink_domain() -> None:
    made = cluster(group("g", 2, "nvlinkDomain"))
    for index in range(4):
        clique = {"nvidia.com/gpu.clique": f"fabric.{index % 2}"}
        made.add(node(f"n{index}", **clique))
    big = {"requests": {"cpu": "32"}}
    made.add(pod("g-0", gang="g", resources=big), pod("g-1", gang="g", resources=big))
    placed = made.schedule()
    assert {placed["g-0"], placed["g-1"]} == {"n0", "n2"}


# Preemption ----------------------------------------------------------------------------------


def test_a_pod_of_higher_priority_gets_the_device_of_a_lower_one() -> None:
    made = cluster(
        device_class(),
        node("a"),
        slice_of("a", [gpu(0), gpu(1)]),
        template("one", request()),
        template("two", request(count=2)),
        pod("low", "one", priority=1, terminationGracePeriodSeconds=5),
    )
    made.schedule()
    made.add(pod("high", "two", priority=100))
    made.schedule()
    assert [e.pod for e in made.scheduler.rooms.evicted] == ["default/low"]
    made.advance(30)
    assert made.placements() == {"high": "a"}
    assert devices(made, "high") == ["gpu-0", "gpu-1"]


def test_nobody_steals_the_device_that_an_eviction_frees() -> None:
    made = cluster(
        device_class(),
        node("a"),
        slice_of("a", [gpu(0)]),
        template("one", request()),
        pod("low", "one", priority=1, terminationGracePeriodSeconds=10),
    )
    made.schedule()
    made.add(pod("high", "one", priority=100))
    made.schedule()
    made.add(pod("thief", "one", priority=1))
    made.advance(30)
    assert made.placements() == {"high": "a"}


def test_nobody_is_evicted_where_that_frees_no_device() -> None:
    made = cluster(
        device_class(),
        node("a"),
        slice_of("a", [gpu(0)]),
        template("two", request(count=2)),
        pod("low", priority=1),
    )
    made.schedule()
    made.add(pod("high", "two", priority=100))
    made.schedule()
    assert list(made.scheduler.rooms.evicted) == []
    assert "Preemption is not helpful" in message(made, "high")


# Several profiles ----------------------------------------------------------------------------


def test_profiles_share_devices_but_not_each_others_answers(tmp_path: Path) -> None:
    from bayplan.profiles.loading import load_profiles

    path = tmp_path / "profiles.yaml"
    path.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "profiles: [{schedulerName: one}, {schedulerName: two}]\n"
    )
    good = request(selectors=[{"cel": {"expression": f'device.attributes["{GPU}"].kind == "x"'}}])
    made = cluster(
        device_class(),
        node("a", z="a"),
        node("b", z="b"),
        slice_of("a", [gpu(0, kind="x"), gpu(1, kind="y"), gpu(2, kind="x")]),
        slice_of("b", [gpu(0, kind="y"), gpu(1, kind="x"), gpu(2, kind="x")]),
        template("good", good),
        profiles=load_profiles(path),
    )
    for name, scheduler, zone in (("p", "two", "a"), ("q", "one", "b"), ("r", "one", "a")):
        made.add(pod(name, "good", schedulerName=scheduler, nodeSelector={"z": zone}))
        made.schedule()
    assert made.placements() == {"p": "a", "q": "b", "r": "a"}
    assert sorted(devices(made, "p") + devices(made, "r")) == ["gpu-0", "gpu-2"]
    assert devices(made, "q")[0] in ("gpu-1", "gpu-2")


# Policies of one's own -----------------------------------------------------------------------


class LastDeviceFirst(Plugin[Any]):
    """Take the devices with the highest index."""

    @hookimpl
    def device_score(self, chosen: Any) -> float:
        return float(sum(int(device.device.rpartition("-")[2]) for _, device in chosen))


def test_a_plugin_decides_which_devices_are_taken() -> None:
    made = cluster(
        device_class(),
        node("a"),
        slice_of("a", [gpu(i, numa=i // 4) for i in range(8)]),
        template("two", request(count=2)),
        pod("p", "two"),
        plugins=[LastDeviceFirst],
    )
    made.schedule()
    assert devices(made, "p") == ["gpu-6", "gpu-7"]


@pytest.mark.parametrize("cached", [True, False])
def test_released_claims_leave_the_ledger_as_it_was(cached: bool) -> None:
    made = cluster(
        device_class(),
        node("a"),
        slice_of("a", [gpu(i) for i in range(4)]),
        template("two", request(count=2)),
        cached=cached,
    )
    before = ledger(made).state.copy()
    made.add(pod("p", "two"), pod("q", "two"), pod("r", "two"))
    made.schedule()
    assert ledger(made).state.devices == {DeviceId(GPU, "a", f"gpu-{i}") for i in range(4)}
    for name in ("p", "q", "r"):
        made.remove(name)
    made.schedule()
    assert ledger(made).state == before


def test_members_of_a_gang_whose_selector_does_not_compile_are_refused_like_any_pod() -> None:
    broken = request(selectors=[{"cel": {"expression": "device.foo =="}}])
    made = cluster(
        device_class(), node("a"), slice_of("a", [gpu(0), gpu(1)]), template("bad", broken)
    )
    made.add(group("g", 2), pod("g-0", "bad", gang="g"), pod("g-1", "bad", gang="g"))
    made.schedule()
    assert "CEL compile error" in message(made, "g-0")
    assert "failed in slots" not in message(made, "g-0")


def test_a_shared_claim_stays_where_all_of_its_pods_can_reach_it() -> None:
    here = {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "z", "operator": "In", "values": ["x"]}]}
        ]
    }
    both = {**gpu(0, kind="both"), "allNodes": True}
    only = {**gpu(1, kind="one"), "nodeSelector": here}
    picky = request(
        selectors=[{"cel": {"expression": f'device.attributes["{GPU}"].kind == "both"'}}]
    )
    made = cluster(
        device_class(),
        node("a", z="x"),
        node("b", z="y"),
        slice_of("net", [both, only], nodeName=None, perDeviceNodeSelection=True),
        claim("shared", request()),
        template("picky", picky),
        group("g", 3),
        pod("g-0", from_claim="shared", gang="g", nodeSelector={"z": "x"}),
        pod("g-1", from_claim="shared", gang="g", nodeSelector={"z": "y"}),
        pod("g-2", "picky", gang="g", nodeSelector={"z": "x"}),
    )
    assert made.schedule() == {}
    assert ledger(made).state.devices == set()


def test_errors_on_a_mates_node_do_not_confuse_the_reason() -> None:
    wide = f'device.driver == "wide.example.com" || device.attributes["{GPU}"].kind == "x"'
    made = cluster(
        device_class("gpu", wide),
        device_class("any"),
        node("a", z="x"),
        node("b", z="y"),
        slice_of("net", [gpu(9)], nodeName=None, allNodes=True, driver="wide.example.com"),
        slice_of("a", [gpu(0, kind="x"), gpu(1, kind="x")]),
        slice_of("b", [gpu(0)]),
        template("any", request(deviceClassName="any")),
        template("five", request(count=5)),
        group("g", 2),
        pod("g-0", "any", gang="g", nodeSelector={"z": "y"}),
        pod("g-1", "five", gang="g", nodeSelector={"z": "x"}),
    )
    made.schedule()
    assert "request gpu needs 5 devices" in message(made, "g-1")


def test_explain_says_which_constraint_stands_in_the_way() -> None:
    from bayplan.explain.suggestions import Diagnosis

    made = cluster(
        device_class(),
        node("a"),
        slice_of("a", [gpu(0, numa=0), gpu(1, numa=1)]),
        template("pair", request(count=2), constraints=[{"matchAttribute": NUMA}]),
        pod("p", "pair"),
    )
    made.schedule()
    assert f"constraint on {NUMA}: no value has enough devices; the best has gpu 1 of 2" in (
        message(made, "p")
    )
    at_work = next(iter(made.scheduler.profiles.values()))
    diagnosis = Diagnosis(
        at_work.runtime, at_work.evaluator, at_work.cycle, made.scheduler.snapshot
    )
    unit = made.scheduler.pending_unit("default/p")
    assert unit is not None
    assert [one.text for one in diagnosis.suggest(unit, 0.0)] == [
        f"would fit on a without matchAttribute {NUMA} in claim own"
    ]


def test_nobody_is_evicted_for_devices_of_a_claim_that_outlives_its_pods() -> None:
    made = cluster(
        device_class(),
        node("a"),
        slice_of("a", [gpu(0)]),
        claim("kept", request()),
        template("one", request()),
        pod("low", from_claim="kept", priority=1),
    )
    made.schedule()
    made.add(pod("high", "one", priority=100))
    made.schedule()
    made.advance(60)
    assert list(made.scheduler.rooms.evicted) == []
    assert made.placements() == {"low": "a"}


def test_a_claim_that_a_pod_names_twice_is_one_claim() -> None:
    made = cluster(device_class(), node("a"), slice_of("a", [gpu(0)]), claim("mine", request()))
    claims = [{"name": name, "resourceClaimName": "mine"} for name in ("x", "y")]
    made.add(pod("p", resourceClaims=claims))
    assert made.schedule() == {"p": "a"}
    assert devices(made, "p") == ["gpu-0"]
    made.remove("p")
    assert made.schedule() == {}


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


def test_a_device_whose_shares_are_held_is_not_given_whole() -> None:
    shared = {**gpu(0), "allowMultipleAllocations": True, "capacity": {"m": {"value": "4"}}}
    half = request(capacity={"requests": {"m": "2"}})
    made = cluster(
        device_class(), node("a"), slice_of("a", [shared]), template("half", half), pod("p", "half")
    )
    made.schedule()
    from msgspec.structs import replace

    whole = slice_of("a", [{**gpu(0), "capacity": {"m": {"value": "4"}}}])
    (before,) = made.api.list(ResourceSlice)
    made.api.update(replace(before, spec=whole.spec))
    made.add(template("one", request()), pod("q", "one"))
    assert made.schedule() == {"p": "a"}


def test_a_pod_that_is_deleted_while_its_devices_get_ready_leaves_nothing() -> None:
    made = with_conditions()
    assert made.schedule() == {}
    made.remove("p")
    made.schedule()
    assert made.api.list(ResourceClaim) == []
    assert ledger(made).state.devices == set()
    made.add(pod("q", "one"))
    made.schedule()
    set_condition(made, "attached")
    assert made.schedule() == {"q": "a"}


def test_a_pod_whose_devices_get_ready_may_lose_its_place_to_a_higher_priority() -> None:
    device = {**gpu(0), "bindingConditions": ["attached"]}
    made = cluster(device_class(), node("a"), slice_of("a", [device]), template("one", request()))
    made.add(pod("low", "one", priority=1))
    made.schedule()
    made.add(pod("high", "one", priority=100))
    made.schedule()
    assert made.api.get(Pod, "default/low") is not None
    assert list(made.scheduler.rooms.evicted) == []
    made.advance(30)
    holders = [
        reference.name
        for one in made.api.list(ResourceClaim)
        for reference in one.status.reserved_for
    ]
    assert holders == ["high"]


def test_a_node_that_vanishes_while_devices_get_ready_gives_them_back() -> None:
    device = {**gpu(0), "bindingConditions": ["attached"]}
    made = cluster(
        device_class(),
        node("a"),
        node("b"),
        slice_of("net", [device], nodeName=None, allNodes=True),
        template("one", request()),
        pod("p", "one"),
    )
    made.schedule()
    made.api.vanish_node("a")
    made.schedule()
    set_condition_of(made, "net")
    made.schedule()
    made.advance(30)
    set_condition_of(made, "net")
    assert made.schedule() == {"p": "b"}


def set_condition_of(made: Cluster, pool: str) -> None:
    from msgspec.structs import replace

    (found,) = made.api.list(ResourceClaim)
    status = AllocatedDeviceStatus(GPU, pool, "gpu-0", conditions=(Condition("attached", "True"),))
    made.api.update(replace(found, status=replace(found.status, devices=(status,))))
    made.api.deliver()


def test_a_pod_that_ended_unseen_leaves_no_device_taken() -> None:
    made = cluster(
        device_class(extendedResourceName="example.com/gpu"), node("a"), slice_of("a", [gpu(0)])
    )
    resources = {"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}}
    made.add(pod("p", resources=resources))
    made.api.break_watch()
    made.schedule()
    made.api.delete(Pod, "default/p", grace=0)
    made.api.resume_watch()
    made.schedule()
    assert not ledger(made).in_flight
    made.add(pod("q", resources=resources))
    made.schedule()
    made.advance(20)
    assert made.placements() == {"q": "a"}


def test_a_member_that_comes_while_its_gang_gets_ready_is_tried_next() -> None:
    slow = [{**gpu(i), "bindingConditions": ["attached"]} for i in range(2)]
    made = cluster(
        device_class(),
        device_class("quick", f'device.attributes["{GPU}"].index == 9'),
        node("a"),
        slice_of("a", [*slow, gpu(9)]),
        template("one", request(selectors=[{"cel": {"expression": SLOW}}])),
        template("quick", request(deviceClassName="quick")),
        group("g", 2),
        pod("g-0", "one", gang="g"),
        pod("g-1", "one", gang="g"),
    )
    assert made.schedule() == {}
    made.add(pod("g-2", "quick", gang="g"))
    made.schedule()
    from msgspec.structs import replace

    for found in made.api.list(ResourceClaim):
        allocation = found.status.allocation
        if allocation is None:
            continue
        (result,) = allocation.devices.results
        held = AllocatedDeviceStatus(GPU, "a", result.device, conditions=(ATTACHED,))
        made.api.update(replace(found, status=replace(found.status, devices=(held,))))
    made.schedule()
    assert made.placements() == {"g-0": "a", "g-1": "a", "g-2": "a"}


SLOW = f'device.attributes["{GPU}"].index < 9'
ATTACHED = Condition("attached", "True")


def test_a_misspelt_attribute_is_told_with_the_one_that_was_meant() -> None:
    typo = request(selectors=[{"cel": {"expression": f'device.attributes["{GPU}"].modle == "x"'}}])
    nodes = [node(f"n{i}") for i in range(3)]
    slices = [slice_of(f"n{i}", [gpu(0, model="x")]) for i in range(3)]
    made = cluster(device_class(), *nodes, *slices, template("typo", typo), pod("p", "typo"))
    made.schedule()
    assert "0/3 nodes are available: 3 cannot allocate all claims" in message(made, "p")
    assert 'no such key: modle; did you mean "model"? (on device gpu-0)' in message(made, "p")


def test_levels_of_the_topology_need_a_domain() -> None:
    from pydantic import ValidationError

    from bayplan_plugins.dynamic_resources import DynamicResourcesArgs

    with pytest.raises(ValidationError, match='"pcieRoot" has no domain'):
        DynamicResourcesArgs(topology_levels=("pcieRoot",))


def test_a_release_that_is_refused_is_tried_again() -> None:
    made = cluster(device_class(), node("a"), slice_of("a", [gpu(0)]), claim("mine", request()))
    made.api.faults.fail_next(Bind, Conflict("busy"))
    made.api.faults.fail_next(ReleaseClaim, Conflict("busy"))
    made.add(pod("p", from_claim="mine"))
    made.schedule()
    (found,) = made.api.list(ResourceClaim)
    assert found.status.allocation is None
    assert found.status.reserved_for == ()


def test_a_pod_that_came_with_its_node_does_not_start_without_its_devices() -> None:
    made = cluster(device_class(), node("a"), slice_of("a", [gpu(0)]), template("one", request()))
    made.add(pod("p", "one", nodeName="a"))
    made.schedule()
    placed = made.api.get(Pod, "default/p")
    assert placed is not None
    assert placed.status.phase == "Pending"
    texts = [event.message for _, event in made.api.events if event.pod == "default/p"]
    assert any("is not allocated and reserved for this pod" in text for text in texts)


def test_a_claim_goes_with_the_pod_that_owns_it_even_if_the_pod_does_not_name_it() -> None:
    from msgspec.structs import replace

    made = cluster(device_class(), node("a"), slice_of("a", [gpu(0)]), template("one", request()))
    made.add(pod("low", "one", priority=1, terminationGracePeriodSeconds=0))
    made.schedule()
    placed = made.api.get(Pod, "default/low")
    assert placed is not None
    status = replace(placed.status, resource_claim_statuses=())
    made.api.update(replace(placed, status=status))
    made.add(pod("high", "one", priority=100))
    made.schedule()
    made.advance(30)
    assert made.placements() == {"high": "a"}


def test_extended_resources_wait_for_the_conditions_of_their_devices_too() -> None:
    device = {**gpu(0), "bindingConditions": ["attached"]}
    made = cluster(
        device_class(extendedResourceName="example.com/gpu"), node("a"), slice_of("a", [device])
    )
    resources = {"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}}
    made.add(pod("p", resources=resources))
    assert made.schedule() == {}
    set_condition(made, "attached")
    assert made.schedule() == {"p": "a"}


def test_a_preemption_that_was_only_tried_leaves_shares_as_they_were() -> None:
    def half(units: int) -> Content:
        return request(capacity={"requests": {"m": str(units)}})

    shared = {
        **gpu(0),
        "allowMultipleAllocations": True,
        "capacity": {"m": {"value": "100"}},
        "bindingConditions": ["attached"],
    }
    made = cluster(device_class(), node("a"), slice_of("a", [shared]))
    made.add(template("m30", half(30)), template("m90", half(90)), template("m60", half(60)))
    made.add(pod("p", "m30", priority=1, preemptionPolicy="Never"))
    made.schedule()
    made.add(pod("high", "m90", priority=0))
    made.schedule()
    assert ledger(made).state.capacity == {DeviceId(GPU, "a", "gpu-0"): {"m": 30}}
    made.remove("high")
    made.add(pod("q", "m60"))
    made.schedule()
    assert ledger(made).state.capacity == {DeviceId(GPU, "a", "gpu-0"): {"m": 90}}


def test_members_that_share_a_claim_hold_its_share_once() -> None:
    shared = {**gpu(0), "allowMultipleAllocations": True, "capacity": {"m": {"value": "100"}}}
    mine = claim("mine", request(capacity={"requests": {"m": "30"}}))
    made = cluster(device_class(), node("a"), slice_of("a", [shared]), mine)
    annotations = {"gang.scheduling.koordinator.sh/mode": "NonStrict"}
    gang = obj(
        "PodGroup",
        "scheduling.sigs.k8s.io",
        "v1alpha1",
        metadata={"name": "g", "annotations": annotations},
        spec={"minMember": 3},
    )
    big = {"requests": {"cpu": "64"}}
    made.add(gang, *(pod(f"g-{i}", from_claim="mine", gang="g") for i in range(2)))
    made.add(pod("g-2", gang="g", resources=big))
    made.schedule()
    assert list(made.scheduler.holds.all()), "two of three places are held"
    assert ledger(made).state.capacity == {DeviceId(GPU, "a", "gpu-0"): {"m": 30}}


def test_a_claim_that_ended_unseen_ends_the_wait_for_it() -> None:
    device = {**gpu(0), "bindingConditions": ["attached"]}
    made = cluster(device_class(), node("a"), slice_of("a", [device]), claim("mine", request()))
    made.add(pod("p", from_claim="mine"))
    made.schedule()
    made.api.break_watch()
    (found,) = made.api.list(ResourceClaim)
    from msgspec.structs import replace

    made.api.update(replace(found, metadata=replace(found.metadata, finalizers=())))
    made.api.delete(ResourceClaim, "default/mine")
    made.api.resume_watch()
    made.schedule()
    assert message(made, "p") == 'waiting for resource claim "mine", which does not exist'


def test_a_claim_that_another_pod_is_getting_is_waited_for_and_then_shared() -> None:
    made = cluster(device_class(), node("a"), slice_of("a", [gpu(0)]), claim("mine", request()))
    submit = made.api.submit
    delayed: list[Any] = []

    def slowly(write: Any, done: Any = None) -> None:
        if isinstance(write, ReserveClaim):
            delayed.append((write, done))
        else:
            submit(write, done)

    made.api.submit = slowly  # type: ignore[method-assign]
    made.add(pod("p", from_claim="mine"), pod("q", from_claim="mine"))
    assert made.schedule() == {}
    assert "default/mine is in the process of being allocated" in message(made, "q")
    made.api.submit = submit  # type: ignore[method-assign]
    for write, done in delayed:
        submit(write, done)
    made.schedule()
    made.advance(5)
    assert made.placements() == {"p": "a", "q": "a"}
