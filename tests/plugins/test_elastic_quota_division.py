"""How sibling quotas divide what their parent has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bayplan_plugins.queues.elastic_quota.division import Sibling, divide, scaled_min

AMOUNT = st.integers(0, 2**62)
SMALL = st.integers(0, 40)


def siblings(amount: st.SearchStrategy[int]) -> st.SearchStrategy[list[Sibling]]:
    """Return siblings that ask for no more than their max, and lend."""
    one = st.tuples(amount, amount, amount)
    return st.lists(one, min_size=1, max_size=8).map(
        lambda rows: [
            Sibling(f"q{index}", weight, request, least)
            for index, (weight, request, least) in enumerate(rows)
        ]
    )


def test_everyone_gets_its_min_first_and_the_rest_goes_by_weight() -> None:
    found = divide([Sibling("a", 1, 100, 10), Sibling("b", 3, 100, 10)], 60)
    assert found == [20, 40]


def test_what_is_not_asked_for_is_lent() -> None:
    assert divide([Sibling("idle", 1, 0, 50), Sibling("busy", 1, 100, 10)], 60) == [0, 60]


def test_a_quota_that_does_not_lend_keeps_its_min() -> None:
    idle = Sibling("idle", 1, 0, 50, lends=False)
    assert divide([idle, Sibling("busy", 1, 100, 10)], 60) == [50, 10]


def test_what_pods_have_is_kept_where_it_is_guaranteed() -> None:
    assert divide([Sibling("a", 1, 80, 10, guarantee=60), Sibling("b", 1, 80, 10)], 70) == [60, 10]


def test_units_that_remain_go_to_the_largest_remainders_then_by_name() -> None:
    three = [Sibling(name, 1, 100, 0) for name in ("c", "a", "b")]
    assert divide(three, 8) == [2, 3, 3]
    assert divide([Sibling("a", 1, 9, 0), Sibling("b", 2, 9, 0)], 5) == [2, 3]


def test_a_weight_of_zero_gets_nothing_beyond_its_min() -> None:
    assert divide([Sibling("a", 0, 100, 5), Sibling("b", 1, 20, 5)], 100) == [5, 20]
    assert divide([Sibling("a", 0, 100, 5)], 100) == [5]


def test_amounts_beyond_floating_point_are_exact() -> None:
    huge = 2**60 + 1
    found = divide([Sibling("a", huge, huge, 0), Sibling("b", huge, huge, 0)], huge)
    assert sum(found) == huge


@given(siblings(AMOUNT), AMOUNT)
def test_a_division_is_exact_and_fair(own: list[Sibling], total: int) -> None:
    found = divide(own, total)
    first = [min(one.request, one.minimum) for one in own]
    # Nobody gets more than it asks for, nor less than its min as far as it asks for it.
    assert all(
        floor <= got <= one.request for floor, got, one in zip(first, found, own, strict=True)
    )
    # Nothing is given twice: only mins alone may exceed the total.
    assert sum(found) <= max(total, sum(first))
    hungry = [one for got, one in zip(found, own, strict=True) if got < one.request and one.weight]
    # Nothing stays idle that somebody with a weight asks for.
    assert not hungry or sum(found) >= total


@given(siblings(SMALL), SMALL)
def test_the_order_of_siblings_does_not_matter(own: list[Sibling], total: int) -> None:
    assert divide(own[::-1], total) == divide(own, total)[::-1]


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
