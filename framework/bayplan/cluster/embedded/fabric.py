"""A fake of a fabric's controller: attaches devices to hosts and detaches them, in virtual time.

It publishes the devices as ResourceSlices: those in the pool with binding conditions, for all hosts
that the fabric reaches, and those on a host for that host alone. It attaches what is allocated,
says so in the conditions of the claim's devices, and detaches what nobody has used for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum

import msgspec
from msgspec.structs import replace

from bayplan.api import Node, ResourceClaim, ResourceSlice
from bayplan.api.configmap import ConfigMap
from bayplan.api.dra import (
    AllocatedDevice,
    AllocatedDeviceStatus,
    Condition,
    Device,
    DeviceAttribute,
    DeviceTaint,
    ResourcePool,
    ResourceSliceSpec,
)
from bayplan.api.meta import ObjectMeta
from bayplan.api.pod import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import WatchEvent, WatchType
from bayplan.dialects.fabric import (
    DEVICE_INFO,
    FAILED,
    READY,
    RESCHEDULE,
    FabricModel,
    FabricModels,
    FakeFabric,
    InjectedFailure,
    limit_of,
    read_double,
    read_models,
)
from bayplan.errors import InputError
from bayplan.inputs.durations import parse_duration

__all__ = ["VirtualFabric"]

_HOST = "/attached"
"""The end of the names of pools with the devices of one host."""
_DETACHING = "fabric.bayplan.dev/detaching"
"""The taint of a device that is about to leave its host."""


class _Place(Enum):
    POOL = "pool"
    ATTACHING = "attaching"
    ATTACHED = "attached"
    DETACHING = "detaching"


class _Gpu(msgspec.Struct, eq=False):
    """A device of a fabric; ``step`` counts its moves, so that a timer knows that it is outdated.

    ``claims`` are the keys of the claims that hold it; it is idle ``since`` then, in seconds.
    """

    name: str
    fabric: int
    model: FabricModel
    place: _Place = _Place.POOL
    node: str = ""
    step: int = 0
    claims: dict[str, None] = msgspec.field(default_factory=dict)

    @property
    def pool(self) -> str:
        return f"{self.model.name}-fabric{self.fabric}"

    def move(self, place: _Place, node: str) -> int:
        self.place, self.node = place, node
        self.step += 1
        return self.step


class _Setup(msgspec.Struct):
    """What one ConfigMap describes, with the devices by driver, pool and device."""

    models: FabricModels
    double: FakeFabric
    gpus: dict[tuple[str, str, str], _Gpu]
    failures: list[tuple[InjectedFailure, int]]
    hosts: set[tuple[str, str]] = msgspec.field(default_factory=set)
    """The drivers and pools of devices that were handed over to their hosts."""

    @property
    def seconds(self) -> tuple[float, float, float]:
        """The times to attach and to detach a device, and how long one may be idle."""
        double = self.double
        attach, detach = parse_duration(double.attach_time), parse_duration(double.detach_time)
        return attach, detach, parse_duration(double.idle_time)


class VirtualFabric:
    """The fabrics that the ConfigMaps of an embedded cluster describe."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._setups: dict[str, _Setup] = {}
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """React to a change of a ConfigMap, a node or a claim."""
        obj, gone = event.obj, event.type is WatchType.DELETED
        if event.type is WatchType.RESYNC:
            for claim in self._cluster.list(ResourceClaim):
                self._claim(claim, gone=False)
        elif isinstance(obj, ConfigMap) and DEVICE_INFO in obj.data and not gone:
            self._configure(obj)
        elif isinstance(obj, Node) and not gone:
            for setup in self._setups.values():
                self._keep_minimum(setup, obj)
        elif isinstance(obj, ResourceClaim) and self._setups:
            self._claim(obj, gone)

    # Setting up ------------------------------------------------------------------------------

    def _configure(self, config_map: ConfigMap) -> None:
        """Start the fabric that a ConfigMap describes; later changes of it do not count."""
        if config_map.key in self._setups:
            return
        try:
            models, double = read_models(config_map), read_double(config_map)
            if double is None:
                return
            gpus = {(gpu.model.driver, gpu.pool, gpu.name): gpu for gpu in _gpus(models, double)}
        except ValueError as exc:
            self._cluster.report(config_map, InputError(str(exc), f"ConfigMap {config_map.key}"))
            return
        failures = [(failure, failure.times) for failure in double.failures]
        setup = self._setups[config_map.key] = _Setup(models, double, gpus, failures)
        self._publish(setup)
        for node in self._cluster.list(Node):
            self._keep_minimum(setup, node)
        for claim in self._cluster.list(ResourceClaim):
            self._claim(claim, gone=False)

    def _keep_minimum(self, setup: _Setup, node: Node) -> None:
        """Attach devices to a host until it has its minimum of each model that it may have."""
        labels, name, prefix = node.metadata.labels, node.metadata.name, setup.models.prefix
        for model in setup.models.models:
            least = self._limit(setup, node, model, "min") or 0
            missing = least - self._count(setup, name, model)
            if missing > 0:
                missing = min(missing, self._room(setup, node, model))
            for gpu in setup.gpus.values():
                free = gpu.place is _Place.POOL and not gpu.claims and gpu.model is model
                reached = labels.get(f"{prefix}/fabric") == str(gpu.fabric)
                if missing > 0 and free and reached:
                    self._attach(setup, gpu, name)
                    missing -= 1

    def _limit(self, setup: _Setup, node: Node, model: FabricModel, which: str) -> int | None:
        """Return the minimum or maximum of a host; 0 where its label cannot be read."""
        try:
            return limit_of(node.metadata.labels, setup.models.prefix, model.name, which)
        except ValueError as exc:
            where = f"Node {node.metadata.name}"
            self._cluster.report(node, InputError(str(exc), where))
            return 0

    def _room(self, setup: _Setup, node: Node, model: FabricModel) -> int:
        """Return how many more devices of a model a host may have, beside those it has."""
        if node.metadata.labels.get(f"{setup.models.prefix}/{model.name}") != "true":
            return 0
        has = self._own_gpus(setup, node.metadata.name)
        for gpu in setup.gpus.values():
            has[gpu.model.name] += gpu.node == node.metadata.name
        if any(has[other] for other in setup.models.apart()[model.name]):
            return 0
        most = self._limit(setup, node, model, "max")
        return len(setup.gpus) if most is None else max(0, most - has[model.name])

    def _own_gpus(self, setup: _Setup, node: str) -> Counter[str]:
        """Count the devices of each model that a host has itself, whatever a fabric attaches."""
        found: Counter[str] = Counter()
        fabric = {gpu.pool for gpu in setup.gpus.values()}
        for one in self._cluster.list(ResourceSlice):
            pool = one.spec.pool.name
            if one.spec.node_name != node or pool in fabric or pool.endswith(_HOST):
                continue
            for device in one.spec.devices:
                for model in setup.models.models:
                    wanted = {
                        name: DeviceAttribute(string=v) for name, v in model.attributes.items()
                    }
                    same = wanted.items() <= device.attributes.items()
                    found[model.name] += one.spec.driver == model.driver and same
        return found

    def _count(self, setup: _Setup, node: str, model: FabricModel) -> int:
        gpus = setup.gpus.values()
        return sum(gpu.node == node and gpu.model is model for gpu in gpus)

    # Claims ----------------------------------------------------------------------------------

    def _claim(self, claim: ResourceClaim, gone: bool) -> None:
        """Attach what a claim got, and look for what it gave back."""
        current = None if gone else self._cluster.get(ResourceClaim, claim.key)
        allocation = current.status.allocation if current is not None else None
        results = allocation.devices.results if allocation is not None else ()
        for setup in self._setups.values():
            held = [gpu for one in results if (gpu := _gpu_of(setup, one)) is not None]
            for gpu in setup.gpus.values():
                if claim.key in gpu.claims and gpu not in held:
                    del gpu.claims[claim.key]
                    self._freed(setup, gpu)
            for gpu in held:
                known = claim.key in gpu.claims
                gpu.claims[claim.key] = None
                assert allocation is not None, "there are results"
                if not known:
                    self._taken(setup, gpu, claim.key, allocation.bound_node)

    def _taken(self, setup: _Setup, gpu: _Gpu, claim: str, node: str) -> None:
        if gpu.place is _Place.POOL:
            if node:
                self._attach(setup, gpu, node)
        elif gpu.place is _Place.DETACHING and gpu.node == node:
            # It has not gone yet: the host keeps it.
            gpu.move(_Place.ATTACHED, node)
            self._publish(setup)
        elif gpu.node != node:
            self._tell(setup, gpu, FAILED, f"it is attached to {gpu.node}")
        elif gpu.place is _Place.ATTACHED:
            self._tell_attached(setup, gpu)

    def _freed(self, setup: _Setup, gpu: _Gpu) -> None:
        if gpu.place is _Place.ATTACHED and not gpu.claims:
            step = gpu.move(_Place.ATTACHED, gpu.node)
            _, _, idle = setup.seconds
            self._later(idle, lambda: self._detach(setup, gpu, step))

    # Moves -----------------------------------------------------------------------------------

    def _attach(self, setup: _Setup, gpu: _Gpu, node: str) -> None:
        step = gpu.move(_Place.ATTACHING, node)
        attach, _, _ = setup.seconds
        failure = self._failure(setup, gpu)
        if failure is None:
            self._later(attach, lambda: self._attached(setup, gpu, step))
        elif failure.result == "Failed":
            self._later(attach, lambda: self._failed(setup, gpu, step))
        self._publish(setup)

    def _failure(self, setup: _Setup, gpu: _Gpu) -> InjectedFailure | None:
        """Return what is to go wrong with an attachment, None if nothing is."""
        for index, (failure, left) in enumerate(setup.failures):
            of_gpu = failure.card in ("", gpu.name)
            if left and of_gpu and failure.node in ("", gpu.node):
                setup.failures[index] = failure, left - 1
                return failure
        return None

    def _attached(self, setup: _Setup, gpu: _Gpu, step: int) -> None:
        if gpu.step != step:
            return
        gpu.move(_Place.ATTACHED, gpu.node)
        self._publish(setup)
        self._tell_attached(setup, gpu)
        self._freed(setup, gpu)

    def _tell_attached(self, setup: _Setup, gpu: _Gpu) -> None:
        condition = RESCHEDULE if setup.double.hands_over else READY
        self._tell(setup, gpu, condition, f"attached to {gpu.node}")

    def _failed(self, setup: _Setup, gpu: _Gpu, step: int) -> None:
        if gpu.step != step:
            return
        node = gpu.node
        gpu.move(_Place.POOL, "")
        self._tell(setup, gpu, FAILED, f"could not be attached to {node}")
        self._publish(setup)

    def _detach(self, setup: _Setup, gpu: _Gpu, step: int) -> None:
        """Detach a device that nobody used for its idle time, unless its host needs it."""
        if gpu.step != step or gpu.claims:
            return
        node = self._cluster.get(Node, gpu.node)
        least = (self._limit(setup, node, gpu.model, "min") or 0) if node is not None else 0
        if self._count(setup, gpu.node, gpu.model) <= least:
            return
        mark = gpu.move(_Place.DETACHING, gpu.node)
        _, detach, _ = setup.seconds
        self._later(detach, lambda: self._detached(setup, gpu, mark))
        self._publish(setup)

    def _detached(self, setup: _Setup, gpu: _Gpu, step: int) -> None:
        if gpu.step == step:
            gpu.move(_Place.POOL, "")
            self._publish(setup)

    def _later(self, seconds: float, action: object) -> None:
        assert callable(action)
        self._cluster.clock.call_later(seconds, action)

    # What others see -------------------------------------------------------------------------

    def _tell(self, setup: _Setup, gpu: _Gpu, condition: str, message: str) -> None:
        """Set a condition of a device in the claims that hold it and wait for it."""
        for key in list(gpu.claims):
            claim = self._cluster.get(ResourceClaim, key)
            allocation = claim.status.allocation if claim is not None else None
            if claim is None or allocation is None:
                continue
            for one in allocation.devices.results:
                if _gpu_of(setup, one) is gpu and one.binding_conditions:
                    stamp = self._cluster.timestamp()
                    made = Condition(condition, "True", condition, message, stamp)
                    claim = self._cluster.update(_with_condition(claim, one, made))

    def _publish(self, setup: _Setup) -> None:
        """Write the slices that say where the devices are; those that stay the same are not."""
        hands_over = setup.double.hands_over
        pools: dict[tuple[str, str], list[Device]] = {key: [] for key in setup.hosts}
        for gpu in setup.gpus.values():
            driver = gpu.model.driver
            there = gpu.place in (_Place.ATTACHED, _Place.DETACHING)
            own = pools.setdefault((driver, gpu.pool), [])
            if not (hands_over and there):
                own.append(_fabric_device(gpu, setup.models.prefix, hands_over))
                continue
            key = driver, f"{gpu.node}{_HOST}"
            setup.hosts.add(key)
            pools.setdefault(key, []).append(_local_device(gpu))
        for (driver, pool), devices in pools.items():
            self._write(driver, pool, tuple(devices))

    def _write(self, driver: str, pool: str, devices: tuple[Device, ...]) -> None:
        node = pool.removesuffix(_HOST) if pool.endswith(_HOST) else ""
        name = f"{driver}-{pool.replace('/', '-')}"
        current = self._cluster.get(ResourceSlice, name)
        generation = current.spec.pool.generation + 1 if current is not None else 1
        spec = ResourceSliceSpec(
            driver,
            ResourcePool(pool, generation),
            node_name=node,
            per_device_node_selection=not node,
            devices=devices,
        )
        if current is None:
            self._cluster.create(ResourceSlice(spec, ObjectMeta(name=name)))
        elif current.spec.devices != devices:
            self._cluster.update(replace(current, spec=spec))


