"""NodeResourcesBalancedAllocation: nodes whose resources are used in equal shares score high.

Formula: kube-scheduler 1.36, pkg/scheduler/framework/plugins/noderesources. It is written twice,
over columns and for one row, with the same order of additions, so that both are equal to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from bayplan import SKIP, Args, NodeRow, NodeView, Plugin, PodInfo, Reads, hookimpl
from bayplan.plugin.hookspecs import FloatColumn, IntColumn
from bayplan_plugins.node_resources.resources import NATIVE, ResourceSpec

__all__ = ["NodeResourcesBalancedAllocation", "NodeResourcesBalancedAllocationArgs"]


class NodeResourcesBalancedAllocationArgs(Args):
    """Arguments of NodeResourcesBalancedAllocation."""

    resources: tuple[ResourceSpec, ...] = (ResourceSpec(name="cpu"), ResourceSpec(name="memory"))


class NodeResourcesBalancedAllocation(Plugin[NodeResourcesBalancedAllocationArgs]):
    """Prefer nodes on which the pod would leave all resources used in equal shares.

    Score = 100 * (1 - standard deviation of the used shares), rounded down.
    """

    Args = NodeResourcesBalancedAllocationArgs
    reads = Reads.NODE | Reads.PODS

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by the spec, which holds the requests."""
        return pod.facts

    @hookimpl
    def pre_score(self, pod: PodInfo) -> object:
        """Skip pods that request none of the resources."""
        return None if any(pod.requests.get(r.name) for r in self.args.resources) else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Score every node."""
        shares: list[FloatColumn] = []
        present: list[IntColumn] = []
        for name, asked in self._asked(pod):
            offered = nodes.allocatable(name)
            used = (nodes.used(name) + asked) / np.maximum(offered, 1)
            shares.append(np.where(offered > 0, np.minimum(used, 1.0), 0.0))
            present.append((offered > 0).astype(np.int64))
        return np.trunc((1 - _deviation(shares, present, len(nodes))) * 100)

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        """Score one node."""
        shares = []
        for name, asked in self._asked(pod):
            offered = node.allocatable(name)
            if offered:
                shares.append(min((node.used(name) + asked) / offered, 1.0))
        if len(shares) == 2:
            deviation = abs((shares[0] - shares[1]) / 2)
        elif len(shares) > 2:
            mean = _sum(shares) / len(shares)
            squares = _sum([(share - mean) * (share - mean) for share in shares])
            deviation = math.sqrt(squares / len(shares))
        else:
            deviation = 0.0
        return float(math.trunc((1 - deviation) * 100))

    def _asked(self, pod: PodInfo) -> Iterator[tuple[str, int]]:
        for resource in self.args.resources:
            asked = pod.requests.get(resource.name, 0)
            if asked or resource.name in NATIVE:
                yield resource.name, asked


def _deviation(
    shares: Sequence[FloatColumn], present: Sequence[IntColumn], size: int
) -> FloatColumn:
    """Return, per node, the standard deviation over the resources that the node has."""
    if not shares:
        return np.zeros(size)
    count = sum(present[1:], start=present[0])
    total = np.zeros(size)
    for share in shares:
        total = total + share
    mean = total / np.maximum(count, 1)
    squares = np.zeros(size)
    for share, here in zip(shares, present, strict=True):
        squares = squares + np.where(here > 0, (share - mean) * (share - mean), 0.0)
    result = np.sqrt(squares / np.maximum(count, 1))
    result[count < 2] = 0.0
    for i in range(len(shares)):
        for j in range(i + 1, len(shares)):
            # With exactly two resources half of their difference is the deviation.
            pair = (count == 2) & (present[i] > 0) & (present[j] > 0)
            result = np.where(pair, np.abs((shares[i] - shares[j]) / 2), result)
    return result


def _sum(values: Sequence[float]) -> float:
    # Adds in the same order as the columns do, so that both spellings agree to the last bit.
    total = 0.0
    for value in values:
        total += value
    return total
