"""Which GPUs a pod would get in each node's state, and how good they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec
import numpy as np
from msgspec.structs import replace

from bayplan import NodeRow, NodeView, PodInfo, Refusal
from bayplan.api.gpus import GpuRequest
from bayplan.naming import counted
from bayplan.plugin.hookspecs import BoolColumn
from bayplan.topology.machine.gpu_search import Constraints
from bayplan.topology.machine.levels import Level
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.select import NoSelection, Selection, SelectionRequest, select_first
from bayplan_plugins.gpu_topology.requests import (
    PodGpuRequest,
    annotations_naming_gpus,
    eligible_gpus,
    has_hard_constraints,
    names_gpus,
)
from bayplan_plugins.gpus.ledger import UNKNOWN, GpuLedger
from bayplan_plugins.gpus.whole_gpus import GpuState
from bayplan_plugins.numa.ledger import UNALIGNED, NumaLedger

__all__ = ["NOT_KNOWN", "GpuSelector", "SelectionResult"]

_MOST_CACHED = 50_000
_MOST_REQUESTS = 4096
_NO_MACHINE = "node(s) whose GPU topology is not known"
_SINGLE = 1.0
"""The bandwidth in GB/s that a single GPU scores with: it has no ring."""
_BONUS = 0.1
"""The part of its points that NICs near all GPUs add to a selection, and leaving no GPU free."""
NOT_KNOWN = 0.01
"""The points of nodes whose machine is unknown: below whatever is known, above what is assumed."""


class SelectionResult(msgspec.Struct, frozen=True):
    """What a node in some state gives: a selection and its points, or the reason why none.

    ``unresolvable`` says that no pod's end could help.
    """

    found: Selection | NoSelection
    points: float = 0.0
    unresolvable: bool = False


@lru_cache(_MOST_REQUESTS)
def _attempts(
    count: int, asked: GpuRequest, multi_node: bool, rails: frozenset[int]
) -> tuple[SelectionRequest, ...]:
    hard = Constraints(asked.require_numa, asked.require_nvlink, asked.min_bandwidth)
    last = SelectionRequest(
        count, constraints=hard, policy=asked.policy, rails=rails, multi_node=multi_node
    )
    strict = replace(
        hard,
        same_numa=hard.same_numa or asked.prefer_numa,
        nvlink=hard.nvlink or asked.prefer_nvlink,
    )
    return (last,) if strict == hard else (replace(last, constraints=strict), last)


class GpuSelector:
    """Selects GPUs for pods; nodes in equal states share one cached result."""

    def __init__(self, gpus: GpuLedger, numa: NumaLedger) -> None:
        self._gpus = gpus
        self._numa = numa
        self._results: dict[tuple[object, ...], SelectionResult] = {}

    def attempts(self, pod: PodInfo, request: PodGpuRequest) -> tuple[SelectionRequest, ...]:
        """Return the selections to try, the strictest first."""
        rails: frozenset[int] = frozenset()
        if request.multi_node and request.job:
            rails = self._gpus.job_rails(request.job, pod.uid)
        return _attempts(request.count, request.options, request.multi_node, rails)

    # Node states -----------------------------------------------------------------------------

    def is_aligned(self) -> bool:
        """Tell whether the kubelet of any node aligns GPUs with other resources."""
        return self._numa.aligns()

    def states(
        self, pod: PodInfo, request: PodGpuRequest, nodes: NodeView
    ) -> Iterator[tuple[GpuState | None, BoolColumn]]:
        """Yield each state with the nodes in it; None for nodes whose machine is unknown.

        A state holds only GPUs that the pod may use. Where the pod names no GPUs, nodes of one
        code are in one state.
        """
        if not names_gpus(request.options):
            codes = nodes.pick(self._gpus.whole_codes())
            numa = nodes.pick(self._numa.codes())
            width = self._numa.kinds + 1
            pairs = (codes + 1) * width + (numa + 1)
            for pair in np.unique(pairs).tolist():
                state = self._state_of(pod, pair // width - 1, pair % width - 1)
                yield state, pairs == pair
            return
        found: dict[tuple[object, ...], tuple[GpuState | None, list[int]]] = {}
        for index, name in enumerate(nodes.names):
            state = self.state_of_node(pod, request, name)
            key = (state.machine.shape, state.free, state.most) if state is not None else ()
            found.setdefault(key, (state, []))[1].append(index)
        for state, places in found.values():
            mask = np.zeros(len(nodes), dtype=np.bool_)
            mask[places] = True
            yield state, mask

    def state_at(self, pod: PodInfo, request: PodGpuRequest, node: NodeRow) -> GpuState | None:
        """Return one node's state as ``states`` does; faster where the pod names no GPUs."""
        if names_gpus(request.options):
            return self.state_of_node(pod, request, node.name)
        code, aligned = self._gpus.whole_codes()[node.row], self._numa.codes()[node.row]
        return self._state_of(pod, int(code), int(aligned))

    def _state_of(self, pod: PodInfo, code: int, aligned: int) -> GpuState | None:
        """Return the state of a code without GPUs that the kubelet would not give the pod."""
        if code == UNKNOWN:
            return None
        state = self._gpus.whole_state(code)
        numa_nodes = self._numa.allowed_by(aligned, pod) if aligned != UNALIGNED else None
        return state if numa_nodes is None else state.on_numa_nodes(numa_nodes)

    def state_of_node(self, pod: PodInfo, request: PodGpuRequest, name: str) -> GpuState | None:
        """Return a node's state without GPUs that the pod may not use; its own count as free."""
        gpus = self._gpus.whole(name)
        if gpus is None:
            return None
        machine = gpus.machine
        most = eligible_gpus(machine, request.options)
        state = GpuState(machine, tuple(g for g in gpus.free(pod.uid) if g in most), most)
        numa_nodes = self._numa.allowed(pod, name)
        return state if numa_nodes is None else state.on_numa_nodes(numa_nodes)

    # Selections ------------------------------------------------------------------------------

    def refusal(
        self, state: GpuState | None, attempts: Sequence[SelectionRequest], request: PodGpuRequest
    ) -> Refusal | None:
        """Return why nodes in a state are refused, None where they are not."""
        if state is None:
            if has_hard_constraints(request.options):
                return Refusal((_NO_MACHINE,), resolvable=False)
            return None
        result = self.select(state, attempts)
        if isinstance(result.found, Selection):
            return None
        reason = f"node(s) where {result.found.reason}"
        ineligible = len(state.machine.usable) - len(state.most)
        if ineligible and len(state.free) < request.count:
            why = annotations_naming_gpus(request.options) or "the kubelet's NUMA alignment"
            reason = (
                f"node(s) where {counted(len(state.free), 'GPU')} of those that {why} leaves "
                f"{'is' if len(state.free) == 1 else 'are'} free, {request.count} asked for"
            )
        return Refusal((reason,), resolvable=not result.unresolvable)

    def select(self, state: GpuState, attempts: Sequence[SelectionRequest]) -> SelectionResult:
        """Return the best selection in a state, by the first attempt that succeeds; cached."""
        key = (state.machine.shape, state.free, state.most, *attempts)
        known = self._results.get(key)
        if known is None:
            known = self._results[key] = _select(state, attempts)
            if len(self._results) > _MOST_CACHED:
                self._results.clear()
        return known


