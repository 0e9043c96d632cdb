"""What a tenant pays for a month."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from tests.billing.bills import (
    GPU,
    H100,
    HOUR,
    Records,
    accounts,
    at,
    offered,
    prices,
    used,
    version,
)

from bayplan.billing.invoice import Invoice, make_invoice
from bayplan.billing.month import Month
from bayplan.billing.prices import PriceList
from bayplan.errors import InputError
from bayplan.metering.record import CapacityState

JANUARY, FEBRUARY = Month(2026, 1), Month(2026, 2)
LATER = at("2026-06-01")


def bill(price_list: PriceList, *usage: object, month: Month = JANUARY, **more: object) -> Invoice:
    source = Records(list(usage))  # type: ignore[arg-type]
    return make_invoice("lab", month, price_list, source, LATER, **more)  # type: ignore[arg-type]


def shown(invoice: Invoice) -> list[tuple[str, str, str]]:
    """Each line's hours, discounted price and amount."""
    return [
        (one.hours, str(one.per_hour * one.share * one.factor), str(one.amount))
        for one in invoice.lines
    ]


def test_a_line_is_hours_times_price(tmp_path: Path) -> None:
    found = bill(prices(tmp_path), used("2026-01-05 10:00", "2026-01-05 16:30", 4))
    assert shown(found) == [("26", "2", "52.00")]
    assert found.total == Decimal("52.00")
    assert found.closing == Decimal("-52.00")


def test_the_price_of_the_pool_comes_before_the_models_and_the_default(tmp_path: Path) -> None:
    entries = [
        {"resource": GPU, "perHour": 1},
        {"resource": GPU, "model": H100, "perHour": 4},
        {"resource": GPU, "pool": "slow", "perHour": "0.5"},
        {"resource": GPU, "pool": "slow", "model": H100, "perHour": 3},
    ]
    day = ("2026-01-05", "2026-01-05 01:00")
    found = bill(
        prices(tmp_path, version(prices=entries)),
        used(*day),
        used(*day, model=H100),
        used(*day, model="other", pool="slow"),
        used(*day, model=H100, pool="slow"),
        used(*day, model=H100, pool="fast"),
        used(*day, resource="cpu"),
    )
    assert {(one.model, one.pool): str(one.amount) for one in found.lines} == {
        ("", ""): "1.00",
        (H100, ""): "4.00",
        ("other", "slow"): "0.50",
        (H100, "slow"): "3.00",
        (H100, "fast"): "4.00",
    }


def test_memory_is_priced_by_gib(tmp_path: Path) -> None:
    entries = [{"resource": "memory", "perHour": "0.01"}]
    memory = used("2026-01-05", "2026-01-05 10:00", 64 * 2**30, resource="memory")
    [line] = bill(prices(tmp_path, version(prices=entries)), memory).lines
    assert (line.hours, line.unit, str(line.amount)) == ("640", "GiB h", "6.40")


def test_a_new_version_counts_from_its_day_and_a_month_ends_at_midnight_utc(
    tmp_path: Path,
) -> None:
    dear = version("2026-01-10", prices=[{"resource": GPU, "perHour": 3}])
    price_list = prices(tmp_path, version("2025-01-01"), dear)
    usage = used("2025-12-31 12:00", "2026-02-02")
    january = bill(price_list, usage)
    assert shown(january) == [("216", "2", "432.00"), ("528", "3", "1584.00")]
    assert shown(bill(price_list, usage, month=FEBRUARY)) == [("24", "3", "72.00")]


def test_bands_follow_the_lists_time_zone_over_the_change_of_the_clocks(tmp_path: Path) -> None:
    night = {"name": "night", "from": "22:00", "to": "06:00", "perHour": 1}
    entries = [{"resource": GPU, "perHour": 2, "bands": [night]}]
    berlin = prices(tmp_path, version(prices=entries), timeZone="Europe/Berlin")
    # The night to 29 March 2026 is an hour short.
    usage = used("2026-03-28 11:00", "2026-03-29 10:00")
    found = bill(berlin, usage, month=Month(2026, 3))
    assert {one.band: one.hours for one in found.lines} == {"": "16", "night": "7"}


def test_discounts_are_marginal_from_the_moment_the_hours_are_reached(tmp_path: Path) -> None:
    tiers = [
        {"above": 100, "factor": "0.9"},
        {"above": 500, "factor": "0.8"},
        {"above": 1000, "factor": "0.7"},
    ]
    discounts = [{"resource": GPU, "tiers": tiers}]
    price_list = prices(tmp_path, version(discounts=discounts))
    # 8 GPUs for 150 hours, in two models: 1,200 hours.
    usage = [used("2026-01-01", "2026-01-07 06:00", 4, model=model) for model in ("a", "b")]
    found = bill(price_list, *usage)
    assert [one.hours for one in found.lines if one.model == "a"] == ["50", "200", "250", "100"]
    assert found.total == Decimal(200 + 400 * 2) - 80 + Decimal(500 * 2) * Decimal("0.8") + Decimal(
        "280.00"
    )
    # The next month begins with the full price.
    february = used("2026-02-01", "2026-02-01 10:00")
    assert shown(bill(price_list, *usage, february, month=FEBRUARY)) == [("10", "2", "20.00")]


