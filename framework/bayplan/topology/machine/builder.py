"""Assemble a machine: positions in the PCIe tree and NVLinks in, graph and matrices out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from bayplan.topology.machine.bandwidth import Bandwidth
from bayplan.topology.machine.levels import UNKNOWN, Level, Levels
from bayplan.topology.machine.model import (
    NVSWITCH,
    Gpu,
    LinkKind,
    Machine,
    MachineError,
    Nic,
    PartKind,
    Platform,
)

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["MachineBuilder"]

Device = TypeVar("Device", Gpu, Nic)
_UNLIMITED = Bandwidth(float("inf"), float("inf"))
_PLAIN = Platform()
_PCIE_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


class _TreePart(msgspec.Struct, frozen=True):
    """A part of the PCIe tree: its parent, and the link to the parent."""

    kind: PartKind
    parent: str | None
    up: Bandwidth
    numa: int | None = None


class MachineBuilder:
    """Collects the parts of one machine, then builds it.

    Parents are added before their children, GPUs and NICs in the order of their indices.

    :param link: the bandwidth of one NVLink.
    :param between_sockets: the bandwidth between two NUMA nodes on different sockets.
    """

    def __init__(
        self,
        name: str,
        link: Bandwidth,
        between_sockets: Bandwidth,
        platform: Platform = _PLAIN,
    ) -> None:
        self._name = name
        self._link = link
        self._between = between_sockets
        self._platform = platform
        self._parts: dict[str, _TreePart] = {}
        self._gpus: list[Gpu] = []
        self._nics: list[Nic] = []
        self._direct: dict[tuple[int, int], int] = {}
        self._to_switch: dict[int, int] = {}
        self._at_most: dict[tuple[int, int], int] = {}

    # The PCIe tree -----------------------------------------------------------------------

    def socket(self, name: str) -> None:
        """Add a CPU socket.

        :raises MachineError: for a name that exists or is reserved.
        """
        self._add(name, _TreePart(PartKind.SOCKET, None, _UNLIMITED))

    def numa(self, name: str, socket: str, number: int | None = None) -> None:
        """Add a NUMA node to a socket; ``number`` is the kernel's, None if unknown.

        :raises MachineError: for a name that exists or is reserved, or an unknown socket.
        """
        self._add(name, _TreePart(PartKind.NUMA, socket, _UNLIMITED, number))

    def root(self, name: str, numa: str) -> None:
        """Add a PCIe root (host bridge) to a NUMA node.

        :raises MachineError: for a name that exists or is reserved, or an unknown NUMA node.
        """
        self._add(name, _TreePart(PartKind.ROOT, numa, _UNLIMITED))

    def switch(self, name: str, above: str, up: Bandwidth) -> None:
        """Add a PCIe switch below a root or another switch; ``up`` is its upstream link.

        :raises MachineError: for a name that exists or is reserved, or an unknown parent.
        """
        self._add(name, _TreePart(PartKind.SWITCH, above, up))

    def _add(self, name: str, part: _TreePart) -> None:
        if name == NVSWITCH:
            raise MachineError(f'"{name}" is a reserved name')
        if name in self._parts:
            raise MachineError(f'"{name}" appears twice')
        if part.parent is not None and part.parent not in self._parts:
            raise MachineError(f'"{name}" is attached to "{part.parent}", which does not exist')
        self._parts[name] = part

    def gpu(self, gpu: Gpu, above: str | None, up: Bandwidth) -> None:
        """Add a GPU below a root or switch.

        :param above: the parent's name, None if the position is unknown.
        :param up: the GPU's PCIe link.
        :raises MachineError: for an index out of order, or a name that cannot be used.
        """
        if gpu.index != len(self._gpus):
            raise MachineError(f"{gpu.name} is not the next GPU, which is GPU{len(self._gpus)}")
        self._gpus.append(gpu)
        self._device(gpu.name, PartKind.GPU, above, up)

    def nic(self, nic: Nic, above: str | None, up: Bandwidth) -> None:
        """Add a NIC below a root or switch.

        :param above: the parent's name, None if the position is unknown.
        :param up: the NIC's PCIe link.
        :raises MachineError: for a name that cannot be used.
        """
        self._nics.append(nic)
        self._device(nic.name, PartKind.NIC, above, up)

    def _device(self, name: str, kind: PartKind, above: str | None, up: Bandwidth) -> None:
        self._add(name, _TreePart(kind, above, up))

    # NVLink ------------------------------------------------------------------------------

    def nvlink(self, a: int, b: int, count: int) -> None:
        """Add ``count`` NVLinks between two GPUs.

        :raises MachineError: for a GPU that does not exist, and for a link from a GPU to itself.
        """
        for gpu in (a, b):
            if not 0 <= gpu < len(self._gpus):
                raise MachineError(
                    f"an NVLink ends at GPU{gpu}, which does not exist: the machine has "
                    f"{len(self._gpus)} GPUs"
                )
        if a == b:
            raise MachineError(f"an NVLink connects GPU{a} with itself")
        pair = (min(a, b), max(a, b))
        self._direct[pair] = self._direct.get(pair, 0) + count

    def nvswitch(self, gpu: int, count: int) -> None:
        """Connect a GPU to the NVSwitches by ``count`` NVLinks in total."""
        if count:
            self._to_switch[gpu] = count

    def at_most(self, a: int, b: int, count: int) -> None:
        """Limit the NVLinks of a pair (``a`` < ``b``) through the NVSwitches to ``count``."""
        self._at_most[a, b] = count

    def forget_nvlinks(self) -> None:
        """Remove every direct NVLink between GPUs."""
        self._direct.clear()

    # Build -------------------------------------------------------------------------------

    def build(
        self,
        levels: Levels | None = None,
        notes: Iterable[str] = (),
        asymmetric: Iterable[tuple[int, int]] = (),
        links_assumed: bool = False,
    ) -> Machine:
        """Return the machine.

        :param levels: PCIe levels over GPUs and then NICs, to use instead of the tree's.
        :param notes: what was assumed or is unknown; repeated notes are dropped.
        :param asymmetric: the pairs of GPUs whose NVLinks are seen from one side only.
        :param links_assumed: nothing shows how the GPUs are connected.
        """
        graph = self._graph()
        if levels is None:
            levels = self._levels()
        wire, effective = self._pcie(levels)
        count = len(self._gpus)
        direct = np.zeros((count, count), dtype=np.int64)
        for (a, b), links in self._direct.items():
            direct[a, b] = direct[b, a] = links
        ports = np.array([self._to_switch.get(gpu, 0) for gpu in range(count)], dtype=np.int64)
        switched = np.minimum(ports[:, None], ports[None, :])
        for (a, b), links in self._at_most.items():
            switched[a, b] = switched[b, a] = min(switched[a, b], links)
        np.fill_diagonal(switched, 0)
        nvlinks = np.maximum(direct, switched)
        np.maximum(wire, nvlinks * self._link.wire, out=wire)
        np.maximum(effective, nvlinks * self._link.effective, out=effective)
        for matrix in (wire, effective):
            np.fill_diagonal(matrix, np.inf)
        made = (levels, nvlinks, direct, wire, effective)
        for array in made:
            array.flags.writeable = False
        return Machine(
            self._name,
            tuple(self._with_root(gpu) for gpu in self._gpus),
            tuple(self._with_root(nic) for nic in self._nics),
            graph,
            *made,
            self._link,
            self._platform,
            tuple(dict.fromkeys(notes)),
            frozenset((min(pair), max(pair)) for pair in asymmetric),
            links_assumed,
        )

    def _with_root(self, device: Device) -> Device:
        chain = self._chain(device.name)
        # Roots without a name in the description have a made-up one.
        roots = [name for name in chain if _PCIE_ROOT.fullmatch(name)]
        if roots and not device.pcie_root:
            return replace(device, pcie_root=roots[0])
        return device

    def _graph(self) -> nx.Graph[str]:
        # The import takes 0.1 s, and most clusters describe no machine.
        import networkx as nx

        graph: nx.Graph[str] = nx.Graph()
        for name, part in self._parts.items():
            graph.add_node(name, kind=part.kind, numa=part.numa)
            if part.parent is not None:
                inner = part.kind in (PartKind.NUMA, PartKind.ROOT)
                self._edge(
                    graph, part.parent, name, LinkKind.SOCKET if inner else LinkKind.PCIE, part.up
                )
        sockets = [name for name, part in self._parts.items() if part.kind is PartKind.SOCKET]
        for a, b in pairwise(sockets):
            self._edge(graph, a, b, LinkKind.SOCKET, self._between)
        for (one, other), count in self._direct.items():
            ends = (self._gpus[one].name, self._gpus[other].name)
            self._edge(graph, *ends, LinkKind.NVLINK, self._link.times(count), count)
        if self._to_switch:
            graph.add_node(NVSWITCH, kind=PartKind.NVSWITCH, numa=None)
        for gpu, count in self._to_switch.items():
            end = self._gpus[gpu].name
            self._edge(graph, end, NVSWITCH, LinkKind.NVLINK, self._link.times(count), count)
        nx.freeze(graph)
        return graph

    def _edge(
        self, graph: nx.Graph[str], a: str, b: str, kind: LinkKind, link: Bandwidth, count: int = 1
    ) -> None:
        known = {} if link is _UNLIMITED else {"wire": link.wire, "effective": link.effective}
        graph.add_edge(a, b, kind=kind, count=count, **known)

    # Levels and bandwidths from the tree -------------------------------------------------

    def _chain(self, name: str) -> list[str]:
        """Return the parts above a device, from its switch to its socket."""
        chain = []
        above = self._parts[name].parent
        while above is not None:
            chain.append(above)
            above = self._parts[above].parent
        return chain

    def _devices(self) -> Iterable[str]:
        yield from (gpu.name for gpu in self._gpus)
        yield from (nic.name for nic in self._nics)

    def _levels(self) -> Levels:
        chains = [self._chain(name) for name in self._devices()]
        size = len(chains)
        levels = np.full((size, size), UNKNOWN, dtype=np.int8)
        np.fill_diagonal(levels, Level.X)
        for a in range(size):
            for b in range(a):
                if chains[a] and chains[b]:
                    levels[a, b] = levels[b, a] = self._level(chains[a], chains[b])
        return levels

    def _level(self, a: list[str], b: list[str]) -> Level:
        common = next((place for place in a if place in b), None)
        kind = self._parts[common].kind if common is not None else None
        if kind is PartKind.SWITCH:
            return Level.PIX if a[0] == b[0] else Level.PXB
        return {PartKind.ROOT: Level.PHB, PartKind.NUMA: Level.NODE}.get(
            kind or PartKind.SOCKET, Level.SYS
        )

    def _pcie(self, levels: Levels) -> tuple[np.ndarray, np.ndarray]:
        """Return the PCIe bandwidths of all pairs of GPUs: the narrowest link on the way.

        They are two square matrices in GB/s, the wire's and NCCL's.
        """
        count = len(self._gpus)
        wire = np.zeros((count, count))
        effective = np.zeros((count, count))
        ups = [self._up_links(gpu.name) for gpu in self._gpus]
        for a in range(count):
            for b in range(a):
                links = [link for name, link in ups[a].items() if name not in ups[b]]
                links += [link for name, link in ups[b].items() if name not in ups[a]]
                if levels[a, b] in (Level.SYS, UNKNOWN):
                    links.append(self._between)
                wire[a, b] = wire[b, a] = min(link.wire for link in links)
                effective[a, b] = effective[b, a] = min(link.effective for link in links)
        return wire, effective

    def _up_links(self, name: str) -> dict[str, Bandwidth]:
        """Return the upstream links of a device and of the parts above it, by part."""
        return {place: self._parts[place].up for place in (name, *self._chain(name))}
