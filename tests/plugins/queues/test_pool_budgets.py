"""Budgets of pools' tenants: who has spent theirs starts nothing more until the next month."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.billing.bills import GPU, Records, accounts, at, prices, used, version

from bayplan.errors import InputError
from bayplan.metering.journal import Journal
from bayplan.testing import Cluster, make_node, make_object, make_pod
from bayplan_plugins.queues.plain import budgets
from bayplan_plugins.queues.plain.budgets import BudgetArgs, BudgetGate

POOL = {
    "apiVersion": "bayplan.dev/v1alpha1",
    "kind": "ComputePool",
    "metadata": {"name": "p"},
    "spec": {
        "nodeSelector": {"pool": "p"},
        "quotas": [{"tenant": "lab", "namespaces": ["default"]}, {"tenant": "free"}],
    },
}


class AtOnce:
    """Computes what is asked for while it is asked, as if that took no time."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        found: Future[Any] = Future()
        found.set_result(function(*arguments))
        return found


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    """Prices of 1 per GPU and hour, a budget of 100 a month, and a journal in which it is spent."""
    listed = prices(tmp_path, version("2000-01-01", prices=[{"resource": GPU, "perHour": 1}]))
    budget = {"perMonth": 100, "stopAdmitting": True}
    book = accounts(tmp_path, {"tenant": "lab", "opening": {"month": "2000-01"}, "budget": budget})
    journal = Journal(str(tmp_path / "usage.db"))
    journal.append([used("2000-01-01", "2000-01-05 04:00")])
    journal.close()
    place = str(tmp_path / "usage.db")
    return {"prices": listed.source, "accounts": book.source, "journal": place}


def test_a_tenant_that_has_spent_its_budget_starts_nothing_until_the_next_month(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "ThreadPoolExecutor", AtOnce)
    monkeypatch.setattr(budgets, "EVERY", 3600.0)
    cluster = Cluster(
        [make_node("n", gpu=8, labels={"pool": "p"}), make_object(POOL)],
        plugins={"Queues": {"pools": {"budgets": given}}},
    )
    early = make_pod("early", gpu=1)
    cluster.add(early)
    cluster.advance(60.0)
    assert cluster.placements() == {"early": "n"}
    cluster.advance(5 * 86_400.0)
    labels = {"bayplan.dev/pool": "p", "bayplan.dev/tenant": "free"}
    cluster.add(make_pod("late", gpu=1), make_pod("other", gpu=1, labels=labels))
    cluster.advance(60.0)
    assert cluster.placements() == {"early": "n", "other": "n"}
    expected = 'tenant "lab": its budget is spent: lab has spent 100.00 of 100 EUR in 2000-01'
    assert cluster.message("default/late") == expected
    cluster.advance(27 * 86_400.0)
    assert set(cluster.placements()) == {"early", "other", "late"}


def test_nobody_starts_while_it_is_not_known_what_was_spent(given: dict[str, str]) -> None:
    waiting: Future[Any] = Future()
    gate = BudgetGate(BudgetArgs.model_validate(given), Records())
    gate._beside.shutdown()
    gate._beside = type("Slow", (), {"submit": lambda *_: waiting})()
    now = at("2000-01-02") / 1000
    assert gate.refusal("lab", now) == "what it has spent is being computed"
    assert gate.again(now) == now + 1
    waiting.set_result(None)
    assert gate.refusal("lab", now) is None
    assert gate.refusal("free", now) is None


def test_budgets_that_cannot_be_read_are_refused_at_the_start(given: dict[str, str]) -> None:
    with pytest.raises(InputError, match="nowhere"):
        BudgetGate(BudgetArgs.model_validate({**given, "prices": "/nowhere/prices.yaml"}))
