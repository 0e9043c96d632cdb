"""What belongs to a job is found as a look at all objects finds it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bayplan_plugins.queues.kueue.homes import Homes

UIDS = st.sampled_from("abc")
HOMES = st.sampled_from("xy")
CHANGES = st.lists(st.tuples(st.sampled_from(["put", "drop", "take"]), UIDS, HOMES), max_size=10)


@examples(200)
@given(CHANGES)
def test_whatever_comes_and_goes_all_of_a_job_is_found(
    changes: list[tuple[str, str, str]],
) -> None:
    homes, there = Homes(), dict[str, str]()
    for kind, uid, home in changes:
        if kind == "put":
            homes.put(uid, home)
            there[uid] = home
        elif kind == "drop":
            homes.drop(uid)
            there.pop(uid, None)
        else:
            assert sorted(homes.take(home)) == sorted(u for u, h in there.items() if h == home)
            there = {u: h for u, h in there.items() if h != home}

    assert {uid: homes.get(uid) for uid in "abc"} == {uid: there.get(uid) for uid in "abc"}
    assert bool(homes) is bool(there)