def test_a_short_pod_pays_the_minimum_per_resource(tmp_path: Path) -> None:
    entries = [{"resource": GPU, "perHour": 6}, {"resource": "cpu", "perHour": 1}]
    price_list = prices(tmp_path, version(prices=entries, minimumPeriod="10m"))
    short = ("2026-01-05 10:00", "2026-01-05 10:03")
    rest = ("2026-01-05 10:03", "2026-01-05 10:06")
    found = bill(
        price_list,
        used(*short, 2),
        used(*short, 60, resource="cpu"),
        used(*short, pod_uid="two"),
        # One hold in two records, as after a restart of the meter.
        used(*rest, pod_uid="two"),
        used("2026-01-05 10:00", "2026-01-05 10:20", pod_uid="three"),
    )
    assert [(one.resource, one.hours) for one in found.lines] == [
        ("cpu", "10"),
        (GPU, "0.833333"),
    ]
    assert found.total == Decimal("15.00")


def test_the_rest_of_a_minimum_period_goes_to_the_next_month(tmp_path: Path) -> None:
    price_list = prices(tmp_path, version(minimumPeriod="1h"))
    usage = used("2026-01-31 23:45", "2026-01-31 23:50")
    assert shown(bill(price_list, usage)) == [("0.25", "2", "0.50")]
    assert shown(bill(price_list, usage, month=FEBRUARY)) == [("0.75", "2", "1.50")]


def test_what_still_runs_is_billed_until_now(tmp_path: Path) -> None:
    source = Records([used("2026-01-05 10:00", None), used("2026-01-05 20:00", None)])
    now = at("2026-01-05 12:00")
    found = make_invoice("lab", JANUARY, prices(tmp_path), source, now)
    assert shown(found) == [("2", "2", "4.00")]
    assert not found.final


def test_each_line_is_rounded_once_and_a_half_to_the_even_cent(tmp_path: Path) -> None:
    entries = [{"resource": GPU, "perHour": "0.05"}]
    price_list = prices(tmp_path, version(prices=entries))
    halves = [
        used(at("2026-01-05"), at("2026-01-05") + HOUR * tenths // 10, model=str(tenths))
        for tenths in (1, 3, 5)
    ]
    found = bill(price_list, *halves)
    assert [str(one.amount) for one in found.lines] == ["0.00", "0.02", "0.02"]


def test_yen_have_no_decimals(tmp_path: Path) -> None:
    price_list = prices(tmp_path, currency="JPY")
    assert bill(price_list, used("2026-01-05", "2026-01-05 00:40")).total == Decimal(1)


def test_the_owner_of_a_pool_pays_for_what_it_keeps(tmp_path: Path) -> None:
    owned = {"pool": "a", "owner": "lab", "idle": "0.25", "reserved": 1}
    price_list = prices(tmp_path, version(capacity=[owned]))
    day = ("2026-01-05 00:00", "2026-01-05 10:00")
    source = Records(
        [used(*day, 4, tenant="guest", pool="a"), used(day[0], "2026-01-05 05:00", 1, pool="a")],
        [
            offered(*day, 7, pool="a"),
            offered(*day, 1, pool="a", state=CapacityState.RESERVED),
            offered(*day, 8, pool="a", node="n2", state=CapacityState.MAINTENANCE),
            offered(*day, 8, pool="b", node="n3"),
        ],
    )
    found = make_invoice("lab", JANUARY, price_list, source, LATER)
    assert [(one.what, one.hours, str(one.amount)) for one in found.lines] == [
        ("used", "5", "10.00"),
        ("reserved", "10", "20.00"),
        ("idle", "25", "12.50"),
    ]
    assert len(make_invoice("guest", JANUARY, price_list, source, LATER).lines) == 1


def test_balances_go_from_month_to_month(tmp_path: Path) -> None:
    book = accounts(
        tmp_path,
        {
            "tenant": "lab",
            "opening": {"month": "2026-01", "amount": "10.50"},
            "credits": [
                {"date": "2026-02-28", "amount": -1, "note": "correction"},
                {"date": "2026-02-01", "amount": 100},
                {"date": "2026-01-31", "amount": "50"},
            ],
        },
    )
    account = book.by_tenant["lab"]
    usage = used("2026-01-31 23:00", "2026-02-01 04:00")
    january = bill(prices(tmp_path), usage, account=account)
    assert (january.opening, january.closing) == (Decimal("10.50"), Decimal("58.50"))
    february = bill(prices(tmp_path), usage, month=FEBRUARY, account=account)
    assert february.opening == january.closing
    assert [str(credit.amount) for credit in february.credits] == ["100", "-1"]
    assert february.closing == Decimal("149.50")


def test_usage_without_prices_is_an_error(tmp_path: Path) -> None:
    price_list = prices(tmp_path, version("2026-01-10", until="2026-01-20"))
    inside = used("2026-01-10", "2026-01-20")
    assert bill(price_list, inside).total == Decimal("480.00")
    with pytest.raises(InputError, match="begins on 2026-01-10"):
        bill(price_list, used("2026-01-09", "2026-01-11"))
    with pytest.raises(InputError, match="has ended by then"):
        bill(price_list, used("2026-01-11", "2026-01-21"))
