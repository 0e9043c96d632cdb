"""Pods with claims on the embedded cluster: which devices they get, and why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpu_builders import (
    DRA,
    GPU,
    NUMA,
    claim,
    cluster,
    device_class,
    devices,
    gpu,
    gpu_cluster,
    group,
    ledger,
    message,
    node,
    obj,
    pod,
    request,
    slice_of,
    template,
)

from bayplan import Plugin, hookimpl
from bayplan.api import (
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)

BELOW_3 = f'device.attributes["{GPU}"].index < 3'


def test_a_pod_gets_a_claim_from_its_template_and_a_device() -> None:
    made = gpu_cluster({"a": 1}, template("one", request()))
    made.add(pod("p", "one"))
    assert made.schedule() == {"p": "a"}
    (found,) = made.api.list(ResourceClaim)
    assert found.metadata.finalizers == ("resource.kubernetes.io/delete-protection",)
    assert [r.name for r in found.status.reserved_for] == ["p"]
    assert found.status.allocation is not None
    assert found.status.allocation.node_selector is not None
    assert devices(made, "p") == ["gpu-0"]


def test_a_pod_waits_for_the_claim_that_it_names() -> None:
    made = gpu_cluster({"a": 1})
    made.add(pod("p", from_claim="mine"))
    assert made.schedule() == {}
    assert message(made, "p") == 'waiting for resource claim "mine", which does not exist'
    made.add(claim("mine", request()))
    assert made.schedule() == {"p": "a"}


def test_a_pod_waits_for_the_template_of_its_claim() -> None:
    made = gpu_cluster({"a": 1})
    made.add(pod("p", "one"))
    made.schedule()
    assert 'waiting for resource claim "own" to be created' in message(made, "p")
    made.add(template("one", request()))
    assert made.schedule() == {"p": "a"}


def test_the_message_counts_why_devices_were_ruled_out() -> None:
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


def test_an_expression_that_does_not_compile_is_reported_with_its_position() -> None:
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
    made = gpu_cluster({"a": 40}, template("many", request(count=33)), pod("p", "many"))
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
    made = gpu_cluster(
        {"a": 1, "b": 2},
        template("either", {"name": "gpu", "firstAvailable": alternatives}),
        pod("p", "either"),
    )
    assert made.schedule() == {"p": "b"}
    assert devices(made, "p") == ["gpu-0", "gpu-1"]


def test_a_single_device_comes_from_the_group_that_is_broken_already() -> None:
    made = gpu_cluster(
        {"a": [gpu(i, numa=i // 4) for i in range(8)]},
        template("one", request()),
        template("four", request(count=4), constraints=[{"matchAttribute": NUMA}]),
    )
    for name in ("p", "q", "r"):
        made.add(pod(name, "one"))
    made.add(pod("four", "four"))
    assert len(made.schedule()) == 4
    assert devices(made, "four") == ["gpu-4", "gpu-5", "gpu-6", "gpu-7"]


def test_the_node_that_stays_whole_is_left_for_others() -> None:
    made = gpu_cluster(
        {"a": [gpu(i, numa=0) for i in range(4)], "b": [gpu(i, numa=0) for i in range(4)]},
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


def test_pods_share_a_claim_on_the_node_of_its_devices() -> None:
    made = gpu_cluster(
        {"b": 1},
        node("a"),
        claim("shared", request()),
        pod("p", from_claim="shared"),
        pod("q", from_claim="shared"),
    )
    assert made.schedule() == {"p": "b", "q": "b"}
    (found,) = made.api.list(ResourceClaim)
    assert [r.name for r in found.status.reserved_for] == ["p", "q"]


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
    made = gpu_cluster({"a": 2}, template("one", request()), rule)
    made.add(pod("p", "one"))
    made.schedule()
    assert devices(made, "p") == ["gpu-1"]


def test_admin_access_needs_a_labelled_namespace_and_holds_nothing() -> None:
    made = gpu_cluster(
        {"a": 1},
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


class LastDeviceFirst(Plugin[Any]):
    """Take the devices with the highest index."""

    @hookimpl
    def device_score(self, chosen: Any) -> float:
        return float(sum(int(device.device.rpartition("-")[2]) for _, device in chosen))


def test_a_plugin_decides_which_devices_are_taken() -> None:
    made = gpu_cluster(
        {"a": [gpu(i, numa=i // 4) for i in range(8)]},
        template("two", request(count=2)),
        pod("p", "two"),
        plugins=[LastDeviceFirst],
    )
    made.schedule()
    assert devices(made, "p") == ["gpu-6", "gpu-7"]


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


def test_explain_says_which_constraint_stands_in_the_way() -> None:
    from bayplan.explain.suggestions import Diagnosis

    made = gpu_cluster(
        {"a": [gpu(0, numa=0), gpu(1, numa=1)]},
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


def test_a_claim_that_a_pod_names_twice_is_one_claim() -> None:
    made = gpu_cluster({"a": 1}, claim("mine", request()))
    claims = [{"name": name, "resourceClaimName": "mine"} for name in ("x", "y")]
    made.add(pod("p", resourceClaims=claims))
    assert made.schedule() == {"p": "a"}
    assert devices(made, "p") == ["gpu-0"]
    made.remove("p")
    assert made.schedule() == {}


def test_a_device_whose_shares_are_held_is_not_given_whole() -> None:
    shared = {**gpu(0), "allowMultipleAllocations": True, "capacity": {"m": {"value": "4"}}}
    half = request(capacity={"requests": {"m": "2"}})
    made = gpu_cluster({"a": [shared]}, template("half", half), pod("p", "half"))
    made.schedule()
    from msgspec.structs import replace

    whole = slice_of("a", [{**gpu(0), "capacity": {"m": {"value": "4"}}}])
    (before,) = made.api.list(ResourceSlice)
    made.api.update(replace(before, spec=whole.spec))
    made.add(template("one", request()), pod("q", "one"))
    assert made.schedule() == {"p": "a"}


def test_a_misspelt_attribute_is_reported_with_the_likely_one() -> None:
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
