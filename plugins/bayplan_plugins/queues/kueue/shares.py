"""The dominant share of a node of the quota forest (Kueue's KEP-1714, fair sharing).

Of each resource, what a node borrows is set against what its parent could lend; the largest ratio,
times 1000 and divided by the weight, is the share.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from bayplan.api.queue import Amounts
from bayplan_plugins.queues.kueue.amounts import resource_of
from bayplan_plugins.queues.kueue.quotas import QuotaForest

__all__ = ["MOST_SHARE", "DominantShare", "dominant_share"]

MOST_SHARE = 2**63 - 1
"""The rounded share of a node of weight 0 that borrows."""


@dataclass
class DominantShare:
    """The share of a node.

    ``ratio`` is of the weight 1, times 1000. ``borrowed`` names the columns that are borrowed.
    ``weighted`` is the ratio divided by the weight, infinite for a node of weight 0 that borrows.
    ``order`` is what shares compare by; nodes of weight 0 that borrow come last, by their ratios.
    """

    weight: float = 1.0
    ratio: float = 0.0
    resource: str = ""
    borrowed: Collection[str] = ()
    weighted: float = field(init=False)
    order: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        if self.weight == 0 and (self.borrowed or self.ratio):
            self.weighted = math.inf
            self.order = math.inf, self.ratio
        else:
            self.weighted = self.ratio / self.weight if self.ratio else 0.0
            self.order = self.weighted, 0.0

    @property
    def borrows(self) -> bool:
        """Whether the node uses more than its quota of any column."""
        return bool(self.borrowed)

    @property
    def rounded(self) -> int:
        """The weighted share as a status shows it."""
        return MOST_SHARE if self.weighted > MOST_SHARE else math.ceil(self.weighted)

    def borrows_any(self, requested: Amounts) -> bool:
        """Tell whether the node borrows in a column of which an amount is requested."""
        return any(requested.get(name, 0) > 0 for name in self.borrowed)


def dominant_share(
    forest: QuotaForest, row: int, also: Mapping[str, float] | None = None
) -> DominantShare:
    """Return the share of a row, ``also`` using additional amounts. A root's is 0."""
    weight, parent = forest.weight[row], forest.parent[row]
    if parent < 0:
        return DominantShare(weight)
    used, extra = forest.used[row], also or {}
    borrowing: dict[str, float] = {}
    borrowed = []
    for name, quota in forest.subtree[row].items():
        excess = used.get(name, 0) + extra.get(name, 0) - quota
        if excess > 0:
            resource = resource_of(name)
            borrowing[resource] = borrowing.get(resource, 0) + excess
            borrowed.append(name)
    if not borrowing:
        return DominantShare(weight)
    ratio, dominant = 0.0, ""
    lendable = _lendable(forest, parent)
    for resource in sorted(borrowing):
        most = lendable.get(resource, 0)
        if most > 0 and borrowing[resource] * 1000 / most > ratio:
            ratio, dominant = borrowing[resource] * 1000 / most, resource
    return DominantShare(weight, ratio, dominant, borrowed)


def _lendable(forest: QuotaForest, row: int) -> dict[str, float]:
    """Return what a row could lend of each resource, over all flavors that its root has."""
    found = forest.lendable.get(row)
    if found is None:
        found = {}
        for name in forest.subtree[forest.root(row)]:
            resource = resource_of(name)
            found[resource] = found.get(resource, 0) + forest.potential(row, name)
        forest.lendable[row] = found
    return found
