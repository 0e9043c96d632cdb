"""What is free on the NUMA nodes of every node, and what the kubelet would do there.

A NodeResourceTopology says what its node's pods have left, as of its last report; what was decided
since is taken off. Without one, a node whose machine is known has the CPUs and GPUs of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bayplan import PodInfo
from bayplan.api import Node, NodeResourceTopology
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.api.numa import ZoneAttribute
from bayplan.api.resources import amount_of
from bayplan.snapshot import Snapshot
from bayplan_plugins.gpus.ledger import GpuLedger
from bayplan_plugins.gpus.machines import numa_nodes
from bayplan_plugins.node_numa.demands import Demand, demand_of
from bayplan_plugins.node_numa.hints import Amounts, Policy, affinity, fill

__all__ = ["NumaLedger", "NumaNode", "Placement"]

_POLICY = "bayplan.dev/topology-manager-policy"
_SCOPE = "bayplan.dev/topology-manager-scope"
_KOORDINATOR = "node.koordinator.sh/numa-topology-policy"
_POLICIES: Mapping[str, Policy] = {
    "none": "none",
    "best-effort": "best-effort",
    "restricted": "restricted",
    "single-numa-node": "single-numa-node",
    "None": "none",
    "BestEffort": "best-effort",
    "Restricted": "restricted",
    "SingleNUMANode": "single-numa-node",
    "BestEffortContainerLevel": "best-effort",
    "BestEffortPodLevel": "best-effort",
    "RestrictedContainerLevel": "restricted",
    "RestrictedPodLevel": "restricted",
    "SingleNUMANodeContainerLevel": "single-numa-node",
    "SingleNUMANodePodLevel": "single-numa-node",
}
_MOST_REMEMBERED = 8192


@dataclass(frozen=True)
class Placement:
    """What a pod takes of each NUMA node, by resource; ``nodes`` are the NUMA nodes it may use.

    None for ``nodes`` means any.
    """

    taken: Mapping[str, Amounts]
    nodes: frozenset[int] | None


@dataclass
class NumaNode:
    """The NUMA nodes of one node, by place; ``ids`` are their numbers."""

    policy: Policy
    scope: str
    ids: tuple[int, ...]
    capacity: Mapping[str, Amounts]
    available: Mapping[str, Amounts]
    taken: dict[str, Mapping[str, Amounts]] = field(default_factory=dict)


class NumaLedger:
    """The NUMA nodes of a cluster. One for all profiles of a scheduler."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._gpus = snapshot.shared(GpuLedger, GpuLedger)
        self._nodes: dict[str, NumaNode] = {}
        self._sources: dict[str, tuple[Node, NodeResourceTopology | None]] = {}
        self._remembered: dict[tuple[str, str], Mapping[str, Amounts]] = {}
        self.problems: dict[str, str] = {}
        self._reports = 0
        self._version: object = None
        self._rows: npt.NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        snapshot.on_pod(self._on_pod)
        snapshot.on_object(NodeResourceTopology, self._on_report)

    def _on_report(
        self, old: NodeResourceTopology | None, new: NodeResourceTopology | None
    ) -> None:
        obj = new or old
        assert obj is not None
        self._reports += 1
        self._snapshot.touch((obj.metadata.name,))

    def rows(self) -> npt.NDArray[np.intp]:
        """Return the rows of the nodes whose kubelet aligns anything."""
        table = self._snapshot.nodes
        version = (table.epoch, table.node_version, self._reports, self._gpus.machines.version)
        if version != self._version:
            self._version = version
            rows = [row for row, name in enumerate(table.names) if self.node(name) is not None]
            self._rows = np.array(rows, dtype=np.intp)
        return self._rows

    def _on_pod(self, pod: PodInfo, node: str, placed: bool) -> None:
        known = self._nodes.get(node)
        if known is None:
            return
        if placed:
            taken = self._remembered.pop((pod.uid, node), None)
            if taken is not None:
                known.taken[pod.uid] = taken
        elif pod.uid in known.taken:
            self._remembered[pod.uid, node] = known.taken.pop(pod.uid)
            if len(self._remembered) > _MOST_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]

    # Nodes -----------------------------------------------------------------------------------

    def node(self, name: str) -> NumaNode | None:
        """Return a node whose kubelet aligns anything; None for every other."""
        row = self._snapshot.nodes.row_of.get(name)
        if row is None:
            return None
        node = self._snapshot.nodes.nodes[row]
        zones = self._snapshot.objects(NodeResourceTopology).get(name)
        source = self._sources.get(name)
        if source is None or source[0] is not node or source[1] is not zones:
            self._sources[name] = (node, zones)
            made = self._read(node, zones)
            before = self._nodes.pop(name, None)
            if made is not None:
                if before is not None and source is not None and source[1] is zones:
                    # The report is the same, so what was decided since still has to be taken off.
                    made.taken = before.taken
                self._nodes[name] = made
        return self._nodes.get(name)

    def _read(self, node: Node, zones: NodeResourceTopology | None) -> NumaNode | None:
        name = node.metadata.name
        self.problems.pop(name, None)
        policy, scope = self._policy(node, zones)
        if policy == "none":
            return None
        if zones is not None:
            return _from_zones(zones, policy, scope)
        return self._from_machine(node, policy, scope)

    def _policy(self, node: Node, zones: NodeResourceTopology | None) -> tuple[Policy, str]:
        """Return the kubelet's policy and scope, from its report or the node's annotations."""
        meta = node.metadata
        attributes: tuple[ZoneAttribute, ...] = zones.attributes if zones is not None else ()
        said = {attribute.name: attribute.value for attribute in attributes}
        older = zones.topology_policies[0] if zones is not None and zones.topology_policies else ""
        text = (
            meta.annotations.get(_POLICY)
            or meta.labels.get(_POLICY)
            or said.get("topologyManagerPolicy")
            or older
            or meta.labels.get(_KOORDINATOR)
            or "none"
        )
        scope = (
            meta.annotations.get(_SCOPE)
            or meta.labels.get(_SCOPE)
            or said.get("topologyManagerScope")
            or ("pod" if older.endswith("PodLevel") else "container")
        )
        if text not in _POLICIES or scope not in ("pod", "container"):
            what = f'policy "{text}"' if text not in _POLICIES else f'scope "{scope}"'
            self.problems[meta.name] = f"there is no Topology Manager {what}"
            return "none", "container"
        return _POLICIES[text], scope

    def _from_machine(self, node: Node, policy: Policy, scope: str) -> NumaNode | None:
        machine = self._gpus.machines.of(node)
        if isinstance(machine, str):
            return None
        cpus = dict(machine.platform.numa_cpus)
        ids = sorted({*cpus, *(n for n in machine.numa_of if n is not None)})
        if not ids:
            return None
        capacity = {GPU_RESOURCES[0]: tuple(machine.numa_of.count(node) for node in ids)}
        if cpus:
            capacity["cpu"] = tuple(1000 * _count(cpus.get(node, "")) for node in ids)
        return NumaNode(policy, scope, tuple(ids), capacity, capacity)

    # What is free ----------------------------------------------------------------------------

    def free(self, name: str, node: NumaNode, but: str = "") -> dict[str, Amounts]:
        """Return what each NUMA node has left; what the pod ``but``, by uid, takes is left."""
        free = {resource: list(amounts) for resource, amounts in node.available.items()}
        for uid, taken in node.taken.items():
            for resource, amounts in taken.items() if uid != but else ():
                for place, amount in enumerate(amounts):
                    if resource in free:
                        free[resource][place] -= amount
        gpus = self._gpus.node(name)
        if gpus is not None and any(n is not None for n in gpus.machine.numa_of):
            # Which GPUs are free is known one by one.
            now = [gpus.machine.numa_of[gpu] for gpu in gpus.free(but)]
            counts = [now.count(number) for number in node.ids]
            for resource in GPU_RESOURCES:
                if resource in free:
                    free[resource] = counts
        return {resource: tuple(max(0, a) for a in amounts) for resource, amounts in free.items()}

    def place(self, pod: PodInfo, name: str) -> Placement | None:
        """Return what the kubelet would give a pod on a node; None where it would refuse it."""
        node = self.node(name)
        if node is None:
            return Placement({}, None)
        return _placed(node, demand_of(pod), self.free(name, node, pod.uid))

    def place_empty(self, pod: PodInfo, node: NumaNode) -> Placement | None:
        """Return what the kubelet would give a pod if the node were empty."""
        return _placed(node, demand_of(pod), node.capacity)

    def take(self, pod: PodInfo, name: str, placement: Placement) -> None:
        """Count what a pod takes as taken."""
        node = self._nodes.get(name)
        if node is not None and placement.taken:
            node.taken[pod.uid] = placement.taken

    def release(self, pod: PodInfo, name: str) -> None:
        """Give back what a pod was counted with."""
        node = self._nodes.get(name)
        if node is not None and pod.uid in node.taken:
            self._remembered[pod.uid, name] = node.taken.pop(pod.uid)

    def allowed(self, pod: PodInfo, name: str) -> frozenset[int] | None:
        """Return the NUMA nodes whose GPUs a pod could get; None for any."""
        node = self.node(name)
        if node is None or node.policy not in ("single-numa-node", "restricted"):
            return None
        placement = self.place(pod, name)
        return placement.nodes if placement is not None else None


