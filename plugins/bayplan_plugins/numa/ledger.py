"""What is free on the NUMA nodes of every node, and what the kubelet would do there.

A NodeResourceTopology reports what was free on its node at some time; what was decided since then
is subtracted. That of Koordinator's agent reports only what there is: there, what pods got is
written on them. Without one, a node with a known machine has that machine's CPUs and GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bayplan import PodInfo
from bayplan.api import Node, NodeResourceTopology
from bayplan.api.cpu_lists import cpus_in
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.dialects.kai.queues import numa_placement_of
from bayplan.dialects.koordinator.cpu_sets import numa_amounts_of_status, publishes_cpus
from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot import Snapshot
from bayplan.snapshot.pods import SpecFacts
from bayplan.topology.machine.model import Machine
from bayplan_plugins.cpu_sets.ledger import CpuLedger, FreeCpus
from bayplan_plugins.cpu_sets.nodes import NodeCpus
from bayplan_plugins.cpu_sets.requests import CpuNeed, need_on
from bayplan_plugins.gpus.ledger import GpuLedger
from bayplan_plugins.numa.aligned_requests import AlignedRequests, aligned_requests_of
from bayplan_plugins.numa.alignment import (
    AlignedNode,
    FreeAmounts,
    NumaPlacement,
    allowed_numa_nodes,
    node_from_zones,
    place_pod,
)
from bayplan_plugins.numa.hints import Amounts, Policy
from bayplan_plugins.numa.memory import is_memory
from bayplan_plugins.numa.policies import policy_of
from bayplan_plugins.shared.node_codes import NO_CODE, NodeCodes

__all__ = ["UNALIGNED", "NumaLedger"]

UNALIGNED = NO_CODE
"""The code of a node whose kubelet aligns nothing."""
_MOST_KEPT = 50_000

_MOST_REMEMBERED = 8192


class NumaLedger:
    """The NUMA nodes of a cluster. All profiles of a scheduler share one."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._gpus = snapshot.shared(GpuLedger, GpuLedger)
        self._nodes: dict[str, AlignedNode] = {}
        self._sources: dict[str, tuple[Node, NodeResourceTopology | None]] = {}
        self._remembered: dict[tuple[str, str], Mapping[str, Amounts]] = {}
        self._codes = NodeCodes(snapshot, self._code)
        self._states: list[tuple[AlignedNode, FreeAmounts, FreeCpus | None]] = []
        self._code_of: dict[tuple[object, ...], int] = {}
        self._placements: dict[tuple[int, SpecFacts, CpuNeed | None], NumaPlacement | None] = {}
        self.cpus = snapshot.shared(CpuLedger, CpuLedger)
        self._gpus.on_change(self._codes.touch)
        self.cpus.on_change(self._codes.touch)
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
        """Return, per node row, a number for what is free there, for ``placement`` and ``kind``.

        UNALIGNED for nodes whose kubelet aligns nothing.
        """
        return self._codes.column()

    def _code(self, name: str) -> int:
        node = self.node(name)
        if node is None:
            return UNALIGNED
        free = self.free(name, node)
        cpus = self.cpus.free(name)
        of_cpus = cpus.key if cpus is not None else None
        key = (*node.shape, tuple(free.amounts.items()), free.grouped, of_cpus)
        code = self._code_of.get(key)
        if code is None:
            code = self._code_of[key] = len(self._states)
            self._states.append((node, free, cpus))
        return code

    def aligns(self) -> bool:
        """Tell whether the kubelet of any node aligns something, or has since the start."""
        self._codes.read_new()
        return bool(self._states)

    def placement(self, code: int, pod: PodInfo) -> NumaPlacement | None:
        """Return what a pod would get on nodes of a code; None if the kubelet would refuse it."""
        node, free, cpus = self._states[code]
        need = self._need(pod, cpus.node if cpus is not None else None)
        key = (code, pod.facts, need)
        if key not in self._placements:
            if len(self._placements) >= _MOST_KEPT:
                self._placements.clear()
            self._placements[key] = _place(pod, node, free, need, cpus)
        return self._placements[key]

    def _need(self, pod: PodInfo, cpus: NodeCpus | None) -> CpuNeed | None:
        """Return the CPUs of its own that a pod gets on a node; None for none."""
        need = need_on(self.cpus.requests.of(pod), cpus, "FullPCPUs")
        return need if isinstance(need, CpuNeed) else None

    @property
    def kinds(self) -> int:
        """The number of codes so far."""
        return len(self._states)

    def kind(self, code: int) -> AlignedNode:
        """Return one node of a code."""
        return self._states[code][0]

    # Pods ------------------------------------------------------------------------------------

    def _on_pod(self, pod: PodInfo, node: str, placed: bool) -> None:
        if not placed and node not in self._sources and numa_placement_of(pod.pod):
            self._read_with(pod, node)
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
        if pod.uid in known.reported:
            # The report counts it.
            return
        taken = self._remembered.pop((pod.uid, node), None)
        if taken is None and not known.measured:
            taken = self._assumed(pod, node, known)
        if taken:
            self._change(node, known.taken, pod.uid, taken)

    def _read_with(self, pod: PodInfo, name: str) -> None:
        """Read a node that nobody asked for yet as it was before a pod left it."""
        node = self.node(name)
        if node is not None and node.measured and pod.pod.status.phase == "Running":
            node.reported = {**node.reported, pod.uid: _seen(pod, node)}

    def _assumed(self, pod: PodInfo, name: str, node: AlignedNode) -> Mapping[str, Amounts]:
        """Return what a running pod has: as written on it, or as the kubelet would give it now."""
        if written := _written(pod, node):
            return written
        requests = aligned_requests_of(pod)
        free = self.free(name, node, pod.uid)
        placement = place_pod(node, requests, free) or place_pod(
            replace(node, policy="none"), requests, free
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
        """Change one entry of a node's amounts; undone with the trial."""
        before = amounts.get(uid)
        self._snapshot.on_rollback(lambda: self._change(name, amounts, uid, before))
        if value is None:
            amounts.pop(uid, None)
        else:
            amounts[uid] = value
        self._codes.touch(name)

    # Nodes -----------------------------------------------------------------------------------

    def node(self, name: str) -> AlignedNode | None:
        """Return a node if its kubelet aligns anything, else None."""
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
        self, name: str, made: AlignedNode, before: AlignedNode | None, same_report: bool
    ) -> None:
        """Count what pods took that the node's new description does not include."""
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
            made.reported = {
                pod.uid: own for pod in pods if pod.uid in running and (own := _seen(pod, made))
            } | {uid: own for uid, own in everybody.items() if uid in running}
            made.taken = {uid: own for uid, own in made.taken.items() if uid not in running}
            made.returned = {}

    def _read(self, node: Node, zones: NodeResourceTopology | None) -> AlignedNode | None:
        policy, scope, problem = policy_of(node, zones)
        self._snapshot.set_problem(node.metadata.name, "NUMA alignment", problem)
        if policy == "none":
            return None
        if zones is not None:
            return node_from_zones(zones, policy, scope, measured=not publishes_cpus(zones))
        return self._from_machine(node, policy, scope)

    def _from_machine(self, node: Node, policy: Policy, scope: str) -> AlignedNode | None:
        machine = self._gpus.machines.of(node)
        if isinstance(machine, str):
            return None
        cpus = dict(machine.platform.numa_cpus)
        ids = sorted({*cpus, *(n for n in machine.numa_of if n is not None)})
        if not ids:
            return None
        capacity = {GPU_RESOURCES[0]: tuple(machine.numa_of.count(node) for node in ids)}
        if cpus:
            capacity["cpu"] = tuple(1000 * len(cpus_in(cpus.get(node, ""))) for node in ids)
        return AlignedNode(policy, scope, tuple(ids), capacity, capacity, capacity, measured=False)

    # What is free ----------------------------------------------------------------------------

    def free(self, name: str, node: AlignedNode, but: str = "") -> FreeAmounts:
        """Return what is free; what the pod ``but``, by uid, takes counts as free."""
        free = {resource: list(amounts) for resource, amounts in node.available.items()}
        changes = [(-1, own) for uid, own in node.taken.items() if uid != but]
        changes += [(1, own) for own in node.returned.values()]
        for sign, taken in changes:
            for resource, amounts in taken.items():
                for place, amount in enumerate(amounts if resource in free else ()):
                    free[resource][place] += sign * amount
        gpus = self._gpus.whole(name)
        if gpus is not None and not node.measured:
            # The GPU ledger knows which GPUs are free where nothing is reported.
            counts = _by_numa_node(gpus.machine, gpus.free(but), node.ids)
            for resource in GPU_RESOURCES:
                if resource in free and counts is not None:
                    free[resource] = list(counts)
        left = {one: tuple(max(0, amount) for amount in own) for one, own in free.items()}
        return FreeAmounts(left, self._is_grouped(name, node, left, but))

    def _is_grouped(
        self, name: str, node: AlignedNode, free: Mapping[str, Amounts], but: str
    ) -> bool:
        """Tell whether the memory in use is of a set of NUMA nodes; no report says so."""
        if not any(is_memory(one) and free[one] != node.allocatable[one] for one in free):
            return False
        pods = self._snapshot.nodes.pods[self._snapshot.nodes.row_of[name]].values()
        return any(pod.uid != but and node.is_spread(aligned_requests_of(pod)) for pod in pods)

    def place(self, pod: PodInfo, name: str) -> NumaPlacement | None:
        """Return what the kubelet would give a pod on a node; None where it would refuse it."""
        node = self.node(name)
        if node is None:
            return NumaPlacement({}, None)
        cpus = self.cpus.free(name, pod.uid)
        need = self._need(pod, cpus.node if cpus is not None else None)
        return _place(pod, node, self.free(name, node, pod.uid), need, cpus)

    def place_empty(self, pod: PodInfo, node: AlignedNode) -> NumaPlacement | None:
        """Return what the kubelet would give a pod if the node were empty."""
        return place_pod(node, aligned_requests_of(pod), FreeAmounts(node.allocatable))

    def take(self, pod: PodInfo, name: str, placement: NumaPlacement) -> None:
        """Record what a pod takes."""
        node = self._nodes.get(name)
        if node is not None and placement.taken:
            if pod.uid in node.reported:
                # A victim that is placed again gives back what the report says that it holds.
                self._change(name, node.returned, pod.uid, node.reported[pod.uid])
            self._change(name, node.taken, pod.uid, placement.taken)

    def release(self, pod: PodInfo, name: str) -> None:
        """Release what was recorded for a pod."""
        node = self._nodes.get(name)
        if node is not None and pod.uid in node.taken:
            self._remember(pod, name, node.taken[pod.uid])
            self._change(name, node.taken, pod.uid, None)

    def allowed(self, pod: PodInfo, name: str) -> frozenset[int] | None:
        """Return the NUMA nodes whose GPUs a pod could get on a node; None for any."""
        node = self.node(name)
        return allowed_numa_nodes(node, self.place(pod, name)) if node is not None else None

    def allowed_by(self, code: int, pod: PodInfo) -> frozenset[int] | None:
        """Return the NUMA nodes whose GPUs a pod could get on nodes of a code; None for any."""
        return allowed_numa_nodes(self.kind(code), self.placement(code, pod))


