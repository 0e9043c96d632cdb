"""Times of conditions: set when a status changes, kept while it stays."""

from __future__ import annotations

from bayplan.api.conditions import stamped, without_times
from bayplan.api.podgroup import ConditionedStatus, GroupCondition


def status(*conditions: tuple[str, str, str | None]) -> ConditionedStatus:
    made = [
        GroupCondition(kind, state, last_transition_time=since) for kind, state, since in conditions
    ]
    return ConditionedStatus(conditions=tuple(made))


def test_a_new_condition_holds_from_now_on() -> None:
    assert stamped(status(("A", "True", None)), None, "now") == status(("A", "True", "now"))


def test_a_condition_that_stays_keeps_its_time() -> None:
    before = status(("A", "True", "then"), ("B", "False", "then"))
    after = stamped(status(("A", "True", None), ("B", "True", None)), before, "now")
    assert after == status(("A", "True", "then"), ("B", "True", "now"))


def test_statuses_are_compared_without_times() -> None:
    assert without_times(status(("A", "True", "then"))) == status(("A", "True", None))


def test_a_status_without_conditions_is_left_alone() -> None:
    assert stamped("Running", None, "now") == "Running"
    assert without_times(None) is None