def _placed(node: NumaNode, demand: Demand, free: Mapping[str, Amounts]) -> Placement | None:
    left = dict(free)
    for needs in demand.before if node.scope == "container" else ():
        if affinity(node.policy, needs, left, node.capacity) is None:
            return None
    taken: dict[str, Amounts] = {}
    used = 0
    parts = demand.containers if node.scope == "container" else (demand.pod,)
    for needs in parts:
        mask = affinity(node.policy, needs, left, node.capacity)
        if mask is None:
            return None
        for resource, need in needs.items():
            if resource not in left:
                continue
            own = fill(need, left[resource], mask)
            left[resource] = tuple(a - b for a, b in zip(left[resource], own, strict=True))
            before = taken.get(resource, (0,) * len(own))
            taken[resource] = tuple(a + b for a, b in zip(before, own, strict=True))
        if any(resource in GPU_RESOURCES for resource in needs):
            used |= mask
    nodes = frozenset(number for place, number in enumerate(node.ids) if used >> place & 1)
    return Placement(taken, nodes or None)


def _from_zones(zones: NodeResourceTopology, policy: Policy, scope: str) -> NumaNode | None:
    nodes = numa_nodes(zones)
    if not nodes:
        return None
    ids = tuple(sorted(nodes))
    names = dict.fromkeys(r.name for number in ids for r in nodes[number].resources)
    capacity: dict[str, Amounts] = {}
    available: dict[str, Amounts] = {}
    for name in names:
        found = [{r.name: r for r in nodes[number].resources}.get(name) for number in ids]
        capacity[name] = tuple(amount_of(name, r.allocatable) if r else 0 for r in found)
        available[name] = tuple(amount_of(name, r.available) if r else 0 for r in found)
    return NumaNode(policy, scope, ids, capacity, available)


def _count(cpus: str) -> int:
    """Return how many CPUs a list such as 0-15,32-47 names."""
    total = 0
    for part in cpus.split(",") if cpus else ():
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total
