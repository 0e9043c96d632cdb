"""Claims from the decision to their end: writes, waits, failures and releases."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plugins.gpus.gpu_builders import (
    GPU,
    claim,
    cluster,
    device_class,
    gpu,
    gpu_cluster,
    ledger,
    message,
    node,
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
from bayplan.cluster.protocol import Bind, ReleaseClaim, ReserveClaim
from bayplan.errors import Conflict
from bayplan.testing import Cluster


def test_the_allocation_is_written_before_the_pod_is_bound() -> None:
    made = gpu_cluster({"a": 1}, template("one", request()))
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


def test_the_claims_of_a_finished_pod_are_released() -> None:
    made = gpu_cluster({"a": 1}, template("one", request()))
    made.add(pod("p", "one"), pod("q", "one"))
    made.schedule()
    made.remove("p")
    made.advance(20)
    assert made.placements() == {"q": "a"}
    assert [c.metadata.name.rpartition("-")[0] for c in made.api.list(ResourceClaim)] == ["q-own"]


def with_conditions() -> Cluster:
    device = {**gpu(0), "bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]}
    made = gpu_cluster({"a": [device]}, template("one", request()))
    made.add(pod("p", "one"))
    return made


def test_binding_waits_for_the_conditions_of_the_devices() -> None:
    device = {**gpu(0), "bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]}
    made = gpu_cluster({"a": [device]}, template("one", request()), pod("p", "one"))
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
    made = gpu_cluster({"a": [device]}, template("one", request()), pod("p", "one"))
    made.schedule()
    set_condition(made, "broken")
    made.schedule()
    assert "device gpu-0 failed: condition broken holds" in message(made, "p")
    (found,) = made.api.list(ResourceClaim)
    assert found.status.allocation is None
    assert ledger(made).state.devices == set()


def test_a_claim_that_another_scheduler_allocated_meanwhile_is_respected() -> None:
    made = gpu_cluster({"a": 1}, template("one", request()))
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


@pytest.mark.parametrize("cached", [True, False])
def test_released_claims_leave_the_ledger_as_it_was(cached: bool) -> None:
    made = gpu_cluster({"a": 4}, template("two", request(count=2)), cached=cached)
    before = ledger(made).state.copy()
    made.add(pod("p", "two"), pod("q", "two"), pod("r", "two"))
    made.schedule()
    assert ledger(made).state.devices == {DeviceId(GPU, "a", f"gpu-{i}") for i in range(4)}
    for name in ("p", "q", "r"):
        made.remove(name)
    made.schedule()
    assert ledger(made).state == before


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


def test_a_release_that_is_refused_is_tried_again() -> None:
    made = gpu_cluster({"a": 1}, claim("mine", request()))
    made.api.faults.fail_next(Bind, Conflict("busy"))
    made.api.faults.fail_next(ReleaseClaim, Conflict("busy"))
    made.add(pod("p", from_claim="mine"))
    made.schedule()
    (found,) = made.api.list(ResourceClaim)
    assert found.status.allocation is None
    assert found.status.reserved_for == ()


def test_a_pod_that_came_with_its_node_does_not_start_without_its_devices() -> None:
    made = gpu_cluster({"a": 1}, template("one", request()))
    made.add(pod("p", "one", nodeName="a"))
    made.schedule()
    placed = made.api.get(Pod, "default/p")
    assert placed is not None
    assert placed.status.phase == "Pending"
    texts = [event.message for _, event in made.api.events if event.pod == "default/p"]
    assert any("is not allocated and reserved for this pod" in text for text in texts)


def test_a_claim_goes_with_the_pod_that_owns_it_even_if_the_pod_does_not_name_it() -> None:
    from msgspec.structs import replace

    made = gpu_cluster({"a": 1}, template("one", request()))
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


def test_a_claim_that_ended_unseen_ends_the_wait_for_it() -> None:
    device = {**gpu(0), "bindingConditions": ["attached"]}
    made = gpu_cluster({"a": [device]}, claim("mine", request()))
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
    made = gpu_cluster({"a": 1}, claim("mine", request()))
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