def _gpus(models: FabricModels, double: FakeFabric) -> Iterator[_Gpu]:
    """Yield the devices of all fabrics.

    :raises ValueError: for a model that is not described.
    """
    by_name = {model.name: model for model in models.models}
    numbers: Counter[str] = Counter()
    for fabric in double.fabrics:
        for name, count in fabric.devices.items():
            if name not in by_name:
                known = ", ".join(by_name) or "none"
                raise ValueError(
                    f'data[double]: fabrics: model "{name}" is not in {DEVICE_INFO} ({known})'
                )
            for _ in range(count):
                yield _Gpu(f"{name}-{numbers[name]}", fabric.id, by_name[name])
                numbers[name] += 1


def _gpu_of(setup: _Setup, device: AllocatedDevice) -> _Gpu | None:
    """Return the device that a claim holds, under its name in the fabric or on its host."""
    gpu = setup.gpus.get((device.driver, device.pool, device.device))
    if gpu is not None or not device.pool.endswith(_HOST):
        return gpu
    node = device.pool.removesuffix(_HOST)
    gpus = setup.gpus.values()
    return next((c for c in gpus if c.name == device.device and c.node == node), None)


def _with_condition(
    claim: ResourceClaim, device: AllocatedDevice, condition: Condition
) -> ResourceClaim:
    made = AllocatedDeviceStatus(
        device.driver, device.pool, device.device, device.share_id, (condition,)
    )
    others = tuple(one for one in claim.status.devices if _name(one) != _name(device))
    return replace(claim, status=replace(claim.status, devices=(*others, made)))


