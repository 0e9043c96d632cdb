"""Which machine each node is, from what its annotations, labels and NUMA zones say.

In this order: the annotation ``bayplan.dev/topology`` (what ``nvidia-smi topo -m`` prints, or a
machine in YAML), the annotation or label ``bayplan.dev/machine`` (a machine that bayplan knows, by
name), HAMi's annotations, and a NodeResourceTopology of the node's name.
"""

from __future__ import annotations

import re

from bayplan.api import Node, NodeResourceTopology
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.api.numa import Zone
from bayplan.errors import InputError
from bayplan.snapshot import Snapshot
from bayplan.topology import hami
from bayplan.topology.machine import Machine

__all__ = ["MACHINE", "TOPOLOGY", "NodeMachines", "numa_nodes"]

MACHINE = "bayplan.dev/machine"
TOPOLOGY = "bayplan.dev/topology"
_Source = tuple[str, str, str]


class NodeMachines:
    """Machines by node; nodes that say the same share one machine."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[_Source, Machine | str] = {}

    def of(self, node: Node) -> Machine | str:
        """Return a node's machine, or why it is not known."""
        source = self._source(node)
        if source is None:
            return ""
        found = self._known.get(source)
        if found is None:
            found = self._known[source] = _read(source)
        return found

    def _source(self, node: Node) -> _Source | None:
        """Return what the node says of its machine: the kind, and one or two texts."""
        annotations = node.metadata.annotations
        if TOPOLOGY in annotations:
            return (TOPOLOGY, annotations[TOPOLOGY], "")
        name = annotations.get(MACHINE) or node.metadata.labels.get(MACHINE)
        if name:
            return (MACHINE, name, "")
        if hami.SCORE in annotations or hami.REGISTER in annotations:
            return (hami.SCORE, annotations.get(hami.SCORE, ""), annotations.get(hami.REGISTER, ""))
        zones = self._snapshot.objects(NodeResourceTopology).get(node.metadata.name)
        if zones is not None:
            counts = {
                number: sum(r.capacity.units for r in zone.resources if r.name in GPU_RESOURCES)
                for number, zone in numa_nodes(zones).items()
            }
            if any(counts.values()):
                return ("NodeResourceTopology", repr(sorted(counts.items())), "")
        return None


def numa_nodes(topology: NodeResourceTopology) -> dict[int, Zone]:
    """Return the zones that are NUMA nodes, by their number."""
    found: dict[int, Zone] = {}
    for zone in topology.zones:
        match = re.fullmatch(r"(?:node|zone|numa)-?(\d+)", zone.name)
        if zone.type == "Node" and match:
            found[int(match[1])] = zone
    return found


def _read(source: _Source) -> Machine | str:
    kind, text, more = source
    try:
        return _machine(kind, text, more)
    except (InputError, ValueError) as exc:
        where = kind if kind == "NodeResourceTopology" else f"annotation {kind}"
        return f"{where}: {exc}"


def _machine(kind: str, text: str, more: str) -> Machine:
    # Machines are few; what reads them (networkx) is worth loading only when there is one.
    from bayplan.topology.machinefile import known_machine, machine_from
    from bayplan.topology.smi import parse_smi
    from bayplan.topology.zones import machine_from_zones
    from bayplan.yamlfile import parse_documents

    if kind == MACHINE:
        return known_machine(text)
    if kind == TOPOLOGY:
        if re.search(r"^\W*GPU0\s", text, re.MULTILINE):
            return parse_smi(text, "node")
        documents = parse_documents(text, TOPOLOGY)
        if len(documents) != 1:
            raise InputError("expected what nvidia-smi topo -m prints, or a machine in YAML")
        return machine_from(documents[0])
    if kind == hami.SCORE:
        scores = hami.read_scores(text) if text else {}
        return hami.machine_from_scores("node", hami.read_register(more) if more else [], scores)
    pairs = re.findall(r"\((\d+), (\d+)\)", text)
    return machine_from_zones("node", {int(node): int(count) for node, count in pairs})
