"""The network between machines: the bandwidth between any two GPUs of a cluster.

The network is a tree of links: from nodes to the domains of the innermost layer, from these to the
next layer, up to the root. Each layer has a bandwidth per node and a latency. A GPU reaches the
network through its nearest NIC; GPUs of one NVLink domain need no network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from bayplan.topology.machine.bandwidth import Bandwidth, nic_bandwidth
from bayplan.topology.machine.levels import Level
from bayplan.topology.machine.model import LinkKind, Machine
from bayplan.topology.network.tree import NODE_LAYER, NetworkTree

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["Fabric", "GpuPath", "LayerLink", "nvlink_port", "out_of_machine"]

# Not a node's name, and domains have longer names.
_ROOT = "/"


class LayerLink(msgspec.Struct, frozen=True):
    """A link of a layer: GB/s per node in one direction, and its latency in microseconds.

    :raises ValueError: for a value below 0 or NaN.
    """

    bandwidth: float = float("inf")
    latency: float = 0.0

    def __post_init__(self) -> None:
        for figure in (self.bandwidth, self.latency):
            if not figure >= 0:
                raise ValueError(f"expected a number of 0 or more, got {figure:g}")


class GpuPath(msgspec.Struct, frozen=True):
    """The path between two GPUs: GB/s in one direction, latency in microseconds, and a name.

    ``over`` is the level inside a machine, the NVLink domain, NET, or "?" if unknown.
    """

    bandwidth: float
    latency: float
    over: str


class Fabric:
    """Machines and the network between them.

    :param machines: the machine of each node, by the node's name.
    :param tree: the network, over the rows of ``nodes``.
    :param nodes: the nodes' names by row.
    :param links: the link of each layer of the tree, by its name; ``NodeTopologyLayer`` is the
        nodes' own uplink. A layer without an entry does not limit anything.
    :raises ValueError: for a layer that is not in the tree.
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

    def path(self, node: str, gpu: int, other: str, peer: int) -> GpuPath:
        """Return the path between two GPUs, each given by node and index.

        :raises KeyError: for a node whose machine is unknown, or whose position in the network is
            needed and unknown.
        """
        here, there = self._machines[node], self._machines[other]
        if node == other:
            level = here.level(gpu, peer)
            bandwidth = float(here.bandwidth[gpu, peer])
            return GpuPath(bandwidth, 0.0, "?" if level is None else level.name)
        domain = here.gpus[gpu].nvlink_domain
        if domain and domain == there.gpus[peer].nvlink_domain:
            ports = min(nvlink_port(here, gpu).wire, nvlink_port(there, peer).wire)
            if ports:
                return GpuPath(ports, 0.0, f"NVLink domain {domain}")
        edges = self._between(node, other)
        bandwidth = min(
            _out_of_gpu(here, gpu), _out_of_gpu(there, peer), *(edge.bandwidth for edge in edges)
        )
        # The exact sum, so that both directions get the same value.
        return GpuPath(bandwidth, math.fsum(edge.latency for edge in edges), Level.NET.name)

    def _between(self, node: str, other: str) -> list[LayerLink]:
        """Return the links on the way: from each node up to the first common domain."""
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
    """Return the bandwidth of all NVLinks of a GPU, to any peer or switch."""
    edges = machine.graph[machine.gpus[gpu].name].values()
    return machine.link.times(
        sum(edge["count"] for edge in edges if edge["kind"] is LinkKind.NVLINK)
    )


def out_of_machine(machine: Machine, gpus: Sequence[int]) -> float:
    """Return the bandwidth from some GPUs together out of their machine, GB/s.

    It is the sum over their distinct NICs at PXB or nearer. If there are none, it is that of the
    fastest way to a farther NIC; 0 without NICs.
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
    """Return the bandwidth of a GPU through a NIC, GB/s; beyond PXB it goes through the host."""
    import networkx as nx

    rate = nic_bandwidth(machine.nics[nic].rate).wire
    if machine.nic_distance(gpu) <= Level.PXB:
        return rate
    edges = machine.graph.edges
    tree = nx.subgraph_view(
        machine.graph, filter_edge=lambda a, b: edges[a, b]["kind"] is not LinkKind.NVLINK
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
    """Return the tree as a graph; edges run from the root to the nodes and carry a LayerLink."""
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
