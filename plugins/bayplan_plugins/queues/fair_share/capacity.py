"""The gates of ``fair-share``: limits for every job, quotas for jobs that cannot be preempted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from bayplan.queues.tree import EPSILON, AmountRows, QueueTree

__all__ = ["Excess", "Gate", "job_over_capacity", "over_limit", "over_quota"]

PREEMPTIBLE_BELOW = 100
"""Jobs of at least this priority are not preemptible unless they say so."""


class Gate(Enum):
    """Which bound a job would exceed; the value is the reason that KAI writes."""

    LIMIT = "OverLimit"
    QUOTA = "NonPreemptibleOverQuota"


@dataclass(frozen=True, slots=True)
class Excess:
    """What keeps a job out: one resource of its queue or of an ancestor.

    ``allocated`` is what the queue has, for the quota only what cannot be preempted; amounts are
    in the resource's unit, CPU in milli-CPU. ``leaf`` is the job's own queue.
    """

    gate: Gate
    queue: str
    leaf: str
    resource: str
    bound: float
    allocated: float
    requested: float

    @property
    def missing(self) -> float:
        """How much more the bound had to allow."""
        return self.allocated + self.requested - self.bound

    def __str__(self) -> str:
        queue = f'queue "{self.queue}"'
        if self.queue != self.leaf:
            queue += f', above queue "{self.leaf}",'
        if self.gate is Gate.LIMIT:
            return (
                f"{queue} has reached its limit of {self.resource}: the limit is "
                f"{self.bound:g}, {self.allocated:g} are allocated, the job asks for "
                f"{self.requested:g}."
            )
        return (
            f"{queue} has a quota of {self.bound:g} {self.resource}, {self.allocated:g} of it are "
            f"allocated to non-preemptible pods and the job asks for {self.requested:g}. A "
            "preemptible job may go over the quota."
        )


def is_preemptible(preemptibility: str | None, priority: int) -> bool:
    """Tell whether a job may be preempted: as it says, or by its priority.

    :param preemptibility: "preemptible", "non-preemptible", or nothing.
    """
    if preemptibility:
        return preemptibility == "preemptible"
    return priority < PREEMPTIBLE_BELOW


def job_over_capacity(
    tree: QueueTree, row: int, requested: AmountRows, preemptible: bool
) -> Excess | None:
    """Return what keeps a job of a queue out, None for nothing."""
    excess = over_limit(tree, row, requested)
    if excess is None and not preemptible:
        excess = over_quota(tree, row, requested)
    return excess


def over_limit(tree: QueueTree, row: int, requested: AmountRows) -> Excess | None:
    """Return the first limit, from the queue up to its root, that the request would exceed.

    Resources that are not asked for do not count, however much of them the queue has.
    """
    return _first(Gate.LIMIT, tree, row, requested, tree.used, tree.limit)


def over_quota(tree: QueueTree, row: int, requested: AmountRows) -> Excess | None:
    """Return the first quota that non-preemptible pods would exceed with the request."""
    return _first(Gate.QUOTA, tree, row, requested, tree.fixed, tree.deserved)


def _first(
    gate: Gate,
    tree: QueueTree,
    row: int,
    requested: AmountRows,
    allocated: AmountRows,
    bounds: AmountRows,
) -> Excess | None:
    path = tree.paths[row]
    exceeded = (requested > 0) & (allocated[path] + requested > bounds[path] + EPSILON)
    if not exceeded.any():
        return None
    level, column = np.unravel_index(int(np.argmax(exceeded)), exceeded.shape)
    at = int(path[level])
    return Excess(
        gate,
        tree.name(at),
        tree.name(row),
        tree.resources[column],
        float(bounds[at, column]),
        float(allocated[at, column]),
        float(requested[column]),
    )
