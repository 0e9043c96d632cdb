"""What would let a node give a pod its GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from bayplan import NodeRow, NodeView, PodInfo, Remedy
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.plugin.hookspecs import BoolColumn
from bayplan.topology.machine.select import Selection
from bayplan_plugins.gpu_topology.job_limits import JobLimits
from bayplan_plugins.gpu_topology.requests import PodGpuRequest, weaker_requests
from bayplan_plugins.gpu_topology.selection import GpuSelector
from bayplan_plugins.gpus.ledger import GpuLedger
from bayplan_plugins.gpus.machines import MACHINE
from bayplan_plugins.gpus.whole_gpus import GpuState

__all__ = ["GpuAdvice"]


class GpuAdvice:
    """Finds the requirement that keeps a pod off a node, by trying without it."""

    def __init__(self, gpus: GpuLedger, selector: GpuSelector, limits: JobLimits) -> None:
        self._gpus = gpus
        self._selector = selector
        self._limits = limits

    def remedies(self, pod: PodInfo, request: PodGpuRequest, nodes: NodeView) -> Iterator[Remedy]:
        """Yield requirements to drop, and machines that have to be described."""
        attempts = self._selector.attempts(pod, request)
        for state, mask in self._selector.states(pod, request, nodes):
            if self._selector.refusal(state, attempts, request) is None:
                continue
            for node in _rows(nodes, mask):
                if state is not None:
                    yield from _more_free(pod, request, state, node)
                    yield from self._without_constraint(pod, request, node)
                    continue
                problem = self._gpus.problem(node.name)
                text = f"could fit on {node.name} if it said which machine it is ({MACHINE})"
                if problem:
                    text = f"could fit on {node.name} if its machine could be read: {problem}"
                yield Remedy(text, node.row, 2.0)
        yield from self._without_limits(pod, request, nodes)

    def _without_constraint(
        self, pod: PodInfo, request: PodGpuRequest, node: NodeRow
    ) -> Iterator[Remedy]:
        """Yield the constraints without which a node would fit."""
        for name, options in weaker_requests(request.options):
            weaker = replace(request, options=options)
            state = self._selector.state_of_node(pod, weaker, node.name)
            if state is None:
                continue
            found = self._selector.select(state, self._selector.attempts(pod, weaker)).found
            if isinstance(found, Selection):
                text = f"would fit on {node.name} without {name}"
                if len(found.gpus) > 1:
                    names = ", ".join(f"GPU{gpu}" for gpu in found.gpus)
                    text += f"; {names} reach {found.bottleneck:g} GB/s"
                effort = 0.5 - min(found.bottleneck, 1e5) * 1e-6
                yield Remedy(text, node.row, effort)

    def _without_limits(
        self, pod: PodInfo, request: PodGpuRequest, nodes: NodeView
    ) -> Iterator[Remedy]:
        """Yield the nodes that the job could use without the limits over its nodes."""
        if all(not reject.mask.any() for reject in self._limits.rejects(pod, request, nodes)):
            return
        name = "max-nodes" if request.options.max_nodes is not None else "min-gpus-per-node"
        unlimited = replace(
            request, options=replace(request.options, max_nodes=None, min_gpus_per_node=None)
        )
        attempts = self._selector.attempts(pod, unlimited)
        for state, mask in self._selector.states(pod, unlimited, nodes):
            if self._selector.refusal(state, attempts, unlimited) is None:
                for node in _rows(nodes, mask):
                    text = f"could fit on {node.name} without gpu.topology/{name}"
                    yield Remedy(text, node.row, 0.6)


def _more_free(
    pod: PodInfo, request: PodGpuRequest, state: GpuState, node: NodeRow
) -> Iterator[Remedy]:
    """Yield how many GPUs more would have to be free, in the words of NodeResourcesFit."""
    missing = request.count - len(state.free)
    if missing > 0 and request.count <= len(state.most):
        resource = next((name for name in GPU_RESOURCES if name in pod.requests), "GPUs")
        verb = "was" if missing == 1 else "were"
        text = f"would fit if {missing} {resource} {verb} freed on {node.name}"
        yield Remedy(text, node.row, missing / len(state.most), frees=True)


def _rows(nodes: NodeView, mask: BoolColumn) -> Iterator[NodeRow]:
    """Yield the nodes of a mask."""
    rows = np.flatnonzero(mask) if nodes.rows is None else np.asarray(nodes.rows)[mask]
    return (NodeRow(nodes.table, int(row)) for row in rows)
