"""Shares of devices by their capacity: claims get what they ask for, rounded up, and no more."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
from tests.plugins.gpus.gpu_builders import (
    cluster,
    device_class,
    gpu,
    node,
    pod,
    request,
    slice_of,
    template,
)

from bayplan.api import (
    ApiObject,
    DeviceClass,
    Node,
    Pod,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from bayplan.cluster.embedded.claims import ClaimController
from bayplan.testing import Cluster

GIBI = 2**30


def shared(index: int, memory: int = 80, **policy: Any) -> dict[str, Any]:
    """Return a device of so many GiB that claims share in steps of 10 GiB."""
    rules = policy or {"default": "10Gi", "validRange": {"min": "10Gi", "step": "10Gi"}}
    capacity = {"memory": {"value": f"{memory}Gi", "requestPolicy": rules}}
    return {**gpu(index), "allowMultipleAllocations": True, "capacity": capacity}


def part(name: str, gibibytes: int, **devices: Any) -> ResourceClaimTemplate:
    count = devices.pop("count", 1)
    amount = {"requests": {"memory": f"{gibibytes}Gi"}}
    return template(name, request(capacity=amount, count=count), **devices)


def sharing(devices: dict[str, list[dict[str, Any]]], *objects: ApiObject) -> Cluster:
    slices = [slice_of(name, own) for name, own in devices.items()]
    return cluster(device_class(), *map(node, devices), *slices, *objects)


def consumed(made: Cluster) -> dict[tuple[str, str], list[int]]:
    """Return the GiB that claims have of each device, in order, by node and name."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    shares = []
    for one in made.api.list(ResourceClaim):
        if one.status.allocation is not None:
            for result in one.status.allocation.devices.results:
                amount = result.consumed_capacity["memory"].units
                found[result.pool, result.device].append(amount // GIBI)
                shares.append((result.device, result.share_id))
    assert len(set(shares)) == len(shares)
    assert all(share for _, share in shares)
    return {key: sorted(amounts) for key, amounts in found.items()}


def test_what_a_claim_asks_for_is_rounded_up_to_the_next_step() -> None:
    made = sharing({"a": [shared(0)]}, part("small", 3), part("large", 41))
    made.add(pod("p", "small"), pod("q", "large"), pod("r", "large"))
    assert made.schedule() == {"p": "a", "q": "a"}
    assert consumed(made) == {("a", "gpu-0"): [10, 50]}


def test_a_claim_that_names_no_amount_gets_the_default_or_all() -> None:
    whole = shared(1)
    del whole["capacity"]["memory"]["requestPolicy"]
    made = sharing({"a": [shared(0)], "b": [whole]}, template("any", request()))
    made.add(*(pod(name, "any", nodeSelector={}) for name in "pqr"))
    made.schedule()
    found = consumed(made)
    assert sum(len(amounts) for amounts in found.values()) == 3
    assert all(
        amounts == ([80] if key[0] == "b" else [10] * len(amounts))
        for key, amounts in found.items()
    )


def test_shares_of_one_claim_are_on_different_devices_if_it_says_so() -> None:
    apart = [{"distinctAttribute": "gpu.example.com/index", "requests": ["gpu"]}]
    made = sharing({"a": [shared(0), shared(1)]}, part("pair", 20, count=2, constraints=apart))
    made.add(pod("p", "pair"))
    assert made.schedule() == {"p": "a"}
    assert consumed(made) == {("a", "gpu-0"): [20], ("a", "gpu-1"): [20]}


@pytest.mark.parametrize("nodes", [{"a": 2}, {"a": 1, "b": 1}])
def test_a_share_fills_up_the_device_with_the_least_left(nodes: dict[str, int]) -> None:
    devices = {name: [shared(index) for index in range(count)] for name, count in nodes.items()}
    made = sharing(devices, part("small", 20), part("half", 40), part("big", 60))
    for name in ("half", "big", "small"):
        made.add(pod(name, name))
        made.schedule()
    assert sorted(consumed(made).values()) == [[20, 60], [40]]
    made.add(pod("again", "half"))
    assert "again" in made.schedule()


def test_a_restart_counts_what_claims_have() -> None:
    made = sharing({"a": [shared(0)]}, part("half", 40), part("rest", 50))
    made.add(pod("p", "half"))
    made.schedule()
    again = Cluster()
    again.add(*everything(made), pod("big", "rest"), pod("fits", "half"))
    ClaimController(again.api)
    assert again.schedule() == {"p": "a", "fits": "a"}


def everything(made: Cluster) -> list[ApiObject]:
    """Return the objects of a cluster, as another scheduler finds them."""
    kinds: tuple[type[ApiObject], ...] = (
        DeviceClass,
        Node,
        ResourceSlice,
        ResourceClaimTemplate,
        ResourceClaim,
        Pod,
    )
    return [one for kind in kinds for one in made.api.list(kind)]


@pytest.mark.parametrize("seed", range(5))
def test_no_device_is_shared_beyond_its_capacity_and_none_is_left_that_would_do(seed: int) -> None:
    chance = random.Random(seed)
    sizes = {f"s{size}": size for size in (10, 20, 30, 50, 80)}
    devices = {name: [shared(0), shared(1, 40)] for name in "ab"}
    made = sharing(devices, *(part(name, size) for name, size in sizes.items()))
    total = {("a", "gpu-0"): 80, ("a", "gpu-1"): 40, ("b", "gpu-0"): 80, ("b", "gpu-1"): 40}
    for number in range(30):
        name = chance.choice(list(sizes))
        before = consumed(made)
        possible = any(
            size - sum(before.get(key, ())) >= sizes[name] for key, size in total.items()
        )
        made.add(pod(f"p{number}", name))
        assert (f"p{number}" in made.schedule()) == possible
        if not possible:
            made.remove(f"p{number}")
        for key, amounts in consumed(made).items():
            assert sum(amounts) <= total[key]
        there = sorted(made.placements())
        if there and chance.random() < 0.4:
            made.remove(chance.choice(there))
            made.advance(5)
