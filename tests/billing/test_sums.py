"""Invoices and budgets from a journal's sums, against the same records read one by one."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.billing.bills import (
    GPU,
    HOUR,
    MINUTE,
    Records,
    accounts,
    at,
    offered,
    prices,
    used,
    version,
)
from tests.examples import examples
from tests.metering.databases import emptied

from bayplan.billing.budgets import Budgets
from bayplan.billing.invoice import invoice
from bayplan.billing.month import Month
from bayplan.billing.prices import PriceList
from bayplan.billing.terms import BillingTerms
from bayplan.errors import InputError
from bayplan.metering.journal import Batch, Journal
from bayplan.metering.record import CapacityRecord, CapacityState, UsageRecord
from bayplan.metering.time_series import TimeSeries

MONTH = Month(2026, 3)
BEGIN, END = at("2026-02-27"), at("2026-04-02")
NIGHT = {"name": "night", "from": "22:15", "to": "02:45", "perHour": "0.77"}
SUNDAY = {"name": "sunday", "days": ["Sun"], "from": "03:00", "to": "04:30", "perHour": "5.01"}
ENTRIES = [
    {"resource": GPU, "perHour": "2.03", "bands": [NIGHT, SUNDAY]},
    {"resource": GPU, "model": "b", "perHour": "1.11"},
    {"resource": GPU, "pool": "p", "perHour": "3"},
    {"resource": "memory", "perHour": "0.01"},
]
TIERS = [{"above": "0.5", "factor": "0.9"}, {"above": "230.25", "factor": "0.7"}]
PRICES: dict[str, list[dict[str, Any]]] = {
    "plain": [version("2020-01-01", prices=ENTRIES[-1:])],
    "bands": [version("2020-01-01", prices=ENTRIES)],
    "discounts": [
        version("2020-01-01", prices=ENTRIES, discounts=[{"resource": GPU, "tiers": TIERS}])
    ],
    "versions": [
        version("2020-01-01", prices=ENTRIES, discounts=[{"resource": GPU, "tiers": TIERS}]),
        version("2026-03-10", prices=[{"resource": GPU, "perHour": "4.44"}]),
    ],
    "minimum": [version("2020-01-01", prices=ENTRIES, minimumPeriod="2h")],
    "minimums": [
        version(
            "2020-01-01",
            prices=ENTRIES,
            minimumPeriod="90m",
            discounts=[{"resource": GPU, "tiers": TIERS}],
        ),
        version("2026-03-10", prices=ENTRIES[:2], minimumPeriod="23h"),
    ],
}
OWNERS = [{"pool": "p", "owner": "lab", "idle": "0.25", "reserved": "1"}]


HOURS = st.integers(0, (END - BEGIN) // HOUR)
REST = st.sampled_from((0, 1, 15 * MINUTE, HOUR - 1)) | st.integers(0, HOUR - 1)
TIMES = st.builds(lambda hour, more: BEGIN + hour * HOUR + more, HOURS, REST)
"""All over the month and around it, some of them full hours."""
LENGTHS = st.none() | st.integers(1, 3 * HOUR) | st.integers(1, 900 * HOUR)
RECORDS = st.builds(
    lambda since, length, amount, **more: used(
        since, None if length is None else since + length, amount, **more
    ),
    TIMES,
    LENGTHS,
    st.sampled_from((0.001, 1, 8)),
    resource=st.sampled_from((GPU, GPU, "memory", "free")),
    model=st.sampled_from(("", "b")),
    pool=st.sampled_from(("", "p")),
    tenant=st.sampled_from(("lab", "lab", "rival")),
    pod_uid=st.sampled_from("abcdef"),
)


@cache
def kept() -> Journal:
    return Journal()


def journal_of(found: Sequence[UsageRecord]) -> Journal:
    """Return the journal, in which half of the records are closed by a later batch."""
    journal = emptied(kept())
    journal.claim()
    entries = [journal.entry(one if at % 2 else used_open(one)) for at, one in enumerate(found)]
    journal.write(Batch(entries))
    late = [
        (entry, one.until)
        for at, (entry, one) in enumerate(zip(entries, found, strict=True))
        if not at % 2 and one.until is not None
    ]
    journal.write(Batch(closed=late))
    return journal


def used_open(record: UsageRecord) -> UsageRecord:
    return replace(record, until=None)


def price_list(versions: list[dict[str, Any]]) -> PriceList:
    with tempfile.TemporaryDirectory() as folder:
        return prices(Path(folder), *versions, timeZone="Europe/Berlin")


LISTS = {name: price_list(versions) for name, versions in PRICES.items()}
OWNED = price_list(
    [
        version("2020-01-01", prices=ENTRIES, capacity=OWNERS),
        version("2026-03-10", prices=ENTRIES[:2], capacity=OWNERS, minimumPeriod="1h"),
    ]
)


@pytest.mark.parametrize("name", LISTS)
@given(st.lists(RECORDS, max_size=12), TIMES)
@examples(60)
def test_an_invoice_of_sums_is_that_of_the_records(
    name: str, found: list[UsageRecord], as_of: int
) -> None:
    journal = journal_of(found)
    from_sums = invoice("lab", MONTH, LISTS[name], journal, as_of)
    from_records = invoice("lab", MONTH, LISTS[name], Records(list(found)), as_of)
    assert from_sums == from_records


@given(st.lists(RECORDS, max_size=8), TIMES)
@examples(40)
def test_budgets_of_sums_are_those_of_the_records(found: list[UsageRecord], now: int) -> None:
    until_now = [
        one if one.until is None or one.until <= now else used_open(one)
        for one in found
        if one.since < now
    ]
    with tempfile.TemporaryDirectory() as folder:
        entry = {"tenant": "lab", "opening": {"month": "2026-02"}, "budget": {"perMonth": 100}}
        accounts_ = accounts(Path(folder), entry)
    book = BillingTerms(LISTS["discounts"], accounts_)
    both = [
        Budgets(lambda: book, source).status("lab", now)
        for source in (journal_of(until_now), Records(until_now))
    ]
    assert both[0] == both[1]


def test_no_record_is_read_where_sums_tell_all(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = journal_of([used("2026-03-01", "2026-03-05 12:34"), used("2026-03-02", None)])

    def read(*arguments: object) -> object:
        raise AssertionError("records are read")

    monkeypatch.setattr(journal, "records", read)
    lists = [LISTS[name] for name in ("bands", "discounts", "versions", "minimum", "minimums")]
    for one in (*lists, OWNED):
        assert invoice("lab", MONTH, one, journal, END).lines


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[UsageRecord], list[CapacityRecord]]:
    """Draw what is used on two nodes, and what they offer: never less is in service than used."""
    usage = [replace(one, node=f"node-{one.pool}") for one in draw(st.lists(RECORDS, max_size=8))]
    offers = []
    kinds = sorted({(one.resource, one.model, one.pool) for one in usage} | {(GPU, "", "p")})
    for resource, model, pool in kinds:
        own = {"resource": resource, "model": model, "pool": pool, "node": f"node-{pool}"}
        most = sum(
            one.amount / 1000
            for one in usage
            if (one.resource, one.model, one.pool) == (resource, model, pool)
        )
        cuts = [at("2026-01-01"), *sorted(draw(st.sets(TIMES, max_size=3))), None]
        for since, until in itertools.pairwise(cuts):
            assert since is not None
            for state in CapacityState:
                least = most if state is CapacityState.IN_SERVICE else 0
                amount = least + draw(st.integers(0, 8))
                if amount:
                    offers.append(offered(since, until, amount, state=state, **own))
    return usage, offers


@given(worlds(), TIMES)
@examples(60)
def test_an_owner_pays_for_unused_capacity_by_sums_as_by_records(
    world: tuple[list[UsageRecord], list[CapacityRecord]], as_of: int
) -> None:
    usage, offers = world
    journal = journal_of(usage)
    journal.append(offers)
    from_sums = invoice("lab", MONTH, OWNED, journal, as_of)
    from_records = invoice("lab", MONTH, OWNED, Records(usage, offers), as_of)
    assert from_sums == from_records


def test_usage_from_before_the_prices_begin_is_refused_as_ever(tmp_path: Path) -> None:
    late = prices(tmp_path, version("2026-03-20"))
    with pytest.raises(InputError, match="has no prices for 2026-03-02 00:00 UTC"):
        invoice("lab", MONTH, late, journal_of([used("2026-03-02", "2026-03-03")]), END)
    paid = invoice("lab", MONTH, late, journal_of([used("2026-03-21", "2026-03-22")]), END)
    assert str(paid.total) == "48.00"


def test_only_hours_that_are_cut_are_read_record_by_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal = journal_of([used("2026-03-01 00:20", "2026-03-30 12:34")])
    series = TimeSeries(journal, MONTH.since, MONTH.until, {"tenant": "lab"})
    [key] = series.keys
    transactions = []
    opened = journal.transaction
    monkeypatch.setattr(journal, "transaction", lambda: transactions.append(1) or opened())
    assert series.used(key, MONTH.until) == series.used(key, at("2026-03-31"))
    assert series.used(key, at("2026-03-01 01:00")) == 40 * MINUTE * 1000
    assert transactions == []
    assert series.used(key, at("2026-03-01 00:50")) == 30 * MINUTE * 1000
    assert series.used(key, at("2026-03-01 00:10")) == 0
    assert len(transactions) == 2
