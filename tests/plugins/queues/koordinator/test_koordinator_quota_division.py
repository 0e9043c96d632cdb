"""How sibling quotas divide what their parent has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bayplan_plugins.queues.koordinator.division import Siblings, divide, scaled_min

AMOUNT = st.integers(0, 2**62)
SMALL = st.integers(0, 40)


def lending(*rows: tuple[str, int, int, int]) -> Siblings:
    """Return siblings that lend, by name, weight, request and min."""
    names, weights, requests, minimums = zip(*rows, strict=True)
    return Siblings(names, weights, requests, minimums, [True] * len(rows))


def siblings(amount: st.SearchStrategy[int]) -> st.SearchStrategy[Siblings]:
    rows = st.lists(st.tuples(amount, amount, amount), min_size=1, max_size=8)
    return rows.map(lambda found: lending(*((f"q{at}", *row) for at, row in enumerate(found))))


def test_everyone_gets_its_min_first_and_the_rest_goes_by_weight() -> None:
    assert divide(lending(("a", 1, 100, 10), ("b", 3, 100, 10)), 60) == [20, 40]


def test_what_is_not_asked_for_is_lent() -> None:
    assert divide(lending(("idle", 1, 0, 50), ("busy", 1, 100, 10)), 60) == [0, 60]


def test_a_quota_that_does_not_lend_keeps_its_min() -> None:
    own = lending(("idle", 1, 0, 50), ("busy", 1, 100, 10))
    assert divide(own._replace(lends=[False, True]), 60) == [50, 10]


def test_units_that_remain_go_to_the_largest_remainders_then_by_name() -> None:
    assert divide(lending(*((name, 1, 100, 0) for name in ("c", "a", "b"))), 8) == [2, 3, 3]
    assert divide(lending(("a", 1, 9, 0), ("b", 2, 9, 0)), 5) == [2, 3]


def test_a_weight_of_zero_gets_nothing_beyond_its_min() -> None:
    assert divide(lending(("a", 0, 100, 5), ("b", 1, 20, 5)), 100) == [5, 20]
    assert divide(lending(("a", 0, 100, 5)), 100) == [5]


def test_amounts_beyond_floating_point_are_exact() -> None:
    huge = 2**60 + 1
    assert sum(divide(lending(("a", huge, huge, 0), ("b", huge, huge, 0)), huge)) == huge


@given(siblings(AMOUNT), AMOUNT)
def test_a_division_is_exact_and_fair(own: Siblings, total: int) -> None:
    found = divide(own, total)
    first = [min(pair) for pair in zip(own.requests, own.minimums, strict=True)]
    # Nobody gets more than it asks for, nor less than its min as far as it asks for it.
    bounds = zip(first, found, own.requests, strict=True)
    assert all(floor <= got <= request for floor, got, request in bounds)
    # Nothing is given twice: only mins alone may exceed the total.
    assert sum(found) <= max(total, sum(first))
    stakes = zip(found, own.requests, own.weights, strict=True)
    # Nothing stays idle that somebody with a weight asks for.
    if any(got < request and weight for got, request, weight in stakes):
        assert sum(found) >= total


@given(siblings(SMALL), SMALL)
def test_the_order_of_siblings_does_not_matter(own: Siblings, total: int) -> None:
    turned = Siblings(*(column[::-1] for column in own))
    assert divide(turned, total) == divide(own, total)[::-1]


def test_mins_beyond_the_total_are_reduced_in_proportion() -> None:
    mins = {"gpu": 6, "cpu": 100}
    scaled = scaled_min(mins, {"gpu": 8}, {"gpu": 18, "cpu": 900}, {})
    # What the total does not name stays as it is; parts of a unit are dropped.
    assert scaled == {"gpu": 2, "cpu": 100}


def test_mins_that_are_not_scaled_come_first() -> None:
    assert scaled_min({"gpu": 6}, {"gpu": 8}, {"gpu": 12}, {"gpu": 4}) == {"gpu": 2}
    assert scaled_min({"gpu": 6}, {"gpu": 3}, {"gpu": 12}, {"gpu": 4}) == {"gpu": 0}


@given(st.lists(AMOUNT, min_size=1, max_size=6), AMOUNT)
def test_scaled_mins_fit(mins: list[int], total: int) -> None:
    whole = {"gpu": sum(mins)}
    scaled = [scaled_min({"gpu": own}, {"gpu": total}, whole, {})["gpu"] for own in mins]
    assert sum(scaled) <= max(total, 0) or scaled == mins
    assert all(got <= own for got, own in zip(scaled, mins, strict=True))
