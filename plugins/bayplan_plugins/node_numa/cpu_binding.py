"""Which CPUs of its own a pod gets on a node, and why a node has none for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from bayplan import NodeRow, PodInfo, Refusal, Remedy
from bayplan.dialects.koordinator.cpu_sets import (
    RESOURCE_SPEC,
    RESOURCE_STATUS,
    ResourceSpec,
    spec_text,
    status_text,
)
from bayplan.dialects.koordinator.elastic_quota import quantity_of
from bayplan_plugins.cpu_sets.accumulator import CpusRefused
from bayplan_plugins.cpu_sets.ledger import CpuLedger, FreeCpus, amplify, usable
from bayplan_plugins.cpu_sets.requests import NOT_WHOLE, PARTS_OF_CORES, CpuNeed, need_on
from bayplan_plugins.gpus.ledger import GpuLedger
from bayplan_plugins.numa.alignment import AlignedNode, NumaPlacement
from bayplan_plugins.numa.ledger import NumaLedger

__all__ = ["ChosenCpus", "CpuBinding"]

_AMPLIFIED = "Insufficient amplified cpu"
_Shares: TypeAlias = tuple[tuple[int, tuple[tuple[str, int], ...]], ...]
"""Amounts by resource, by the number of the NUMA node."""


class ChosenCpus(msgspec.Struct, frozen=True):
    """The CPUs of a pod, by which need, and what it takes of each NUMA node where that counts."""

    cpus: frozenset[int]
    need: CpuNeed
    by_numa: _Shares = ()


class CpuBinding:
    """Chooses CPUs for pods by what their annotations, their nodes and the profile say."""

    def __init__(self, numa: NumaLedger, gpus: GpuLedger) -> None:
        self._numa = numa
        self._gpus = gpus

    @property
    def ledger(self) -> CpuLedger:
        """Who holds which CPUs."""
        return self._numa.cpus

    def problem(self, pod: PodInfo) -> str:
        """Return what is wrong with the annotation of a pod that gets CPUs of its own."""
        return self.ledger.requests.of(pod).problem

    def is_everywhere(self, pod: PodInfo) -> bool:
        """Tell whether a pod gets CPUs of its own wherever it goes.

        Only where an agent publishes CPUs: without one nobody would bind them.
        """
        return self.ledger.requests.of(pod).owns and self.ledger.publishing

    def is_involved(self, pod: PodInfo) -> bool:
        """Tell whether a pod gets CPUs of its own on any node, or may not fit amplified ones."""
        if not self.ledger.matters:
            return False
        request = self.ledger.requests.of(pod)
        return self.is_everywhere(pod) or (request.milli > 0 and bool(self.ledger.demanding))

    def need(self, pod: PodInfo, name: str) -> CpuNeed | Refusal | None:
        """Return what a pod gets on a node, None for nothing, or why it may not come."""
        node = self.ledger.node(name)
        if not self.is_everywhere(pod) and (node is None or not node.bind):
            return None
        return need_on(self.ledger.requests.of(pod), node, self._numa.preferences(pod).bind)

    def refusal(self, pod: PodInfo, node: NodeRow) -> Refusal | None:
        """Return why a node has no CPUs for a pod."""
        need = self.need(pod, node.name)
        if isinstance(need, Refusal):
            return need
        if self._is_amplified_full(pod, node, need):
            return Refusal((_AMPLIFIED,))
        free = self.ledger.free(node.name, pod.uid)
        if need is None or free is None:
            return None
        placement = self._numa.place(pod, node.name)
        if placement is None:
            # NUMA alignment says so itself.
            return None
        try:
            self._choose(pod, node.name, free, need, placement)
        except CpusRefused as exc:
            return Refusal((str(exc),), resolvable=self._fits_empty(free, need))
        return None

    def _is_amplified_full(self, pod: PodInfo, node: NodeRow, need: CpuNeed | None) -> bool:
        known = self.ledger.node(node.name)
        milli = self.ledger.requests.of(pod).milli
        if known is None or known.ratio <= 1 or not milli:
            return False
        wanted = amplify(milli, known.ratio) if need is not None else milli
        used = node.used("cpu")
        return wanted > node.allocatable("cpu") - used - self.ledger.amplified(node.name, used)

    def _fits_empty(self, free: FreeCpus, need: CpuNeed) -> bool:
        everything = frozenset(free.node.topology.cpus) - free.node.reserved
        return len(usable(FreeCpus(free.node, everything, {}), need)) >= need.count

    def _choose(
        self, pod: PodInfo, name: str, free: FreeCpus, need: CpuNeed, placement: NumaPlacement
    ) -> frozenset[int]:
        aligned = self._numa.node_for(pod, name)
        ids = aligned.ids if isinstance(aligned, AlignedNode) else ()
        by_numa = tuple(
            (number, amount // 1000)
            for number, amount in zip(ids, placement.taken.get("cpu", ()), strict=False)
            if amount
        )
        near = self._gpus.numa_nodes(pod, name)
        strategy = self._numa.preferences(pod).strategy
        return self.ledger.choose(free, need, strategy, by_numa, near)

    def choose(self, pod: PodInfo, name: str) -> ChosenCpus | str | None:
        """Return the CPUs for a pod, near its GPUs and NICs; None for none, or why there are none.

        Its GPUs and NICs have been chosen before.
        """
        need = self.need(pod, name)
        if isinstance(need, Refusal):
            return need.reasons[0]
        free = self.ledger.free(name, pod.uid)
        placement = self._numa.place(pod, name)
        if need is None or free is None or placement is None:
            return None
        try:
            cpus = self._choose(pod, name, free, need, placement)
        except CpusRefused as exc:
            return str(exc)
        return ChosenCpus(cpus, need, self._shares(pod, name, placement))

    def confined(self, pod: PodInfo, name: str, placement: NumaPlacement) -> dict[str, str]:
        """Return the annotation by which the agent of a node, if any, confines a pod to NUMA nodes.

        For pods without CPUs of their own: they get those that a NUMA node's pods share.
        """
        node = self.ledger.node(name)
        shares = self._shares(pod, name, placement)
        if not shares or node is None or not node.topology.per_core:
            return {}
        return {RESOURCE_STATUS: status_text(frozenset(), _quantities(shares))}

    def _shares(self, pod: PodInfo, name: str, placement: NumaPlacement) -> _Shares:
        """Return what a pod takes of each NUMA node, where it is confined to some."""
        aligned = self._numa.node_for(pod, name)
        if not isinstance(aligned, AlignedNode):
            return ()
        return tuple(
            (number, own)
            for place, number in enumerate(aligned.ids)
            if (own := tuple((r, a[place]) for r, a in placement.taken.items() if a[place]))
        )

    def hold(self, pod: PodInfo, name: str, chosen: ChosenCpus) -> None:
        """Give a pod its CPUs."""
        self.ledger.hold(pod, name, chosen.cpus)

    def written(self, pod: PodInfo, chosen: ChosenCpus) -> dict[str, str]:
        """Return the annotations by which the node's agent binds the CPUs."""
        written = {RESOURCE_STATUS: status_text(chosen.cpus, _quantities(chosen.by_numa))}
        own, need = self.ledger.requests.of(pod).spec, chosen.need
        required, preferred = own.required, own.preferred
        if need.required and required in ("", "Default"):
            required = need.bind
        if preferred == "Default" or not (required or preferred):
            preferred = need.bind
        if (required, preferred) != (own.required, own.preferred):
            spec = ResourceSpec(required, preferred, own.exclusive)
            written[RESOURCE_SPEC] = spec_text(spec)
        return written

    def remedy(self, pod: PodInfo, node: NodeRow) -> Iterator[Remedy]:
        """Yield what is free on a node with too few CPUs, or what the pod could ask for."""
        need = self.need(pod, node.name)
        free = self.ledger.free(node.name, pod.uid)
        if isinstance(need, Refusal) and free is not None:
            unit = {NOT_WHOLE: 1, PARTS_OF_CORES: free.node.topology.per_core}.get(need.reasons[0])
            if unit is not None:
                step = 1000 * unit
                up = -(-self.ledger.requests.of(pod).milli // step) * unit
                text = f"would fit on {node.name} if it requested {up} CPUs, in whole "
                yield Remedy(text + ("CPUs" if unit == 1 else "cores"), node.row, 0.5)
            return
        if not isinstance(need, CpuNeed) or free is None:
            return
        own = usable(free, need)
        if len(own) >= need.count:
            return
        how = f" by {need.bind}" if need.required else ""
        counts = ", ".join(
            f"{len(free.node.topology.on_numa(own, (n,)))} on NUMA {n}"
            for n in free.node.topology.numa_ids
        )
        yield Remedy(
            f"would fit on {node.name} if {need.count} CPUs could be bound{how}; free: {counts}",
            node.row,
            0.9,
        )


def _quantities(shares: _Shares) -> dict[int, dict[str, str]]:
    return {
        number: {resource: quantity_of(resource, amount) for resource, amount in own}
        for number, own in shares
    }
