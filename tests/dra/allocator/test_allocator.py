"""The allocator on hard cases, and on cases that once went wrong."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.dra.allocator.worlds import (
    DRIVER,
    NUMA_NODE,
    PCIE_ROOT,
    World,
    claim,
    device_class,
    node,
    slice_of,
    topology_device,
)

from bayplan.api import ResourceClaim
from bayplan_dra.allocator import (
    AllocatedState,
    AllocationError,
    DeviceId,
    Failure,
    Features,
    Inventory,
    Solved,
)
from bayplan_dra.allocator.problem import MOST_STEPS

CLASSES = {"any": device_class("any", "true")}


def wanted(name: str = "r", count: int = 1, **exactly: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": "any", "count": count, **exactly}}


def offering(
    devices: list[dict[str, Any]], counters: dict[str, dict[str, int]] | None = None
) -> Inventory:
    """Return a pool of the node n0, with shared counters by counter set and name."""
    inventory = Inventory()
    inventory.set_slice(slice_of(devices, count=2 if counters else 1))
    if counters:
        shared = [
            {"name": name, "counters": {key: {"value": value} for key, value in own.items()}}
            for name, own in counters.items()
        ]
        inventory.set_slice(slice_of([], name="counters", count=2, sharedCounters=shared))
    return inventory


def world(
    inventory: Inventory, *claims: ResourceClaim, state: AllocatedState | None = None
) -> World:
    return World(inventory, CLASSES, node(), list(claims), state or AllocatedState())


def solve(
    inventory: Inventory, *claims: ResourceClaim, state: AllocatedState | None = None
) -> Solved | Failure:
    return world(inventory, *claims, state=state).solve()


def chosen(found: Solved | Failure) -> dict[str, list[str]]:
    """Return the names of the devices of each request."""
    assert not isinstance(found, Failure), found.reason
    by_request: dict[str, list[str]] = {}
    for choices in found.choices:
        for choice in choices:
            by_request.setdefault(choice.wanted.name, []).append(choice.device.id.device)
    return by_request


@pytest.mark.parametrize("count", [8, 16])
def test_an_unsatisfiable_match_over_equal_devices_takes_no_steps(count: int) -> None:
    devices = [{"name": f"d{i}", "attributes": {"pair": {"int": i // 2}}} for i in range(count)]
    made = offering(devices)
    request = claim(
        "c", [wanted(f"r{i}") for i in range(3)], constraints=[{"matchAttribute": f"{DRIVER}/pair"}]
    )
    found = solve(made, request)
    assert isinstance(found, Failure)
    assert found.steps == 0


def test_a_missing_eighth_partition_is_found_out_in_few_steps() -> None:
    uses = [{"counterSet": "gpu", "counters": {"memory": {"value": 10}}}]
    devices = [{"name": f"p{i}", "consumesCounters": uses} for i in range(8)]
    made = offering(devices, {"gpu": {"memory": 70}})
    found = solve(made, claim("c", [wanted(count=8)]))
    assert isinstance(found, Failure)
    assert "shared counters (gpu/memory) do not suffice" in found.reason
    assert found.steps < 10
    assert len(chosen(solve(made, claim("c", [wanted(count=7)])))["r"]) == 7


def test_four_requests_of_four_devices_of_64_take_few_steps() -> None:
    devices = [topology_device(i, "gpu", i // 8, i // 16, None) for i in range(64)]
    made = offering(devices)
    request = claim(
        "c",
        [wanted(f"r{i}", 4) for i in range(4)],
        constraints=[
            {"matchAttribute": NUMA_NODE},
            {"requests": ["r0", "r1"], "matchAttribute": PCIE_ROOT},
        ],
    )
    found = solve(made, request)
    assert sorted(len(devices) for devices in chosen(found).values()) == [4, 4, 4, 4]
    assert found.steps < 100


def test_many_impossible_alternatives_take_few_steps() -> None:
    made = offering([{"name": f"d{i}"} for i in range(31)])
    ways = [{"name": f"s{i}", "deviceClassName": "any"} for i in range(8)]
    requests = [{"name": f"r{i}", "firstAvailable": ways} for i in range(32)]
    found = solve(made, claim("c", requests))
    assert isinstance(found, Failure)
    assert found.steps < 100


def test_an_interrupted_search_fails() -> None:
    made = offering([{"name": f"d{i}"} for i in range(4)])
    found = world(made, claim("c", [wanted(count=2)])).solve(interrupt=lambda: True)
    assert not isinstance(found, Failure), "too small to be interrupted"
    chance = random.Random(1)
    devices = [
        {
            "name": f"d{i}",
            "attributes": {
                name: {"strings": chance.sample("abcdefgh", 3)} for name in ("x", "y", "z")
            },
        }
        for i in range(40)
    ]
    hard = claim(
        "c",
        [wanted(f"r{i}", 3) for i in range(4)],
        constraints=[{"distinctAttribute": f"{DRIVER}/{name}"} for name in ("x", "y")],
    )
    made = offering(devices)
    found = world(made, hard).solve(interrupt=lambda: True)
    assert isinstance(found, Failure)
    assert found.steps <= MOST_STEPS


@pytest.mark.parametrize("lists", [True, False])
def test_an_attribute_of_an_unknown_type_ends_the_references_allocation(lists: bool) -> None:
    devices = [{"name": "d0", "attributes": {"model": {}, "index": {"int": 0}}}]
    selector = f"device.attributes['{DRIVER}'].index == 0"
    asked = claim("c", [wanted(selectors=[{"cel": {"expression": selector}}])])
    inventory = Inventory(Features(list_attributes=lists))
    inventory.set_slice(slice_of(devices))
    made = world(inventory, asked)
    with pytest.raises(AllocationError, match="attribute model: unsupported attribute value"):
        made.solve(True)


def alternatives(name: str, *counts: int) -> dict[str, Any]:
    ways = [{"name": f"s{i}", "deviceClassName": "any", "count": n} for i, n in enumerate(counts)]
    return {"name": name, "firstAvailable": ways}


def test_alternatives_that_exceed_the_limit_together_are_left_for_the_next() -> None:
    made = world(
        offering([{"name": f"d{i}"} for i in range(40)]),
        claim("c", [alternatives("a", 32, 16), alternatives("b", 32, 16)]),
    )
    for strict in (True, False):
        found = made.solve(strict)
        assert [len(own) for own in chosen(found).values()] == [16, 16]
        # As many as Kubernetes' allocator takes.
        assert found.steps == 75 if strict else found.steps < 100


def test_alternatives_that_only_just_stay_within_the_limit_take_few_steps() -> None:
    made = offering([{"name": f"d{i}"} for i in range(40)])
    found = solve(made, claim("c", [alternatives(f"r{i}", 2, 1) for i in range(31)]))
    assert sum(map(len, chosen(found).values())) == 32
    assert found.steps < 2000


class Clock:
    """Time is up at the tenth look at it."""

    def __init__(self) -> None:
        self.looks = 0

    def is_late(self) -> bool:
        self.looks += 1
        return self.looks >= 10


MANY = [{"name": f"d{i}"} for i in range(2000)]
NO_DEVICE = wanted(selectors=[{"cel": {"expression": "device.driver == 'none'"}}])
SLOW = "lists.range(60).all(a, lists.range(60).all(b, a < b || true)) && device.driver != ''"
LONG = {
    "many devices": (MANY, [NO_DEVICE]),
    "slow selectors": (MANY[:40], [wanted(selectors=[{"cel": {"expression": SLOW}}])]),
    "many combinations": (MANY[:40], [alternatives(f"r{i}", 2, 1) for i in range(32)]),
}


@pytest.mark.parametrize(
    ("case", "strict"),
    [
        ("many devices", True),
        ("many devices", False),
        ("slow selectors", True),
        ("slow selectors", False),
        ("many combinations", True),
    ],
)
def test_whatever_takes_long_looks_at_the_time(case: str, strict: bool) -> None:
    devices, requests = LONG[case]
    clock = Clock()
    found = world(offering(devices), claim("c", requests)).solve(strict, clock.is_late)
    assert isinstance(found, Failure)
    assert found.timed_out
    assert "interrupted" in found.reason
    assert clock.looks <= 11


def test_when_time_is_up_the_best_solution_so_far_is_taken() -> None:
    devices = [topology_device(i, "gpu", i // 2, i // 4, None) for i in range(16)]
    made = world(offering(devices), claim("c", [wanted(f"r{i}", 3) for i in range(4)]))
    clock = Clock()
    assert isinstance(made.solve(interrupt=clock.is_late), Solved)
    assert clock.looks == 10


def test_devices_that_consume_two_counter_sets_are_not_alike() -> None:
    def device(name: str, one: int, two: int, kind: str) -> dict[str, Any]:
        uses = [
            {"counterSet": "s1", "counters": {"x": {"value": one}}},
            {"counterSet": "s2", "counters": {"x": {"value": two}}},
        ]
        return {"name": name, "attributes": {"k": {"string": kind}}, "consumesCounters": uses}

    devices = [
        device("b", 2, 1, "one"),
        device("a", 1, 2, "one"),
        device("c", 2, 1, "two"),
        device("d", 2, 1, "two"),
    ]
    made = offering(devices, {"s1": {"x": 3}, "s2": {"x": 3}})

    def of_kind(name: str, kind: str) -> dict[str, Any]:
        expression = f'device.attributes["{DRIVER}"].k == "{kind}"'
        return wanted(name, selectors=[{"cel": {"expression": expression}}])

    found = chosen(solve(made, claim("c", [of_kind("r1", "one"), of_kind("r2", "two")])))
    assert found["r1"] == ["a"]


def test_any_value_of_a_list_can_match() -> None:
    devices = [
        {"name": "d0", "attributes": {"rails": {"strings": ["a", "b"]}}},
        {"name": "d1", "attributes": {"rails": {"strings": ["b", "c"]}}},
        {"name": "d2", "attributes": {"rails": {"strings": ["c", "a"]}}},
        {"name": "d3", "attributes": {"rails": {"string": "a"}}},
    ]
    made = offering(devices)
    request = claim("c", [wanted(count=3)], constraints=[{"matchAttribute": f"{DRIVER}/rails"}])
    assert chosen(solve(made, request))["r"] == ["d0", "d2", "d3"]


def test_drivers_can_use_the_same_names_for_pools_and_counters() -> None:
    inventory = Inventory()
    uses = [{"counterSet": "s", "counters": {"m": {"value": 5}}}]
    shared = [{"name": "s", "counters": {"m": {"value": 5}}}]
    for driver in ("one.example.com", "two.example.com"):
        devices = [{"name": "d", "consumesCounters": uses}]
        inventory.set_slice(slice_of(devices, name=driver, driver=driver, count=2))
        inventory.set_slice(
            slice_of([], name=f"{driver}-c", driver=driver, count=2, sharedCounters=shared)
        )
    assert len(chosen(solve(inventory, claim("c", [wanted(count=2)])))["r"]) == 2


def test_quantities_are_compared_by_amount_not_by_spelling() -> None:
    policy = {"default": "1Gi", "validValues": ["1024Mi", "2Gi"]}
    capacity = {"memory": {"value": "4Gi", "requestPolicy": policy}}
    devices = [{"name": "d", "capacity": capacity, "allowMultipleAllocations": True}]
    made = offering(devices)
    request = claim("c", [wanted(capacity={"requests": {"memory": "1Gi"}})])
    found = world(made, request).allocate()
    assert not isinstance(found, Failure)
    (result,) = found[0].devices.results
    assert result.consumed_capacity["memory"].units == 2**30


def test_a_partition_comes_from_a_gpu_that_is_already_divided() -> None:
    def parts(gpu: int) -> list[dict[str, Any]]:
        uses = [{"counterSet": f"gpu-{gpu}", "counters": {"slices": {"value": 1}}}]
        return [{"name": f"gpu-{gpu}-{i}", "consumesCounters": uses} for i in range(4)]

    made = offering([*parts(0), *parts(1)], {"gpu-0": {"slices": 4}, "gpu-1": {"slices": 4}})
    state = AllocatedState({DeviceId(DRIVER, "n0", "gpu-1-2")})
    assert chosen(solve(made, claim("c", [wanted()]), state=state))["r"][0].startswith("gpu-1")


def test_the_reason_counts_devices_step_by_step() -> None:
    devices: list[dict[str, Any]] = [{"name": f"d{i}"} for i in range(5)]
    devices[0]["taints"] = [{"key": "k", "effect": "NoExecute"}]
    made = offering(devices)
    state = AllocatedState({DeviceId(DRIVER, "n0", "d1"), DeviceId(DRIVER, "n0", "d2")})
    found = solve(made, claim("c", [wanted(count=4)]), state=state)
    assert isinstance(found, Failure)
    assert found.reason == (
        "claim c: request r needs 4 devices of class any, 2 of 5 can be had: 1 tainted, 2 in use; "
        "2 more would be enough"
    )
