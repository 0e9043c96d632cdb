"""A machine's GPUs, MIG instances, NICs and CPUs as devices of a ResourceSlice.

Attributes that Kubernetes defines are in its domain (``resource.kubernetes.io``: pcieRoot,
pciBusID, numaNode), all others in the driver's. A GPU and its MIG instances consume one counter
set, so that no claim gets a whole GPU that is partly allocated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from bayplan.api import Quantity
from bayplan.api.dra import (
    CapacityRange,
    CapacityRequestPolicy,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
)
from bayplan.errors import BayplanError
from bayplan.topology.machine.gpu_search import Constraints
from bayplan.topology.machine.levels import Level
from bayplan.topology.machine.mig import MigProfile, mig_gpu
from bayplan.topology.machine.model import Gpu, Machine, Mig, Nic, PartKind
from bayplan.topology.machine.readers.sysfs import Netdev, cpu_set
from bayplan.topology.machine.select import Selection, SelectionRequest, select

__all__ = [
    "DRIVER",
    "GpuPartition",
    "NodeDevice",
    "NodeInventory",
    "NumaForm",
    "divisible",
    "inventory_of",
]

DRIVER = "dra.bayplan.dev"
NumaForm: TypeAlias = Literal["int", "list"]
_STANDARD = "resource.kubernetes.io"
_GROUP_SIZES = (2, 4, 8)
_BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_MOST_LABEL = 58
_MOST_TEXT = 64
"""Characters that a text attribute may have."""


class GpuPartition(msgspec.Struct, frozen=True):
    """A place for a MIG instance on a GPU: the memory slices from ``start`` on."""

    profile: MigProfile
    start: int

    @property
    def slices(self) -> range:
        """The memory slices that it takes."""
        return range(self.start, self.start + self.profile.partition.size)


class NodeDevice(msgspec.Struct, frozen=True):
    """A device as it is published, and what it is on the machine.

    One of ``gpu``, ``nic`` and ``numa`` is set, an index of the machine; none for a NIC that is not
    in its topology. A MIG instance has the ``gpu`` of its GPU; so has a ``partition``, which
    becomes an instance when a claim is prepared.
    """

    device: Device
    gpu: int | None = None
    mig: Mig | None = None
    nic: int | None = None
    numa: int | None = None
    partition: GpuPartition | None = None

    @property
    def name(self) -> str:
        """The device's name in its pool."""
        return self.device.name

    @property
    def whole(self) -> bool:
        """Whether it is a whole GPU."""
        return self.gpu is not None and self.mig is None and self.partition is None


class NodeInventory(msgspec.Struct, frozen=True):
    """All devices of a machine by name, and the counters that they share.

    :ivar left_out: the GPUs that are not published, with the reason.
    """

    machine: Machine
    devices: Mapping[str, NodeDevice]
    counters: tuple[CounterSet, ...] = ()
    left_out: tuple[str, ...] = msgspec.field(default=())


def inventory_of(
    machine: Machine,
    numa: NumaForm = "int",
    cpus: bool = False,
    gpus: frozenset[int] | None = None,
    netdevs: Sequence[Netdev] = (),
    divided: frozenset[int] = frozenset(),
    shared: frozenset[int] = frozenset(),
) -> NodeInventory:
    """Return the devices of a machine.

    :param numa: "int" publishes the NUMA node, "list" also the others of its socket.
    :param cpus: publish the CPUs of each NUMA node as a device that can be shared.
    :param gpus: the GPUs to publish, by index; None for all.
    :param netdevs: Ethernet NICs without RDMA, which are not in the machine's topology.
    :param divided: the GPUs to offer as MIG partitions, one device for each place; their profiles
        have to be known.
    :param shared: the GPUs of which claims can take shares.
    :raises BayplanError: when two devices would get the same name.
    """
    own = [gpu for gpu in machine.gpus if gpus is None or gpu.index in gpus]
    groups = _nvlink_groups(machine, [gpu.index for gpu in own if not gpu.lost])
    near = _socket_mates(machine) if numa == "list" else {}
    found: list[NodeDevice] = []
    counters: list[CounterSet] = []
    for gpu in own:
        if gpu.lost:
            continue
        if gpu.index in divided:
            counters.append(_slices(gpu))
            found += _partition_devices(gpu, machine, near)
            continue
        if gpu.mig:
            counters.append(_counters(gpu))
        found.append(_gpu_device(gpu, machine, groups, near, gpu.index in shared))
        found += (_mig_device(gpu, mig, machine, near) for mig in gpu.mig)
    for nic in machine.nics:
        found.append(_nic_device(nic, near))
    found += (_netdev_device(one, near) for one in netdevs)
    if cpus:
        found += _cpu_devices(machine)
    lost = tuple(f"{gpu.name}: {gpu.lost}" for gpu in own if gpu.lost)
    devices = {one.name: one for one in found}
    if len(devices) < len(found):
        names = [one.name for one in found]
        twice = next(name for name in names if names.count(name) > 1)
        raise BayplanError(f"two devices of the machine would be named {twice}")
    return NodeInventory(machine, devices, tuple(counters), lost)


