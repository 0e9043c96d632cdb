"""Budgets as metrics: they come with the scrape after the one that asked for them."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from tests.billing.bills import Records, accounts, at, prices, used

from bayplan.billing.budgets import Budgets
from bayplan.billing.terms import BillingTerms
from bayplan.live.budget_metrics import BudgetMetrics


class AtOnce(Executor):
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        found: Future[Any] = Future()
        try:
            found.set_result(fn(*args, **kwargs))
        except Exception as exc:
            found.set_exception(exc)
        return found


def test_budgets_are_exported_by_tenant(tmp_path: Path) -> None:
    budget = {"perMonth": 100}
    book = accounts(tmp_path, {"tenant": "lab", "opening": {"month": "2026-01"}, "budget": budget})
    source = Records([used("2026-01-30", None)])
    registry = CollectorRegistry()
    listed = BillingTerms(prices(tmp_path), book)
    made = Budgets(lambda: listed, source)
    BudgetMetrics(registry, made, lambda: at("2026-01-31 16:00"), AtOnce())
    assert registry.get_sample_value("bayplan_budget_spent_ratio", {"tenant": "lab"}) is None
    assert registry.get_sample_value("bayplan_budget_spent_ratio", {"tenant": "lab"}) == 0.8
    found = registry.get_sample_value("bayplan_budget_forecast_ratio", {"tenant": "lab"})
    assert found == 0.96


def test_usage_without_prices_leaves_what_was_known(tmp_path: Path) -> None:
    budget = {"perMonth": 100}
    book = accounts(tmp_path, {"tenant": "lab", "opening": {"month": "2025-01"}, "budget": budget})
    source = Records([used("2025-01-30", None)])
    registry = CollectorRegistry()
    listed = BillingTerms(prices(tmp_path), book)
    BudgetMetrics(registry, Budgets(lambda: listed, source), lambda: at("2025-01-31"), AtOnce())
    for _ in range(2):
        assert registry.get_sample_value("bayplan_budget_spent_ratio", {"tenant": "lab"}) is None
