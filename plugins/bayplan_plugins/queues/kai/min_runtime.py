"""How long jobs of a queue are safe from preemption and reclaim after they started.

The rules are those of KAI's minruntime plugin: a queue that says nothing inherits from above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from bayplan.api.queue import Queue
from bayplan.queues.tree import QueueTree

__all__ = ["ReclaimResolution", "preempt_min_runtime", "reclaim_min_runtime"]


class ReclaimResolution(Enum):
    """Where the search for a queue's reclaim minimum begins (KAI's reclaimResolveMethod)."""

    COMMON_ANCESTOR = "lca"
    QUEUE = "queue"


def preempt_min_runtime(tree: QueueTree, victim: int, default: float = 0.0) -> float:
    """Return for how many seconds a job is safe from other jobs of its queue."""
    return _first(tree, tree.path(victim), lambda queue: queue.preempt_min_runtime, default)


def reclaim_min_runtime(
    tree: QueueTree,
    victim: int,
    reclaimer: int,
    resolution: ReclaimResolution,
    default: float = 0.0,
) -> float:
    """Return for how many seconds a job is safe from a job of another queue.

    With ``lca``, queues inside the branch in which both are do not decide for themselves: what
    counts is the victim's side just below the common ancestor, and the queues above it. Without
    a common ancestor that is the victim's root alone.
    """
    rows = tree.path(victim)
    if resolution is ReclaimResolution.COMMON_ANCESTOR:
        branches = tree.branches(victim, reclaimer)
        if branches is not None:
            rows = tree.path(branches[0])
    return _first(tree, rows, lambda queue: queue.reclaim_min_runtime, default)


def _first(
    tree: QueueTree, rows: Iterable[int], value: Callable[[Queue], float | None], default: float
) -> float:
    found = (value(tree.queues[row]) for row in rows)
    return next((seconds for seconds in found if seconds is not None), default)
