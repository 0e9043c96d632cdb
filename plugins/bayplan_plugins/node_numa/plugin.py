"""NodeNUMA: keep pods off nodes that cannot align them, and choose CPUs of their own for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import pydantic

from bayplan import (
    NOTES,
    SKIP,
    Args,
    ClusterEvent,
    CycleState,
    Handle,
    NodeRow,
    NodeView,
    Plugin,
    PodInfo,
    Preparation,
    Reads,
    Refusal,
    Reject,
    Remedy,
    StateKey,
    hookimpl,
)
from bayplan.api.cpu_lists import cpu_list
from bayplan.dialects.koordinator.numa import NUMA_SPEC, numa_spec_of
from bayplan.plugin.hookspecs import FloatColumn
from bayplan_plugins.cpu_sets.requests import CpuNeed
from bayplan_plugins.gpus.ledger import GpuLedger
from bayplan_plugins.node_numa.cpu_binding import ChosenCpus, CpuBinding
from bayplan_plugins.numa.aligned_requests import aligned_requests_of
from bayplan_plugins.numa.alignment import AlignedNode, NumaPlacement
from bayplan_plugins.numa.ledger import (
    UNALIGNED,
    NumaLedger,
    NumaPreferences,
    asks_for_alignment,
)

__all__ = ["NodeNUMA", "NodeNUMAArgs"]


_OF_ALL = ("cpu", "memory")
"""What is aligned of pods of every class, on nodes whose label says so."""
_CHOSEN: StateKey[ChosenCpus] = StateKey("node-numa.cpus")
_CONFINED: StateKey[dict[str, str]] = StateKey("node-numa.confined")


class ResourceWeight(Args):
    """A resource and its weight in a score; only CPUs are scored."""

    name: str
    weight: int = 1


class Strategy(Args):
    """Whether emptier or fuller ones come first."""

    type: Literal["LeastAllocated", "MostAllocated"] = "LeastAllocated"
    resources: tuple[ResourceWeight, ...] = ()


class NodeNUMAArgs(Args):
    """Arguments of NodeNUMA: those of Koordinator's NodeNUMAResource.

    Kubelets' policies and scopes are those of the nodes. ``default_cpu_bind_policy`` is that of
    pods with CPUs of their own that ask for none. ``scoring_strategy`` says which nodes such pods
    prefer, by free CPUs, ``numa_scoring_strategy`` which NUMA nodes of a node come first.
    """

    default_cpu_bind_policy: Literal["FullPCPUs", "SpreadByPCPUs"] = pydantic.Field(
        default="FullPCPUs", alias="defaultCPUBindPolicy"
    )
    scoring_strategy: Strategy = Strategy()
    numa_scoring_strategy: Strategy = Strategy()


class NodeNUMA(Plugin[NodeNUMAArgs]):
    """Predict what the kubelet's Topology Manager will do with a pod, and give pods CPUs.

    The Topology Manager, and the memory manager, align CPUs and memory of guaranteed pods, and
    every device of a resource that the NUMA nodes report. Devices of resource claims give the
    kubelet no hints; constraints in the claims align them. Where Koordinator's agent publishes the
    CPUs of nodes, pods of its classes LSE and LSR get CPUs of their own.
    """

    Args = NodeNUMAArgs
    reads = Reads.NODE | Reads.PODS
    requeue_on = ClusterEvent.NODE | ClusterEvent.POD_REMOVED | ClusterEvent.OBJECT_CHANGED

    def __init__(self, args: NodeNUMAArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._ledger = handle.snapshot.shared(NumaLedger, NumaLedger)
        self._cpus = CpuBinding(
            self._ledger,
            handle.snapshot.shared(GpuLedger, GpuLedger),
        )
        preferences = NumaPreferences(args.default_cpu_bind_policy, args.numa_scoring_strategy.type)
        self._ledger.prefer(handle.schedules, preferences)
        self._has_cpu_sets = self._cpus.ledger.matters
        """Whether any node says something of its CPUs; all pods without it cost nothing."""

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods that have something to align, and all others once a node tells of its CPUs.

        Of the others, those with CPU or memory.
        """
        if aligned_requests_of(pod).pod or asks_for_alignment(pod):
            return True
        return self._has_cpu_sets and not pod.facts.requests.keys().isdisjoint(_OF_ALL)

    @hookimpl
    def admit(self) -> None:
        """Find out whether any node says something of its CPUs."""
        if self._cpus.ledger.matters != self._has_cpu_sets:
            self._has_cpu_sets = not self._has_cpu_sets
            self.handle.concerns_changed()

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by whether anything is aligned, and by what the pod asks of CPUs and NUMA nodes."""
        own = self._cpus.ledger.requests.of(pod) if self._cpus.is_involved(pod) else None
        return self._is_aligned(pod), own, pod.annotations.get(NUMA_SPEC)

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods without anything to align or to choose; refuse annotations it cannot read."""
        if asks_for_alignment(pod):
            try:
                numa_spec_of(pod.annotations)
            except ValueError as exc:
                return str(exc)
        if self._cpus.is_involved(pod):
            return self._cpus.problem(pod) or None
        return None if self._is_aligned(pod) else SKIP

    def _is_aligned(self, pod: PodInfo) -> bool:
        """Tell whether anything may be aligned of a pod, on any node."""
        if asks_for_alignment(pod):
            return True
        if aligned_requests_of(pod).pod:
            return self._ledger.aligns()
        return self._ledger.aligns_whole_pods()

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes whose kubelet would refuse the pod, then those without CPUs for it."""
        yield from self._unaligned(pod, nodes)
        if self._cpus.is_involved(pod):
            yield from self._without_cpus(pod, nodes)

    def _without_cpus(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        everywhere = self._cpus.is_everywhere(pod)
        demanding = self._cpus.ledger.demanding
        places: dict[Refusal, list[int]] = defaultdict(list)
        for place, node in enumerate(nodes):
            if everywhere or node.name in demanding:
                refusal = self._cpus.refusal(pod, node)
                if refusal is not None:
                    places[refusal].append(place)
        yield from _rejects(places, len(nodes))

    def _unaligned(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        if asks_for_alignment(pod):
            yield from self._unaligned_as_asked(pod, nodes)
            return
        codes = nodes.pick(self._ledger.codes())
        aligned = codes[codes != UNALIGNED]
        if not len(aligned):
            return
        for code in np.unique(aligned).tolist():
            refusal = self._refusal_of(pod, code)
            if refusal is not None:
                yield Reject(codes == code, refusal.reasons[0], refusal.resolvable)

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> Refusal | None:
        """Return why one node's kubelet would refuse the pod, or why it has no CPUs for it."""
        if asks_for_alignment(pod):
            refusal = self._refusal_at(pod, node.name)
        else:
            refusal = self._refusal_of(pod, int(self._ledger.codes()[node.row]))
        if refusal is None and self._cpus.is_involved(pod):
            return self._cpus.refusal(pod, node)
        return refusal

    def _unaligned_as_asked(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes that cannot align a pod as it asks itself."""
        places: dict[Refusal, list[int]] = defaultdict(list)
        for place, name in enumerate(nodes.names):
            refusal = self._refusal_at(pod, name)
            if refusal is not None:
                places[refusal].append(place)
        yield from _rejects(places, len(nodes))

    def _refusal_at(self, pod: PodInfo, name: str) -> Refusal | None:
        """Return why one node cannot align a pod as it asks itself."""
        numa = self._ledger.node_for(pod, name)
        if isinstance(numa, Refusal):
            return numa
        if numa is None or self._ledger.place(pod, name) is not None:
            return None
        return self._refusal(pod, numa)

    def _refusal_of(self, pod: PodInfo, code: int) -> Refusal | None:
        if code == UNALIGNED or self._ledger.placement(code, pod) is not None:
            return None
        return self._refusal(pod, self._ledger.kind(code))

    def _refusal(self, pod: PodInfo, numa: AlignedNode) -> Refusal:
        fits_empty = self._ledger.place_empty(pod, numa) is not None
        return Refusal((_reason(numa),), resolvable=fits_empty)

    @hookimpl
    def pre_score(self, pod: PodInfo) -> object:
        """Skip pods that get no CPUs of their own."""
        return None if self._cpus.is_everywhere(pod) else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Rate nodes by how much of their CPUs would be free, or in use."""
        return np.array([self._points(pod, node.name) for node in nodes], dtype=np.float64)

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        """Rate one node."""
        return self._points(pod, node.name)

    def _points(self, pod: PodInfo, name: str) -> float:
        need = self._cpus.need(pod, name)
        free = self._cpus.ledger.free(name, pod.uid)
        if not isinstance(need, CpuNeed) or free is None:
            return 0.0
        every = len(free.node.topology.cpus)
        left = max(0, len(free.free) - need.count)
        least = self.args.scoring_strategy.type == "LeastAllocated"
        return float((left if least else every - left) * 100 // every)

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow, state: CycleState) -> str | None:
        """Record what the kubelet would give the pod, and give it CPUs of its own."""
        chosen = self._cpus.choose(pod, node.name) if self._cpus.is_involved(pod) else None
        if isinstance(chosen, str):
            return chosen
        problem = self._align(pod, node, state)
        if problem is None and chosen is not None:
            self._cpus.hold(pod, node.name, chosen)
            self._ledger.take_cpus(pod, node.name, chosen.cpus)
            state[_CHOSEN] = chosen
            own = f"CPUs {cpu_list(chosen.cpus)} of its own ({chosen.need.bind})"
            state[NOTES] = (*(state.get(NOTES) or ()), own)
        return problem

    def _align(self, pod: PodInfo, node: NodeRow, state: CycleState) -> str | None:
        numa = self._ledger.node_for(pod, node.name)
        if isinstance(numa, Refusal):
            return numa.reasons[0]
        if numa is None or not (numa.by_koordinator or aligned_requests_of(pod).pod):
            return None
        placement = self._ledger.place(pod, node.name)
        if placement is None:
            return _reason(numa)
        self._ledger.take(pod, node.name, placement)
        if placement.taken:
            state[NOTES] = (*(state.get(NOTES) or ()), _note(numa, placement))
            state[_CONFINED] = self._cpus.confined(pod, node.name, placement)
        return None

    @hookimpl
    def unreserve(self, pod: PodInfo, node: NodeRow) -> None:
        """Release what was recorded."""
        self._ledger.release(pod, node.name)
        self._cpus.ledger.release(pod, node.name)

    @hookimpl
    def pre_bind(self, pod: PodInfo, node: NodeRow, state: CycleState) -> Preparation | None:
        """Place the pod again if somebody else was given its CPUs."""
        if state.get(_CHOSEN) is None:
            return None
        shared = self._cpus.ledger.shares(pod, node.name)
        if not shared:
            return None
        lost = f"the CPUs {cpu_list(shared)} of {node.name}, chosen for it, are not its own"
        return Preparation(ready=lambda: lost)

    @hookimpl
    def bind(self, pod: PodInfo, state: CycleState) -> dict[str, str] | None:
        """Write the pod's CPUs and NUMA nodes on it, where the node's agent reads them."""
        chosen = state.get(_CHOSEN)
        if chosen is None:
            return state.get(_CONFINED) or None
        return self._cpus.written(pod, chosen)

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Say what is free on each NUMA node of the nodes that refuse the pod."""
        for node in nodes:
            if self._cpus.is_involved(pod):
                yield from self._cpus.remedy(pod, node)
            numa = self._ledger.node_for(pod, node.name)
            if not isinstance(numa, AlignedNode):
                continue
            if self._ledger.place(pod, node.name) is not None:
                continue
            free = self._ledger.free(node.name, numa, pod.uid).amounts
            need = pod.facts.requests if numa.by_koordinator else aligned_requests_of(pod).pod
            shown = "; ".join(
                f"NUMA {number} has "
                + ", ".join(
                    f"{_shown(name, free[name][place])} {name}" for name in need if name in free
                )
                for place, number in enumerate(numa.ids)
            )
            wanted = ", ".join(
                f"{_shown(name, need[name])} {name}" for name in need if name in free
            )
            text = f"would fit on {node.name} if {wanted} could be aligned ({numa.policy}): {shown}"
            yield Remedy(text, node.row, 0.9)


def _rejects(places: Mapping[Refusal, Sequence[int]], size: int) -> Iterator[Reject]:
    """Yield refusals with the nodes, by their places, that they hold for."""
    for refusal, found in places.items():
        mask = np.zeros(size, dtype=np.bool_)
        mask[found] = True
        yield Reject(mask, refusal.reasons[0], refusal.resolvable)


def _reason(numa: AlignedNode) -> str:
    if numa.by_koordinator:
        return f"node(s) whose NUMA nodes have no room for the pod ({numa.policy})"
    if numa.policy == "best-effort":
        return "node(s) whose memory manager would refuse the pod"
    return (
        f"node(s) whose Topology Manager ({numa.policy}, {numa.scope} scope) would refuse the pod"
    )


def _shown(resource: str, amount: int) -> str:
    if resource == "cpu":
        return f"{amount / 1000:g}"
    if resource == "memory" or resource.startswith("hugepages-"):
        return f"{amount / 2**30:g}Gi"
    return str(amount)


def _note(numa: AlignedNode, placement: NumaPlacement) -> str:
    parts = []
    for place, number in enumerate(numa.ids):
        own = [
            f"{_shown(name, amounts[place])} {name}"
            for name, amounts in placement.taken.items()
            if amounts[place]
        ]
        if own:
            parts.append(f"{', '.join(own)} of NUMA {number}")
    who = "aligned" if numa.by_koordinator else "the kubelet would align it"
    return f"{who} ({numa.policy}): {'; '.join(parts)}"
