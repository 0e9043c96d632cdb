"""What the queues may have now: by capacity, flat or as a tree, and by proportion.

Arrays have the rows and columns of the tree. The formulas are those of volcano-sh/volcano's plugins
capacity and proportion.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from bayplan.queues.tree import EPSILON, AmountRows, QueueTree

__all__ = ["Entitlements", "capacity", "dominant_share", "proportion", "tree_capacity"]


class Entitlements(msgspec.Struct, frozen=True):
    """What each queue may have: at most ``real``, ``deserved`` whenever it asks for it."""

    real: AmountRows
    deserved: AmountRows


def _real(total: AmountRows, guaranteed: AmountRows, limit: AmountRows) -> AmountRows:
    """Bound queues by the cluster without what is guaranteed to the others, and by their limit."""
    rest = np.maximum(total - guaranteed.sum(axis=0), 0.0)
    bound: AmountRows = np.minimum(rest + guaranteed, limit)
    return bound


def capacity(tree: QueueTree, total: AmountRows) -> Entitlements:
    """Return what queues without a tree may have by capacity.

    :param total: what the cluster offers, in the columns of the tree.
    """
    real = _real(total, tree.guaranteed, tree.limit)
    return Entitlements(real, np.maximum(np.minimum(tree.deserved, real), tree.guaranteed))


def tree_capacity(tree: QueueTree) -> Entitlements:
    """Return what queues of a tree may have by capacity.

    A root is bounded by its own limit only, and deserves and guarantees what its children do
    together. A child is bounded by its parent without what is guaranteed to its siblings; limits
    that it does not state are its parent's.
    """
    real = np.array(tree.limit)
    deserved = np.maximum(tree.deserved, tree.guaranteed)
    for row, children in enumerate(tree.children):
        if not children:
            continue
        if tree.parent[row] < 0:
            deserved[row] = deserved[children].sum(axis=0)
        real[children] = _real(real[row], tree.guaranteed[children], tree.limit[children])
    return Entitlements(real, deserved)


def proportion(tree: QueueTree, total: AmountRows, active: Sequence[int]) -> Entitlements:
    """Return what queues may have by proportion: the cluster, divided by weight and demand.

    Each round divides what is left by weight among the queues that are not satisfied. A queue gets
    at most its bound and what it asks for, at least its guarantee; it is satisfied once it has what
    it asks for, or gets nothing more.

    :param active: the rows of queues with jobs; the others deserve nothing.
    """
    real = _real(total, tree.guaranteed, tree.limit)
    deserved = np.zeros_like(tree.used)
    weight = tree.weight.max(axis=1, initial=0.0)
    remaining = np.array(total)
    unmet = [row for row in active if weight[row] > 0]
    while unmet:
        before = deserved[unmet]
        portions = np.outer(weight[unmet] / weight[unmet].sum(), remaining)
        found = np.minimum(np.minimum(before + portions, real[unmet]), tree.demand[unmet])
        deserved[unmet] = found = np.maximum(found, tree.guaranteed[unmet])
        same = np.abs(found - before).max(axis=1, initial=0.0) <= EPSILON
        satisfied = (tree.demand[unmet] <= found + EPSILON).all(axis=1) | same
        left = remaining - (found - before).sum(axis=0)
        settled = np.abs(left - remaining).max(initial=0.0) <= EPSILON
        remaining = np.maximum(left, 0.0)
        unmet = [row for row, done in zip(unmet, satisfied.tolist(), strict=True) if not done]
        if settled or remaining.max(initial=0.0) <= EPSILON:
            break
    return Entitlements(real, deserved)


def dominant_share(used: AmountRows, deserved: AmountRows) -> AmountRows:
    """Return each row's largest part used of what it deserves; 1 for a row that deserves nothing.

    The result has one dimension less than the arguments; it may exceed 1.
    """
    has = deserved > EPSILON
    parts = np.divide(used, deserved, out=np.zeros_like(used), where=has)
    share: AmountRows = np.where(has.any(axis=-1), parts.max(axis=-1, initial=0.0), 1.0)
    return share
