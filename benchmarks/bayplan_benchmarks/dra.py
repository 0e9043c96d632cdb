"""Device claims: pods with a GPU and a NIC each, CEL selectors, and hard allocations."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable
from contextlib import suppress

from bayplan.api import (
    ApiObject,
    DeviceClass,
    Node,
    ObjectMeta,
    Pod,
    PodSpec,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from bayplan.api.dra import (
    CelSelector,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClaim,
    DeviceClassSpec,
    DeviceConstraint,
    DeviceCounterConsumption,
    DeviceId,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceClaimSpec,
    ResourceClaimTemplateSpec,
    ResourcePool,
    ResourceSliceSpec,
)
from bayplan.api.pod import PodResourceClaim
from bayplan.api.quantity import Quantity
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.cluster.embedded.claims import ClaimController
from bayplan_benchmarks.workloads import container, figures, make_node, run
from bayplan_dra.allocator import (
    AllocatedState,
    Allocator,
    DeviceTable,
    Features,
    Inventory,
    Pool,
    PoolDevice,
    PoolKey,
    TimedOut,
    prepare,
)
from bayplan_dra.allocator.reference import Reference
from bayplan_dra.cel import compile_selector

__all__ = ["devices", "dra"]

_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
_NUMA_NODE = "resource.kubernetes.io/numaNode"
_GPU, _NIC = "gpu.example.com", "nic.example.com"
_SELECTOR = (
    f'device.attributes["{_GPU}"].model == "H100" && '
    f'device.capacity["{_GPU}"].memory.isGreaterThan(quantity("40Gi")) && '
    f'device.attributes["{_GPU}"].driverVersion.isGreaterThan(semver("550.0.0"))'
)
_GPU_REQUEST = DeviceRequest("gpu", ExactDeviceRequest(device_class_name="gpu"))
_DEVICES = 40_000
_ROUNDS = 100_000
_PLAIN_LIMIT = 100_000


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    spec = PodSpec(
        containers=(container("1", "2Gi"),),
        resource_claims=(PodResourceClaim("pair", resource_claim_template_name="pair"),),
    )
    placed = figures(
        run(
            devices(nodes),
            (Pod(ObjectMeta(name=f"pod-{n}", namespace="bench"), spec) for n in range(pods)),
            (ClaimController,),
        )
    )
    count = nodes * 16
    return BenchmarkResult(
        {"nodes": nodes, "pods": pods, "devices": count, "celDevices": _DEVICES},
        {**placed, **_cel(), **_hard()},
    )


# Pods ----------------------------------------------------------------------------------------


def devices(nodes: int) -> Iterable[ApiObject]:
    """Yield nodes with eight GPUs and eight NICs each, and a claim template for a pair of them."""
    yield _class("gpu", f'device.driver == "{_GPU}" && {_SELECTOR}')
    yield _class("nic", f'device.driver == "{_NIC}" && device.attributes["{_NIC}"].rdma')
    requests = (_request("gpu", "gpu"), _request("nic", "nic"))
    claim = DeviceClaim(requests, (DeviceConstraint(match_attribute=_PCIE_ROOT),))
    yield ResourceClaimTemplate(
        ObjectMeta(name="pair", namespace="bench"),
        ResourceClaimTemplateSpec(spec=ResourceClaimSpec(claim)),
    )
    for index in range(nodes):
        node = make_node(index)
        yield node
        name = node.metadata.name
        for driver in (_GPU, _NIC):
            yield _slice(name, driver, tuple(_device(index, n, driver) for n in range(8)))


def _device(node: int, index: int, driver: str) -> Device:
    attributes = {
        "uuid": DeviceAttribute(string=f"{driver[:3]}-{node}-{index}"),
        _PCIE_ROOT: DeviceAttribute(string=f"pci0000:{index:02x}"),
        _NUMA_NODE: DeviceAttribute(integer=index // 4),
    }
    capacity: dict[str, DeviceCapacity] = {}
    if driver == _GPU:
        attributes["model"] = DeviceAttribute(string="H100")
        attributes["driverVersion"] = DeviceAttribute(version="580.1.0")
        capacity["memory"] = DeviceCapacity(Quantity("80Gi"))
    else:
        attributes["rdma"] = DeviceAttribute(boolean=True)
    return Device(f"{driver[:3]}-{index}", attributes, capacity)


def _slice(node: str, driver: str, devices: tuple[Device, ...]) -> ResourceSlice:
    spec = ResourceSliceSpec(driver, ResourcePool(node), node_name=node, devices=devices)
    return ResourceSlice(spec, ObjectMeta(name=f"{node}-{driver}"))


def _class(name: str, expression: str) -> DeviceClass:
    selector = DeviceSelector(CelSelector(expression))
    return DeviceClass(ObjectMeta(name=name), DeviceClassSpec((selector,)))


def _request(name: str, device_class: str, count: int = 1) -> DeviceRequest:
    return DeviceRequest(name, ExactDeviceRequest(device_class_name=device_class, count=count))


# Selectors -----------------------------------------------------------------------------------


def _cel() -> dict[str, float]:
    """Measure a single evaluation of a selector, and the allocator's over all devices."""
    tables = [_table_of_distinct(first) for first in range(0, _DEVICES, 8)]
    program = compile_selector(_SELECTOR)
    one = tables[-1].devices[0].view
    started = time.perf_counter()
    for _ in range(_ROUNDS):
        program.matches(one)
    each = (time.perf_counter() - started) / _ROUNDS
    classes = {"gpu": _class("gpu", _SELECTOR)}
    claim = ResourceClaim(ObjectMeta(name="c"), ResourceClaimSpec(DeviceClaim((_GPU_REQUEST,))))
    wanted = prepare(claim, classes.get, Features()).requests[0].ways[0]
    times = []
    # Collect garbage now, so that the setup does not count as the selector's cost.
    gc.collect()
    for _ in range(2):
        started = time.perf_counter()
        matching = sum(table.filtered(wanted).matching.bit_count() for table in tables)
        times.append(time.perf_counter() - started)
        assert matching == _DEVICES
    return {
        "celMicroseconds": round(each * 1e6, 3),
        "celColdSeconds": round(times[0], 4),
        "celWarmMilliseconds": round(times[1] * 1e3, 3),
    }


