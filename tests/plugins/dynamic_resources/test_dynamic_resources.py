"""Pods with claims on the embedded cluster: which devices they get, and why not."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.plugins.gpus.gpu_builders import (
    DRA,
    GPU,
    NUMA,
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
    reason,
    request,
    slice_of,
    template,
)

from bayplan import Plugin, hookimpl
from bayplan.api import (
    DeviceTaintRule,
    Node,
    Pod,
    ResourceClaim,
    ResourceSlice,
)
from bayplan.explain.explanation import explain
from bayplan.testing import Cluster
from bayplan_dra.allocator import AllocatedState
from bayplan_plugins.dynamic_resources.node_allocator import NodeAllocator

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


def test_a_message_has_the_pods_own_name_for_its_claim() -> None:
    picky = request(selectors=[{"cel": {"expression": IS_H100}}])
    made = gpu_cluster({"a": 1}, claim("fails-1", picky), claim("fails-2", picky))
    made.add(claim("many-1", request(count=3)), claim("many-2", request(count=3)))
    for name in ("fails-1", "fails-2", "many-1", "many-2"):
        made.add(pod(f"p-{name}", from_claim=name))
        made.schedule()
        assert "(claim shared" in message(made, f"p-{name}")


def test_pods_with_a_claim_each_look_at_a_node_again_only_if_it_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = gpu_cluster(dict.fromkeys((f"n{index}" for index in range(30)), 1))
    looks = looks_at_nodes(monkeypatch)
    for index in range(10):
        made.add(claim(f"c{index}", request()), pod(f"p{index}", from_claim=f"c{index}"))
    assert len(made.schedule()) == 10
    # To filter and to score each; then those where a pod before was placed, and to reserve.
    assert len(looks) <= 2 * 30 + 10 * 4


def test_an_unknown_class_is_named() -> None:
    made = cluster(node("a"), slice_of("a", [gpu(0)]), template("one", request()), pod("p", "one"))
    made.schedule()
    assert "request gpu: device class gpu does not exist" in message(made, "p")
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


IS_H100 = f'device.attributes["{GPU}"].model == "H100"'
H100 = gpu(0, model="H100")
FAILS = "CEL runtime error: no such key: model (on device gpu-0)"


def failing_cluster(gpus: dict[str, list[Content]], **options: Any) -> Cluster:
    """Return a cluster with a pod whose class reads an attribute that plain GPUs do not have."""
    nodes = [node(name) for name in gpus]
    slices = [slice_of(name, own) for name, own in gpus.items()]
    picky = device_class(expression=IS_H100)
    own = template("one", request())
    return cluster(picky, *nodes, *slices, own, pod("p", "one"), **options)


def test_a_selector_that_fails_on_any_node_holds_its_pod_back() -> None:
    made = failing_cluster({"bad": [gpu(0)], "good": [H100]})
    assert made.schedule() == {}
    assert message(made, "p") == (
        "0/2 nodes are available: 1 cannot allocate all claims (claim own, request gpu: class gpu: "
        f"selector #0: {FAILS}), 1 not considered because the filter failed on another node."
    )
    assert reason(made, "p") == "SchedulerError"
    made.api.update(slice_of("bad", [H100]))
    made.advance(20)
    assert "p" in made.placements()


def test_a_hundred_nodes_that_fail_alike_make_one_reason() -> None:
    made = failing_cluster({f"n{i}": [gpu(0)] for i in range(100)})
    assert made.schedule() == {}
    assert message(made, "p") == (
        "0/100 nodes are available: 100 cannot allocate all claims (claim own, request gpu: "
        f"class gpu: selector #0: {FAILS})."
    )


def test_kubernetes_would_not_come_to_the_failing_node_of_many() -> None:
    made = failing_cluster({"bad": [gpu(0)], **{f"n{i}": [H100] for i in range(200)}})
    assert made.schedule().keys() == {"p"}


def test_devices_after_those_that_suffice_do_not_count() -> None:
    made = failing_cluster({"a": [{**H100, "name": "first"}, gpu(0)]})
    assert made.schedule() == {"p": "a"}
    made.add(pod("q", "one"))
    made.schedule()
    assert FAILS in message(made, "q")


def test_a_device_in_use_does_not_count() -> None:
    both = [gpu(0), {**gpu(1, model="H100"), "taints": [{"key": "k", "effect": "NoSchedule"}]}]
    made = picky_cluster({"a": both}, pod("first", "any"))
    made.schedule()
    assert devices(made, "first") == ["gpu-0"]
    made.add(pod("p", "h100"))
    made.schedule()
    assert reason(made, "p") == "Unschedulable"
    made.api.update(slice_of("a", [gpu(0), gpu(1, model="H100")]))
    made.advance(20)
    assert devices(made, "p") == ["gpu-1"]


def test_a_node_that_other_filters_refuse_does_not_count() -> None:
    made = cluster(
        device_class(expression=IS_H100),
        node("bad", zone="x"),
        node("good", zone="y"),
        slice_of("bad", [gpu(0)]),
        slice_of("good", [H100]),
        template("one", request()),
        pod("p", "one", nodeSelector={"zone": "y"}),
    )
    assert made.schedule() == {"p": "good"}


def picky_cluster(gpus: dict[str, list[Content]], *objects: Any) -> Cluster:
    """Return a cluster with templates for any GPU and for one that reads an attribute."""
    picky = request(selectors=[{"cel": {"expression": IS_H100}}])
    return gpu_cluster(gpus, template("any", request()), template("h100", picky), *objects)


def what_would_help(made: Cluster, pod_name: str) -> list[str]:
    made.schedule()
    found = made.api.get(Pod, f"default/{pod_name}")
    assert found is not None
    return [one.text for one in explain(made.scheduler, found).suggestions]


def test_explain_names_the_selector_to_mend() -> None:
    made = failing_cluster({"a": [gpu(0)], "b": [gpu(0)], "good": [H100]})
    assert what_would_help(made, "p") == [
        "would be tried again if selector #0 of class gpu did not fail on device gpu-0 of a and of "
        "1 more node (no such key: model; .?model.orValue(...) is safe to read)"
    ]
    own = picky_cluster({"a": [gpu(0, modle="x")]}, pod("q", "h100"))
    assert what_would_help(own, "q") == [
        "would be tried again if selector #0 of request gpu in claim own did not fail on device "
        'gpu-0 of a (no such key: model; did you mean "modle"?)'
    ]


def test_a_failing_selector_does_not_hide_what_would_help_elsewhere() -> None:
    made = failing_cluster({"bad": [gpu(0)], "good": [H100]})
    made.add(pod("q", "one", nodeSelector={"z": "x"}))
    first, _ = what_would_help(made, "q")
    assert first == "would fit on good if its label z was x (it has none)"


def test_nobody_is_evicted_for_a_pod_whose_selector_fails() -> None:
    made = picky_cluster({"a": [gpu(0), gpu(1)]}, pod("low", "any"))
    made.schedule()
    made.add(pod("p", "h100", priority=100))
    assert made.schedule() == {"low": "a"}
    assert "CEL runtime error: no such key: model" in message(made, "p")
    assert "preemption" not in message(made, "p")


def test_failing_selectors_can_be_ignored() -> None:
    ignoring = {"DynamicResources": {"selectorFailurePolicy": "Ignore"}}
    made = failing_cluster({"bad": [gpu(0)], "good": [H100]}, plugins=ignoring)
    assert made.schedule() == {"p": "good"}
    made.add(pod("q", "one"))
    made.schedule()
    assert (
        "request gpu needs 1 device of class gpu, none of the node's 1 device is of it (class gpu: "
        f"selector #0: {FAILS})"
    ) in message(made, "q")


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
def test_the_reference_order_has_the_same_policy(policy: str) -> None:
    strict = {"DynamicResources": {"strictReference": True, "selectorFailurePolicy": policy}}
    made = failing_cluster({"a": [gpu(0), {**H100, "name": "gpu-1"}]}, plugins=strict)
    assert made.schedule() == ({} if policy == "Fail" else {"p": "a"})


def test_a_gang_with_a_failing_selector_does_not_run() -> None:
    made = picky_cluster(
        {"bad": [gpu(0), gpu(1)], "good": [H100, {**H100, "name": "gpu-1"}]},
        group("g", 2),
        pod("g-0", "any", gang="g"),
        pod("g-1", "h100", gang="g"),
    )
    assert made.schedule() == {}
    assert "CEL runtime error: no such key: model" in message(made, "g-0")
    assert reason(made, "g-1") == "SchedulerError"


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


def test_explain_finds_the_pods_whose_claims_are_in_the_way_together() -> None:
    made = gpu_cluster({"a": 3}, template("one", request()), template("two", request(count=2)))
    made.add(*(pod(name, "one", priority=1) for name in "pqr"))
    made.schedule()
    made.add(pod("wide", "two", priority=0))
    made.schedule()
    wide = made.api.get(Pod, "default/wide")
    assert wide is not None
    (one,) = explain(made.scheduler, wide).suggestions
    assert one.text == "would fit on a if devices of several claims were freed"
    assert len(one.ends) == 2


def test_a_misspelt_attribute_is_reported_with_the_likely_one() -> None:
    typo = request(selectors=[{"cel": {"expression": f'device.attributes["{GPU}"].modle == "x"'}}])
    nodes = [node(f"n{i}") for i in range(3)]
    slices = [slice_of(f"n{i}", [gpu(0, model="x")]) for i in range(3)]
    made = cluster(device_class(), *nodes, *slices, template("typo", typo), pod("p", "typo"))
    made.schedule()
    assert "0/3 nodes are available: 3 cannot allocate all claims" in message(made, "p")
    assert 'no such key: modle; did you mean "model"? (on device gpu-0)' in message(made, "p")


@pytest.mark.parametrize("strict", [True, False])
def test_a_search_ends_with_the_filter_timeout_and_says_so(strict: bool) -> None:
    """The clock goes on by a second whenever it is read."""
    loop = "lists.range(60).all(a, lists.range(60).all(b, true))"
    slow = request(selectors=[{"cel": {"expression": f"{loop} && device.driver == 'none'"}}])
    made = gpu_cluster({"a": 50}, claim("c", slow))
    ticks = itertools.count()
    devices_of = ledger(made).devices
    allocator = NodeAllocator(
        devices_of, AllocatedState(), (), strict, 10.0, clock=lambda: float(next(ticks))
    )
    (asked,) = made.api.list(ResourceClaim)
    (on,) = made.api.list(Node)
    found = allocator.allocate("key", [ledger(made).specs.prepared(asked)], on)
    assert found.timed_out
    assert found.reason == (
        "interrupted claim c, request gpu: selector #0, as filterTimeout (10 s) was over"
    )
    assert next(ticks) <= 13


@pytest.mark.parametrize("policy", ["ignore", "Skip", 1])
def test_an_unknown_policy_for_failing_selectors_is_refused(policy: object) -> None:
    from bayplan.errors import InputError

    with pytest.raises(InputError, match="selectorFailurePolicy"):
        gpu_cluster({}, plugins={"DynamicResources": {"selectorFailurePolicy": policy}})


def test_levels_of_the_topology_need_a_domain() -> None:
    from pydantic import ValidationError

    from bayplan_plugins.dynamic_resources import DynamicResourcesArgs

    with pytest.raises(ValidationError, match='"pcieRoot" has no domain'):
        DynamicResourcesArgs(topology_levels=("pcieRoot",))
