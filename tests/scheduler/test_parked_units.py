"""Lines of units that wait behind a refused one: as if each question looked at all of them."""

from __future__ import annotations

import random

import pytest

from bayplan.scheduler.parked_units import ParkedUnits


def first_below(waiting: dict[str, tuple[tuple[float, ...], int]], size: float) -> str | None:
    """Return what a line answers, found the plain way."""
    smaller = [(place, key) for key, (place, own) in waiting.items() if own < size]
    return min(smaller)[1] if smaller else None


def test_only_units_smaller_than_all_before_them_are_offered() -> None:
    line = ParkedUnits[str]((0,))
    for index, size in enumerate([8, 9, 4, 4, 6, 2]):
        line.add(f"job-{index}", (0.0, float(index)), size)
    assert [line.first_below(size) for size in (99, 8, 4, 2)] == ["job-0", "job-2", "job-5", None]


def test_a_unit_that_left_is_not_offered_and_hides_nobody() -> None:
    line = ParkedUnits[str]((0,))
    line.add("first", (0.0,), 2)
    line.add("second", (1.0,), 3)
    assert line.first_below(9) == "first"
    line.remove("first")
    assert line.first_below(9) == "second"
    line.add("first", (0.0,), 5)
    assert line.first_below(9) == "first"
    assert line.first_below(5) == "second"
    assert len(line) == 2


@pytest.mark.parametrize("seed", range(30))
def test_a_line_answers_as_a_look_at_all_units_does(seed: int) -> None:
    chance = random.Random(seed)
    line, waiting = ParkedUnits[str]((0,)), dict[str, tuple[tuple[float, ...], int]]()
    last: dict[str, tuple[tuple[float, ...], int]] = {}
    for _ in range(400):
        index = chance.randrange(25)
        key = f"job-{index}"
        if key in waiting:
            line.remove(key)
            last[key] = waiting.pop(key)
        else:
            fresh = ((float(chance.randrange(3)), float(index)), chance.randint(1, 9))
            place, size = last[key] if key in last and chance.random() < 0.6 else fresh
            line.add(key, place, size)
            waiting[key] = (place, size)
        size = chance.randint(1, 10)
        assert line.first_below(size) == first_below(waiting, size)
    assert len(line) == len(waiting)
