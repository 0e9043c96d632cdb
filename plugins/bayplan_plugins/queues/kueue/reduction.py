"""Partial admission: the largest counts of pods between minCount and count that are accepted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TypeVar

from bayplan.api.kueue import PodSet

__all__ = ["largest_counts", "largest_in_order"]

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


def largest_in_order(
    pod_sets: Sequence[PodSet], accepted: Callable[[list[int]], T | None]
) -> T | None:
    """Return what ``accepted`` gives for the largest counts that it accepts; None for none.

    The last pod set shrinks first, to its minCount, then the one before it. What shrank
    for nothing, as another one was in the way, then grows again, the first pod set first.
    """
    counts = [one.count for one in pod_sets]
    best: T | None = None
    for index in reversed(range(len(pod_sets))):
        least = pod_sets[index].min_count
        if least is None or least >= counts[index]:
            continue
        found = _most(counts, index, least, accepted)
        if found is not None:
            counts[index], best = found
            break
        counts[index] = least
    if best is None:
        return None
    for index, one in enumerate(pod_sets):
        if counts[index] < one.count:
            found = _most(counts, index, counts[index] + 1, accepted, one.count)
            if found is not None:
                counts[index], best = found
    return best


def _most(
    counts: Sequence[int],
    index: int,
    least: int,
    accepted: Callable[[list[int]], T | None],
    most: int | None = None,
) -> tuple[int, T] | None:
    """Return the largest count of one pod set that is accepted, with the answer.

    :param most: the largest count to try; None for less than it has.
    """
    best: tuple[int, T] | None = None
    top = counts[index] - 1 if most is None else most

    def fits(less: int) -> bool:
        nonlocal best
        tried = [*counts]
        tried[index] = top - less
        found = accepted(tried)
        if found is not None and (best is None or tried[index] > best[0]):
            best = tried[index], found
        return found is not None

    bisect_left(range(top - least + 1), True, key=fits)
    return best
