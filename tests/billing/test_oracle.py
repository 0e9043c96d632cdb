"""Invoices against a count of seconds."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from datetime import datetime
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.billing.bills import GPU, HOUR, SECOND, Records, at, prices, used, version

from bayplan.billing.invoice import Invoice, LineItem, make_invoice
from bayplan.billing.month import Month
from bayplan.metering.record import UsageRecord

BEGIN = at("2026-03-28 23:30")
"""Half an hour before a Sunday, two and a half before clocks change in Berlin."""
SPAN = 4 * 3600
ZONE = "Europe/Berlin"
NIGHT = {"name": "night", "from": "22:00", "to": "02:15", "perHour": "0.77"}
SUNDAY = {"name": "sunday", "days": ["Sun"], "from": "03:00", "to": "04:30", "perHour": "5.01"}
ENTRIES = [
    {"resource": GPU, "perHour": "2.03", "bands": [NIGHT, SUNDAY]},
    {"resource": GPU, "model": "b", "perHour": "1.11"},
    {"resource": GPU, "pool": "p", "perHour": "3"},
]
DEARER = [{"resource": GPU, "perHour": "4.44"}]
TIERS = [{"above": "0.5", "factor": "0.9"}, {"above": "2.25", "factor": "0.7"}]
DISCOUNTS = [{"resource": GPU, "tiers": TIERS}]

records = st.builds(
    lambda start, length, amount, model, pool: used(
        BEGIN + start * SECOND,
        BEGIN + (start + length) * SECOND,
        amount,
        model=model,
        pool=pool,
    ),
    st.integers(0, SPAN - 1),
    st.integers(1, SPAN),
    st.sampled_from((0.5, 1, 4)),
    st.sampled_from(("", "a", "b")),
    st.sampled_from(("", "p")),
)


def price_at(moment: int, model: str, pool: str) -> int:
    """Return the cents an hour."""
    if moment >= at("2026-03-29"):
        return 444
    if pool == "p":
        return 300
    if model == "b":
        return 111
    return band_price(moment)


@cache
def band_price(moment: int) -> int:
    local = datetime.fromtimestamp(moment / 1000, ZoneInfo(ZONE))
    clock = (local.hour, local.minute)
    if clock >= (22, 0) or clock < (2, 15):
        return 77
    if local.weekday() == 6 and (3, 0) <= clock < (4, 30):
        return 501
    return 203


def exact(usage: list[UsageRecord], price: Any, discounts: bool) -> Fraction:
    """Add up second by second; a second in which a threshold is reached is cut there.

    Amounts are thousandths: hours are counted in thousandths of a second, which are whole.
    """
    tiers = TIERS if discounts else []
    thresholds = [int(Fraction(tier["above"]) * HOUR) for tier in tiers]
    factors = [Fraction(1), *(Fraction(tier["factor"]) for tier in tiers)]
    starts: dict[int, list[UsageRecord]] = defaultdict(list)
    for one in usage:
        assert one.until is not None
        for moment in range(one.since, one.until, SECOND):
            starts[moment].append(one)
    cents: list[int | Fraction] = [0] * len(factors)
    hours = 0
    for moment in sorted(starts):
        running = starts[moment]
        used_hours = sum(one.amount for one in running)
        value = sum(one.amount * price(moment, one) for one in running)
        cuts = [min(max(threshold - hours, 0), used_hours) for threshold in thresholds]
        for tier, (begin, end) in enumerate(pairwise((0, *cuts, used_hours))):
            if begin < end:
                whole = end - begin == used_hours
                cents[tier] += value if whole else Fraction(value * (end - begin), used_hours)
        hours += used_hours
    cost = sum((one * factor for one, factor in zip(cents, factors, strict=True)), Fraction(0))
    return cost / (100 * HOUR)


def exact_amount(line: LineItem) -> Fraction:
    """Return a line's amount before it is rounded."""
    price = Fraction(line.per_hour) * Fraction(line.share) * Fraction(line.factor)
    return line.exact_hours * price


def check(invoice: Invoice, cost: Fraction) -> None:
    assert sum((exact_amount(one) for one in invoice.lines), Fraction(0)) == cost
    half = Fraction(1, 200)
    assert all(abs(exact_amount(one) - Fraction(one.amount)) <= half for one in invoice.lines)
    assert abs(Fraction(invoice.total) - cost) <= half * len(invoice.lines)


@settings(max_examples=25, deadline=None)
@given(st.lists(records, max_size=4), st.booleans())
def test_an_invoice_is_the_sum_of_its_seconds(usage: list[UsageRecord], discounts: bool) -> None:
    more = {"discounts": DISCOUNTS} if discounts else {}
    with tempfile.TemporaryDirectory() as folder:
        price_list = prices(
            Path(folder),
            version("2026-01-01", prices=ENTRIES, **more),
            version("2026-03-29", prices=DEARER, **more),
            timeZone=ZONE,
        )
        one_version = prices(
            Path(folder), version("2026-01-01", prices=ENTRIES[:1], **more), timeZone=ZONE
        )
    end = BEGIN + 3 * SPAN * SECOND
    found = make_invoice("lab", Month(2026, 3), price_list, Records(usage), end)
    cost = exact(usage, lambda moment, one: price_at(moment, one.model, one.pool), discounts)
    check(found, cost)
    found = make_invoice("lab", Month(2026, 3), one_version, Records(usage), end)
    check(found, exact(usage, lambda moment, _: band_price(moment), discounts))
