"""NodeResourcesBalancedAllocation: nodes that the pod brings closer to equal use score high.

Formula: kube-scheduler 1.36, pkg/scheduler/framework/plugins/noderesources. It is written twice,
over columns and for one row, with the same order of additions, so that both are equal to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bayplan import SKIP, Args, Handle, NodeRow, NodeView, Plugin, PodInfo, Reads, hookimpl
from bayplan.plugin.hookspecs import FloatColumn, IntColumn
from bayplan.snapshot import SpecFacts
from bayplan_plugins.node_resources.resources import NATIVE, ResourceSpec

__all__ = ["NodeResourcesBalancedAllocation", "NodeResourcesBalancedAllocationArgs"]

_PAIR = 2
_MOST_KEPT = 4096


class NodeResourcesBalancedAllocationArgs(Args):
    """Arguments of NodeResourcesBalancedAllocation."""

    resources: tuple[ResourceSpec, ...] = (ResourceSpec(name="cpu"), ResourceSpec(name="memory"))


class NodeResourcesBalancedAllocation(Plugin[NodeResourcesBalancedAllocationArgs]):
    """Prefer nodes on which the pod would make the use of resources more balanced.

    A node's balance is 100 * (1 - standard deviation of the used shares), rounded down, 50 at
    least. The score is 50 + (50 + balance with the pod - balance without it) / 2, rounded down: 75
    where the pod changes nothing.
    """

    Args = NodeResourcesBalancedAllocationArgs
    reads = Reads.NODE | Reads.PODS
    by_spec = True

    def __init__(self, args: NodeResourcesBalancedAllocationArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._asked_of: dict[SpecFacts, tuple[tuple[str, int], ...]] = {}

    @hookimpl
    def pre_score(self, pod: PodInfo) -> object:
        """Skip pods that request none of the resources."""
        return None if any(pod.requests.get(r.name) for r in self.args.resources) else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Score every node."""
        asked = self._asked(pod)
        offered = [nodes.allocatable(name) for name, _ in asked]
        before = [nodes.used(name) for name, _ in asked]
        after = [used + need for used, (_, need) in zip(before, asked, strict=True)]
        if len(asked) == _PAIR:
            now, then = _balances_of_two(offered, before, after)
        else:
            now, then = (_balances(offered, used, len(nodes)) for used in (before, after))
        scores: FloatColumn = 50 + np.floor((50 + then - now) / 2)
        return scores

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        """Score one node."""
        now, then = [], []
        for name, asked in self._asked(pod):
            offered, used = node.amounts(name)
            if offered:
                after = used + asked
                now.append(used / offered if used < offered else 1.0)
                then.append(after / offered if after < offered else 1.0)
        return float(50 + (50 + _balance(then) - _balance(now)) // 2)

    def _asked(self, pod: PodInfo) -> Sequence[tuple[str, int]]:
        """Return the resources that count for a pod, with its requests."""
        found = self._asked_of.get(pod.facts)
        if found is None:
            if len(self._asked_of) >= _MOST_KEPT:
                self._asked_of.clear()
            asked = ((one.name, pod.requests.get(one.name, 0)) for one in self.args.resources)
            found = self._asked_of[pod.facts] = tuple(
                (name, amount) for name, amount in asked if amount or name in NATIVE
            )
        return found


def _balances(offers: Sequence[IntColumn], uses: Sequence[IntColumn], size: int) -> FloatColumn:
    """Return the balance of every node.

    :param offers: what the nodes offer of each resource.
    :param uses: what is used of each.
    """
    shares = [
        np.where(offered > 0, np.minimum(used / np.maximum(offered, 1), 1.0), 0.0)
        for offered, used in zip(offers, uses, strict=True)
    ]
    present = [(offered > 0).astype(np.int64) for offered in offers]
    balances: FloatColumn = np.trunc((1 - _deviations(shares, present, size)) * 100)
    return balances


def _balances_of_two(offers: Sequence[IntColumn], *uses: Sequence[IntColumn]) -> FloatColumn:
    """Return the balances of every node with respect to two resources, a row for each of ``uses``.

    With exactly two resources half of their difference is the deviation.
    """
    one, other = (
        np.minimum(np.array(used) / np.maximum(offered, 1), 1.0)
        for offered, *used in zip(offers, *uses, strict=True)
    )
    deviation = np.abs((one - other) / 2)
    lacking = np.minimum(*offers) <= 0
    if np.count_nonzero(lacking):
        deviation[:, lacking] = 0.0
    balances: FloatColumn = np.trunc((1 - deviation) * 100)
    return balances


def _balance(shares: Sequence[float]) -> int:
    """Return the balance of one node, given the used shares of its resources, each at most 1."""
    count = len(shares)
    if count < _PAIR:
        return 100
    if count == _PAIR:
        deviation = abs((shares[0] - shares[1]) / 2)
    else:
        mean = _sum(shares) / count
        squares = _sum([(share - mean) * (share - mean) for share in shares])
        deviation = math.sqrt(squares / count)
    return math.trunc((1 - deviation) * 100)


def _deviations(
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
