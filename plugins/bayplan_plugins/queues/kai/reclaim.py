"""Who may reclaim what from whom in ``fair-share``.

The rules are those of KAI's proportion plugin (reclaimable). All amounts are rows of the tree's
columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan.queues.tree import AmountRows
from bayplan_plugins.queues.kai.shares import FairShares, within

__all__ = ["Reclaimer", "exceeds_quota", "over_share"]


class Reclaimer(msgspec.Struct, frozen=True, eq=False):
    """A job that may take back what was lent to other queues.

    :param row: the job's queue.
    :param requested: what the job asks for, one row.
    :param multiplier: how much fuller than the job's queue its siblings have to stay, at least 1
        (KAI's ``relcaimerSaturationMultiplier``).
    """

    shares: FairShares
    row: int
    requested: AmountRows
    preemptible: bool
    multiplier: float = 1.0

    def may_start(self) -> bool:
        """Tell whether the job may reclaim at all: its queue stays within its fair share.

        A job that cannot be preempted has to stay within the quota, too.
        """
        shares = self.shares
        if not within(shares.used[self.row] + self.requested, shares.fair[self.row]):
            return False
        return self.preemptible or shares.fixed_fits_quota(self.row, self.requested)

    def may_consider(self, victim: int) -> bool:
        """Tell whether a queue's jobs are worth trying as victims.

        A queue that is exactly at its quota stays in: its pods may be moved.
        """
        shares, tree = self.shares, self.shares.tree
        own, theirs = self._below_common(victim)
        used = shares.used[theirs]
        if not shares.fits_quota(own, self.requested):
            return over_share(shares, theirs, used)
        deserved = tree.deserved[theirs]
        counted = (self.requested > 0) & np.isfinite(deserved)
        over = counted & (used > deserved)
        return bool(over.any() or not (counted & (used < deserved)).any())

    def may_take(self, losses: Mapping[int, Sequence[AmountRows]]) -> bool:
        """Tell whether the job may take these amounts, by queue, in units that go together.

        :param losses: what each victim's queue would lose. Victims that are moved do not count.
        """
        after = _After(self.shares)
        for victim, units in losses.items():
            involved = np.any(np.array(units) > 0, axis=0) if units else self.requested < 0
            own, theirs = self._below_common(victim)
            for unit in units:
                if not self._may_lose(own, theirs, after.left(theirs)):
                    return False
                after.take(victim, unit, involved)
        return self._stays_within(after)

    def _may_lose(self, own: int, theirs: int, held: AmountRows) -> bool:
        """Tell whether a queue that holds this much may lose some of it.

        It is over its share, or over its quota while the reclaiming queue stays within its own.
        """
        shares = self.shares
        if over_share(shares, theirs, held):
            return True
        return shares.fits_quota(own, self.requested) and exceeds_quota(shares, theirs, held)

    def _stays_within(self, after: _After) -> bool:
        """Tell whether no queue above the job ends fuller than a sibling that has lost something.

        Without this rule two queues over their shares would reclaim from each other for ever.
        """
        shares = self.shares
        asked = self.requested > 0
        for row in shares.tree.path(self.row):
            held = after.left(row) + self.requested
            for sibling, involved in after.involved.items():
                if shares.tree.parent[sibling] != shares.tree.parent[row] or sibling == row:
                    continue
                counted = involved | asked
                if self._ends_fuller(row, held, sibling, after.left(sibling), counted):
                    return False
            if not (self.preemptible or shares.fixed_fits_quota(row, self.requested)):
                return False
        return True

    def _ends_fuller(
        self,
        row: int,
        held: AmountRows,
        sibling: int,
        left: AmountRows,
        counted: npt.NDArray[np.bool_],
    ) -> bool:
        fair = self.shares.fair
        own, theirs = _saturation(held, fair[row]), _saturation(left, fair[sibling])
        fuller = (own > 1) & (fair[sibling] > 0) & (own * self.multiplier >= theirs)
        return bool((fuller & counted).any())

    def _below_common(self, victim: int) -> tuple[int, int]:
        """Return the queues to compare: those just below the two queues' common ancestor."""
        tree = self.shares.tree
        branches = tree.branches(self.row, victim)
        if branches is not None:
            return branches
        upper = min(self.row, victim, key=lambda row: len(tree.paths[row]))
        return upper, upper


class _After(msgspec.Struct, eq=False):
    """What queues would have left, with the resources that they lose."""

    shares: FairShares
    involved: dict[int, npt.NDArray[np.bool_]] = msgspec.field(default_factory=dict)
    _left: dict[int, AmountRows] = msgspec.field(default_factory=dict)

    def left(self, row: int) -> AmountRows:
        """Return what a queue has left."""
        left: AmountRows = self._left.get(row, self.shares.used[row])
        return left

    def take(self, row: int, unit: AmountRows, involved: npt.NDArray[np.bool_]) -> None:
        """Take amounts from a queue and its ancestors."""
        for above in self.shares.tree.path(row):
            self._left[above] = self.left(above) - unit
            self.involved[above] = self.involved.get(above, involved) | involved


def over_share(shares: FairShares, row: int, held: AmountRows) -> bool:
    """Tell whether a queue that holds this much is over its allocatable share on a resource."""
    return not within(held, shares.allocatable(row))


def exceeds_quota(shares: FairShares, row: int, held: AmountRows) -> bool:
    """Tell whether a queue that holds this much is over its quota on some resource."""
    return not within(held, shares.tree.deserved[row])


def _saturation(held: AmountRows, fair: AmountRows) -> AmountRows:
    """Return held amounts as parts of fair shares; what has no share is full when it is used."""
    none = fair == 0
    parts = held / np.where(none, 1.0, fair)
    full: AmountRows = np.where(none, np.where(held > 0, np.inf, 0.0), parts)
    return full
