"""Put a machine together: positions in the PCIe tree and NVLinks in, graph and matrices out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from bayplan.topology.machine.bandwidth import Bandwidth
from bayplan.topology.machine.levels import UNKNOWN, Level, Levels
from bayplan.topology.machine.model import (
    NVSWITCH,
    Gpu,
    Kind,
    Link,
    Machine,
    MachineError,
    Nic,
    Platform,
)

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["MachineBuilder"]

Device = TypeVar("Device", Gpu, Nic)
_UNLIMITED = Bandwidth(float("inf"), float("inf"))
_PLAIN = Platform()
_PCIE_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


@dataclass(frozen=True)
class _Place:
    """A part of the PCIe tree: what is above it, and the link to that."""

    kind: Kind
    parent: str | None
    up: Bandwidth
    numa: int | None = None


class MachineBuilder:
    """Collects the parts of one machine.

    :param link: one NVLink, one direction.
    :param between_sockets: what two NUMA nodes can exchange.
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
        self._places: dict[str, _Place] = {}
        self._gpus: list[Gpu] = []
        self._nics: list[Nic] = []
        self._direct: dict[tuple[int, int], int] = {}
        self._to_switch: dict[int, int] = {}
        self._at_most: dict[tuple[int, int], int] = {}
        self.asymmetric: set[tuple[int, int]] = set()
        self.notes: list[str] = []

    # The PCIe tree -----------------------------------------------------------------------

    def socket(self, name: str) -> None:
        """Add a CPU socket."""
        self._add(name, _Place(Kind.SOCKET, None, _UNLIMITED))

    def numa(self, name: str, socket: str, number: int | None = None) -> None:
        """Add a NUMA node to a socket; ``number`` is the kernel's, None where it is not known."""
        self._add(name, _Place(Kind.NUMA, socket, _UNLIMITED, number))

    def root(self, name: str, numa: str) -> None:
        """Add a PCIe root (host bridge) to a NUMA node."""
        self._add(name, _Place(Kind.ROOT, numa, _UNLIMITED))

    def switch(self, name: str, above: str, up: Bandwidth) -> None:
        """Add a PCIe switch below a root or another switch; ``up`` is its upstream link."""
        self._add(name, _Place(Kind.SWITCH, above, up))

    def _add(self, name: str, place: _Place) -> None:
        if name == NVSWITCH:
            raise MachineError(f'"{name}" is a name that no device may have')
        if name in self._places:
            raise MachineError(f'"{name}" is there twice')
        if place.parent is not None and place.parent not in self._places:
            raise MachineError(f'"{name}" hangs on "{place.parent}", which is not there')
        self._places[name] = place

    def gpu(self, gpu: Gpu, above: str | None, up: Bandwidth) -> None:
        """Add a GPU below a root or switch; None where its place is not known."""
        if gpu.index != len(self._gpus):
            raise MachineError(f"{gpu.name} is not the next GPU, which is GPU{len(self._gpus)}")
        self._gpus.append(gpu)
        self._device(gpu.name, Kind.GPU, above, up)

    def nic(self, nic: Nic, above: str | None, up: Bandwidth) -> None:
        """Add a NIC below a root or switch; ``up`` is its PCIe link."""
        self._nics.append(nic)
        self._device(nic.name, Kind.NIC, above, up)

    def _device(self, name: str, kind: Kind, above: str | None, up: Bandwidth) -> None:
        self._add(name, _Place(kind, above, up))

    # NVLink ------------------------------------------------------------------------------

    def nvlink(self, a: int, b: int, count: int) -> None:
        """Connect two GPUs by so many NVLinks more."""
        for gpu in (a, b):
            if not 0 <= gpu < len(self._gpus):
                raise MachineError(
                    f"an NVLink ends at GPU{gpu}, which is not there: the machine has "
                    f"{len(self._gpus)} GPUs"
                )
        if a == b:
            raise MachineError(f"an NVLink connects GPU{a} with itself")
        pair = (min(a, b), max(a, b))
        self._direct[pair] = self._direct.get(pair, 0) + count

    def nvswitch(self, gpu: int, count: int) -> None:
        """Connect a GPU to the NVSwitches by so many NVLinks in all."""
        if count:
            self._to_switch[gpu] = count

    def at_most(self, a: int, b: int, count: int) -> None:
        """Say that two GPUs have fewer NVLinks to each other than both have to the NVSwitches."""
        self._at_most[a, b] = count

    def forget_nvlinks(self) -> None:
        """Take back every NVLink between two GPUs."""
        self._direct.clear()

    # All together ------------------------------------------------------------------------

    def build(self, levels: Levels | None = None) -> Machine:
        """Return the machine.

        :param levels: what a table shows, where it says more than the tree can; else the tree's.
        :raises MachineError: for a description that contradicts itself.
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
            tuple(self._with_place(gpu) for gpu in self._gpus),
            tuple(self._with_place(nic) for nic in self._nics),
            graph,
            *made,
            self._link,
            self._platform,
            tuple(dict.fromkeys(self.notes)),
            frozenset((min(pair), max(pair)) for pair in self.asymmetric),
        )

    def _with_place(self, device: Device) -> Device:
        chain = self._chain(device.name)
        # Roots whose name the description does not tell have one of ours.
        roots = [name for name in chain if _PCIE_ROOT.fullmatch(name)]
        if roots and not device.pcie_root:
            return replace(device, pcie_root=roots[0])
        return device

    def _graph(self) -> nx.Graph[str]:
        # Takes a tenth of a second, and most clusters describe no machine.
        import networkx as nx

        graph: nx.Graph[str] = nx.Graph()
        for name, place in self._places.items():
            graph.add_node(name, kind=place.kind, numa=place.numa)
            if place.parent is not None:
                inner = place.kind in (Kind.NUMA, Kind.ROOT)
                self._edge(graph, place.parent, name, Link.SOCKET if inner else Link.PCIE, place.up)
        sockets = [name for name, place in self._places.items() if place.kind is Kind.SOCKET]
        for a, b in pairwise(sockets):
            self._edge(graph, a, b, Link.SOCKET, self._between)
        for (one, other), count in self._direct.items():
            ends = (self._gpus[one].name, self._gpus[other].name)
            self._edge(graph, *ends, Link.NVLINK, self._link.times(count), count)
        if self._to_switch:
            graph.add_node(NVSWITCH, kind=Kind.NVSWITCH, numa=None)
        for gpu, count in self._to_switch.items():
            end = self._gpus[gpu].name
            self._edge(graph, end, NVSWITCH, Link.NVLINK, self._link.times(count), count)
        nx.freeze(graph)
        return graph

    def _edge(
        self, graph: nx.Graph[str], a: str, b: str, kind: Link, link: Bandwidth, count: int = 1
    ) -> None:
        known = {} if link is _UNLIMITED else {"wire": link.wire, "effective": link.effective}
        graph.add_edge(a, b, kind=kind, count=count, **known)

    # Levels and bandwidth of the tree ----------------------------------------------------

    def _chain(self, name: str) -> list[str]:
        """Return what is above a device, from its switch to its socket."""
        chain = []
        above = self._places[name].parent
        while above is not None:
            chain.append(above)
            above = self._places[above].parent
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
        kind = self._places[common].kind if common is not None else None
        if kind is Kind.SWITCH:
            return Level.PIX if a[0] == b[0] else Level.PXB
        return {Kind.ROOT: Level.PHB, Kind.NUMA: Level.NODE}.get(kind or Kind.SOCKET, Level.SYS)

    def _pcie(self, levels: Levels) -> tuple[np.ndarray, np.ndarray]:
        """Return what pairs of GPUs can exchange without NVLink: the narrowest link on the way."""
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
        """Return the upstream link of a device and of everything above it, by whose it is."""
        return {place: self._places[place].up for place in (name, *self._chain(name))}
