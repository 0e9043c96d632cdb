"""NodeNUMA: keep pods off nodes whose kubelet would refuse them, as it cannot align them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

import numpy as np

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
    Reads,
    Refusal,
    Reject,
    Remedy,
    hookimpl,
)
from bayplan_plugins.numa.aligned_requests import aligned_requests_of
from bayplan_plugins.numa.alignment import AlignedNode, NumaPlacement
from bayplan_plugins.numa.hints import Policy
from bayplan_plugins.numa.ledger import UNALIGNED, NumaLedger

__all__ = ["NodeNUMA", "NodeNUMAArgs"]


class NodeNUMAArgs(Args):
    """NodeNUMA takes no arguments: policies and scopes are those of the nodes' kubelets."""


class NodeNUMA(Plugin[NodeNUMAArgs]):
    """Predict what the kubelet's Topology Manager, and its memory manager, will do with a pod.

    They align CPUs and memory of guaranteed pods, and every device of a resource that the NUMA
    nodes report. Devices of resource claims give the kubelet no hints; constraints in the claims
    align them.
    """

    Args = NodeNUMAArgs
    reads = Reads.NODE | Reads.PODS
    requeue_on = ClusterEvent.NODE | ClusterEvent.POD_REMOVED | ClusterEvent.OBJECT_CHANGED

    def __init__(self, args: NodeNUMAArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._ledger = handle.snapshot.shared(NumaLedger, NumaLedger)

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods that have something to align."""
        return bool(aligned_requests_of(pod).pod)

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by whether a kubelet aligns anything of what the spec asks for."""
        return self._is_aligned(pod)

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods without anything to align, and all while no kubelet aligns anything."""
        return None if self._is_aligned(pod) else SKIP

    def _is_aligned(self, pod: PodInfo) -> bool:
        return bool(aligned_requests_of(pod).pod) and self._ledger.aligns()

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes whose kubelet would refuse the pod."""
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
        """Return why one node's kubelet would refuse the pod."""
        return self._refusal_of(pod, int(self._ledger.codes()[node.row]))

    def _refusal_of(self, pod: PodInfo, code: int) -> Refusal | None:
        if code == UNALIGNED or self._ledger.placement(code, pod) is not None:
            return None
        numa = self._ledger.kind(code)
        fits_empty = self._ledger.place_empty(pod, numa) is not None
        return Refusal((_reason(numa.policy, numa.scope),), resolvable=fits_empty)

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow, state: CycleState) -> str | None:
        """Record what the kubelet would give the pod."""
        if not aligned_requests_of(pod).pod:
            return None
        numa = self._ledger.node(node.name)
        if numa is None:
            return None
        placement = self._ledger.place(pod, node.name)
        if placement is None:
            return _reason(numa.policy, numa.scope)
        self._ledger.take(pod, node.name, placement)
        if placement.taken:
            state[NOTES] = (*(state.get(NOTES) or ()), _note(numa, placement))
        return None

    @hookimpl
    def unreserve(self, pod: PodInfo, node: NodeRow) -> None:
        """Release what was recorded."""
        self._ledger.release(pod, node.name)

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Say what is free on each NUMA node of the nodes that refuse the pod."""
        for node in nodes:
            numa = self._ledger.node(node.name)
            if numa is None or self._ledger.place(pod, node.name) is not None:
                continue
            free = self._ledger.free(node.name, numa, pod.uid).amounts
            need = aligned_requests_of(pod).pod
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


def _reason(policy: Policy, scope: str) -> str:
    if policy == "best-effort":
        return "node(s) whose memory manager would refuse the pod"
    return f"node(s) whose Topology Manager ({policy}, {scope} scope) would refuse the pod"


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
    return f"the kubelet would align it ({numa.policy}): {'; '.join(parts)}"
