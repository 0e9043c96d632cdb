"""Partial admission: the largest counts of pods between minCount and count that are accepted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TypeVar

from bayplan.api.kueue import PodSet

__all__ = ["largest_counts"]

T = TypeVar("T")


def largest_counts(
    pod_sets: Sequence[PodSet], accepted: Callable[[list[int]], T | None]
) -> T | None:
    """Return what ``accepted`` gives for the largest counts that it accepts; None for none.

    All pod sets shrink in proportion: with k of D pods too many, pod set i has
    count_i - floor(delta_i * k / D). The search halves k, so larger counts that are accepted
    although smaller ones are not may be missed (Kueue's podset_reducer.go).
    """
    counts = [one.count for one in pod_sets]
    deltas = [
        one.count - (one.min_count if one.min_count is not None else one.count) for one in pod_sets
    ]
    total = sum(deltas)
    if not total:
        return None
    best: dict[int, T] = {}

    def fits(step: int) -> bool:
        found = accepted([n - d * step // total for n, d in zip(counts, deltas, strict=True)])
        if found is not None:
            best[step] = found
        return found is not None

    step = bisect_left(range(total + 1), True, key=fits)
    return best.get(step)
