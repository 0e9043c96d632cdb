"""Nodes with devices and claims, written by hand or random, and the allocator's answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bayplan.api import DeviceClass, Node, ResourceClaim, ResourceSlice
from bayplan.api.dra import AllocationResult
from bayplan.api.objects import decode_part
from bayplan_dra.allocator import (
    AllocatedState,
    Allocator,
    DeviceId,
    DeviceTable,
    Failure,
    Inventory,
    Solved,
    allocation_of,
    prepare,
)

DRIVER = "gpu.example.com"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
NUMA_NODE = "resource.kubernetes.io/numaNode"


@dataclass
class World:
    """A node, its devices, what is allocated, and the claims to allocate."""

    inventory: Inventory
    classes: dict[str, DeviceClass]
    node: Node
    claims: list[ResourceClaim]
    state: AllocatedState = field(default_factory=AllocatedState)

    def table(self) -> DeviceTable:
        """Return the devices that the node can use."""
        return DeviceTable(self.inventory.pools(self.node), self.inventory.features)

    def solve(
        self,
        strict: bool = False,
        interrupt: Callable[[], bool] | None = None,
        ignore: bool = False,
    ) -> Solved | Failure:
        """Choose devices for the claims.

        :param ignore: do not select a device on which a selector fails.
        """
        ready = [prepare(one, self.classes.get, self.inventory.features) for one in self.claims]
        allocator = Allocator(strict_reference=strict, ignore_selector_errors=ignore)
        return allocator.allocate(ready, self.table(), self.state, interrupt)

    def allocate(
        self, strict: bool = False, ignore: bool = False
    ) -> list[AllocationResult] | Failure:
        """Return the claims' allocations as the API spells them."""
        solved = self.solve(strict, ignore=ignore)
        if isinstance(solved, Failure):
            return solved
        features = self.inventory.features
        return [
            allocation_of(
                prepare(one, self.classes.get, features), choices, self.node, features, strict
            )
            for one, choices in zip(self.claims, solved.choices, strict=True)
        ]


def device_class(name: str, expression: str) -> DeviceClass:
    content = {
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
    return decode_part(DeviceClass, content)


def claim(name: str, requests: list[dict[str, Any]], **devices: Any) -> ResourceClaim:
    content = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": requests, **devices}},
    }
    return decode_part(ResourceClaim, content)


def slice_of(devices: list[dict[str, Any]], node: str = "n0", **spec: Any) -> ResourceSlice:
    content = {
        "metadata": {"name": spec.pop("name", f"slice-{node}")},
        "spec": {
            "driver": spec.pop("driver", DRIVER),
            "pool": {"name": node, "resourceSliceCount": spec.pop("count", 1)},
            **({} if "allNodes" in spec else {"nodeName": node}),
            "devices": devices,
            **spec,
        },
    }
    return decode_part(ResourceSlice, content)


def node(name: str = "n0", **labels: str) -> Node:
    return decode_part(Node, {"metadata": {"name": name, "labels": labels}})


def topology_device(
    index: int, kind: str, root: int | None, numa: int | None, island: int | None
) -> dict[str, Any]:
    attributes: dict[str, Any] = {"kind": {"string": kind}, "index": {"int": index}}
    if root is not None:
        attributes[PCIE_ROOT] = {"string": f"pci0000:{root:02x}"}
    if numa is not None:
        attributes[NUMA_NODE] = {"int": numa}
    if island is not None:
        attributes["nvlinkGroup4"] = {"int": island}
    return {"name": f"{kind}-{index}", "attributes": attributes}


