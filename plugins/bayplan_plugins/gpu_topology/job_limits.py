"""What a job asks of its nodes together: how many, how full, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from bayplan import NodeView, PodInfo, Reject
from bayplan.naming import counted
from bayplan.plugin.hookspecs import FloatColumn
from bayplan_plugins.gpu_topology.requests import PodGpuRequest
from bayplan_plugins.gpus.ledger import GpuLedger

__all__ = ["JobLimits"]


class JobLimits:
    """Applies ``max-nodes``, ``min-gpus-per-node`` and ``multi-node-policy`` to a job's pods."""

    def __init__(self, gpus: GpuLedger) -> None:
        self._gpus = gpus

    def nodes(self, pod: PodInfo, request: PodGpuRequest) -> Mapping[str, int]:
        """Return how many GPUs the pod's job has on each node; empty if that does not matter."""
        if not request.job or not request.options.spans_nodes:
            return {}
        return self._gpus.job_nodes(request.job, pod.uid)

    def rejects(self, pod: PodInfo, request: PodGpuRequest, nodes: NodeView) -> Iterator[Reject]:
        """Yield the nodes that would break a limit: one too many, or with too few GPUs."""
        asked = request.options
        used = self.nodes(pod, request)
        if asked.max_nodes is not None and len(used) >= asked.max_nodes:
            other = np.array([name not in used for name in nodes.names], dtype=np.bool_)
            most = counted(asked.max_nodes, "node")
            yield Reject(other, f"node(s) beyond gpu.topology/max-nodes: {most}", resolvable=False)
        least = asked.min_gpus_per_node
        if least is None:
            return
        # A node that the job has begun comes first, until its part of it is large enough.
        begun = {name for name, count in used.items() if count < least}
        short = np.zeros(len(nodes), dtype=np.bool_)
        for index, name in enumerate(nodes.names):
            gpus = self._gpus.whole(name)
            if gpus is not None:
                more = gpus.left(pod.uid) // request.count * request.count
                short[index] = used.get(name, 0) + more < least
        yield Reject(short, f"node(s) without {counted(least, 'GPU')} for the job")
        if begun:
            other = np.array([name not in begun for name in nodes.names], dtype=np.bool_)
            where = ", ".join(sorted(begun))
            reason = f"node(s) other than {where}, where the job has fewer than {least} GPUs yet"
            yield Reject(other, reason, resolvable=False)

    def scaled(
        self, pod: PodInfo, request: PodGpuRequest, nodes: NodeView, scores: FloatColumn
    ) -> FloatColumn:
        """Prefer the job's nodes (pack), other nodes (spread), or the fullest ones (best-fit)."""
        order = request.options.node_order
        if order == "best-fit":
            free = [len(g.free()) if (g := self._gpus.whole(n)) else 0 for n in nodes.names]
            left = np.maximum(np.array(free, dtype=np.float64) - request.count, 0.0)
            packed: FloatColumn = scores / (1.0 + left)
            return packed
        used = self.nodes(pod, request)
        if not used or order is None:
            return scores
        mine = np.array([name in used for name in nodes.names], dtype=np.bool_)
        return np.where(mine == (order == "pack"), scores, scores / 2)
