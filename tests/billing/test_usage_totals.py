"""Hours of use, from a journal's own sums and from its records."""

from __future__ import annotations

from typing import Any

import pytest
from tests.billing.bills import H100, Records, at, used

from bayplan.billing.allocation_query import parse_query
from bayplan.billing.usage_totals import usage_totals
from bayplan.metering.journal import Batch, Journal

NOW = at("2026-01-06")
USAGE = [
    used("2026-01-05 10:00", "2026-01-05 12:30", 2, model=H100, queue="", labels={"a": "b"}),
    used("2026-01-05 11:15", None, 0.5, tenant="other", pod_uid="two"),
    used("2026-01-05 09:00", "2026-01-05 10:30", 2**31, resource="memory"),
]


def totals(source: Any, tenant: str | None = None, **query: str) -> list[tuple[str, ...]]:
    asked = parse_query({"window": "24h", "aggregate": "tenant"} | query, NOW, tenant)
    found = usage_totals(asked, source, NOW - 12 * 3_600_000 + 3_600_000)
    return [(one["name"], one["model"], one["unit"], one["hours"]) for one in found]


@pytest.fixture
def journal() -> Journal:
    made = Journal()
    made.claim()
    made.append(USAGE)
    made.write(Batch(heartbeat=NOW))
    return made


def test_hours_are_added_up_until_they_are_known(journal: Journal) -> None:
    expected = [
        ("lab", "", "GiB h", "3"),
        ("lab", H100, "h", "5"),
        ("other", "", "h", "0.875"),
    ]
    assert totals(journal) == totals(Records(USAGE)) == expected


@pytest.mark.parametrize(
    "aggregate", ["queue", "namespace,model", "resource", "label:a", "controller"]
)
@pytest.mark.parametrize("tenant", [None, "lab", "nobody"])
def test_both_ways_say_the_same(journal: Journal, aggregate: str, tenant: str | None) -> None:
    one = totals(journal, tenant, aggregate=aggregate)
    assert one == totals(Records(USAGE), tenant, aggregate=aggregate)
    assert bool(one) == (tenant != "nobody")
