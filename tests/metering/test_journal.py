"""The journal: what is written is read again, once, by one writer, and adds up exactly."""

from __future__ import annotations

import stat
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import text
from tests.examples import examples
from tests.metering.databases import emptied, postgresql

from bayplan.errors import InputError, Stopped
from bayplan.metering.journal import Batch, Journal
from bayplan.metering.record import CapacityRecord, CapacityState, UsageRecord
from bayplan.metering.summary import Summary

HOUR = 3_600_000
DAY = 24 * HOUR
START = 1_790_000_000_123


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "usage" / "journal.db")
        return
    url: str = request.getfixturevalue("server")
    yield url
    journal = Journal(url)
    with journal.transaction() as connection:
        for table in ("journal", "series", "usage", "capacity", "hours", "days"):
            connection.execute(text(f"DROP TABLE {table}"))
    journal.close()


def used(**changes: object) -> UsageRecord:
    plain = UsageRecord(
        "red", "q", "pool", "ns", "ns/job", "ns/pod", "uid", "n1", "cpu", "", 1000, START
    )
    return replace(plain, **changes)


def offered(**changes: object) -> CapacityRecord:
    plain = CapacityRecord("pool", "n1", "cpu", "", CapacityState.IN_SERVICE, 8000, START)
    return replace(plain, **changes)


@pytest.fixture
def journal(place: str) -> Iterator[Journal]:
    with_writer = Journal(place)
    with_writer.claim()
    yield with_writer
    with_writer.close()


def test_records_are_read_as_they_were_written(journal: Journal) -> None:
    first = used(labels={"team": "vision", "a": "é"}, until=START + 5)
    second = used(tenant="blue", pod_uid="other", amount=2**53 * 1000)
    capacity = offered()
    journal.append([first, second, capacity])
    assert list(journal.records(START, START + 1)) == [first, second]
    assert list(journal.records(START + 5, START + 9)) == [second]
    assert list(journal.records(START, START + 1, tenant="red")) == [first]
    assert list(journal.records(START - 5, START)) == []
    assert list(journal.capacity(START, START + 1)) == [capacity]
    assert [entry.record for entry in journal.open_entries()] == [second, capacity]
    assert journal.heartbeat == START + 5


def test_entries_end_once_and_survive_a_restart(journal: Journal, place: str) -> None:
    entry = journal.entry(used())
    journal.write(Batch([entry], heartbeat=START + 10))
    again = Journal(place)
    again.claim()
    (found,) = again.open_entries()
    assert found == entry
    again.write(Batch(closed=[(found, START + 7)], heartbeat=START + 20))
    assert again.open_entries() == []
    assert list(again.records(0, START + 99)) == [used(until=START + 7)]
    assert again.heartbeat == START + 20
    assert again.entry(used()).number == entry.number + 1
    assert again.ended_after(START) == {("n1", "cpu", ""): START + 7}
    assert again.ended_after(START + 7) == {}
    again.close()


def test_another_writer_takes_over(journal: Journal, place: str) -> None:
    other = Journal(place)
    other.claim()
    with pytest.raises(Stopped, match="another process"):
        journal.append([used()])
    other.append([used()])
    assert len(list(other.records(0, START + 1))) == 1
    other.close()


def test_a_batch_whose_answer_was_lost_is_not_written_twice(journal: Journal) -> None:
    entry = journal.entry(used())
    batch = Batch([entry], heartbeat=START + 10)
    journal.write(batch)
    journal._known.batch -= 1  # as if the answer had been lost
    journal._known.last = None
    journal.write(batch)
    journal.write(Batch(closed=[(entry, START + 7)], heartbeat=START + 10))
    assert Summary(journal, START, START + 10).usage(["tenant"]) == {("red",): 7000}


def test_a_batch_that_is_given_again_by_who_did_not_wait_is_not_written_twice(
    journal: Journal,
) -> None:
    batch = Batch([journal.entry(used(until=START + 7))], heartbeat=START + 10)
    journal.write(batch)
    journal.write(batch)
    journal.append([used(tenant="blue", until=START + 2)])
    found = Summary(journal, START, START + 10).usage(["tenant"])
    assert found == {("red",): 7000, ("blue",): 2000}


def test_a_failed_batch_leaves_nothing(journal: Journal) -> None:
    entry = journal.entry(used())
    journal.write(Batch([entry]))
    with pytest.raises(InputError):
        journal.write(Batch([journal.entry(used(tenant="new")), entry]))
    journal.append([used(tenant="new", until=START + 3)])
    assert Summary(journal, START, START + 10).usage(["tenant"]) == {
        ("new",): 3000,
        ("red",): 3000,
    }


def test_values_are_never_part_of_a_statement(journal: Journal) -> None:
    evil = "x'; DROP TABLE usage; --"
    record = used(tenant=evil, job=evil, labels={evil: evil}, until=START + 1)
    journal.append([record])
    assert list(journal.records(0, START + 9, tenant=evil)) == [record]
    found = Summary(journal, START, START + 1, {"tenant": evil, "job": evil}).usage(["queue"])
    assert found == {("q",): 1000}
    with pytest.raises(ValueError, match="not summed by"):
        Summary(journal, START, START + 1).usage([evil])


