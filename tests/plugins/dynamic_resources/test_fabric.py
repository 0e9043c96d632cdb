"""GPUs that a fabric attaches: which one a pod gets, waiting for it, and what goes wrong."""

from __future__ import annotations

from msgspec.structs import replace
from tests.plugins.dynamic_resources.fabric_builders import (
    events,
    fabric,
    fabric_cluster,
    finish,
    gpu_of,
    host,
    local_gpu,
    of_model,
    places,
)
from tests.plugins.gpus.gpu_builders import (
    GPU,
    cluster,
    device_class,
    group,
    ledger,
    message,
    node,
    pod,
    request,
    slice_of,
    template,
)

from bayplan.api import ResourceClaim
from bayplan.api.dra import AllocatedDeviceStatus, Condition
from bayplan.testing import Cluster


def test_a_pod_is_bound_once_its_gpu_is_attached() -> None:
    made = fabric_cluster(fabric({"a": 1}), host("n1", "a"), pod("p", "one"))
    assert made.schedule() == {}
    assert "waits for device a-0 to be attached to node n1, for at most 600 s" in message(made, "p")
    made.advance(19)
    assert made.placements() == {}
    assert made.advance(1) == {"p": "n1"}
    assert places(made) == {"a-0": "n1"}


def test_a_fabric_does_not_reach_nodes_without_its_labels() -> None:
    made = fabric_cluster(fabric({"a": 1, "b": 1}), host("n1", "b"), host("n2", "a"))
    made.add(pod("p", "one", nodeSelector={"cohdi.io/b": "true"}))
    made.schedule()
    assert made.advance(20) == {"p": "n1"}
    assert gpu_of(made, "p") == "n1: b-0"


def test_a_local_gpu_comes_before_one_that_has_to_be_attached() -> None:
    made = fabric_cluster(fabric({"a": 2}), host("n1", "a"), local_gpu("n1"))
    made.add(pod("p", "one"))
    assert made.schedule() == {"p": "n1"}
    assert gpu_of(made, "p") == "n1: local"


def test_an_attached_gpu_is_used_again_without_waiting_and_before_another_is_attached() -> None:
    made = fabric_cluster(fabric({"a": 3}), host("n1", "a"), pod("p", "one"))
    made.schedule()
    made.advance(20)
    finish(made, "p")
    made.add(pod("q", "one"))
    assert made.schedule()["q"] == "n1"
    assert gpu_of(made, "q") == "n1: a-0"


def test_the_gpu_that_would_be_detached_first_is_used_first() -> None:
    made = fabric_cluster(fabric({"a": 3}), host("n1", "a"))
    made.add(*(pod(name, "one") for name in "pqr"))
    made.schedule()
    made.advance(20)
    gpus = {name: gpu_of(made, name) for name in "pqr"}
    for name in "rpq":
        finish(made, name)
        made.advance(60)
    made.add(pod("s", "one"), pod("t", "one"))
    made.schedule()
    assert [gpu_of(made, name) for name in "st"] == [gpus["r"], gpus["p"]]


def test_a_gpu_is_detached_only_after_its_idle_time() -> None:
    made = fabric_cluster(
        fabric({"a": 1}, idleTime="5m", detachTime="10s"), host("n1", "a"), host("n2", "a")
    )
    made.add(pod("p", "one"))
    made.schedule()
    made.advance(20)
    where = made.placements()["p"]
    finish(made, "p")
    made.advance(299)
    assert places(made) == {"a-0": where}
    made.advance(12)
    assert places(made) == {"a-0": ""}


def test_an_idle_gpu_stays_where_the_host_has_its_minimum() -> None:
    config = fabric({"a": 2}, idleTime="1m")
    made = fabric_cluster(config, host("n1", "a", a_size_min="1"))
    made.advance(1000)
    assert sorted(places(made).values()) == ["", "n1"]


def test_a_gpu_that_fails_gives_the_pod_back_and_the_next_try_takes_another() -> None:
    config = fabric({"a": 2}, failures=[{"card": "a-0"}])
    made = fabric_cluster(config, host("n1", "a"), pod("p", "one"))
    made.schedule()
    made.advance(20)
    assert made.placements() == {}
    assert any("GPU a-0" in text or "device a-0 failed" in text for text in events(made, "p"))
    (claim,) = made.api.list(ResourceClaim)
    assert claim.status.allocation is None
    assert ledger(made).state.devices == set()
    made.advance(5)
    assert gpu_of(made, "p") == "n1: a-1"
    made.advance(20)
    assert made.placements() == {"p": "n1"}


