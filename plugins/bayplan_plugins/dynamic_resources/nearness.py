"""How nodes compare whose devices are local, attached, or still to be attached."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan_dra.allocator import Reach

__all__ = ["near_points"]

_STEP = 40
"""Points of one step nearer; more than a node can lose otherwise."""
_FEWER = 8
_FAILURE = 2
_MOST_FAILURES = 6


def near_points(chosen: Sequence[Reach], failures: int) -> float:
    """Return the points of a node for the devices that a pod would get there, up to 200.

    The farthest device counts, then how many there are of its kind, then how often devices failed
    to get ready on the node.
    """
    farthest = max(chosen, default=Reach.LOCAL)
    others = sum(reach < farthest for reach in chosen) / len(chosen) if chosen else 0.0
    doubt = _FAILURE * min(failures, _MOST_FAILURES) if farthest > Reach.ATTACHED else 0
    base = _STEP * (Reach.DOUBTFUL - farthest) + _FEWER * others
    return float(base + _FAILURE * _MOST_FAILURES - doubt)
