"""The network between machines, so that any two GPUs of a cluster have one bandwidth.

A graph of layers: nodes hang on the domains of the innermost layer, these on those of the next, up
to the root. Every layer has a bandwidth, what one node gets through it, and a latency. A GPU
reaches the network through its nearest NIC; GPUs of one NVLink domain need no network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bayplan.topology.bandwidth import nic_bandwidth
from bayplan.topology.levels import Level
from bayplan.topology.machine import Machine
from bayplan.topology.network import NODE_LAYER, NetworkTree

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["Fabric", "LayerLink", "Path"]

_ROOT = "cluster"
_NIC_UNKNOWN = 100.0
"""Gb/s of a NIC whose rate nobody states: EDR, the slowest still in use for GPUs."""


@dataclass(frozen=True, slots=True)
class LayerLink:
    """What one node gets through a layer: GB/s in one direction, and microseconds to pass it."""

    bandwidth: float = float("inf")
    latency: float = 0.0


@dataclass(frozen=True, slots=True)
class Path:
    """Between two GPUs: GB/s in one direction, microseconds, and over what."""

    bandwidth: float
    latency: float
    over: str


class Fabric:
    """Machines and the network between them.

    :param machines: the machine of each node, by the node's name.
    :param tree: the network, over the rows of ``nodes``.
    :param nodes: the nodes' names by row.
    :param links: what each layer of the tree carries, by its name; the nodes' own uplink is that
        of ``NodeTopologyLayer``. A layer that is not named limits nothing.
    """

    def __init__(
        self,
        machines: Mapping[str, Machine],
        tree: NetworkTree,
        nodes: Sequence[str],
        links: Mapping[str, LayerLink],
    ) -> None:
        unknown = sorted(set(links) - {*tree.layers, NODE_LAYER})
        if unknown:
            raise ValueError(f'there is no network layer "{unknown[0]}"')
        self._machines = machines
        self.graph = _graph(tree, nodes, links)
        self._above = {child: parent for parent, child in self.graph.edges}

    def path(self, node: str, gpu: int, other: str, peer: int) -> Path:
        """Return what two GPUs, each by node and index, can exchange.

        :raises KeyError: for a node whose machine is not known.
        """
        here, there = self._machines[node], self._machines[other]
        if node == other:
            level = here.level(gpu, peer)
            bandwidth = float(here.bandwidth[gpu, peer])
            return Path(bandwidth, 0.0, "?" if level is None else level.name)
        domain = here.gpus[gpu].nvlink_domain
        if domain and domain == there.gpus[peer].nvlink_domain:
            ports = min(_port(here, gpu), _port(there, peer))
            if ports:
                return Path(ports, 0.0, f"NVLink domain {domain}")
        up = [self._nic(here, gpu), self._nic(there, peer)]
        edges = self._between(node, other)
        bandwidth = min([*up, *(edge.bandwidth for edge in edges)])
        return Path(bandwidth, sum(edge.latency for edge in edges), Level.NET.name)

    def node_bandwidth(self, node: str, gpus: Sequence[int]) -> float:
        """Return what some GPUs of a node together get out of it: their different NICs, GB/s.

        Where no GPU has a NIC at PXB or nearer, the nearest NIC that there is counts once.
        """
        machine = self._machines[node]
        near = {nic for gpu in gpus for nic in machine.near_nics(gpu)}
        direct = {
            nic
            for nic in near
            for gpu in gpus
            if (machine.nic_level(gpu, nic) or Level.NET) <= Level.PXB
        }
        if direct:
            return sum(_rate(machine, nic) for nic in direct)
        return max((self._nic(machine, gpu) for gpu in gpus), default=0.0)

    def _between(self, node: str, other: str) -> list[LayerLink]:
        """Return the links on the way: up from both to the first domain that has both."""
        ways = []
        for start in (node, other):
            way = [start]
            while way[-1] in self._above:
                way.append(self._above[way[-1]])
            ways.append(way)
        common = next((place for place in ways[0] if place in ways[1]), None)
        links = []
        for way in ways:
            for child in way:
                if child == common or child not in self._above:
                    break
                links.append(self.graph.edges[self._above[child], child]["link"])
        return links

    def _nic(self, machine: Machine, gpu: int) -> float:
        """Return what a GPU gets out of its machine; beyond PXB it goes through the host."""
        near = machine.near_nics(gpu)
        if not near:
            return 0.0
        rate = max(_rate(machine, nic) for nic in near)
        if machine.nic_distance(gpu) == Level.SYS:
            slowest = machine.effective[machine.effective > 0].min(initial=float("inf"))
            return min(rate, float(slowest))
        return rate


def _port(machine: Machine, gpu: int) -> float:
    """Return a GPU's NVLink bandwidth: all links that it has to any peer or switch."""
    links = max(int(machine.nvlinks[gpu].max(initial=0)), int(machine.direct[gpu].sum()))
    return links * machine.link.wire


def _rate(machine: Machine, nic: int) -> float:
    return nic_bandwidth(machine.nics[nic].rate or _NIC_UNKNOWN).wire


def _graph(
    tree: NetworkTree, nodes: Sequence[str], links: Mapping[str, LayerLink]
) -> nx.DiGraph[str]:
    """Return the tree as a graph whose edges run outwards and carry a LayerLink each."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_node(_ROOT)
    plain = LayerLink()
    stack = [(tree.root, _ROOT)]
    while stack:
        domain, name = stack.pop()
        for child in domain.children:
            inner = "/".join((child.layer, *child.path))
            graph.add_edge(name, inner, link=links.get(child.layer, plain))
            stack.append((child, inner))
        for row in domain.rows[len(domain.rows) - domain.own :].tolist():
            graph.add_edge(name, nodes[row], link=links.get(NODE_LAYER, plain))
    for row in tree.outside.tolist():
        graph.add_edge(_ROOT, nodes[row], link=links.get(NODE_LAYER, plain))
    nx.freeze(graph)
    return graph