def test_the_file_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.db"
    journal = Journal(str(path))
    journal.claim()
    journal.append([used()])
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {file.name for file in path.parent.iterdir()} >= {"journal.db", "journal.db-wal"}
    journal.close()


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such journal"):
        Journal(str(tmp_path / "none.db"), create=False)
    with pytest.raises(InputError, match="expected sqlite or postgresql"):
        Journal("mysql://me@host/name")
    with pytest.raises(InputError, match="expected a path, or a URL"):
        Journal("postgresql://host:port/name")
    with pytest.raises(InputError) as caught:
        Journal("postgresql://me:secret@127.0.0.1:1/name")
    assert "secret" not in str(caught.value)
    (tmp_path / "text.db").write_text("something else " * 100)
    with pytest.raises(InputError, match="not a database"):
        Journal(str(tmp_path / "text.db"), create=False)


def test_a_journal_of_another_version_is_left_alone(tmp_path: Path) -> None:
    place = str(tmp_path / "journal.db")
    journal = Journal(place)
    with journal.transaction() as connection:
        connection.execute(text("UPDATE journal SET version = 99"))
    journal.close()
    with pytest.raises(InputError, match="version 1, got 99"):
        Journal(place)


# Sums --------------------------------------------------------------------------------------

MOMENTS = st.one_of(
    st.integers(0, 4 * DAY),
    st.integers(0, 96).map(lambda hour: hour * HOUR),
    st.integers(0, 4).map(lambda day: day * DAY),
)
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(("red", "blue")),
        st.sampled_from(("cpu", "memory")),
        st.sampled_from((1, 1000, 2**41 * 1000, 2**53 * 1000)),
        MOMENTS,
        st.one_of(st.none(), MOMENTS),
    ),
    max_size=20,
)
BASE = START - START % DAY
FIELDS: dict[str, Callable[[UsageRecord], str]] = {
    "tenant": lambda one: one.tenant,
    "resource": lambda one: one.resource,
    "pod": lambda one: one.pod,
}


def made(plain: Sequence[tuple[str, str, int, int, int | None]]) -> list[UsageRecord]:
    return [
        used(
            tenant=tenant,
            resource=resource,
            amount=amount,
            pod=f"ns/{index % 3}",
            since=BASE + since,
            until=None if length is None else BASE + since + length,
        )
        for index, (tenant, resource, amount, since, length) in enumerate(plain)
    ]


def plain_sum(
    records: Sequence[UsageRecord], since: int, until: int, by: Sequence[str]
) -> dict[tuple[str, ...], int]:
    found: dict[tuple[str, ...], int] = defaultdict(int)
    for one in records:
        end = until if one.until is None else min(until, one.until)
        key = tuple(FIELDS[name](one) for name in by)
        found[key] += one.amount * max(0, end - max(since, one.since))
    return {key: total for key, total in found.items() if total}


@pytest.fixture(scope="module")
def in_memory() -> Iterator[Journal]:
    kept = Journal()
    yield kept
    kept.close()


@given(
    plain=RECORDS,
    since=MOMENTS,
    length=MOMENTS,
    by=st.sampled_from(list(FIELDS)),
    late=st.integers(0, 20),
)
@examples(150)
def test_sums_are_those_of_the_records(
    in_memory: Journal,
    plain: list[tuple[str, str, int, int, int | None]],
    since: int,
    length: int,
    by: str,
    late: int,
) -> None:
    records = made(plain)
    since += BASE
    until = since + length
    journal = emptied(in_memory)
    journal.claim()
    # Some end in a later batch than they begin in.
    entries = [journal.entry(replace(one, until=None)) for one in records]
    ends = [(e, r.until) for e, r in zip(entries, records, strict=True) if r.until is not None]
    journal.write(Batch(entries[late:], [end for end in ends if end[0] in entries[late:]]))
    journal.write(Batch(entries[:late], heartbeat=until))
    journal.write(Batch(closed=[end for end in ends if end[0] in entries[:late]]))
    for fields in ([by], ["resource", "tenant"], []):
        found = Summary(journal, since, until).usage(fields)
        assert found == plain_sum(records, since, until, fields)
    red = [one for one in records if one.tenant == "red"]
    found = Summary(journal, since, until, {"tenant": "red"}).usage([by])
    assert found == plain_sum(red, since, until, [by])
    assert sorted(journal.records(since, until), key=repr) == sorted(
        (one for one in records if one.since < until and (one.until is None or one.until > since)),
        key=repr,
    )


def test_sums_are_the_same_in_every_database(journal: Journal) -> None:
    records = made(
        [
            ("red", "memory", 2**53 * 1000, HOUR + 1, 3 * DAY),
            ("red", "memory", 2**53 * 1000, HOUR + 1, 3 * DAY + 7),
            ("blue", "memory", 2**41 * 1000, 5, None),
            ("blue", "cpu", 1500, DAY - 1, 2),
        ]
    )
    journal.append(records)
    journal.write(Batch(heartbeat=BASE + 9 * DAY))
    for since, until in ((0, 4 * DAY), (7, 3 * DAY - 9), (HOUR, HOUR + 5), (DAY, DAY + HOUR)):
        window = (BASE + since, BASE + until)
        for by in (["tenant"], ["pod", "resource"]):
            assert Summary(journal, *window).usage(by) == plain_sum(records, *window, by)


def test_capacity_adds_up_by_state(journal: Journal) -> None:
    failed = offered(state=CapacityState.FAILED, amount=500, since=START + 4)
    journal.append([offered(until=START + 4), offered(amount=7500, since=START + 4), failed])
    journal.write(Batch(heartbeat=START + 10))
    found = Summary(journal, START, START + 10).capacity(["node", "state"])
    assert found == {("n1", "in-service"): 4 * 8000 + 6 * 7500, ("n1", "failed"): 6 * 500}
    assert found == {
        ("n1", state): total
        for (state,), total in Summary(journal, START, START + 10).capacity(["state"]).items()
    }
    assert Summary(journal, START, START + 10).usage(["tenant"]) == {}
