"""Times that come are found as a look at each of them finds them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bayplan_plugins.shared.deadlines import Deadlines

KEYS = st.sampled_from("abc")
TIMES = st.none() | st.integers(0, 9)
CHANGES = st.lists(st.tuples(KEYS, TIMES) | st.integers(0, 9), max_size=90)


@examples(200)
@given(CHANGES)
def test_whatever_is_put_and_taken_the_next_time_is_known(
    changes: list[tuple[str, int | None] | int],
) -> None:
    deadlines, there = Deadlines(), dict[str, int]()
    for change in changes:
        if isinstance(change, int):
            due = {key for key, at in there.items() if at <= change}
            found = deadlines.take(change)
            assert [there[key] for key in found] == sorted(there[key] for key in due)
            assert set(found) == due
            there = {key: at for key, at in there.items() if key not in due}
        else:
            key, at = change
            deadlines.put(key, at)
            there.pop(key, None)
            there |= {key: at} if at is not None else {}

        assert deadlines.next_time() == min(there.values(), default=None)
