"""The network between machines, so that any two GPUs of a cluster have one bandwidth.

A graph of layers: nodes hang on the domains of the innermost layer, these on those of the next, up
to the root. Every layer has a bandwidth, what one node gets through it, and a latency. A GPU
reaches the network through its nearest NIC; GPUs of one NVLink domain need no network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from bayplan.topology.machine.bandwidth import Bandwidth, nic_bandwidth
from bayplan.topology.machine.levels import Level
from bayplan.topology.machine.model import Link, Machine
from bayplan.topology.network.tree import NODE_LAYER, NetworkTree

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["Fabric", "LayerLink", "Path", "nvlink_port", "out_of_machine"]

# No node has such a name, and every domain has more in its own.
_ROOT = "/"


@dataclass(frozen=True, slots=True)
class LayerLink:
    """What one node gets through a layer: GB/s in one direction, and microseconds to pass it.

    :raises ValueError: for a figure that is no number, or below 0.
    """

    bandwidth: float = float("inf")
    latency: float = 0.0

    def __post_init__(self) -> None:
        for figure in (self.bandwidth, self.latency):
            if not figure >= 0:
                raise ValueError(f"expected a figure of 0 or more, got {figure:g}")


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

        :raises KeyError: for a node whose machine or, where it counts, whose place in the network
            is not known.
        """
        here, there = self._machines[node], self._machines[other]
        if node == other:
            level = here.level(gpu, peer)
            bandwidth = float(here.bandwidth[gpu, peer])
            return Path(bandwidth, 0.0, "?" if level is None else level.name)
        domain = here.gpus[gpu].nvlink_domain
        if domain and domain == there.gpus[peer].nvlink_domain:
            ports = min(nvlink_port(here, gpu).wire, nvlink_port(there, peer).wire)
            if ports:
                return Path(ports, 0.0, f"NVLink domain {domain}")
        edges = self._between(node, other)
        bandwidth = min(
            _out_of_gpu(here, gpu), _out_of_gpu(there, peer), *(edge.bandwidth for edge in edges)
        )
        # The exact sum, so that both directions have the same.
        return Path(bandwidth, math.fsum(edge.latency for edge in edges), Level.NET.name)

    def node_bandwidth(self, node: str, gpus: Sequence[int]) -> float:
        """Return what some GPUs of a node together get out of it: see ``out_of_machine``."""
        return out_of_machine(self._machines[node], gpus)

    def _between(self, node: str, other: str) -> list[LayerLink]:
        """Return the links on the way: up from both to the first domain that has both."""
        ways = []
        for start in (node, other):
            way = [start]
            while way[-1] != _ROOT:
                way.append(self._above[way[-1]])
            ways.append(way)
        common = next(place for place in ways[0] if place in ways[1])
        return [
            self.graph.edges[self._above[child], child]["link"]
            for way in ways
            for child in way[: way.index(common)]
        ]


def nvlink_port(machine: Machine, gpu: int) -> Bandwidth:
    """Return a GPU's NVLink bandwidth: all links that it has to any peer or switch."""
    edges = machine.graph[machine.gpus[gpu].name].values()
    return machine.link.times(sum(edge["count"] for edge in edges if edge["kind"] is Link.NVLINK))


def out_of_machine(machine: Machine, gpus: Sequence[int]) -> float:
    """Return what some GPUs together get out of their machine: their different NICs, GB/s.

    Where no GPU has a NIC at PXB or nearer, the nearest NIC that there is counts once. 0 without.
    """
    direct = {
        nic
        for gpu in gpus
        if machine.nic_distance(gpu) <= Level.PXB
        for nic in machine.near_nics(gpu)
    }
    if direct:
        return sum(nic_bandwidth(machine.nics[nic].rate).wire for nic in direct)
    return max((_out_of_gpu(machine, gpu) for gpu in gpus), default=0.0)


def _out_of_gpu(machine: Machine, gpu: int) -> float:
    return max((_to_nic(machine, gpu, nic) for nic in machine.near_nics(gpu)), default=0.0)


def _to_nic(machine: Machine, gpu: int, nic: int) -> float:
    """Return what a GPU gets through a NIC; beyond PXB through the host, as NCCL reckons."""
    import networkx as nx

    rate = nic_bandwidth(machine.nics[nic].rate).wire
    if machine.nic_distance(gpu) <= Level.PXB:
        return rate
    edges = machine.graph.edges
    tree = nx.subgraph_view(
        machine.graph, filter_edge=lambda a, b: edges[a, b]["kind"] is not Link.NVLINK
    )
    ends = (machine.gpus[gpu].name, machine.nics[nic].name)
    if not nx.has_path(tree, *ends):
        return rate
    way = nx.shortest_path(tree, *ends)
    carried: list[float] = [edges[edge].get("effective", rate) for edge in pairwise(way)]
    return min(rate, *carried)


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
