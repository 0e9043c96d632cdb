"""What is free on the NUMA nodes of every node, and what the kubelet would do there.

A NodeResourceTopology reports what was free on its node at some time; what was decided since then
is subtracted. That of Koordinator's agent reports only what there is: there, what pods got is
written on them. Without one, a node with a known machine has that machine's CPUs and GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import replace

from bayplan import PodInfo, Refusal
from bayplan.api import Node, NodeResourceTopology
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.dialects.kai.queues import numa_placement_of
from bayplan.dialects.koordinator.cpu_sets import (
    BindPolicy,
    NumaStrategy,
    cpus_of_status,
    numa_amounts_of_status,
)
from bayplan.dialects.koordinator.numa import NUMA_SPEC, NumaSpec, numa_spec_of
from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot import Snapshot
from bayplan.snapshot.pods import SpecFacts
from bayplan_plugins.cpu_sets.ledger import CpuLedger, FreeCpus, amplify
from bayplan_plugins.cpu_sets.nodes import NodeCpus
from bayplan_plugins.cpu_sets.requests import CpuNeed, need_on
from bayplan_plugins.gpus.ledger import GpuLedger
from bayplan_plugins.numa.aligned_requests import aligned_requests_of
from bayplan_plugins.numa.alignment import (
    AlignedNode,
    FreeAmounts,
    NumaPlacement,
    allowed_numa_nodes,
    place_pod,
)
from bayplan_plugins.numa.hints import Amounts
from bayplan_plugins.numa.memory import is_memory
from bayplan_plugins.numa.nodes import described, gpus_by_numa_node
from bayplan_plugins.numa.placing import place_on_node, place_shared
from bayplan_plugins.numa.policies import POLICIES, policy_of
from bayplan_plugins.numa.whole_pods import NO_CRITERIA, Criteria, place_whole_pod
from bayplan_plugins.shared.node_codes import NO_CODE, NodeCodes

__all__ = ["UNALIGNED", "NumaLedger", "NumaPreferences", "asks_for_alignment"]

UNALIGNED = NO_CODE
"""The code of a node where only pods that ask for it are aligned, if any."""
_MOST_KEPT = 50_000
_MOST_REMEMBERED = 8192
_OTHER_POLICY = "node(s) NUMA Topology policy not match"
_NO_NUMA_NODES = "node(s) missing NUMA resources"


class NumaPreferences(msgspec.Struct, frozen=True):
    """What a profile says of pods that leave it open.

    :param bind: the policy by which CPUs of a pod's own are chosen.
    :param strategy: whether the emptiest or the fullest NUMA nodes come first.
    """

    bind: BindPolicy = "FullPCPUs"
    strategy: NumaStrategy = "LeastAllocated"


_NO_PREFERENCES = NumaPreferences()


def asks_for_alignment(pod: PodInfo) -> bool:
    """Tell whether a pod says by itself how it is to be aligned."""
    return NUMA_SPEC in pod.annotations


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
        self._placements: dict[
            tuple[int, SpecFacts, CpuNeed | None, NumaStrategy], NumaPlacement | None
        ] = {}
        self._preferences: list[tuple[Callable[[PodInfo], bool], NumaPreferences]] = []
        self._aligns_whole_pods = False
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

    def prefer(self, schedules: Callable[[PodInfo], bool], preferences: NumaPreferences) -> None:
        """Take over what a profile prefers for the pods that it schedules."""
        self._preferences.insert(0, (schedules, preferences))

    def preferences(self, pod: PodInfo) -> NumaPreferences:
        """Return what the profile of a pod prefers."""
        found = (own for schedules, own in self._preferences if schedules(pod))
        return next(found, _NO_PREFERENCES)

    # States ----------------------------------------------------------------------------------

    def codes(self) -> IntColumn:
        """Return, per node row, a number for what is free there, for ``placement`` and ``kind``.

        UNALIGNED for nodes where no kubelet or label aligns anything.
        """
        return self._codes.column()

    def _code(self, name: str) -> int:
        node = self.node(name)
        if node is None:
            return UNALIGNED
        self._aligns_whole_pods |= node.by_koordinator
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

    def aligns_whole_pods(self) -> bool:
        """Tell whether the label of any node aligns pods of every class, or has since the start."""
        return self.aligns() and self._aligns_whole_pods

    def placement(self, code: int, pod: PodInfo) -> NumaPlacement | None:
        """Return what a pod that asks for nothing itself would get on nodes of a code.

        None if it would be refused.
        """
        node, free, cpus = self._states[code]
        need = self._need(pod, cpus.node if cpus is not None else None)
        strategy = self.preferences(pod).strategy
        key = (code, pod.facts, need, strategy)
        if key not in self._placements:
            if len(self._placements) >= _MOST_KEPT:
                self._placements.clear()
            criteria = Criteria.by(strategy)
            self._placements[key] = place_on_node(pod, node, free, need, cpus, criteria)
        return self._placements[key]

    def _need(self, pod: PodInfo, cpus: NodeCpus | None) -> CpuNeed | None:
        """Return the CPUs of its own that a pod gets on a node; None for none."""
        need = need_on(self.cpus.requests.of(pod), cpus, self.preferences(pod).bind)
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
        """Return what a running pod has: as written on it, or as it would be given it now."""
        if written := _written(pod, node):
            return written
        if node.policy == "none":
            return self._by_cpus(_stated_cpus(pod), name, node)
        requests = aligned_requests_of(pod)
        free = self.free(name, node, pod.uid)
        if node.by_koordinator:
            some = replace(node, policy="best-effort")
            placement = place_whole_pod(some, pod.facts.requests, free.amounts, NO_CRITERIA)
        else:
            placement = place_pod(node, requests, free) or place_pod(
                replace(node, policy="none"), requests, free
            )
        return placement.taken if placement is not None else {}

    def _by_cpus(self, cpus: frozenset[int], name: str, node: AlignedNode) -> Mapping[str, Amounts]:
        """Return of which NUMA nodes CPUs are, as amounts; nothing without any."""
        known = self.cpus.node(name)
        if not cpus or known is None:
            return {}
        counts = (len(known.topology.on_numa(cpus, (number,))) for number in node.ids)
        return {"cpu": tuple(1000 * count for count in counts)}

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
        """Return a node where all pods are aligned, None for another one."""
        node = self._described(name)
        return node if node is not None and node.policy != "none" else None

    def node_for(self, pod: PodInfo, name: str) -> AlignedNode | Refusal | None:
        """Return a node with the policy by which a pod is aligned there.

        None where it is not aligned, a refusal where it cannot be as it asks.
        """
        node = self._described(name)
        own = self.spec(pod).policy
        if not own:
            return node if node is not None and node.policy != "none" else None
        if node is None:
            return Refusal((_NO_NUMA_NODES,), resolvable=False)
        if node.policy not in ("none", POLICIES[own]):
            return Refusal((_OTHER_POLICY,), resolvable=False)
        return replace(node, policy=POLICIES[own])

    def spec(self, pod: PodInfo) -> NumaSpec:
        """Return what a pod asks of NUMA nodes; nothing where that cannot be read."""
        try:
            return numa_spec_of(pod.annotations)
        except ValueError:
            return NumaSpec()

    def _described(self, name: str) -> AlignedNode | None:
        """Return a node whose NUMA nodes may count for any pod, else None."""
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
        policy = policy_of(node, zones)
        self._snapshot.set_problem(node.metadata.name, "NUMA alignment", policy.problem)
        machine = self._gpus.machines.of(node)
        cpus = self.cpus.node(node.metadata.name)
        return described(policy, zones, cpus, None if isinstance(machine, str) else machine)

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
            counts = gpus_by_numa_node(gpus.machine, gpus.free(but), node.ids)
            for resource in GPU_RESOURCES:
                if resource in free and counts is not None:
                    free[resource] = list(counts)
        if node.by_koordinator:
            self._amplify(name, node, free, but)
        left = {one: tuple(max(0, amount) for amount in own) for one, own in free.items()}
        return FreeAmounts(left, self._is_grouped(name, node, left, but))

    def _amplify(
        self, name: str, node: AlignedNode, free: Mapping[str, list[int]], but: str
    ) -> None:
        """Subtract what CPUs given to single pods count beyond their number."""
        cpus = self.cpus.free(name, but)
        if cpus is None or cpus.node.ratio <= 1 or "cpu" not in free:
            return
        for place, number in enumerate(node.ids):
            held = 1000 * len(cpus.node.topology.on_numa(cpus.in_use, (number,)))
            free["cpu"][place] -= amplify(held, cpus.node.ratio) - held

    def _is_grouped(
        self, name: str, node: AlignedNode, free: Mapping[str, Amounts], but: str
    ) -> bool:
        """Tell whether the memory in use is of a set of NUMA nodes; no report says so."""
        if not any(is_memory(one) and free[one] != node.allocatable[one] for one in free):
            return False
        pods = self._snapshot.nodes.pods[self._snapshot.nodes.row_of[name]].values()
        return any(pod.uid != but and node.is_spread(aligned_requests_of(pod)) for pod in pods)

    def place(self, pod: PodInfo, name: str) -> NumaPlacement | None:
        """Return what a pod would be given on a node; None where it would be refused."""
        node = self.node_for(pod, name)
        if node is None:
            return NumaPlacement({}, None)
        if isinstance(node, Refusal):
            return None
        cpus = self.cpus.free(name, pod.uid)
        need = self._need(pod, cpus.node if cpus is not None else None)
        criteria = self._criteria(pod, name, node) if node.by_koordinator else NO_CRITERIA
        return place_on_node(pod, node, self.free(name, node, pod.uid), need, cpus, criteria)

    def _criteria(self, pod: PodInfo, name: str, node: AlignedNode) -> Criteria:
        """Return what counts for the choice of a pod's NUMA nodes besides what is free."""
        place_of = {number: place for place, number in enumerate(node.ids)}
        near = self._gpus.numa_nodes(pod, name)
        single, shared = frozenset[int](), frozenset[int]()
        if self.spec(pod).apart:
            single, shared = self.cpus.numa_nodes_in_use(name, pod.uid)
        return replace(
            Criteria.by(self.preferences(pod).strategy),
            near=[place_of[number] for number in near if number in place_of],
            not_alone=[place_of[number] for number in shared if number in place_of],
            not_shared=[place_of[number] for number in single - shared if number in place_of],
        )

    def place_empty(self, pod: PodInfo, node: AlignedNode) -> NumaPlacement | None:
        """Return what a pod would be given if the node were empty."""
        return place_shared(
            node, aligned_requests_of(pod), pod, FreeAmounts(node.allocatable), NO_CRITERIA
        )

    def take(self, pod: PodInfo, name: str, placement: NumaPlacement) -> None:
        """Record what a pod takes."""
        node = self._nodes.get(name)
        if node is not None and placement.taken:
            if pod.uid in node.reported:
                # A victim that is placed again gives back what the report says that it holds.
                self._change(name, node.returned, pod.uid, node.reported[pod.uid])
            self._change(name, node.taken, pod.uid, placement.taken)

    def take_cpus(self, pod: PodInfo, name: str, cpus: frozenset[int]) -> None:
        """Record the CPUs of a pod that nothing aligns, for pods that ask for an alignment."""
        node = self._nodes.get(name)
        if node is not None and pod.uid not in node.taken:
            if taken := self._by_cpus(cpus, name, node):
                self._change(name, node.taken, pod.uid, taken)

    def release(self, pod: PodInfo, name: str) -> None:
        """Release what was recorded for a pod."""
        node = self._nodes.get(name)
        if node is not None and pod.uid in node.taken:
            self._remember(pod, name, node.taken[pod.uid])
            self._change(name, node.taken, pod.uid, None)

    def allowed(self, pod: PodInfo, name: str) -> frozenset[int] | None:
        """Return the NUMA nodes whose GPUs a pod could get on a node; None for any."""
        node = self.node_for(pod, name)
        if not isinstance(node, AlignedNode):
            return None
        return allowed_numa_nodes(node, self.place(pod, name))

    def allowed_by(self, code: int, pod: PodInfo) -> frozenset[int] | None:
        """Return the NUMA nodes whose GPUs a pod could get on nodes of a code; None for any."""
        return allowed_numa_nodes(self.kind(code), self.placement(code, pod))


def _seen(pod: PodInfo, node: AlignedNode) -> dict[str, Amounts]:
    """Return what a pod holds of each NUMA node as KAI's annotation says; nothing without one."""
    return _by_resource(numa_placement_of(pod.pod), node)


def _written(pod: PodInfo, node: AlignedNode) -> dict[str, Amounts]:
    """Return what a pod got of each NUMA node as Koordinator's annotation says, if it does."""
    try:
        return _by_resource(numa_amounts_of_status(pod.pod.metadata.annotations), node)
    except ValueError:
        return {}


def _stated_cpus(pod: PodInfo) -> frozenset[int]:
    """Return the CPUs that Koordinator's annotation on a pod lists, if it can be read."""
    try:
        return cpus_of_status(pod.pod.metadata.annotations)
    except ValueError:
        return frozenset()


def _by_resource(by_zone: Mapping[int, Mapping[str, int]], node: AlignedNode) -> dict[str, Amounts]:
    names = {name for amounts in by_zone.values() for name in amounts}
    return {name: tuple(by_zone.get(one, {}).get(name, 0) for one in node.ids) for name in names}