def test_a_gpu_that_never_gets_ready_is_given_back_at_the_limit() -> None:
    config = fabric({"a": 2}, failures=[{"card": "a-0", "result": "Silent"}])
    made = fabric_cluster(
        config,
        host("n1", "a"),
        plugins={"DynamicResources": {"bindingTimeout": "60s"}},
    )
    made.add(pod("p", "one"))
    made.schedule()
    made.advance(59)
    assert gpu_of(made, "p") == "n1: a-0"
    made.advance(1)
    assert "waited 60 s for device a-0 to be attached to node n1" in message(made, "p")
    made.advance(30)
    assert gpu_of(made, "p") == "n1: a-1"
    assert made.placements() == {"p": "n1"}


def test_members_of_a_gang_are_bound_once_all_their_gpus_are_attached() -> None:
    config = fabric({"a": 2}, failures=[])
    made = fabric_cluster(config, host("n1", "a"), local_gpu("n1"), group("g", 3))
    made.add(*(pod(f"g-{i}", "one", gang="g") for i in range(3)))
    assert made.schedule() == {}
    made.advance(19)
    assert made.placements() == {}
    made.advance(1)
    assert set(made.placements()) == {"g-0", "g-1", "g-2"}


def test_a_gang_gives_all_gpus_back_when_one_fails_and_takes_them_again() -> None:
    config = fabric({"a": 3}, failures=[{"card": "a-1"}])
    made = fabric_cluster(config, host("n1", "a"), group("g", 2))
    made.add(pod("g-0", "one", gang="g"), pod("g-1", "one", gang="g"))
    made.schedule()
    made.advance(20)
    assert made.placements() == {}
    made.advance(60)
    assert set(made.placements()) == {"g-0", "g-1"}
    assert {gpu_of(made, name) for name in ("g-0", "g-1")} == {"n1: a-0", "n1: a-2"}


def test_the_gpu_that_was_handed_over_is_kept_for_its_pod() -> None:
    made = fabric_cluster(fabric({"a": 1}, handsOver=True), host("n1", "a"), pod("p", "one"))
    made.schedule()
    made.advance(19)
    # It would be tried first, and take the GPU, if p had to be scheduled again.
    made.add(pod("thief", "one", priority=0))
    made.advance(1)
    assert made.placements() == {"p": "n1"}
    (claim,) = [c for c in made.api.list(ResourceClaim) if c.status.allocation is not None]
    assert claim.status.allocation is not None
    assert claim.status.allocation.devices.results[0].pool == "n1/attached"
    assert {device.pool for device in ledger(made).state.devices} == {"n1/attached"}
    finish(made, "p")
    made.advance(10)
    assert made.placements()["thief"] == "n1"


def waiting_for_a_handover() -> Cluster:
    """A pod waits for its GPU to be attached; its node has another one, that came meanwhile."""
    made = fabric_cluster(fabric({"a": 1}, handsOver=True), host("n1", "a"), pod("p", "one"))
    made.schedule()
    made.advance(10)
    made.add(local_gpu("n1"), pod("thief", "one", priority=0))
    assert made.schedule() == {}
    return made


def test_a_gpu_is_kept_that_comes_before_it_is_said_to_be_handed_over() -> None:
    made = waiting_for_a_handover()
    made.advance(10)
    assert made.placements() == {"p": "n1", "thief": "n1"}


def test_a_gpu_that_was_kept_is_left_to_others_when_its_pod_goes() -> None:
    made = waiting_for_a_handover()
    made.remove("p")
    made.schedule()
    made.advance(1)
    assert made.placements() == {"thief": "n1"}


def test_a_gang_keeps_all_gpus_that_were_handed_over() -> None:
    made = fabric_cluster(fabric({"a": 2}, handsOver=True), host("n1", "a"), group("g", 2))
    made.add(pod("g-0", "one", gang="g"), pod("g-1", "one", gang="g"))
    made.schedule()
    made.add(*(pod(f"thief-{i}", "one") for i in range(3)))
    made.advance(20)
    assert {"g-0", "g-1"} == set(made.placements())


