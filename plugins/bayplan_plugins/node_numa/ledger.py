"""What is free on the NUMA nodes of every node, and what the kubelet would do there.

A NodeResourceTopology says what its node's pods have left, as of its last report; what was decided
since is taken off. Without one, a node whose machine is known has the CPUs and GPUs of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import add, sub

from bayplan import PodInfo
from bayplan.api import Node, NodeResourceTopology
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.api.numa import ZoneAttribute
from bayplan.api.resources import amount_of
from bayplan.errors import did_you_mean
from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot import Snapshot
from bayplan.snapshot.pods import SpecFacts
from bayplan_plugins.gpu_topology.ledger import GpuLedger
from bayplan_plugins.gpu_topology.machines import numa_nodes
from bayplan_plugins.node_numa.demands import Demand, demand_of
from bayplan_plugins.node_numa.hints import Amounts, Policy, affinity, fill
from bayplan_plugins.shared.node_codes import NO_CODE, NodeCodes

__all__ = ["UNALIGNED", "NumaLedger", "NumaNode", "Placement"]

UNALIGNED = NO_CODE
"""The code of a node whose kubelet aligns nothing."""
_MOST_KEPT = 50_000

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
    """The NUMA nodes of one node, by place; ``ids`` are their numbers.

    ``available`` is what a report says, if it is ``measured``; ``taken`` is what pods took since,
    by uid, ``reported`` what those took that the report counts, as far as it is known, and
    ``returned`` what of that was given back since.
    """

    policy: Policy
    scope: str
    ids: tuple[int, ...]
    capacity: Mapping[str, Amounts]
    available: Mapping[str, Amounts]
    measured: bool
    taken: dict[str, Mapping[str, Amounts]] = field(default_factory=dict)
    reported: dict[str, Mapping[str, Amounts]] = field(default_factory=dict)
    returned: dict[str, Mapping[str, Amounts]] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[object, ...]:
        """What tells nodes apart that have the same left."""
        return (self.policy, self.scope, self.ids, tuple(self.capacity.items()))


class NumaLedger:
    """The NUMA nodes of a cluster. One for all profiles of a scheduler."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._gpus = snapshot.shared(GpuLedger, GpuLedger)
        self._nodes: dict[str, NumaNode] = {}
        self._sources: dict[str, tuple[Node, NodeResourceTopology | None]] = {}
        self._remembered: dict[tuple[str, str], Mapping[str, Amounts]] = {}
        self._codes = NodeCodes(snapshot, self._code)
        self._states: list[tuple[NumaNode, Mapping[str, Amounts]]] = []
        self._code_of: dict[tuple[object, ...], int] = {}
        self._placements: dict[tuple[int, SpecFacts], Placement | None] = {}
        self._gpus.on_change(self._codes.touch)
        snapshot.on_pod(self._on_pod)
        snapshot.on_object(NodeResourceTopology, self._on_report)

    def _on_report(
        self, old: NodeResourceTopology | None, new: NodeResourceTopology | None
    ) -> None:
        obj = new or old
        assert obj is not None
        self._codes.touch(obj.metadata.name)
        self._snapshot.touch((obj.metadata.name,))

    # States ----------------------------------------------------------------------------------

    def codes(self) -> IntColumn:
        """Return what every node row has left as a number for ``placement``.

        UNALIGNED for nodes whose kubelet aligns nothing.
        """
        return self._codes.column()

    def _code(self, name: str) -> int:
        node = self.node(name)
        if node is None:
            return UNALIGNED
        free = self.free(name, node)
        key = (*node.shape, tuple(free.items()))
        code = self._code_of.get(key)
        if code is None:
            code = self._code_of[key] = len(self._states)
            self._states.append((node, free))
        return code

    def placement(self, code: int, pod: PodInfo) -> Placement | None:
        """Return what the kubelet would give a pod on nodes of a code; None: it would refuse it."""
        key = (code, pod.facts)
        if key not in self._placements:
            if len(self._placements) >= _MOST_KEPT:
                self._placements.clear()
            node, free = self._states[code]
            self._placements[key] = _placed(node, demand_of(pod), free)
        return self._placements[key]

    @property
    def kinds(self) -> int:
        """How many codes there are."""
        return len(self._states)

    def kind(self, code: int) -> NumaNode:
        """Return a node of a code."""
        return self._states[code][0]

    # Pods ------------------------------------------------------------------------------------

    def _on_pod(self, pod: PodInfo, node: str, placed: bool) -> None:
        known = self._nodes.get(node)
        if known is None:
            return
        if not placed:
            if pod.uid in known.taken:
                self._remember(pod, node, known.taken[pod.uid])
                self._change(node, known.taken, pod.uid, None)
            elif pod.uid in known.reported:
                self._change(node, known.returned, pod.uid, known.reported[pod.uid])
            return
        if pod.uid in known.taken:
            return
        if pod.uid in known.returned:
            self._change(node, known.returned, pod.uid, None)
            return
        taken = self._remembered.pop((pod.uid, node), None)
        if taken is None and not known.measured:
            taken = self._assumed(pod, node, known)
        if taken:
            self._change(node, known.taken, pod.uid, taken)

    def _assumed(self, pod: PodInfo, name: str, node: NumaNode) -> Mapping[str, Amounts]:
        """Return what a pod that runs is likely to have: what the kubelet would give it now."""
        demand = demand_of(pod)
        free = self.free(name, node, pod.uid)
        placement = _placed(node, demand, free) or _placed(
            replace(node, policy="none"), demand, free
        )
        return placement.taken if placement is not None else {}

    def _remember(self, pod: PodInfo, node: str, taken: Mapping[str, Amounts]) -> None:
        self._remembered[pod.uid, node] = taken
        if len(self._remembered) > _MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def _change(
        self,
        name: str,
        amounts: dict[str, Mapping[str, Amounts]],
        uid: str,
        value: Mapping[str, Amounts] | None,
    ) -> None:
        """Change one entry of a node's; undone with the trial."""
        before = amounts.get(uid)
        self._snapshot.on_rollback(lambda: self._change(name, amounts, uid, before))
        if value is None:
            amounts.pop(uid, None)
        else:
            amounts[uid] = value
        self._codes.touch(name)

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
                self._nodes[name] = made
                same = source is not None and source[1] is zones
                self._take_over(name, made, before, same)
        return self._nodes.get(name)

    def _take_over(
        self, name: str, made: NumaNode, before: NumaNode | None, same_report: bool
    ) -> None:
        """Count what pods took that a node's new description does not count."""
        if before is not None and before.ids == made.ids and before.measured == made.measured:
            made.taken, made.reported = dict(before.taken), dict(before.reported)
            made.returned = dict(before.returned)
        pods = self._snapshot.nodes.pods[self._snapshot.nodes.row_of[name]].values()
        if not made.measured:
            for pod in pods:
                if pod.uid not in made.taken and (taken := self._assumed(pod, name, made)):
                    made.taken[pod.uid] = taken
        elif not same_report:
            # The kubelet counts a pod once it has admitted it.
            running = {pod.uid for pod in pods if pod.pod.status.phase == "Running"}
            everybody = {**made.reported, **made.taken}
            made.reported = {uid: own for uid, own in everybody.items() if uid in running}
            made.taken = {uid: own for uid, own in made.taken.items() if uid not in running}
            made.returned = {}

    def _read(self, node: Node, zones: NodeResourceTopology | None) -> NumaNode | None:
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
        problem = ""
        if text not in _POLICIES:
            near = did_you_mean(text, _POLICIES)
            problem = f'nothing is aligned, there is no Topology Manager policy "{text}"{near}'
        elif scope not in ("pod", "container"):
            problem = f'there is no Topology Manager scope "{scope}", expected container or pod'
        self._snapshot.set_problem(meta.name, "NUMA alignment", problem)
        if problem:
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
        return NumaNode(policy, scope, tuple(ids), capacity, capacity, measured=False)

    # What is free ----------------------------------------------------------------------------

    def free(self, name: str, node: NumaNode, but: str = "") -> dict[str, Amounts]:
        """Return what each NUMA node has left; what the pod ``but``, by uid, takes is left."""
        free = {resource: list(amounts) for resource, amounts in node.available.items()}
        changes = [(-1, own) for uid, own in node.taken.items() if uid != but]
        changes += [(1, own) for own in node.returned.values()]
        for sign, taken in changes:
            for resource, amounts in taken.items():
                for place, amount in enumerate(amounts if resource in free else ()):
                    free[resource][place] += sign * amount
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
            self._change(name, node.taken, pod.uid, placement.taken)

    def release(self, pod: PodInfo, name: str) -> None:
        """Give back what a pod was counted with."""
        node = self._nodes.get(name)
        if node is not None and pod.uid in node.taken:
            self._remember(pod, name, node.taken[pod.uid])
            self._change(name, node.taken, pod.uid, None)

    def allowed(self, pod: PodInfo, name: str) -> frozenset[int] | None:
        """Return the NUMA nodes whose GPUs a pod could get on a node; None for any."""
        node = self.node(name)
        return _allowed(node, self.place(pod, name)) if node is not None else None

    def allowed_by(self, code: int, pod: PodInfo) -> frozenset[int] | None:
        """Return the NUMA nodes whose GPUs a pod could get on nodes of a code; None for any."""
        return _allowed(self.kind(code), self.placement(code, pod))