def _name(device: AllocatedDevice | AllocatedDeviceStatus) -> tuple[str, str, str, str | None]:
    return device.driver, device.pool, device.device, device.share_id


def _attributes(model: FabricModel) -> dict[str, DeviceAttribute]:
    return {name: DeviceAttribute(string=value) for name, value in model.attributes.items()}


def _local_device(gpu: _Gpu) -> Device:
    return Device(gpu.name, _attributes(gpu.model), taints=_taints(gpu))


def _taints(gpu: _Gpu) -> tuple[DeviceTaint, ...]:
    leaves = gpu.place is _Place.DETACHING
    return (DeviceTaint(_DETACHING, "NoSchedule"),) if leaves else ()


def _fabric_device(gpu: _Gpu, prefix: str, hands_over: bool) -> Device:
    """Return a device as its fabric publishes it: for the hosts that may have it."""
    device = Device(gpu.name, _attributes(gpu.model), binds_to_node=True, taints=_taints(gpu))
    if gpu.place not in (_Place.ATTACHED, _Place.DETACHING):
        failures = (RESCHEDULE, FAILED) if hands_over else (FAILED,)
        device = replace(device, binding_conditions=(READY,), binding_failure_conditions=failures)
    if gpu.node:
        return replace(device, node_name=gpu.node)
    return replace(device, node_selector=_hosts(gpu, prefix))


def _hosts(gpu: _Gpu, prefix: str) -> NodeSelector:
    """Return the hosts that the fabric reaches and that take the model."""
    labels: Iterable[tuple[str, str]] = (
        (f"{prefix}/fabric", str(gpu.fabric)),
        (f"{prefix}/{gpu.model.name}", "true"),
    )
    wanted = tuple(NodeSelectorRequirement(key, "In", (value,)) for key, value in labels)
    return NodeSelector((NodeSelectorTerm(wanted),))