def test_a_pod_that_goes_while_its_gpu_is_attached_leaves_it_to_the_next() -> None:
    made = fabric_cluster(fabric({"a": 1}), host("n1", "a"), pod("p", "one"))
    made.schedule()
    made.advance(10)
    made.remove("p")
    made.schedule()
    made.add(pod("q", "one"))
    made.schedule()
    assert made.placements() == {}
    assert made.advance(10) == {"q": "n1"}


# Limits of hosts -----------------------------------------------------------------------------


def test_a_minimum_gives_a_host_no_gpu_that_it_may_not_have() -> None:
    """Because of its maximum, its own included, the model beside, or a model it does not take."""
    made = fabric_cluster(
        fabric({"a": 2, "b": 2}, apart=True),
        host("full", "a", a_size_min="3", a_size_max="1"),
        host("mixed", "a", "b", b_size_min="1"),
        host("other", "a", b_size_min="1"),
        local_gpu("full"),
        local_gpu("mixed"),
    )
    made.schedule()
    made.advance(60)
    assert set(places(made).values()) == {""}


def test_a_host_gets_no_more_gpus_than_its_maximum() -> None:
    made = fabric_cluster(fabric({"a": 4}), host("n1", "a", a_size_max="2"))
    made.add(*(pod(name, "one") for name in "pqr"))
    made.schedule()
    made.advance(60)
    assert set(made.placements()) == {"p", "q"}
    assert "2 in the fabric's pool, but the host may not have more than 2 of them" in message(
        made, "r"
    )
    finish(made, "p")
    made.advance(10)
    assert made.placements()["r"] == "n1"


def test_a_host_whose_maximum_cannot_be_read_gets_no_gpu_and_says_why() -> None:
    made = fabric_cluster(fabric({"a": 1}), host("n1", "a", a_size_max="few"), pod("p", "one"))
    made.schedule()
    assert 'label cohdi.io/a-size-max: expected a number from 0 to 99999, got "few"' in message(
        made, "p"
    )


def test_one_claim_gets_no_more_gpus_than_the_maximum_of_its_host() -> None:
    made = fabric_cluster(
        fabric({"a": 4}),
        template("three", request(count=3)),
        host("n1", "a", a_size_max="2"),
        host("n2", "a", a_size_max="3"),
    )
    made.add(pod("p", "three"))
    made.schedule()
    assert made.advance(20) == {"p": "n2"}


def test_a_gang_respects_the_maximum_of_each_host() -> None:
    made = fabric_cluster(
        fabric({"a": 4}),
        host("n1", "a", a_size_max="1"),
        host("n2", "a", a_size_max="2"),
        group("g", 3),
    )
    made.add(*(pod(f"g-{i}", "one", gang="g") for i in range(3)))
    made.schedule()
    placed = made.advance(20)
    assert sorted(placed.values()) == ["n1", "n2", "n2"]


def test_models_that_cannot_coexist_go_to_different_hosts() -> None:
    made = fabric_cluster(
        fabric({"a": 2, "b": 2}, apart=True),
        template("of-a", request(**of_model("a"))),
        template("of-b", request(**of_model("b"))),
        host("n1", "a", "b"),
    )
    made.add(pod("p", "of-a"))
    made.schedule()
    made.add(pod("q", "of-b"))
    made.schedule()
    made.advance(20)
    assert made.placements() == {"p": "n1"}
    assert "the host may not have b beside a" in message(made, "q")
    made.add(host("n2", "a", "b"))
    made.schedule()
    assert made.advance(30) == {"p": "n1", "q": "n2"}


def test_a_local_gpu_keeps_models_away_that_cannot_coexist_with_it() -> None:
    made = fabric_cluster(
        fabric({"a": 1, "b": 1}, apart=True),
        template("of-b", request(**of_model("b"))),
        host("n1", "a", "b"),
        local_gpu("n1", "a"),
    )
    made.add(pod("p", "of-b"))
    made.schedule()
    made.advance(20)
    assert "the host may not have b beside a" in message(made, "p")


def test_one_claim_does_not_mix_models_that_cannot_coexist() -> None:
    made = fabric_cluster(
        fabric({"a": 1, "b": 2}, apart=True),
        template("two", request(count=2)),
        template("three", request(count=3)),
        host("n1", "a", "b"),
    )
    made.add(pod("p", "three"))
    made.schedule()
    made.add(pod("q", "two"))
    made.schedule()
    assert made.advance(20) == {"q": "n1"}
    assert gpu_of(made, "q") == "n1: b-0, b-1"


