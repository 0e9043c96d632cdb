"""Tables of the latest decisions, in bounded memory and time."""

from __future__ import annotations

import math

from bayplan.cycle.decision_tables import DecisionTables
from bayplan.plugin.decision import Finalist, PodDecision


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def decision(name: str) -> PodDecision:
    return PodDecision(name, 1, 1, "n", finalists=(Finalist("n", 1.0, {}),))


def test_tables_are_made_at_a_limited_rate() -> None:
    time = Time()
    tables = DecisionTables(time, per_second=2.0, kept=3)
    assert [tables.may_make("default/p") for _ in range(4)] == [True, True, True, False]
    time.now = 1.0
    assert [tables.may_make("default/p") for _ in range(3)] == [True, True, False]


def test_an_infinite_rate_never_refuses() -> None:
    tables = DecisionTables(Time(), per_second=math.inf, kept=1)
    assert all(tables.may_make("default/p") for _ in range(10))


def test_only_the_newest_tables_are_kept() -> None:
    tables = DecisionTables(Time(), kept=2)
    made = [decision(f"p{index}") for index in range(3)]
    for one in made:
        tables.keep(one)
    assert [bool(one.finalists) for one in made] == [False, True, True]


def test_pods_that_will_be_explained_keep_their_table() -> None:
    tables = DecisionTables(lambda: 0.0, 0.0, kept=1, always=frozenset({"default/a"}))
    asked = PodDecision("default/a", 1, refused=(("Fit", "Insufficient cpu", 1),))
    tables.keep(asked)
    for index in range(3):
        tables.keep(PodDecision(f"default/other-{index}", 1))
    assert tables.may_make("default/a")
    assert asked.refused
