"""Budgets and estimates."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from tests.billing.bills import GPU, H100, Records, accounts, at, prices, used, version

from bayplan.billing.budgets import Budgets, BudgetStatus
from bayplan.billing.estimate import estimate
from bayplan.billing.terms import BillingTerms
from bayplan.errors import InputError


def budgets(folder: Path, source: Records, stop: bool = True) -> Budgets:
    listed = accounts(
        folder,
        {
            "tenant": "lab",
            "opening": {"month": "2026-01"},
            "budget": {"perMonth": 100, "stopAdmitting": stop},
        },
        {"tenant": "free", "opening": {"month": "2026-01"}},
    )
    book = BillingTerms(prices(folder), listed)
    return Budgets(lambda: book, source)


def status(made: Budgets, now: str) -> BudgetStatus:
    found = made.status("lab", at(now))
    assert found is not None
    return found


def test_alerts_come_at_the_percentages_of_the_budget(tmp_path: Path) -> None:
    made = budgets(tmp_path, Records([used("2026-01-30", None)]))
    early = status(made, "2026-01-31 15:00")
    assert (early.spent, early.alerts) == (Decimal("78.00"), ())
    # It runs on until the end of the month, 48 hours in all.
    assert (early.forecast, early.expected) == (Decimal("96.00"), (80,))
    assert status(made, "2026-01-31 16:00").alerts == (80,)
    # The next month is another budget.
    assert status(made, "2026-02-02").spent == Decimal("48.00")
    assert status(made, "2026-02-03 02:00").alerts == (80, 100)
    assert status(made, "2026-02-03 02:00").expected == (80, 100)


def admits(made: Budgets, tenant: str, now: int) -> bool:
    found = made.status(tenant, now)
    return found is None or found.admits


def test_a_spent_budget_stops_admission_where_the_account_says_so(tmp_path: Path) -> None:
    source = Records([used("2026-01-05", "2026-01-07 02:00")])
    made = budgets(tmp_path, source)
    assert admits(made, "lab", at("2026-01-07 01:30"))
    assert not admits(made, "lab", at("2026-01-07 02:00"))
    assert admits(made, "lab", at("2026-02-01"))
    assert admits(made, "free", at("2026-01-07 02:00"))
    assert admits(made, "nobody", at("2026-01-07 02:00"))
    assert admits(budgets(tmp_path, source, stop=False), "lab", at("2026-01-08"))
    assert [one.tenant for one in made.all(at("2026-01-08"))] == ["lab"]


def test_a_status_is_kept_for_a_minute(tmp_path: Path) -> None:
    source = Records([])
    made = budgets(tmp_path, source)
    assert status(made, "2026-01-05 10:00").spent == 0
    source.usage.append(used("2026-01-05", None))
    assert status(made, "2026-01-05 10:00").spent == 0
    assert status(made, "2026-01-05 10:01").spent > 0


def test_an_estimate_follows_the_bands(tmp_path: Path) -> None:
    night = {"name": "night", "from": "22:00", "to": "06:00", "perHour": 1}
    entries = [
        {"resource": GPU, "perHour": 2},
        {"resource": GPU, "model": H100, "perHour": 4, "bands": [night]},
        {"resource": "memory", "perHour": "0.5"},
    ]
    price_list = prices(tmp_path, version(prices=entries))
    day, evening = at("2026-01-05 08:00"), at("2026-01-05 20:00")

    def cost(start: int, resource: str, model: str, amount: int, hours: Fraction) -> str:
        asked = {(resource, model): amount, ("cpu", ""): 64_000}
        return str(estimate(asked, "", hours, price_list, start))

    assert cost(day, GPU, H100, 4000, Fraction(6)) == "96.00 EUR"
    assert cost(evening, GPU, H100, 4000, Fraction(6)) == "48.00 EUR"
    assert cost(day, GPU, "other", 4000, Fraction(6)) == "48.00 EUR"
    assert cost(day, "memory", "", 2 * 2**30 * 1000, Fraction(1, 2)) == "0.50 EUR"
    with pytest.raises(InputError, match="begins on"):
        cost(at("2025-12-31 23:00"), GPU, H100, 4000, Fraction(6))