def random_world(
    seed: int, most_devices: int = 8, rich: bool = True, failing: bool = False
) -> World:
    """Return a world that is small enough for the reference.

    :param rich: with shared counters, shared capacity, taints, alternatives and admin access.
    :param failing: with selectors that fail on some devices.
    """
    chance = random.Random(seed)
    size = chance.randint(1, most_devices)
    devices = []
    for index in range(size):
        kind = chance.choice(["gpu", "gpu", "nic"])
        device = topology_device(
            index,
            kind,
            chance.choice([0, 1, 2, None]),
            chance.choice([0, 1]),
            chance.choice([0, 1, None]),
        )
        if chance.random() < 0.3:
            values = chance.sample(["a", "b", "c"], chance.randint(1, 2))
            device["attributes"]["rails"] = {"strings": values}
        if rich and chance.random() < 0.15:
            device["taints"] = [{"key": "broken", "effect": "NoSchedule"}]
        if rich and chance.random() < 0.3:
            device["consumesCounters"] = [
                {"counterSet": "set", "counters": {"units": {"value": chance.randint(1, 3)}}}
            ]
        elif rich and chance.random() < 0.3:
            device["capacity"] = {"memory": {"value": chance.randint(1, 4)}}
            device["allowMultipleAllocations"] = True
        devices.append(device)
    inventory = Inventory()
    counters = any("consumesCounters" in device for device in devices)
    inventory.set_slice(slice_of(devices, count=2 if counters else 1))
    if counters:
        shared = [{"name": "set", "counters": {"units": {"value": chance.randint(2, 6)}}}]
        inventory.set_slice(slice_of([], name="counters", count=2, sharedCounters=shared))
    state = AllocatedState()
    for device in devices:
        if chance.random() < 0.2 and not device.get("allowMultipleAllocations"):
            state.devices.add(DeviceId(DRIVER, "n0", device["name"]))
    classes = {
        "gpu": device_class("gpu", f'device.attributes["{DRIVER}"].kind == "gpu"'),
        "nic": device_class("nic", f'device.attributes["{DRIVER}"].kind == "nic"'),
        "any": device_class("any", "true"),
    }
    claims = [
        _random_claim(f"claim-{number}", chance, rich) for number in range(chance.randint(1, 2))
    ]
    if failing:
        # PCIe roots and islands are missing from some devices.
        reads = f'device.attributes["{DRIVER}"].nvlinkGroup4 == {chance.randint(0, 1)}'
        guarded = f'device.attributes["{DRIVER}"].index > {chance.randint(0, 4)} && {reads}'
        classes["gpu"] = device_class("gpu", chance.choice([reads, guarded]))
        classes["any"] = device_class("any", chance.choice(["true", guarded]))
    return World(inventory, classes, node(), claims, state)


def _random_claim(name: str, chance: random.Random, rich: bool) -> ResourceClaim:
    requests: list[dict[str, Any]] = []
    for number in range(chance.randint(1, 2)):
        requests.append(_random_request(f"r{number}", chance, rich))
    constraints: list[dict[str, Any]] = []
    for _ in range(chance.choice([0, 0, 1, 1, 2])):
        attribute = chance.choice(
            [PCIE_ROOT, NUMA_NODE, f"{DRIVER}/nvlinkGroup4", f"{DRIVER}/rails", f"{DRIVER}/index"]
        )
        kind = chance.choice(["matchAttribute", "matchAttribute", "distinctAttribute"])
        named = [r["name"] for r in requests if chance.random() < 0.5]
        constraints.append({kind: attribute, "requests": named})
    return claim(name, requests, constraints=constraints)


def _random_request(name: str, chance: random.Random, rich: bool) -> dict[str, Any]:
    def exactly() -> dict[str, Any]:
        found: dict[str, Any] = {"deviceClassName": chance.choice(["gpu", "gpu", "nic", "any"])}
        if rich and chance.random() < 0.1:
            found["allocationMode"] = "All"
        else:
            found["count"] = chance.choice([1, 1, 2, 3])
        if rich and chance.random() < 0.2:
            found["tolerations"] = [{"key": "broken", "operator": "Exists"}]
        if rich and chance.random() < 0.2:
            found["capacity"] = {"requests": {"memory": chance.randint(1, 3)}}
        return found

    if rich and chance.random() < 0.25:
        return {
            "name": name,
            "firstAvailable": [{"name": f"s{i}", **exactly()} for i in range(2)],
        }
    return {"name": name, "exactly": exactly()}
