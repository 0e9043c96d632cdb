"""Prices and accounts are read again when their files change, and never for the worse."""

from __future__ import annotations

import logging
import os
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from tests.billing.bills import GPU, Records, accounts, at, price_file, used, version

from bayplan.billing.budgets import Budgets
from bayplan.billing.terms import BillingTermsFiles
from bayplan.errors import InputError

NOW = at("2026-02-01")
LATER = version("2026-03-01", prices=[{"resource": GPU, "perHour": 5}])


def files(folder: Path, budget: int = 100) -> BillingTermsFiles:
    account(folder, budget)
    return BillingTermsFiles(price_file(folder), folder / "accounts.yaml", lambda: NOW)


def account(folder: Path, budget: int, currency: str = "EUR") -> None:
    entry = {"tenant": "lab", "opening": {"month": "2026-01"}, "budget": {"perMonth": budget}}
    accounts(folder, entry, currency=currency)


def replaced(folder: Path, *versions: object) -> None:
    """Write a price list to another file and move it into place, as an editor may."""
    content = yaml.safe_load((folder / "prices.yaml").read_text()) | {"versions": list(versions)}
    (folder / "new").write_text(yaml.safe_dump(content))
    os.replace(folder / "new", folder / "prices.yaml")


def test_files_that_change_are_read_again(tmp_path: Path) -> None:
    read = files(tmp_path)
    before = read.terms()
    read.refresh()
    assert read.terms() is before
    replaced(tmp_path, version(), LATER)
    read.refresh()
    assert [one.start.month for one in read.terms().prices.versions] == [1, 3]
    account(tmp_path, 1000)
    read.refresh()
    found = read.terms().accounts
    assert found is not None
    assert found.by_tenant["lab"].budget.per_month == 1000  # type: ignore[union-attr]


def test_a_config_map_that_is_swapped_is_read_again(tmp_path: Path) -> None:
    """The kubelet lets a link point to another folder; the file's own link does not change."""
    for name, versions in (("one", [version()]), ("two", [version(), LATER])):
        (tmp_path / name).mkdir()
        price_file(tmp_path / name, *versions)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "prices.yaml").symlink_to("..data/prices.yaml")
    read = BillingTermsFiles(tmp_path / "prices.yaml", now=lambda: NOW)
    (tmp_path / "..new").symlink_to("two")
    os.replace(tmp_path / "..new", tmp_path / "..data")
    read.refresh()
    assert len(read.terms().prices.versions) == 2


def test_what_cannot_be_used_changes_nothing_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bayplan.billing")
    read = files(tmp_path)
    before = read.terms()
    cheaper = version(prices=[{"resource": GPU, "perHour": 1}])
    replaced(tmp_path, cheaper, LATER)
    read.refresh()
    read.refresh()
    assert read.terms() is before
    assert "the version of 2026-01-01 is changed: prices in force are never" in read.problem
    (tmp_path / "prices.yaml").write_text("kind: [")
    read.refresh()
    (tmp_path / "prices.yaml").unlink()
    read.refresh()
    replaced_from_nothing = price_file(tmp_path, version(), LATER)
    account(tmp_path, 100, currency="USD")
    read.refresh()
    assert "is in USD, but the prices" in read.problem
    assert read.terms() is before
    account(tmp_path, 200)
    read.refresh()
    assert read.problem == ""
    assert read.terms().prices.source == str(replaced_from_nothing)
    told = [record.levelname for record in caplog.records]
    assert told == ["ERROR"] * 4 + ["INFO"]


def test_files_that_cannot_be_used_at_the_start_are_refused(tmp_path: Path) -> None:
    account(tmp_path, 100, currency="USD")
    with pytest.raises(InputError, match="is in USD"):
        BillingTermsFiles(price_file(tmp_path), tmp_path / "accounts.yaml")


def test_a_raised_budget_holds_at_once(tmp_path: Path) -> None:
    read = files(tmp_path, budget=10)
    budgets = Budgets(read.terms, Records([used("2026-01-31 12:00", "2026-01-31 22:00")]))
    now = at("2026-01-31 23:00")
    one = budgets.status("lab", now)
    assert one is not None
    assert (one.spent, one.alerts) == (Decimal("20.00"), (80, 100))
    account(tmp_path, 100)
    read.refresh()
    raised = budgets.status("lab", now)
    assert raised is not None
    assert raised.alerts == ()