def test_a_profile_can_keep_models_apart() -> None:
    made = fabric_cluster(
        fabric({"a": 1, "b": 1}),
        template("two", request(count=2)),
        host("n1", "a", "b"),
        plugins={"DynamicResources": {"cannotCoexist": [["a", "b"]]}},
    )
    made.add(pod("p", "two"))
    assert made.schedule() == {}
    made.advance(30)
    assert made.placements() == {}


def test_members_that_exchange_gpus_respect_the_maximum_of_each_host() -> None:
    made = fabric_cluster(
        fabric({"a": 2}),
        host("n1", "a", a_size_max="0"),
        host("n2", "a"),
        group("g", 2),
    )
    made.add(pod("g-0", "one", gang="g", nodeSelector={"cohdi.io/a-size-max": "0"}))
    made.add(pod("g-1", "one", gang="g"))
    made.schedule()
    made.advance(30)
    assert made.placements() == {}
    assert "the host may not have more than 0 of them" in message(made, "g-0")


# Which node ----------------------------------------------------------------------------------


def test_a_node_with_a_free_gpu_comes_before_emptier_ones_without() -> None:
    made = fabric_cluster(fabric({"a": 3}), host("n1", "a"), host("n2", "a"), local_gpu("n2"))
    made.add(pod("busy", nodeName="n2", resources={"requests": {"cpu": "28"}}))
    made.add(pod("p", "one"))
    assert made.schedule()["p"] == "n2"
    assert gpu_of(made, "p") == "n2: local"


def test_a_node_with_an_attached_gpu_comes_before_emptier_ones_without() -> None:
    made = fabric_cluster(fabric({"a": 3}), host("n1", "a"), host("n2", "a", a_size_min="1"))
    made.add(pod("busy", nodeName="n2", resources={"requests": {"cpu": "28"}}))
    made.advance(20)
    made.add(pod("p", "one"))
    assert made.schedule()["p"] == "n2"


def test_after_a_failure_another_node_is_tried() -> None:
    config = fabric({"a": 4}, failures=[{"node": "n1", "times": 100}])
    made = fabric_cluster(config, host("n1", "a"), host("n2", "a"), pod("p", "one"))
    made.schedule()
    assert gpu_of(made, "p") == "n1: a-0"
    made.advance(30)
    assert gpu_of(made, "p") == "n2: a-1"
    made.advance(20)
    assert made.placements() == {"p": "n2"}


def test_a_gpu_that_is_stuck_does_not_keep_a_pod_from_one_that_failed_once() -> None:
    failures = [{"card": "a-0", "result": "Silent"}, {"card": "a-1", "result": "Failed"}]
    made = fabric_cluster(
        fabric({"a": 2}, failures=failures),
        host("n1", "a"),
        host("n2", "a"),
        pod("p", "one"),
        plugins={"DynamicResources": {"bindingTimeout": "60s"}},
    )
    made.schedule()
    made.advance(300)
    assert made.placements() == {"p": "n2"}
    assert gpu_of(made, "p") == "n2: a-1"


def test_a_gpu_that_is_published_after_its_condition_is_taken_then() -> None:
    device = {
        "name": "any-0",
        "bindsToNode": True,
        "bindingConditions": ["FabricDeviceReady"],
        "bindingFailureConditions": ["FabricDeviceReschedule", "FabricDeviceFailed"],
    }
    made = cluster(
        device_class(),
        node("n1"),
        slice_of("net", [device], nodeName=None, allNodes=True),
        template("one", request()),
        pod("p", "one"),
    )
    made.schedule()
    (claim,) = made.api.list(ResourceClaim)
    condition = Condition("FabricDeviceReschedule", "True")
    told = AllocatedDeviceStatus(GPU, "net", "any-0", conditions=(condition,))
    made.api.update(replace(claim, status=replace(claim.status, devices=(told,))))
    assert made.schedule() == {}
    made.add(slice_of("n1", [{"name": "gpu-0"}]))
    assert made.schedule() == {"p": "n1"}
    assert gpu_of(made, "p") == "n1: gpu-0"
