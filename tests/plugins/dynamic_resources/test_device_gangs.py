"""Devices of gangs, and devices that preemption frees."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.plugins.gpus.gpu_builders import (
    GPU,
    Content,
    claim,
    cluster,
    device_class,
    devices,
    gpu,
    gpu_cluster,
    group,
    ledger,
    looks_at_nodes,
    message,
    node,
    obj,
    pod,
    request,
    slice_of,
    template,
)

from bayplan.api import (
    Pod,
    ResourceClaim,
)
from bayplan.api.dra import AllocatedDeviceStatus, Condition, DeviceId


def test_members_exchange_devices_so_that_all_fit() -> None:
    picky = request(selectors=[{"cel": {"expression": f'device.attributes["{GPU}"].index == 0'}}])
    made = gpu_cluster(
        {"a": 2},
        template("any", request()),
        template("first", picky),
        group("g", 2),
        pod("g-0", "any", gang="g"),
        pod("g-1", "first", gang="g"),
    )
    assert len(made.schedule()) == 2
    assert devices(made, "g-0") == ["gpu-1"]
    assert devices(made, "g-1") == ["gpu-0"]


def test_what_one_gang_could_exchange_is_not_anothers() -> None:
    first = f'device.attributes["{GPU}"].index == 0'
    picky = request(selectors=[{"cel": {"expression": first}}])
    made = gpu_cluster({"a": 3}, template("any", request()), template("first", picky))
    for name in ("g", "h"):
        made.add(group(name, 2))
        made.add(pod(f"{name}-0", "any", gang=name), pod(f"{name}-1", "first", gang=name))
        made.schedule()
    assert devices(made, "g-1") == ["gpu-0"]
    assert sorted(made.placements()) == ["g-0", "g-1"]
    assert "claim own: request gpu" in message(made, "h-1")
    made.add(node("b"), slice_of("b", [gpu(0), gpu(1)]))
    made.advance(20)
    assert made.placements()["h-1"] == "b"
    assert devices(made, "h-1") == ["gpu-0"]


def test_members_that_name_different_claims_are_not_alike() -> None:
    first = f'device.attributes["{GPU}"].index == 0'
    made = gpu_cluster(
        {"a": [gpu(0)], "b": [gpu(1)]},
        claim("rare", request(selectors=[{"cel": {"expression": first}}])),
        claim("any", request()),
        group("g", 2),
        pod("g-0", from_claim="rare", gang="g"),
        pod("g-1", from_claim="any", gang="g"),
    )
    assert made.schedule() == {"g-0": "a", "g-1": "b"}


def test_gangs_of_equal_claims_look_at_a_node_again_only_if_it_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = {f"n{index}": 2 for index in range(30)}
    made = gpu_cluster(nodes, template("one", request()))
    looks = looks_at_nodes(monkeypatch)
    for name in ("g", "h", "i"):
        made.add(group(name, 4), *(pod(f"{name}-{index}", "one", gang=name) for index in range(4)))
    assert len(made.schedule()) == 12
    assert len(looks) <= 2 * 30 + 12 * 8


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
    made = gpu_cluster(
        {"a": 2},
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


def test_a_pod_of_higher_priority_gets_the_device_of_a_lower_one() -> None:
    made = gpu_cluster(
        {"a": 2},
        template("one", request()),
        template("two", request(count=2)),
        pod("low", "one", priority=1, terminationGracePeriodSeconds=5),
    )
    made.schedule()
    made.add(pod("high", "two", priority=100))
    made.schedule()
    assert [e.pod for e in made.scheduler.evictor.evicted] == ["default/low"]
    made.advance(30)
    assert made.placements() == {"high": "a"}
    assert devices(made, "high") == ["gpu-0", "gpu-1"]


def test_nobody_steals_the_device_that_an_eviction_frees() -> None:
    made = gpu_cluster(
        {"a": 1},
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
    made = gpu_cluster({"a": 1}, template("two", request(count=2)), pod("low", priority=1))
    made.schedule()
    made.add(pod("high", "two", priority=100))
    made.schedule()
    assert list(made.scheduler.evictor.evicted) == []
    assert "Preemption is not helpful" in message(made, "high")


def test_members_of_a_gang_whose_selector_does_not_compile_are_refused_like_any_pod() -> None:
    broken = request(selectors=[{"cel": {"expression": "device.foo =="}}])
    made = gpu_cluster({"a": 2}, template("bad", broken))
    made.add(group("g", 2), pod("g-0", "bad", gang="g"), pod("g-1", "bad", gang="g"))
    made.schedule()
    assert "CEL compile error" in message(made, "g-0")
    assert "failed in slots" not in message(made, "g-0")


def test_errors_on_another_members_node_do_not_confuse_the_reason() -> None:
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


def test_nobody_is_evicted_for_a_claim_that_nobody_deallocates() -> None:
    made = gpu_cluster(
        {"a": 1},
        claim("kept", request()),
        template("one", request()),
        pod("low", from_claim="kept", priority=1),
    )
    made.schedule()
    (kept,) = made.api.list(ResourceClaim)
    unprotected = replace(kept.metadata, finalizers=())
    made.api.update(replace(kept, metadata=unprotected))
    made.api.deliver()
    made.add(pod("high", "one", priority=100))
    made.schedule()
    made.advance(60)
    assert list(made.scheduler.evictor.evicted) == []
    assert made.placements() == {"low": "a"}


def test_a_pod_whose_devices_get_ready_may_lose_its_place_to_a_higher_priority() -> None:
    device = {**gpu(0), "bindingConditions": ["attached"]}
    made = gpu_cluster({"a": [device]}, template("one", request()))
    made.add(pod("low", "one", priority=1))
    made.schedule()
    made.add(pod("high", "one", priority=100))
    made.schedule()
    assert made.api.get(Pod, "default/low") is not None
    assert list(made.scheduler.evictor.evicted) == []
    made.advance(30)
    holders = [
        reference.name
        for one in made.api.list(ResourceClaim)
        for reference in one.status.reserved_for
    ]
    assert holders == ["high"]


def test_a_member_that_comes_while_its_gang_gets_ready_is_tried_next() -> None:
    slow = [{**gpu(i), "bindingConditions": ["attached"]} for i in range(2)]
    made = gpu_cluster(
        {"a": [*slow, gpu(9)]},
        device_class("quick", f'device.attributes["{GPU}"].index == 9'),
        template("one", request(selectors=[{"cel": {"expression": SLOW}}])),
        template("quick", request(deviceClassName="quick")),
        group("g", 2),
        pod("g-0", "one", gang="g"),
        pod("g-1", "one", gang="g"),
    )
    assert made.schedule() == {}
    made.add(pod("g-2", "quick", gang="g"))
    made.schedule()

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


def test_a_preemption_that_was_only_tried_leaves_shares_as_they_were() -> None:
    def half(units: int) -> Content:
        return request(capacity={"requests": {"m": str(units)}})

    shared = {
        **gpu(0),
        "allowMultipleAllocations": True,
        "capacity": {"m": {"value": "100"}},
        "bindingConditions": ["attached"],
    }
    made = gpu_cluster({"a": [shared]})
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
    made = gpu_cluster({"a": [shared]}, mine)
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
    assert list(made.scheduler.nominator.all()), "two of three places are held"
    assert ledger(made).state.capacity == {DeviceId(GPU, "a", "gpu-0"): {"m": 30}}