def divisible(machine: Machine, divided: frozenset[int], simulated: bool) -> Machine:
    """Return the machine with the MIG profiles of the GPUs to be divided.

    :param simulated: the profiles are those of the GPU's model; else NVML has reported them.
    :raises BayplanError: for a GPU that does not exist, or cannot be divided.
    """
    for index in sorted(divided):
        if index >= len(machine.gpus):
            raise BayplanError(f"GPU{index} does not exist: the machine has {len(machine)} GPUs")
    if not divided:
        return machine
    gpus = [_divisible(gpu, simulated) if gpu.index in divided else gpu for gpu in machine.gpus]
    return msgspec.structs.replace(machine, gpus=tuple(gpus))


def _divisible(gpu: Gpu, simulated: bool) -> Gpu:
    if gpu.lost or gpu.profiles:
        return gpu
    if not simulated:
        raise BayplanError(
            f"{gpu.name} cannot be divided: it is not in MIG mode, which "
            f"nvidia-smi -i {gpu.index} -mig 1 turns on"
        )
    divided = mig_gpu(gpu.model, gpu.memory)
    if divided is None:
        raise BayplanError(
            f"{gpu.name} cannot be divided: the MIG profiles of {gpu.model or 'it'} are not known"
        )
    return msgspec.structs.replace(gpu, profiles=divided.profiles)


def _gpu_device(
    gpu: Gpu,
    machine: Machine,
    groups: Mapping[int, Mapping[int, int]],
    near: Mapping[int, tuple[int, ...]],
    shared: bool,
) -> NodeDevice:
    attributes = {
        "type": _text("gpu"),
        "index": DeviceAttribute(integer=gpu.index),
        **_of_gpu(gpu, machine),
        **_place(gpu.bus_id, gpu.pcie_root, gpu.numa, near),
    }
    if gpu.uuid:
        attributes["uuid"] = _text(gpu.uuid)
    if gpu.minor is not None:
        attributes["minor"] = DeviceAttribute(integer=gpu.minor)
    if gpu.nvlink_domain:
        attributes["nvlinkDomain"] = _text(gpu.nvlink_domain)
    for size, group_of in groups.items():
        if gpu.index in group_of:
            attributes[f"nvlinkGroup{size}"] = DeviceAttribute(integer=group_of[gpu.index])
    rails = {machine.nics[nic].rail for nic in machine.near_nics(gpu.index)} - {None}
    if len(rails) == 1 and machine.nic_distance(gpu.index) <= Level.PXB:
        attributes["rail"] = DeviceAttribute(integer=rails.pop())
    consumes: tuple[DeviceCounterConsumption, ...] = ()
    if gpu.mig:
        consumes = (_consumption(gpu, gpu.memory, len(gpu.mig)),)
    device = Device(
        f"gpu-{gpu.index}",
        attributes,
        _shares(gpu) if shared else _memory(gpu.memory),
        consumes_counters=consumes,
        allow_multiple_allocations=shared,
    )
    return NodeDevice(device, gpu=gpu.index)


def _shares(gpu: Gpu) -> dict[str, DeviceCapacity]:
    """Return what claims can take parts of: memory in GiB, all of it by default, and cores in %."""
    gibibyte = Quantity("1Gi")
    all_of_it = Quantity(f"{gpu.memory // gibibyte.units}Gi")
    memory = CapacityRequestPolicy(all_of_it, (), CapacityRange(gibibyte, None, gibibyte))
    none, one = Quantity("0"), Quantity("1")
    cores = CapacityRequestPolicy(none, (), CapacityRange(none, None, one))
    return {
        "memory": DeviceCapacity(Quantity(gpu.memory), memory),
        "cores": DeviceCapacity(Quantity("100"), cores),
    }


def _mig_device(
    gpu: Gpu, mig: Mig, machine: Machine, near: Mapping[int, tuple[int, ...]]
) -> NodeDevice:
    attributes = {
        "type": _text("mig"),
        "uuid": _text(mig.uuid),
        "parentUUID": _text(gpu.uuid),
        "parentIndex": DeviceAttribute(integer=gpu.index),
        **_of_gpu(gpu, machine),
        **_place(gpu.bus_id, gpu.pcie_root, gpu.numa, near),
    }
    device = Device(
        f"gpu-{gpu.index}-mig-{mig.gpu_instance}-{mig.compute_instance}",
        attributes,
        _memory(mig.memory),
        consumes_counters=(_consumption(gpu, mig.memory, 1),),
    )
    return NodeDevice(device, gpu=gpu.index, mig=mig)


