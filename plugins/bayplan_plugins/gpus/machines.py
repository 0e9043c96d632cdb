"""Which machine each node is, by its annotations, labels and NUMA zones.

Read in this order: the annotation ``bayplan.dev/topology`` (output of ``nvidia-smi topo -m``, or a
machine in YAML), the annotation or label ``bayplan.dev/machine`` (a machine that bayplan knows, by
name), HAMi's annotations, and the NodeResourceTopology with the node's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from bayplan.api import Node, NodeResourceTopology
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.api.numa import Zone
from bayplan.dialects import nvidia
from bayplan.errors import InputError
from bayplan.inputs.limits import ANNOTATION
from bayplan.snapshot import Snapshot
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.readers import hami, hami_register

__all__ = ["MACHINE", "NOT_PROMISED", "TOPOLOGY", "NodeMachines", "numa_nodes", "read_machine"]

NOT_PROMISED = "its GPUs are replicated or divided: no topology is promised"
MACHINE = "bayplan.dev/machine"
TOPOLOGY = "bayplan.dev/topology"
_PRODUCT = "nvidia.com/gpu.product"
_OF_HAMI = (hami.SCORE, hami_register.REGISTER, hami_register.CORDON)
_HAMI = "annotations of HAMi"
_ZONES = "NodeResourceTopology"
_Source = tuple[str, ...]
Found = TypeVar("Found")


class NodeMachines:
    """Machines by node; nodes with equal descriptions share one machine."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[_Source, Machine | str] = {}

    def of(self, node: Node) -> Machine | str:
        """Return a node's machine; a text says why it is unknown ("": nothing describes it).

        Where the device plugin counts replicas or MIG devices, nobody knows of which GPU one is.
        """
        source = self._source(node)
        if source is None:
            return ""
        if _counts_parts(node):
            return NOT_PROMISED
        found = self._known.get(source)
        if found is None:
            found = self._known[source] = read_machine(source)
        return found

    def _source(self, node: Node) -> _Source | None:
        """Return what describes the node's machine: its kind, and the texts; None for nothing."""
        annotations, labels = node.metadata.annotations, node.metadata.labels
        if TOPOLOGY in annotations:
            return (TOPOLOGY, annotations[TOPOLOGY], labels.get(_PRODUCT, ""))
        name = annotations.get(MACHINE) or labels.get(MACHINE)
        if name:
            return (MACHINE, name)
        if hami.SCORE in annotations or hami_register.REGISTER in annotations:
            return (_HAMI, *(annotations.get(one, "") for one in _OF_HAMI))
        zones = self._snapshot.objects(NodeResourceTopology).get(node.metadata.name)
        if zones is not None:
            counts = {
                number: sum(r.capacity.units for r in zone.resources if r.name in GPU_RESOURCES)
                for number, zone in numa_nodes(zones).items()
            }
            if any(counts.values()):
                return (_ZONES, repr(sorted(counts.items())))
        return None


def _counts_parts(node: Node) -> bool:
    """Tell whether the device plugin counts replicas, or MIG devices beside whole GPUs."""
    offered = node.status.allocatable or node.status.capacity
    if any(nvidia.mig_profile(name) and quantity.units for name, quantity in offered.items()):
        return True
    try:
        return nvidia.gpu_labels(node.metadata.labels).counts_parts
    except ValueError:
        return False


def numa_nodes(topology: NodeResourceTopology) -> dict[int, Zone]:
    """Return the zones that are NUMA nodes, by their number."""
    found: dict[int, Zone] = {}
    for zone in topology.zones:
        match = re.fullmatch(r"(?:node|zone|numa)-?(\d+)", zone.name)
        if zone.type == "Node" and match:
            found[int(match[1])] = zone
    return found


def read_machine(source: _Source) -> Machine | str:
    """Return the machine that texts describe, or what is wrong with them.

    :param source: the kind, such as ``TOPOLOGY``, and the texts that its reader takes.
    """
    kind, *texts = source
    try:
        for text in texts:
            ANNOTATION.check_size(text)
        return _READERS[kind](*texts)
    except (InputError, ValueError) as exc:
        return f"{kind}: {exc}"


# Readers (and networkx) are loaded only when a machine has to be read.


def _by_name(name: str) -> Machine:
    from bayplan.topology.machine.readers.machinefile import known_machine

    return known_machine(name)


def _from_text(text: str, model: str) -> Machine:
    from bayplan.inputs.documents import parse_documents
    from bayplan.topology.machine.readers.machinefile import machine_from
    from bayplan.topology.machine.readers.smi import parse_smi

    if re.search(r"^[^\w\n]*GPU0\s", text, re.MULTILINE):
        return parse_smi(text, "node", model=model)
    documents = parse_documents(text, TOPOLOGY, ANNOTATION)
    if len(documents) != 1:
        raise InputError("expected what nvidia-smi topo -m prints, or a machine in YAML")
    return machine_from(documents[0])


def _from_hami(score: str, register: str, cordon: str) -> Machine:
    register_of = hami_register.read_register
    gpus = _named(hami_register.REGISTER, register_of, register) if register else []
    scores = _named(hami.SCORE, hami.read_scores, score) if score else {}
    return hami.machine_from_scores("node", gpus, scores, cordon)


def _named(annotation: str, read: Callable[[str], Found], text: str) -> Found:
    try:
        return read(text)
    except (InputError, ValueError) as exc:
        raise InputError(f"{annotation}: {exc}") from None


def _from_zones(counts: str) -> Machine:
    from bayplan.topology.machine.readers.zones import machine_from_zones

    pairs = re.findall(r"\((\d+), (\d+)\)", counts)
    return machine_from_zones("node", {int(node): int(count) for node, count in pairs})


_READERS: Mapping[str, Callable[..., Machine]] = {
    TOPOLOGY: _from_text,
    MACHINE: _by_name,
    _HAMI: _from_hami,
    _ZONES: _from_zones,
}
