"""bayplan invoice and bayplan price."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.billing.bills import GPU, at, price_file, used, version

from bayplan.cli import cli
from bayplan.errors import InputError
from bayplan.metering.journal import Batch, Journal

ACCOUNTS = """
apiVersion: bayplan.dev/v1alpha1
kind: Accounts
currency: EUR
accounts:
- tenant: lab
  opening: {month: 2026-01, amount: 20}
  budget: {perMonth: 80}
  credits:
  - {date: 2026-01-02, amount: "30.50", note: "=HYPERLINK(1)"}
"""


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in arguments], catch_exceptions=False)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "usage.db"
    made = Journal(str(path))
    made.claim()
    made.append([used("2026-01-05 10:00", "2026-01-05 16:30", 4), used("2026-01-31", None)])
    made.write(Batch(heartbeat=at("2026-01-31 12:00")))
    made.close()
    return path


def test_a_month_of_a_journal_is_billed_until_what_is_known(tmp_path: Path, journal: Path) -> None:
    prices = price_file(tmp_path)
    shown = run("invoice", "lab", "2026-01", "--prices", prices, "--journal", journal)
    assert shown.exit_code == 0
    assert "in EUR, not final" in shown.stdout
    [total] = [line for line in shown.stdout.splitlines() if line.startswith("Total")]
    assert total.split() == ["Total", "76.00"]


def test_an_invoice_has_balances_and_four_forms(tmp_path: Path, journal: Path) -> None:
    (tmp_path / "accounts.yaml").write_text(ACCOUNTS)
    given = (
        *("invoice", "lab", "2026-01", "--prices", price_file(tmp_path)),
        *("--accounts", tmp_path / "accounts.yaml", "--journal", journal),
    )
    found = json.loads(run(*given, "-o", "json").stdout)
    assert (found["openingBalance"], found["closingBalance"]) == ("20.00", "-25.50")
    shown = run(*given).stdout
    assert "-25.50" in shown
    assert "95 % of the budget of 80 is spent; the alert at 80 % is reached" in shown
    assert run(*given, "-o", "csv").stdout.startswith("tenant,month,currency")
    assert run(*given, "-o", "html").stdout.startswith("<!DOCTYPE html>")


def test_a_misspelt_tenant_gets_a_note(tmp_path: Path, journal: Path) -> None:
    prices = price_file(tmp_path)
    shown = run("invoice", "lap", "2026-01", "--prices", prices, "--journal", journal)
    assert 'no usage of "lap" in 2026-01; did you mean "lab"' in shown.stderr


def test_mistakes_are_named(tmp_path: Path, journal: Path) -> None:
    prices = price_file(tmp_path)
    for arguments, problem in (
        (("2026-13", "--prices", prices, "--journal", journal), "expected a month"),
        (("2026-01", "--prices", prices), "give either a journal"),
        (("2026-01", "--prices", prices, "--journal", tmp_path / "none.db"), "none.db"),
        (("2026-01", "--prices", tmp_path / "none", "--journal", journal), "No such file"),
    ):
        with pytest.raises(InputError, match=problem):
            run("invoice", "lab", *arguments)


def test_the_live_scheduler_names_what_bills_need(tmp_path: Path, journal: Path) -> None:
    config = tmp_path / "profile.yaml"
    config.write_text("kind: KubeSchedulerConfiguration")
    prices = price_file(tmp_path)
    (tmp_path / "accounts.yaml").write_text(ACCOUNTS.replace("EUR", "USD"))
    accounts = tmp_path / "accounts.yaml"
    for arguments, problem in (
        (("--prices", prices), "--prices: needs --usage-journal"),
        (("--accounts", accounts), "--accounts: needs --prices"),
        (("--prices", prices, "--accounts", accounts, "--usage-journal", journal), "is in USD"),
    ):
        with pytest.raises(InputError, match=problem):
            run("run", "--config", config, *arguments)


def test_a_price_list_is_shown_and_its_past_kept(tmp_path: Path) -> None:
    band = {"name": "night", "from": "22:00", "to": "06:00", "perHour": 1}
    entries = [{"resource": GPU, "perHour": 2, "bands": [band]}]
    first = version(prices=entries, minimumPeriod="10m")
    old = price_file(tmp_path, first).rename(tmp_path / "old.yaml")
    new = price_file(tmp_path, first, version("2126-01-01"))
    shown = run("price", "check", new, "--previous", old)
    assert shown.exit_code == 0
    assert "From 2126-01-01 on" in shown.stdout
    assert "at least 10m" in shown.stdout
    with pytest.raises(InputError, match="2026-01-01 is changed"):
        run("price", "check", price_file(tmp_path, version()), "--previous", old)