def _partition_devices(
    gpu: Gpu, machine: Machine, near: Mapping[int, tuple[int, ...]]
) -> Iterator[NodeDevice]:
    """Yield a device for each place of each profile; those that overlap share counters."""
    common = {
        "type": _text("mig"),
        "parentUUID": _text(gpu.uuid),
        "parentIndex": DeviceAttribute(integer=gpu.index),
        **_of_gpu(gpu, machine),
        **_place(gpu.bus_id, gpu.pcie_root, gpu.numa, near),
    }
    for profile in gpu.profiles:
        own = profile.partition
        capacity = {
            **_memory(own.memory),
            "multiprocessors": DeviceCapacity(Quantity(profile.multiprocessors)),
        }
        for start in own.starts:
            partition = GpuPartition(profile, start)
            consumes = DeviceCounterConsumption(_slices_name(gpu), _takes(partition))
            device = Device(
                f"gpu-{gpu.index}-mig-{profile.id}-{start}-{own.size}",
                {**common, "profile": _text(profile.name)},
                capacity,
                consumes_counters=(consumes,),
            )
            yield NodeDevice(device, gpu=gpu.index, partition=partition)


def _slices_name(gpu: Gpu) -> str:
    return f"gpu-{gpu.index}-counter-set"


def _slices(gpu: Gpu) -> CounterSet:
    """Return what the partitions of a GPU share: as much as the largest of each takes."""
    most: dict[str, Counter] = {}
    for profile in gpu.profiles:
        for start in profile.partition.starts:
            for name, counter in _takes(GpuPartition(profile, start)).items():
                if name not in most or most[name].value.number < counter.value.number:
                    most[name] = counter
    return CounterSet(_slices_name(gpu), most)


def _takes(partition: GpuPartition) -> dict[str, Counter]:
    profile = partition.profile
    counters = {
        "memory": profile.partition.memory,
        "multiprocessors": profile.multiprocessors,
        **{name: count for name, count in profile.engines if count},
        **{f"memory-slice-{number}": 1 for number in partition.slices},
    }
    return {name: Counter(Quantity(amount)) for name, amount in counters.items()}


def _nic_device(nic: Nic, near: Mapping[int, tuple[int, ...]]) -> NodeDevice:
    attributes = {
        "type": _text("nic"),
        "rdmaDevice": _text(nic.name),
        "storage": DeviceAttribute(boolean=nic.storage),
        **_place(nic.bus_id, nic.pcie_root, nic.numa, near),
    }
    if nic.link_layer:
        attributes["linkLayer"] = _text(nic.link_layer)
    if nic.rail is not None:
        attributes["rail"] = DeviceAttribute(integer=nic.rail)
    if nic.netdev:
        attributes["ifName"] = _text(nic.netdev)
    if nic.parent:
        attributes["parent"] = _text(nic.parent)
    if nic.rate:
        attributes["linkSpeed"] = DeviceAttribute(integer=round(nic.rate))
    return NodeDevice(Device(f"nic-{_label(nic.name)}", attributes), nic=nic.index)


def _netdev_device(netdev: Netdev, near: Mapping[int, tuple[int, ...]]) -> NodeDevice:
    device = netdev.device
    attributes = {
        "type": _text("nic"),
        "ifName": _text(netdev.name),
        "linkLayer": _text("Ethernet"),
        "storage": DeviceAttribute(boolean=False),
        **_place(device.bus_id, device.root, device.numa, near),
    }
    if netdev.rate:
        attributes["linkSpeed"] = DeviceAttribute(integer=round(netdev.rate))
    return NodeDevice(Device(f"nic-{_label(netdev.name)}", attributes))


def _cpu_devices(machine: Machine) -> Iterator[NodeDevice]:
    """Yield the CPUs of each NUMA node, which claims can share."""
    for number, cpus in machine.platform.numa_cpus:
        count = len(cpu_set(cpus))
        attributes = {
            "type": _text("cpu"),
            f"{_STANDARD}/numaNode": DeviceAttribute(integer=number),
            "numCPUs": DeviceAttribute(integer=count),
        }
        capacity = {"cpu": DeviceCapacity(Quantity(count))}
        device = Device(f"cpu-numa-{number}", attributes, capacity, allow_multiple_allocations=True)
        yield NodeDevice(device, numa=number)