def _allowed(node: NumaNode, placement: Placement | None) -> frozenset[int] | None:
    if placement is None or node.policy not in ("single-numa-node", "restricted"):
        return None
    return placement.nodes


def _placed(node: NumaNode, demand: Demand, free: Mapping[str, Amounts]) -> Placement | None:
    left = dict(free)
    reused: dict[str, Amounts] = {}
    taken: dict[str, Amounts] = {}
    used = 0
    parts = demand.containers if node.scope == "container" else ((demand.pod, True),)
    for needs, stays in parts:
        mask = affinity(node.policy, needs, left, node.capacity, reused)
        if mask is None:
            return None
        for resource, need in needs.items():
            if resource not in left:
                continue
            nothing = (0,) * len(left[resource])
            own = fill(need, left[resource], mask, reused.get(resource, nothing))
            if not stays:
                reused[resource] = _each(max, own, reused.get(resource, nothing))
                continue
            left[resource] = _each(sub, left[resource], own)
            rest = _each(sub, reused.get(resource, nothing), own)
            reused[resource] = tuple(max(0, amount) for amount in rest)
            taken[resource] = _each(add, taken.get(resource, nothing), own)
        if stays and any(resource in GPU_RESOURCES for resource in needs):
            used |= mask
    nodes = frozenset(number for place, number in enumerate(node.ids) if used >> place & 1)
    return Placement(taken, nodes or None)


def _each(apply: Callable[[int, int], int], ones: Amounts, others: Amounts) -> Amounts:
    return tuple(map(apply, ones, others))


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
    return NumaNode(policy, scope, ids, capacity, available, measured=True)


def _count(cpus: str) -> int:
    """Return how many CPUs a list such as 0-15,32-47 names."""
    total = 0
    for part in cpus.split(",") if cpus else ():
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total
