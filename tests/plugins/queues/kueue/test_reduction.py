"""Which pod sets of an elastic job wait when it grows by a part."""

from __future__ import annotations

from itertools import product

import pytest

from bayplan.api.kueue import PodSet
from bayplan_plugins.queues.kueue.reduction import largest_in_order

SETS = [
    PodSet("first", count=1),
    PodSet("second", count=4, min_count=2),
    PodSet("third", count=20, min_count=10),
]


@pytest.mark.parametrize(
    ("room", "counts"),
    [(25, [1, 4, 20]), (19, [1, 4, 14]), (13, [1, 2, 10]), (15, [1, 4, 10]), (10, None)],
)
def test_the_last_pod_set_shrinks_first(room: int, counts: list[int] | None) -> None:
    found = largest_in_order(SETS, lambda tried: tried if sum(tried) <= room else None)
    assert found == counts


def test_a_pod_set_that_is_not_in_the_way_grows_again() -> None:
    found = largest_in_order(SETS, lambda tried: tried if tried[1] <= 2 else None)
    assert found == [1, 2, 20]


def test_nothing_shrinks_that_may_not() -> None:
    assert largest_in_order([PodSet("only", count=4)], lambda tried: tried) is None


@pytest.mark.parametrize("rooms", list(product((0, 3, 5, 8), (0, 2, 7))))
def test_what_is_found_cannot_grow(rooms: tuple[int, int]) -> None:
    sets = [PodSet("a", count=6, min_count=2), PodSet("b", count=7, min_count=1)]

    def accepted(tried: list[int]) -> list[int] | None:
        return tried if all(n <= most for n, most in zip(tried, rooms, strict=True)) else None

    found = largest_in_order(sets, accepted)
    if found is None:
        assert rooms[0] < 2 or rooms[1] < 1
        return
    assert found == [min(6, rooms[0]), min(7, rooms[1])]