def _of_gpu(gpu: Gpu, machine: Machine) -> dict[str, DeviceAttribute]:
    """Return the attributes that a GPU and its MIG instances have in common."""
    attributes = {}
    if gpu.model:
        attributes["productName"] = _text(gpu.model)
    if gpu.compute:
        version = f"{gpu.compute // 10}.{gpu.compute % 10}.0"
        attributes["cudaComputeCapability"] = DeviceAttribute(version=version)
        attributes["architecture"] = _text(_architecture(gpu.compute))
    driver = _semantic(machine.platform.driver)
    if driver:
        attributes["driverVersion"] = DeviceAttribute(version=driver)
    return attributes


def _place(
    bus_id: str, root: str, numa: int | None, near: Mapping[int, tuple[int, ...]]
) -> dict[str, DeviceAttribute]:
    """Return a device's place in the attributes that Kubernetes defines."""
    attributes = {}
    if _BUS_ID.fullmatch(bus_id):
        attributes[f"{_STANDARD}/pciBusID"] = _text(bus_id)
    if root:
        attributes[f"{_STANDARD}/pcieRoot"] = _text(root)
    if numa is not None:
        value = DeviceAttribute(integers=near[numa]) if numa in near else None
        attributes[f"{_STANDARD}/numaNode"] = value or DeviceAttribute(integer=numa)
    return attributes


def _socket_mates(machine: Machine) -> dict[int, tuple[int, ...]]:
    """Return, for each NUMA node, itself followed by the others of its socket."""
    found: dict[int, tuple[int, ...]] = {}
    graph = machine.graph
    for socket in (node for node in graph if graph.nodes[node]["kind"] is PartKind.SOCKET):
        below = (graph.nodes[node] for node in graph.neighbors(socket))
        numbers = [one["numa"] for one in below if one["kind"] is PartKind.NUMA]
        known = sorted({number for number in numbers if number is not None})
        for number in known:
            found[number] = (number, *(other for other in known if other != number))
    return found


def _nvlink_groups(machine: Machine, gpus: Sequence[int]) -> dict[int, dict[int, int]]:
    """Return disjoint groups of GPUs that form rings over NVLink: by size, the group of each GPU.

    Groups of 2 are nested in groups of 4, and those in groups of 8, so that taking one breaks as
    few as possible; the best come first.
    """
    found: dict[int, dict[int, int]] = {}
    parents = [list(gpus)]
    for size in sorted(_GROUP_SIZES, reverse=True):
        own = found[size] = {}
        parts: list[list[int]] = []
        for free in parents:
            while group := _ring_of(machine, free, size):
                own |= dict.fromkeys(group, len(set(own.values())))
                parts.append(list(group))
                free = [gpu for gpu in free if gpu not in group]
            parts.append(free)
        parents = parts
    return found


def _ring_of(machine: Machine, free: Sequence[int], size: int) -> tuple[int, ...]:
    request = SelectionRequest(size, constraints=Constraints(nvlink=True))
    chosen = select(machine, free, request) if len(free) >= size else None
    return chosen.gpus if isinstance(chosen, Selection) else ()


def _counters(gpu: Gpu) -> CounterSet:
    counters = {
        "memory": Counter(Quantity(gpu.memory)),
        "instances": Counter(Quantity(len(gpu.mig))),
    }
    return CounterSet(f"gpu-{gpu.index}", counters)


def _consumption(gpu: Gpu, memory: int, instances: int) -> DeviceCounterConsumption:
    counters = {"memory": Counter(Quantity(memory)), "instances": Counter(Quantity(instances))}
    return DeviceCounterConsumption(f"gpu-{gpu.index}", counters)


def _memory(amount: int) -> dict[str, DeviceCapacity]:
    return {"memory": DeviceCapacity(Quantity(amount))} if amount else {}


def _text(value: str) -> DeviceAttribute:
    return DeviceAttribute(string=value[:_MOST_TEXT])


def _label(name: str) -> str:
    """Return a name as a DNS label."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_MOST_LABEL].rstrip("-")


def _semantic(version: str) -> str:
    """Return a driver's version, such as 580.65.06, as a semantic version: 580.65.6."""
    parts = [part for part in version.split(".") if part.isdigit()][:3]
    return ".".join(str(int(part)) for part in (*parts, "0", "0")[:3]) if parts else ""


_ARCHITECTURES: Sequence[tuple[int, str]] = (
    (100, "Blackwell"),
    (90, "Hopper"),
    (89, "Ada Lovelace"),
    (80, "Ampere"),
    (75, "Turing"),
    (70, "Volta"),
    (60, "Pascal"),
)


def _architecture(compute: int) -> str:
    """Return the architecture of a CUDA compute capability times ten."""
    return next((name for least, name in _ARCHITECTURES if compute >= least), "older")
