"""The topology file that NCCL reads with NCCL_TOPO_FILE (NCCL 2.30, src/graph/xml.cc).

Only the elements system, cpu and pci are written: NCCL adds GPUs, NVLinks and NICs itself, and
skips their detection if the file has them. Its parser accepts no XML declaration, no tabs and no
double spaces, and compares bus ids as lower-case text.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from bayplan.errors import BayplanError
from bayplan.topology.machine.bandwidth import pcie
from bayplan.topology.machine.model import LinkKind, Machine, PartKind

__all__ = ["TopologyFileError", "needed_topology_file", "topology_file"]

_MOST_NODES = 256
_LONGEST = 255
_SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
_WIDTHS = (16, 8, 4, 2, 1)
_CPUS = {
    "broadwell": ("GenuineIntel", 6, 79),
    "skylake": ("GenuineIntel", 6, 85),
    "sapphire-rapids": ("GenuineIntel", 6, 143),
    "emerald-rapids": ("GenuineIntel", 6, 207),
    "amd": ("AuthenticAMD", 175, 1),
}
_GPU_CLASS = "0x030200"
_BRIDGE_CLASS = "0x060400"
_NIC_CLASSES = {"InfiniBand": "0x020700", "Ethernet": "0x020000"}


class TopologyFileError(BayplanError):
    """Not enough is known about a machine to write a topology file."""


@lru_cache(maxsize=256)
def needed_topology_file(machine: Machine) -> str:
    """Return the topology file of a virtual machine, whose /sys shows no PCIe switches.

    "" for any other machine, and if not enough is known to write the file.
    """
    if not machine.platform.virtual:
        return ""
    try:
        return topology_file(machine)
    except TopologyFileError:
        return ""


def topology_file(machine: Machine) -> str:
    """Return a machine's topology file.

    :raises TopologyFileError: when the bus id, the NUMA node or the position in the PCIe tree is
        unknown for a GPU, or the file would be larger than NCCL reads.
    """
    lacking = [gpu.name for gpu in machine.gpus if not gpu.bus_id or gpu.numa is None]
    if lacking:
        raise TopologyFileError(f"the bus id or NUMA node of {', '.join(lacking)} is not known")
    lines = list(_TopologyFileWriter(machine).lines())
    if any(len(value) > _LONGEST for line in lines for value in line.split('"')[1::2]):
        raise TopologyFileError(f"a value would be longer than {_LONGEST} characters")
    if sum(not line.lstrip().startswith("</") for line in lines) > _MOST_NODES:
        raise TopologyFileError(f"the file would have more than {_MOST_NODES} elements")
    text = "\n".join(lines) + "\n"
    nowhere = [gpu.name for gpu in machine.gpus if f'"{gpu.bus_id.lower()}"' not in text]
    if nowhere:
        lost = ", ".join(nowhere)
        raise TopologyFileError(f"the position of {lost} in the PCIe tree is not known")
    return text


class _TopologyFileWriter:
    """Writes the PCIe tree of one machine as XML."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._graph = machine.graph
        self._kinds = {name: self._graph.nodes[name]["kind"] for name in self._graph}
        self._gpus = {gpu.name: gpu for gpu in machine.gpus}
        self._nics = {nic.name: nic for nic in machine.nics}
        self._bridges = 0

    def lines(self) -> Iterator[str]:
        """Yield the lines, indented by two spaces per level."""
        yield '<system version="1">'
        for number, body in self._numa_nodes().items():
            if body:
                yield f'  <cpu numaid="{number}"{self._cpu(number)}>'
                yield from body
                yield "  </cpu>"
        yield "</system>"

    def _numa_nodes(self) -> dict[int, list[str]]:
        """Return the lines below each NUMA node by its number, nodes of unknown number left out.

        A NUMA node in several parts becomes one.
        """
        found: dict[int, list[str]] = {}
        for name, node in self._graph.nodes.items():
            if node["kind"] is PartKind.NUMA and node["numa"] is not None:
                body = found.setdefault(node["numa"], [])
                for root in self._below(name):
                    body += self._bus(root, name, 2)
        return found

    def _cpu(self, number: int) -> str:
        """Return the attributes of a NUMA node; NCCL detects those that are left out."""
        platform = self._machine.platform
        cpus = dict(platform.numa_cpus)
        own = cpus.get(number)
        text = f' affinity="{_mask(own, list(cpus.values()))}"' if own else ""
        text += f' arch="{platform.arch}"'
        if platform.cpu in _CPUS:
            vendor, family, model = _CPUS[platform.cpu]
            text += f' vendor="{vendor}" familyid="{family}" modelid="{model}"'
        return text

    def _below(self, name: str, above: str | None = None) -> list[str]:
        return [
            other
            for other, edge in self._graph[name].items()
            if other != above
            and edge["kind"] is not LinkKind.NVLINK
            and self._kinds[other] not in (PartKind.SOCKET, PartKind.NUMA)
        ]

    def _bus(self, name: str, above: str, depth: int) -> Iterator[str]:
        kind = self._kinds[name]
        indent = "  " * depth
        if kind is PartKind.ROOT:
            for other in self._below(name, above):
                yield from self._bus(other, name, depth)
        elif kind is PartKind.SWITCH:
            below = [
                line
                for other in self._below(name, above)
                for line in self._bus(other, name, depth + 1)
            ]
            if below:
                self._bridges += 1
                bus = f"ffff:ff:{self._bridges:02x}.0"
                yield f"{indent}<pci {self._pci(bus, _BRIDGE_CLASS, name, above)}>"
                yield from below
                yield f"{indent}</pci>"
        elif kind is PartKind.GPU:
            gpu = self._gpus[name]
            yield f"{indent}<pci {self._pci(gpu.bus_id, _GPU_CLASS, name, above)}/>"
        elif kind is PartKind.NIC and self._nics[name].bus_id:
            nic = self._nics[name]
            kind_of_nic = _NIC_CLASSES.get(nic.link_layer, _NIC_CLASSES["InfiniBand"])
            yield f"{indent}<pci {self._pci(nic.bus_id, kind_of_nic, name, above)}/>"

    def _pci(self, bus_id: str, class_: str, name: str, above: str) -> str:
        generation, width = _link(self._graph.edges[name, above]["wire"])
        speed = f"{_SPEEDS[generation]} GT/s PCIe"
        return (
            f'busid="{bus_id.lower()}" class="{class_}" link_speed="{speed}" link_width="{width}"'
        )


def _link(wire: float) -> tuple[int, int]:
    """Return the PCIe generation and width whose bandwidth is nearest to ``wire`` GB/s."""
    options = ((generation, width) for width in _WIDTHS for generation in _SPEEDS)
    return min(options, key=lambda link: abs(pcie(*link).wire - wire))


def _mask(cpus: str, every: list[str]) -> str:
    """Return CPUs as the kernel's mask: groups of 8 hex digits, the highest first.

    :param every: the CPU lists of all NUMA nodes; they set the width of the mask.
    """
    numbers = _numbers(cpus)
    highest = max(n for text in every for n in _numbers(text))
    groups = highest // 32 + 1
    value = sum(1 << number for number in numbers)
    return ",".join(f"{value >> 32 * group & 0xFFFFFFFF:08x}" for group in reversed(range(groups)))


def _numbers(cpus: str) -> list[int]:
    found: list[int] = []
    for part in cpus.split(",") if cpus else ():
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