def _table_of_distinct(first: int) -> DeviceTable:
    """Return a table of eight devices that differ from those of all other tables."""
    devices = []
    for number in range(first, first + 8):
        attributes = {
            "model": DeviceAttribute(string="H100"),
            "driverVersion": DeviceAttribute(version=f"580.{number}.0"),
        }
        capacity = {"memory": DeviceCapacity(Quantity("80Gi"))}
        devices.append(Device(f"gpu-{number}", attributes, capacity))
    pool = PoolKey(_GPU, f"node-{first}")
    spec = ResourceSliceSpec(_GPU, ResourcePool(pool.pool), devices=tuple(devices))
    own = [PoolDevice(DeviceId(*pool, device.name), device, spec) for device in devices]
    table = DeviceTable([Pool(pool, 0, devices=own)], Features())
    for device in own:
        _ = device.view
    return table


# Hard allocations ----------------------------------------------------------------------------


def _hard() -> dict[str, float]:
    """Measure hard cases, and count the steps of the reference search for the same input.

    The reference search stops after ``_PLAIN_LIMIT`` steps.
    """
    cases = {
        "match8": _unmatchable(8),
        "match16": _unmatchable(16),
        "counters7of8": _partitions(),
        "four4of64": _four_of_four(),
    }
    found: dict[str, float] = {}
    for name, (devices, wanted, counters) in cases.items():
        inventory = Inventory(Features())
        pool = ResourcePool("n", resource_slice_count=2 if counters else 1)
        spec = ResourceSliceSpec(_GPU, pool, node_name="n", devices=devices)
        inventory.set_slice(ResourceSlice(spec, ObjectMeta(name="devices")))
        if counters:
            shared = ResourceSliceSpec(_GPU, pool, node_name="n", shared_counters=counters)
            inventory.set_slice(ResourceSlice(shared, ObjectMeta(name="counters")))
        classes = {"any": DeviceClass(ObjectMeta(name="any"))}
        node = Node(ObjectMeta(name="n"))
        claim = ResourceClaim(ObjectMeta(name="c"), ResourceClaimSpec(wanted))
        started = time.perf_counter()
        ready = [prepare(claim, classes.get, inventory.features)]
        pools = inventory.pools(node)
        solved = Allocator().allocate(
            ready, DeviceTable(pools, inventory.features), AllocatedState()
        )
        found[f"{name}Milliseconds"] = round((time.perf_counter() - started) * 1e3, 3)
        found[f"{name}Steps"] = solved.steps
        plain = Reference(ready, pools, AllocatedState(), inventory.features, most=_PLAIN_LIMIT)
        with suppress(TimedOut):
            plain.run()
        found[f"{name}PlainSteps"] = plain.calls
    return found


Case = tuple[tuple[Device, ...], DeviceClaim, tuple[CounterSet, ...]]


def _unmatchable(count: int) -> Case:
    """Return equal devices, and three requests for more on one NUMA node than it has."""
    devices = tuple(
        Device(f"d{n}", {_NUMA_NODE: DeviceAttribute(integer=n // 2)}) for n in range(count)
    )
    requests = tuple(_request(f"r{n}", "any") for n in range(3))
    return devices, DeviceClaim(requests, (DeviceConstraint(match_attribute=_NUMA_NODE),)), ()


def _partitions() -> Case:
    """Return eight partitions of 10 GiB that share 70 GiB, and a request for all eight."""
    need = {"memory": Counter(Quantity("10Gi"))}
    devices = tuple(
        Device(f"p{n}", consumes_counters=(DeviceCounterConsumption("gpu", need),))
        for n in range(8)
    )
    counters = (CounterSet("gpu", {"memory": Counter(Quantity("70Gi"))}),)
    return devices, DeviceClaim((_request("all", "any", 8),)), counters


def _four_of_four() -> Case:
    """Return 64 devices on four NUMA nodes, and requests for 16 that only the last node has."""
    devices = tuple(
        Device(
            f"d{n}",
            {
                **({} if n in (0, 16, 32) else {_NUMA_NODE: DeviceAttribute(integer=n // 16)}),
                _PCIE_ROOT: DeviceAttribute(string=f"pci0000:{n // 8:02x}"),
            },
        )
        for n in range(64)
    )
    requests = tuple(_request(f"r{n}", "any", 4) for n in range(4))
    constraints = (
        DeviceConstraint(match_attribute=_NUMA_NODE),
        DeviceConstraint(("r0", "r1"), match_attribute=_PCIE_ROOT),
    )
    return devices, DeviceClaim(requests, constraints), ()


dra = Benchmark(
    "pods with a GPU and a NIC each on one PCIe root, selectors, hard allocations",
    (500,),
    2_000,
    _measure,
)