def _place(
    pod: PodInfo,
    node: AlignedNode,
    free: FreeAmounts,
    need: CpuNeed | None,
    cpus: FreeCpus | None,
) -> NumaPlacement | None:
    """Return what a pod would get; CPUs of its own are among those that nobody has.

    NUMA nodes that have them by the policy that it prefers come first.
    """
    if need is None or cpus is None:
        return place_pod(node, aligned_requests_of(pod), free)
    if not need.required:
        placement = _place_own(pod, node, free, replace(need, required=True), cpus)
        if placement is not None and sum(placement.taken.get("cpu", ())) == 1000 * need.count:
            return placement
    return _place_own(pod, node, free, need, cpus)


def _place_own(
    pod: PodInfo, node: AlignedNode, free: FreeAmounts, need: CpuNeed, cpus: FreeCpus
) -> NumaPlacement | None:
    requests = aligned_requests_of(pod)
    countable = tuple(1000 * cpus.on_numa(number, need) for number in node.ids)
    listed = free.amounts.get("cpu", countable)
    left = tuple(min(a // 1000 * 1000, b) for a, b in zip(listed, countable, strict=True))
    everything = tuple(
        1000 * len(cpus.node.topology.on_numa(cpus.node.topology.cpus, (number,)))
        for number in node.ids
    )
    own = replace(node, scope="pod", capacity={"cpu": everything, **node.capacity})
    amounts = FreeAmounts({**free.amounts, "cpu": left}, free.grouped)
    wanted = AlignedRequests({**requests.pod, "cpu": 1000 * need.count}, requests.containers)
    return place_pod(own, wanted, amounts)


def _by_numa_node(machine: Machine, gpus: Iterable[int], ids: Sequence[int]) -> Amounts | None:
    """Return how many GPUs are on each NUMA node; None where the machine does not tell."""
    if all(number is None for number in machine.numa_of):
        return None
    found = [machine.numa_of[gpu] for gpu in gpus]
    return tuple(found.count(number) for number in ids)


def _seen(pod: PodInfo, node: AlignedNode) -> dict[str, Amounts]:
    """Return what a pod holds of each NUMA node as KAI's annotation says; nothing without one."""
    return _by_resource(numa_placement_of(pod.pod), node)


def _written(pod: PodInfo, node: AlignedNode) -> dict[str, Amounts]:
    """Return what a pod got of each NUMA node as Koordinator's annotation says, if it does."""
    try:
        return _by_resource(numa_amounts_of_status(pod.pod.metadata.annotations), node)
    except ValueError:
        return {}


def _by_resource(by_zone: Mapping[int, Mapping[str, int]], node: AlignedNode) -> dict[str, Amounts]:
    names = {name for amounts in by_zone.values() for name in amounts}
    return {name: tuple(by_zone.get(one, {}).get(name, 0) for one in node.ids) for name in names}
