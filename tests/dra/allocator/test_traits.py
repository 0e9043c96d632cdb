"""Tables with equal traits have equal shapes, and so answer claims alike."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dra.allocator.worlds import DRIVER, NUMA_NODE, PCIE_ROOT, device_class

from bayplan.api import Node, ResourceClaim, ResourceSlice
from bayplan.api.objects import decode_part
from bayplan_dra.allocator import (
    AllocatedState,
    ClaimToAllocate,
    DeviceTable,
    Inventory,
    prepare,
)
from bayplan_dra.allocator.equivalence import EquivalenceClasses
from bayplan_dra.allocator.traits import TraitReader

LEVELS = ("*/island", PCIE_ROOT, NUMA_NODE)
MODEL = f'device.attributes["{DRIVER}"].model == "A"'
LARGE = f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("40Gi"))'
BOTH = f'device.driver == "{DRIVER}" && {MODEL}'
FAILS = f'device.attributes["{DRIVER}"].absent == 1'
ALL = f'device.attributes["{DRIVER}"].exists(name, name == "uuid")'
EXPRESSIONS = (MODEL, LARGE, BOTH, FAILS, ALL)


def table_of(devices: Sequence[dict[str, Any]], name: str) -> DeviceTable:
    inventory = Inventory()
    spec = {
        "driver": DRIVER,
        "nodeName": name,
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        "devices": list(devices),
    }
    content = {"metadata": {"name": name}, "spec": spec}
    inventory.set_slice(decode_part(ResourceSlice, content))
    node = decode_part(Node, {"metadata": {"name": name}})
    return DeviceTable(inventory.pools(node), inventory.features)


def device(rng: random.Random, index: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {"uuid": {"string": f"{rng.random()}"}}
    if rng.random() < 0.9:
        attributes["model"] = {"string": rng.choice("AAB")}
    if rng.random() < 0.8:
        attributes[rng.choice(["island", f"{DRIVER}/island"])] = {"string": rng.choice("xyz")}
    kinds = ({"string": rng.choice("pq")}, {"int": rng.choice([0, 1])}, {"strings": ["p", "q"]})
    if rng.random() < 0.8:
        attributes[PCIE_ROOT] = rng.choices(kinds, [6, 2, 1])[0]
    found: dict[str, Any] = {"name": f"gpu-{index}", "attributes": attributes}
    if rng.random() < 0.8:
        found["capacity"] = {"memory": {"value": rng.choice(["40Gi", "80Gi"])}}
    if rng.random() < 0.1:
        found["taints"] = [{"key": "broken", "effect": "NoSchedule"}]
    return found


def claim_of(expression: str, matching: bool) -> ClaimToAllocate:
    request = {
        "name": "gpu",
        "exactly": {
            "deviceClassName": "any",
            "selectors": [{"cel": {"expression": expression}}],
            "count": 2,
        },
    }
    constraints = [{"matchAttribute": PCIE_ROOT, "requests": ["gpu"]}] if matching else []
    content = {
        "metadata": {"name": "claim", "namespace": "default"},
        "spec": {"devices": {"requests": [request], "constraints": constraints}},
    }
    any_device = device_class("any", "true")
    return prepare(
        decode_part(ResourceClaim, content), {"any": any_device}.get, Inventory().features
    )


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(EXPRESSIONS), st.booleans(), st.integers(1, 3))
def test_tables_of_equal_traits_have_equal_shapes(
    seed: int, expression: str, matching: bool, count: int
) -> None:
    rng = random.Random(seed)
    claim = claim_of(expression, matching)
    tables = [table_of([device(rng, i) for i in range(count)], f"n{n}") for n in range(12)]
    quick, state = EquivalenceClasses(), AllocatedState()
    keys = [quick.key(table, [claim], state, LEVELS) for table in tables]
    for one, table in enumerate(tables):
        for other in range(one):
            plain = EquivalenceClasses()
            alone = [
                plain.key(table_copy, [claim], state, LEVELS)
                for table_copy in (fresh(tables[other]), fresh(table))
            ]
            assert (keys[one] == keys[other]) == (alone[0] == alone[1])


def fresh(table: DeviceTable) -> DeviceTable:
    """Return a copy whose shape is found without its traits: it is not simple."""
    made = DeviceTable(table.pools, table.features)
    made.all_local = False
    return made


def test_what_nothing_reads_does_not_tell_tables_apart() -> None:
    rng = random.Random(1)
    one = [device(rng, index) for index in range(4)]
    other = [
        {**own, "attributes": {**own["attributes"], "uuid": {"string": f"other-{index}"}}}
        for index, own in enumerate(one)
    ]
    claim = claim_of(MODEL, matching=False)
    tables = [table_of(devices, name) for name, devices in (("a", one), ("b", other))]
    reader = TraitReader(tables[0], [claim], ())
    assert reader(tables[0]) == reader(tables[1]) is not None
    every = TraitReader(tables[0], [claim_of(ALL, matching=False)], ())
    assert every(tables[0]) is None


def test_a_capacity_named_twice_is_read_as_a_selector_reads_it() -> None:
    claim, quick = claim_of(LARGE, matching=False), EquivalenceClasses()

    def key(name: str, amount: str) -> object:
        capacity = {f"{DRIVER}/memory": {"value": "40Gi"}, "memory": {"value": amount}}
        table = table_of([{"name": "gpu", "capacity": capacity}], name)
        return quick.key(table, [claim], AllocatedState(), LEVELS)

    assert key("a", "80Gi") == key("b", "80Gi") != key("c", "20Gi")


def test_an_attribute_of_another_domain_is_not_in_the_drivers() -> None:
    claim = claim_of(f'device.attributes["{DRIVER}"]["other.com/x"] == "p"', matching=False)
    attributes = {"other.com/x": {"string": "p"}}
    table = table_of([{"name": "gpu", "attributes": attributes}], "a")
    filtered = table.filtered(claim.requests[0].ways[0])
    assert not filtered.matching
    assert "no such key" in filtered.failures[0]
