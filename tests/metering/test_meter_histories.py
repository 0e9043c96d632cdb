"""Whatever events are lost or repeated and however often the meter is killed: no double charge,
no gap, and all capacity is accounted for at every moment."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.metering.databases import emptied
from tests.metering.histories import GPUS, History

from bayplan.metering.journal import Journal
from bayplan.metering.record import CapacityRecord, CapacityState, UsageRecord
from bayplan.metering.summary import Summary

END = 2**60
STEPS = (
    *("bind",) * 6,
    *("finish", "delete") * 2,
    *("sweep", "cordon", "repeat", "lose", "relist", "relist", "flush", "kill"),
)
EVENTS = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 9), st.integers(0, 4)), max_size=40
)


def levels(records: Iterable[UsageRecord | CapacityRecord], end: int) -> list[tuple[int, int]]:
    """Return the sums at all times at which they change."""
    steps: dict[int, int] = defaultdict(int)
    for one in records:
        steps[one.since] += one.amount
        steps[end if one.until is None else one.until] -= one.amount
    level, found = 0, []
    for at in sorted(steps):
        level += steps[at]
        found.append((at, level))
    return found


def level_at(found: list[tuple[int, int]], at: int) -> int:
    return next((level for time, level in reversed(found) if time <= at), 0)


def check(history: History) -> None:
    """Compare the journal with the truth."""
    history.relist(0)
    history.meter.flush()
    journal, end = history.journal, history.journal.heartbeat
    used = list(journal.records(0, END))
    offered = list(journal.capacity(0, END))
    check_capacity(used, offered, end)
    check_sums(history, used, offered, end)
    check_lives(history, used)


def check_capacity(used: list[UsageRecord], offered: list[CapacityRecord], end: int) -> None:
    keys = {(one.node, one.resource) for one in offered}
    assert keys >= {(one.node, one.resource) for one in used}
    for node, resource in keys:
        own = [one for one in offered if (one.node, one.resource) == (node, resource)]
        held = levels([one for one in used if (one.node, one.resource) == (node, resource)], end)
        working = levels([one for one in own if one.state is CapacityState.IN_SERVICE], end)
        for at in {at for at, _ in (*held, *working) if at < end}:
            assert level_at(held, at) <= level_at(working, at), (node, resource, at)
        totals = {level for at, level in levels(own, end) if at < end}
        if resource == "nvidia.com/gpu":
            assert totals <= {GPUS * 1000}


def check_sums(
    history: History, used: list[UsageRecord], offered: list[CapacityRecord], end: int
) -> None:
    begin = min((one.since for one in offered), default=end)
    summary = Summary(history.journal, begin, end)
    capacity = sum(summary.capacity(["resource"]).values())
    by_state = summary.capacity(["state"])
    consumed = sum(summary.usage(["tenant"]).values())
    idle = by_state.get(("in-service",), 0) - consumed
    rest = sum(total for (state,), total in by_state.items() if state != "in-service")
    assert idle >= 0
    assert consumed + idle + rest == capacity
    plain = sum(one.amount * ((one.until or end) - one.since) for one in used)
    assert consumed == plain


def check_lives(history: History, used: list[UsageRecord]) -> None:
    gpus: dict[str, list[UsageRecord]] = defaultdict(list)
    for one in used:
        if one.resource == "nvidia.com/gpu":
            gpus[one.pod_uid].append(one)
    assert gpus.keys() <= history.lives.keys()
    for uid, life in history.lives.items():
        own = sorted(gpus[uid], key=lambda one: one.since)
        if not own and (life.lost is not None or life.since == life.until):
            continue  # It came and went while nobody looked, or at once.
        assert len(own) == 1, (life, own)
        (record,) = own
        assert (record.amount, record.node) == (life.gpus * 1000, life.node)
        assert record.since == life.since, life
        if life.lost is None or life.until is None:
            assert record.until == life.until, (life, record)
        else:
            assert record.until is not None
            assert max(record.since, life.lost[0]) <= record.until <= life.until, (life, record)


@pytest.fixture(scope="module")
def journal() -> Iterator[Journal]:
    kept = Journal()
    yield kept
    kept.close()


@given(events=EVENTS)
@examples(300)
def test_the_journal_tells_the_truth(journal: Journal, events: list[tuple[str, int, int]]) -> None:
    history = History(emptied(journal))
    for event, number, seconds in events:
        getattr(history, event)(number)
        history.wait(seconds)
    history.wait(1)
    check(history)


@pytest.mark.parametrize("seed", range(2))
def test_a_thousand_kills(journal: Journal, seed: int) -> None:
    chosen = random.Random(seed)
    history = History(emptied(journal))
    for _ in range(1000):
        for _ in range(chosen.randrange(6)):
            getattr(history, chosen.choice(STEPS))(chosen.randrange(10))
            history.wait(chosen.randrange(4))
        history.kill(0)
        history.wait(chosen.randrange(2))
    check(history)
