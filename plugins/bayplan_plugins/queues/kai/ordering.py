"""The order of queues in ``fair-share``: whose job is tried next, and whose jobs go last.

The criteria and their order are those of KAI's proportion plugin (queue_order). ``Standings.first``
of :mod:`.standings` picks by them.
"""

from __future__ import annotations

import msgspec
import numpy as np

from bayplan.queues.tree import AmountRows
from bayplan_plugins.queues.kai.shares import FairShares, within

__all__ = ["Standing", "compare", "dominant_share", "standing"]

_NO_SHARE = 1000.0
"""What one unit of a resource weighs in a queue that has no share of it."""


class Standing(msgspec.Struct, frozen=True, eq=False):
    """A queue's place among its siblings; see :func:`compare`.

    ``rank`` holds what sorts before all else, the smallest first: over its fair share on every
    resource, over its quota with the job, its priority (negated), uses what it has no share of,
    dominant share with the job and without. ``allocatable`` is what it may hold on to.
    """

    rank: tuple[bool, bool, int, bool, float, float]
    allocatable: AmountRows
    created: float
    uid: str


def standing(
    shares: FairShares, row: int, requested: AmountRows, taken: AmountRows | None = None
) -> Standing:
    """Return where a queue stands with its next job.

    :param requested: what the job asks for; for a queue of victims what its next victim has.
    :param taken: what victims of the queue give back, with the next one; None for an order of jobs.
    """
    tree = shares.tree
    queue = tree.queues[row]
    used = shares.used[row]
    allocatable = shares.allocatable(row)
    with_job = used + requested
    rank = (
        bool((shares.fair[row] < used).all()),
        not within(with_job, tree.deserved[row]),
        -queue.priority,
        bool(((allocatable == 0) & (with_job > 0)).any()),
        dominant_share(shares, allocatable, with_job if taken is None else with_job - taken),
        dominant_share(shares, allocatable, used),
    )
    return Standing(rank, allocatable, queue.created, queue.uid)


def dominant_share(shares: FairShares, allocatable: AmountRows, amounts: AmountRows) -> float:
    """Return the largest part of what a queue may have that it has, over all resources.

    An unlimited share is the cluster; a resource without any share weighs a thousandfold.
    """
    bound = np.where(np.isinf(allocatable), shares.total, allocatable)
    none = bound == 0
    parts = np.where(none, amounts * _NO_SHARE, amounts / np.where(none, 1.0, bound))
    return max(0.0, float(parts.max(initial=0.0)))


def compare(one: Standing, other: Standing) -> int:
    """Return -1 when the first queue comes before the other, 1 when after it.

    After the ranks, the queue whose allocatable share is smaller comes first, then the older one,
    then the one with the smaller UID.
    """
    if one.rank != other.rank:
        return -1 if one.rank < other.rank else 1
    if within(one.allocatable, other.allocatable) != within(other.allocatable, one.allocatable):
        return -1 if within(one.allocatable, other.allocatable) else 1
    return -1 if (one.created, one.uid) <= (other.created, other.uid) else 1
