"""The gates of ``fair-share``: limits for every job, quotas for jobs that cannot be preempted."""

from __future__ import annotations

import numpy as np

from bayplan.queues.tree import EPSILON, AmountRows, QueueTree
from bayplan_plugins.queues.policy import QuotaRefusal

__all__ = [
    "LIMIT",
    "QUOTA",
    "is_preemptible",
    "job_over_capacity",
    "over_limit",
    "over_quota",
    "overrun",
]

LIMIT, QUOTA = "limit", "quota for non-preemptible pods"
"""The bounds that a refusal names (KAI's reasons OverLimit and NonPreemptibleOverQuota)."""
_PREEMPTIBLE_BELOW = 100
"""Jobs of at least this priority are not preemptible unless they say so."""


def is_preemptible(preemptibility: str | None, priority: int) -> bool:
    """Tell whether a job may be preempted: as it says, or by its priority.

    :param preemptibility: "preemptible", "non-preemptible", or nothing.
    """
    if preemptibility:
        return preemptibility == "preemptible"
    return priority < _PREEMPTIBLE_BELOW


def job_over_capacity(
    tree: QueueTree, row: int, requested: AmountRows, preemptible: bool
) -> QuotaRefusal | None:
    """Return what keeps a job of a queue out, None for nothing."""
    excess = over_limit(tree, row, requested)
    if excess is None and not preemptible:
        excess = over_quota(tree, row, requested)
    return excess


def overrun(tree: QueueTree, row: int, taken: AmountRows, preemptible: bool) -> QuotaRefusal | None:
    """Return what is exceeded on the way to the root now that the tree counts a pod of a queue.

    :param taken: what the pod takes.
    """
    path = tree.paths[row]
    over = tree.used[path] > tree.limit[path] + EPSILON
    if not preemptible:
        over |= tree.fixed[path] > tree.deserved[path] + EPSILON
    if not np.count_nonzero(over & (taken > 0)):
        return None
    before = tree.used - taken, tree.fixed - (0.0 if preemptible else taken)
    excess = _first(LIMIT, tree, row, taken, before[0], tree.limit)
    if excess is None and not preemptible:
        excess = _first(QUOTA, tree, row, taken, before[1], tree.deserved)
    return excess


def over_limit(tree: QueueTree, row: int, requested: AmountRows) -> QuotaRefusal | None:
    """Return the first limit, from the queue up to its root, that the request would exceed.

    Resources that are not asked for do not count, however much of them the queue has.
    """
    return _first(LIMIT, tree, row, requested, tree.used, tree.limit)


def over_quota(tree: QueueTree, row: int, requested: AmountRows) -> QuotaRefusal | None:
    """Return the first quota that non-preemptible pods would exceed with the request."""
    return _first(QUOTA, tree, row, requested, tree.fixed, tree.deserved)


def _first(
    bound: str,
    tree: QueueTree,
    row: int,
    requested: AmountRows,
    allocated: AmountRows,
    bounds: AmountRows,
) -> QuotaRefusal | None:
    path = tree.paths[row]
    exceeded = (requested > 0) & (allocated[path] + requested > bounds[path] + EPSILON)
    if not exceeded.any():
        return None
    level, column = np.unravel_index(int(np.argmax(exceeded)), exceeded.shape)
    at = int(path[level])
    return QuotaRefusal(
        tree.name(row),
        tree.name(at),
        tree.resources[column],
        bound,
        float(bounds[at, column]),
        float(allocated[at, column]),
        float(requested[column]),
    )
