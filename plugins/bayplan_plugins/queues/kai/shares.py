"""What each queue has, deserves and may have, as the rules of ``fair-share`` compare it."""

from __future__ import annotations

import msgspec
import numpy as np

from bayplan.queues.tree import EPSILON, AmountRows, QueueTree

__all__ = ["FairShares", "within"]


class FairShares(msgspec.Struct, frozen=True, eq=False):
    """A tree of queues with the fair share of each.

    What the queues use is read from the tree, so that it follows trials, unless it is given.

    :param fair: the fair shares, shape (queues, resources), see
        :class:`~bayplan_plugins.queues.division.Division`.
    :param total: the cluster's amounts, one row.
    :param kept: what the queues used at some time, and the part of it that cannot be preempted.
    """

    tree: QueueTree
    fair: AmountRows
    total: AmountRows
    kept: tuple[AmountRows, AmountRows] | None = None

    @property
    def used(self) -> AmountRows:
        """What each queue uses, shape (queues, resources)."""
        return self.tree.used if self.kept is None else self.kept[0]

    @property
    def fixed(self) -> AmountRows:
        """The part of it that cannot be preempted."""
        return self.tree.fixed if self.kept is None else self.kept[1]

    def frozen(self) -> FairShares:
        """Return the shares with what the queues use now, whatever trials change."""
        kept = self.tree.used.copy(), self.tree.fixed.copy()
        return FairShares(self.tree, self.fair, self.total, kept)

    def allocatable(self, row: int) -> AmountRows:
        """Return the most that a queue may hold on to: its quota or fair share, up to its limit.

        With an unlimited quota this is the limit (KAI's GetAllocatableShare).
        """
        tree = self.tree
        share: AmountRows = np.minimum(
            tree.limit[row], np.maximum(tree.deserved[row], self.fair[row])
        )
        return share

    def fits_quota(self, row: int, requested: AmountRows) -> bool:
        """Tell whether a queue stays within its quota on every resource with the request added."""
        return within(self.used[row] + requested, self.tree.deserved[row])

    def fixed_fits_quota(self, row: int, requested: AmountRows) -> bool:
        """Tell the same of what cannot be preempted, the request included."""
        return within(self.fixed[row] + requested, self.tree.deserved[row])


def within(amounts: AmountRows, bounds: AmountRows) -> bool:
    """Tell whether no amount exceeds its bound."""
    return bool((amounts <= bounds + EPSILON).all())
