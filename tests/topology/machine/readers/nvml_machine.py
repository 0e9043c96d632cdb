"""Machines for discovery to find: the stub's file, a sysfs tree and a cpuinfo, written to a folder.

A path is that of a device below ``devices/`` in sysfs: root, bridges, device.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from bayplan.topology.machine.bandwidth import model_of
from bayplan.topology.machine.model import LinkKind, Machine, PartKind
from bayplan.topology.machine.readers.sysfs import cpu_set

GPU, SWITCH, UNKNOWN = 0, 2, 255
"""What is at the other end of an NVLink."""
NO_MIG = (0xFFFFFFFF, 0xFFFFFFFF)
"""The ids of an event that is of no MIG instance."""
_COMPUTE = {0: 89, 2: 70, 3: 80, 4: 90, 5: 100}
"""Compute capability times ten of the known machines' GPUs, by the generation of their NVLinks."""
_SPEEDS = {3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe", 6: "64.0 GT/s PCIe"}
_CPUS = {
    "skylake": "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n",
    "sapphire-rapids": "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n",
    "emerald-rapids": "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\n",
    "amd": "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n",
    "arm": "CPU implementer\t: 0x41\n",
}


@dataclass(frozen=True)
class FakeLink:
    peer: str = ""
    kind: int = SWITCH
    state: int = 1


@dataclass(frozen=True)
class FakeGpu:
    path: tuple[str, ...]
    model: str = "NVIDIA H100 80GB HBM3"
    compute: int = 90
    numa: int | None = 0
    links: tuple[FakeLink, ...] = ()
    states: str = "both"
    memory: int = 80 << 30
    cpus: str = ""
    in_sysfs: bool = True
    speed: str = _SPEEDS[5]
    extra: tuple[str, ...] = ()
    """Lines of the stub's file."""


@dataclass(frozen=True)
class FakePort:
    rate: str = "400 Gb/sec (4X NDR)"
    state: str = "4: ACTIVE"
    link_layer: str = "InfiniBand"


@dataclass(frozen=True)
class FakeNic:
    name: str
    path: tuple[str, ...]
    numa: int | None = 0
    ports: tuple[FakePort, ...] = (FakePort(),)
    netdev: str = ""
    physical: str = ""
    virtual_functions: int | None = None
    speed: str = _SPEEDS[5]


@dataclass(frozen=True)
class FakeMachine:
    gpus: tuple[FakeGpu, ...] = ()
    nics: tuple[FakeNic, ...] = ()
    nodes: dict[int, str] = field(default_factory=lambda: {0: "0-7"})
    sockets: dict[int, int] = field(default_factory=dict)
    """The socket of each NUMA node."""
    cpu: str = _CPUS["skylake"]
    bridge_speed: str = _SPEEDS[5]
    init: int = 0
    driver: str = ""

    def with_gpu(self, index: int, **changes: Any) -> FakeMachine:
        gpus = list(self.gpus)
        gpus[index] = replace(gpus[index], **changes)
        return replace(self, gpus=tuple(gpus))


def switched(links: int) -> tuple[FakeLink, ...]:
    """Return NVLinks to an NVSwitch."""
    return (FakeLink("0000:05:00.0"),) * links


def hgx(gpus: int = 2, links: int = 18) -> FakeMachine:
    """Return a server of H100 on NVSwitch: each GPU shares a PCIe switch with a NIC."""
    made, nics = [], []
    for index in range(gpus):
        n = f"{index + 1:x}"
        switch = (f"pci0000:{n}0", f"0000:{n}0:01.0", f"0000:{n}1:00.0")
        made.append(FakeGpu((*switch, f"0000:{n}2:00.0", f"0000:{n}3:00.0"), links=switched(links)))
        nics.append(FakeNic(f"mlx5_{index}", (*switch, f"0000:{n}2:01.0", f"0000:{n}4:00.0")))
    return FakeMachine(tuple(made), tuple(nics))


# From a machine that is known --------------------------------------------------------------


def fake_of(machine: Machine) -> FakeMachine:
    """Return what a machine that bayplan knows looks like to NVML and sysfs.

    A switch is an upstream bridge and a downstream bridge for each thing below it; a root port is
    above everything.
    """
    model = model_of(machine.gpus[0].model)
    assert model is not None
    speed = _SPEEDS[model.pcie]
    compute = _COMPUTE[model.nvlink]
    paths = _paths(machine)
    bus = [paths[gpu.name][-1] for gpu in machine.gpus]
    gpus = [
        FakeGpu(
            paths[gpu.name],
            gpu.model,
            compute,
            gpu.numa,
            _links(machine, gpu.index, bus),
            "field" if compute >= 90 else "call",
            gpu.memory,
            gpu.cpus,
            speed=speed,
        )
        for gpu in machine.gpus
    ]
    nics = [_nic(machine, index, paths, speed) for index in range(len(machine.nics))]
    nodes = dict(machine.platform.numa_cpus)
    sockets = {node: _socket(machine, node) for node in nodes}
    cpu = _CPUS[machine.platform.cpu]
    return FakeMachine(tuple(gpus), tuple(nics), nodes, sockets, cpu, speed)


def _nic(machine: Machine, index: int, paths: dict[str, tuple[str, ...]], speed: str) -> FakeNic:
    nic = machine.nics[index]
    port = FakePort(f"{nic.rate:g} Gb/sec (4X NDR)", link_layer=nic.link_layer)
    return FakeNic(nic.name, paths[nic.name], nic.numa, (port,), speed=speed)


def _socket(machine: Machine, node: int) -> int:
    above = (name for name in machine.graph[f"numa {node}"] if name.startswith("socket"))
    return int(next(above).split()[1])


def _links(machine: Machine, gpu: int, bus: list[str]) -> tuple[FakeLink, ...]:
    found: list[FakeLink] = []
    for peer, links in enumerate(machine.direct[gpu].tolist()):
        found += [FakeLink(bus[peer], GPU)] * links
    if "NVSwitch" in machine.graph[f"GPU{gpu}"]:
        found += switched(machine.graph[f"GPU{gpu}"]["NVSwitch"]["count"])
    return tuple(found)


def _paths(machine: Machine) -> dict[str, tuple[str, ...]]:
    """Return the path of each device, with bus numbers from 1 on for everything."""
    kinds = nx.get_node_attributes(machine.graph, "kind")
    tree: nx.Graph[str] = nx.Graph()
    for a, b, about in machine.graph.edges(data=True):
        if about["kind"] is LinkKind.PCIE:
            tree.add_edge(a, b)
    buses = count(1)
    found: dict[str, tuple[str, ...]] = {}
    for root in (name for name, kind in kinds.items() if kind is PartKind.ROOT and name in tree):
        bus = next(buses)
        below: dict[str, tuple[str, ...]] = {root: (f"pci0000:{bus:02x}",)}
        ports = {root: bus}
        for above, name in nx.bfs_edges(tree, root):
            port = f"0000:{ports[above]:02x}:{1 + len(below):02x}.0"
            ports[name] = next(buses)
            below[name] = (*below[above], port, f"0000:{ports[name]:02x}:00.0")
            if kinds[name] is PartKind.SWITCH:
                ports[name] = next(buses)
        found |= below
    return found


# The stub ----------------------------------------------------------------------------------


def compile_stub(folder: Path) -> Path:
    """Compile the stand-in for NVIDIA's library into a folder; skip the test without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to build the NVML stub with")
    library = folder / "libnvidia-ml.so.1"
    source = Path(__file__).parent / "nvml_stub" / "libnvidia-ml.c"
    options = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *options, "-o", str(library), str(source)], check=True)
    return library


@dataclass(frozen=True)
class News:
    """What happens to a machine while the stub has it; ``path`` is for NVML_STUB_NEWS."""

    path: Path

    def event(self, gpu: int, kind: int, data: int = 0, mig: tuple[int, int] = NO_MIG) -> None:
        """Let an event of a GPU happen, of a MIG instance of it by its two ids."""
        self.tell("event", gpu, kind, data, *mig)

    def tell(self, what: str, *numbers: int) -> None:
        """Append a line: error, handle, action or link, the GPU, and what the stub says of it."""
        with self.path.open("a") as file:
            file.write(" ".join([what, *map(str, numbers)]) + "\n")


# Files -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    stub: Path
    sysfs: Path
    cpuinfo: Path


def write(machine: FakeMachine, folder: Path) -> Written:
    """Write the stub's file, sysfs and cpuinfo of a machine."""
    written = Written(folder / "machine", folder / "sys", folder / "cpuinfo")
    written.sysfs.mkdir(parents=True)
    lines = [f"init {machine.init}"] if machine.init else []
    lines += [f"driver {machine.driver}"] if machine.driver else []
    for index, gpu in enumerate(machine.gpus):
        lines += _stub_lines(index, gpu)
    written.stub.write_text("".join(f"{line}\n" for line in lines))
    written.cpuinfo.write_text(machine.cpu)
    for node, cpus in machine.nodes.items():
        _put(written.sysfs / f"devices/system/node/node{node}/cpulist", cpus)
        socket, first = machine.sockets.get(node), min(cpu_set(cpus), default=0)
        if socket is not None:
            package = f"devices/system/cpu/cpu{first}/topology/physical_package_id"
            _put(written.sysfs / package, str(socket))
    for gpu in machine.gpus:
        if gpu.in_sysfs:
            _pci(written.sysfs, machine, gpu.path, gpu.numa, gpu.speed, "0x030200")
    for nic in machine.nics:
        _hca(written.sysfs, machine, nic)
    return written


def _stub_lines(index: int, gpu: FakeGpu) -> Iterator[str]:
    yield "gpu"
    yield f"uuid GPU-{index}"
    yield f"name {gpu.model}"
    yield f"bus 0000{gpu.path[-1].upper()}"
    yield f"memory {gpu.memory}"
    yield f"compute {gpu.compute // 10} {gpu.compute % 10}"
    yield f"minor {index}"
    yield f"module {index + 1}"
    yield f"states {gpu.states}"
    for link in gpu.links:
        peer = f"0000{link.peer.upper()}" if link.peer else "-"
        yield f"link {link.state} {link.kind} {peer}"
    if cpus := cpu_set(gpu.cpus):
        words = [sum(1 << cpu % 64 for cpu in cpus if cpu // 64 == word) for word in range(64)]
        yield "affinity " + " ".join(f"{word:x}" for word in words[: max(cpus) // 64 + 1])
    yield from gpu.extra


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def _pci(
    sysfs: Path,
    machine: FakeMachine,
    path: tuple[str, ...],
    numa: int | None,
    speed: str,
    kind: str,
) -> Path:
    at = sysfs / "devices" / path[0]
    for part in path[1:]:
        at /= part
        if at.exists():
            continue
        end = part == path[-1]
        _put(at / "class", kind if end else "0x060400")
        _put(at / "max_link_speed", speed if end else machine.bridge_speed)
        _put(at / "max_link_width", "16")
        _put(at / "numa_node", "-1" if numa is None else str(numa))
        every = ",".join(machine.nodes.values())
        _put(at / "local_cpulist", every if numa is None else machine.nodes[numa])
        link = sysfs / "bus/pci/devices" / part
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path("../../../devices") / at.relative_to(sysfs / "devices"))
    return at


def _hca(sysfs: Path, machine: FakeMachine, nic: FakeNic) -> None:
    at = _pci(sysfs, machine, nic.path, nic.numa, nic.speed, "0x020700")
    hca = at / "infiniband" / nic.name
    for number, port in enumerate(nic.ports, 1):
        _put(hca / f"ports/{number}/rate", port.rate)
        _put(hca / f"ports/{number}/state", port.state)
        _put(hca / f"ports/{number}/link_layer", port.link_layer)
    (hca / "device").symlink_to(Path("../..") / ".." / at.name)
    if nic.netdev:
        _put(at / "net" / nic.netdev / "dev_port", "0")
    if nic.physical:
        (at / "physfn").symlink_to(Path("..") / nic.physical)
    if nic.virtual_functions is not None:
        _put(at / "sriov_numvfs", str(nic.virtual_functions))
    entry = sysfs / "class/infiniband" / nic.name
    entry.parent.mkdir(parents=True, exist_ok=True)
    entry.symlink_to(Path("../..") / hca.relative_to(sysfs))