def _select(state: GpuState, attempts: Sequence[SelectionRequest]) -> SelectionResult:
    found = select_first(state.machine, state.free, attempts)
    if isinstance(found, Selection) and not state.machine.links_assumed:
        return SelectionResult(found, _points(state.machine, state.free, found))
    empty = select_first(state.machine, state.most, attempts)
    if not isinstance(found, Selection):
        return SelectionResult(found, unresolvable=isinstance(empty, NoSelection))
    best = max(_speed(one) for one in (found, empty) if isinstance(one, Selection))
    part = _points(state.machine, state.free, found) / (best * (1 + 2 * _BONUS))
    return SelectionResult(found, NOT_KNOWN * part)


def _points(machine: Machine, free: Sequence[int], found: Selection) -> float:
    """Rate a selection: by bandwidth (GB/s), then near NICs, then how few free GPUs are left."""
    near = sum(machine.nic_distance(gpu) <= Level.PXB for gpu in found.gpus) / len(found.gpus)
    left = (len(free) - len(found.gpus)) / max(1, len(machine))
    return float(_speed(found) * (1 + _BONUS * near + _BONUS * (1 - left)))


def _speed(found: Selection) -> float:
    """Return the bandwidth in GB/s that a selection scores with; half if it gave up something."""
    speed = min(found.bottleneck, 1e6) if len(found.gpus) > 1 else _SINGLE
    return speed * (0.5 if found.relaxed else 1.0)
