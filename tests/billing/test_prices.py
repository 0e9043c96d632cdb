"""Price lists and accounts files: what they may say, and what is said about mistakes."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.billing.bills import GPU, H100, accounts, at, prices, version

from bayplan.billing.prices import check_rewritten, load_prices
from bayplan.errors import InputError


def test_a_price_is_the_decimal_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(
        "apiVersion: bayplan.dev/v1alpha1\nkind: PriceList\ncurrency: EUR\nversions:\n"
        "- from: 2026-01-01\n  prices:\n"
        "  - {resource: a, perHour: 0.1}\n"
        '  - {resource: b, perHour: "0.10"}\n'
        "  - {resource: c, perHour: 1e-5}\n"
        "  - {resource: d, perHour: 1000000}\n"
        '  - {resource: e, perHour: "0.123456789012"}\n'
    )
    [only] = load_prices(path).versions
    found = {price.resource: price.bands[0].per_hour for price in only.prices.values()}
    expected = ("0.1", "0.10", "0.00001", "1000000", "0.123456789012")
    assert [found[name] for name in "abcde"] == [Decimal(text) for text in expected]


NIGHT = {"name": "night", "from": "22:00", "to": "06:00", "perHour": 1}


def priced(**fields: Any) -> dict[str, Any]:
    return version(prices=[{"resource": GPU, "perHour": 2} | fields])


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (priced(perHour=-1), "perHour: expected a price of 0 or more"),
        (priced(perHour="-0.01"), "expected a price of 0 or more"),
        (priced(perHour=1000001), "at most 1,000,000 per hour"),
        (priced(perHour=float("nan")), "expected a finite number"),
        (priced(perHour=float("inf")), "expected a finite number"),
        (priced(perHour="NaN"), "expected a number such as 2.50"),
        (priced(perHour="1,000"), "expected a number such as 2.50"),
        (priced(perHour=True), "expected a number"),
        (priced(perHour=1e300), "at most 1,000,000 per hour"),
        (priced(perHour=1.5e-13), "at most 12 decimal places"),
        (priced(perHour=0.12345678901234567), "write it in quotes"),
        (version(prices=[{"resource": GPU, "perhour": 2}]), 'did you mean "perHour"'),
        (priced(perHour=None), 'the required field "perHour" is missing'),
        (priced(resource=""), "expected 1 or more characters"),
        (version(prices=[]), "expected 1 or more entries"),
        (
            version(prices=[{"resource": GPU, "model": H100, "perHour": 2}]),
            "a gap: nvidia.com/gpu has no price for other models",
        ),
        (version(prices=[{"resource": GPU, "perHour": 2}] * 2), "has a price already"),
        (priced(perHour=None, bands=[NIGHT]), "a gap: no price for Mon 06:00"),
        (priced(bands=[NIGHT, NIGHT | {"name": "b"}]), 'an overlap with "night": Mon 22:00'),
        (
            priced(bands=[NIGHT, {"name": "Sunday", "days": ["Sun"], "perHour": 1}]),
            'an overlap with "night"',
        ),
        (priced(bands=[NIGHT | {"from": "22:10"}]), "a full quarter of an hour"),
        (priced(bands=[NIGHT | {"from": 22}]), "expected a time of day"),
        (priced(bands=[NIGHT | {"from": "25:00"}]), "expected a time of day"),
        (priced(bands=[NIGHT | {"to": "22:00"}]), "different times"),
        (priced(bands=[NIGHT | {"days": ["Mo"]}]), "Mon"),
        (version("2026-02-30"), "expected a date such as 2026-01-31"),
        (version("01.02.2026"), "expected a date such as 2026-01-31"),
        (version(until="2026-01-01"), "expected a later day than 2026-01-01"),
        (version(minimumPeriod=10), "expected a duration"),
        (version(minimumPeriod="2d"), "at most 1 day"),
        (
            version(discounts=[{"resource": GPU, "tiers": [{"above": 1, "factor": 2}]}]),
            "expected a number from 0 to 1",
        ),
        (
            version(discounts=[{"resource": GPU, "tiers": [{"above": 9, "factor": 1}] * 2}]),
            "rising hours",
        ),
        (
            version(discounts=[{"resource": "x", "tiers": [{"above": 9, "factor": 1}]}]),
            "x has no price in this version",
        ),
        (
            version(capacity=[{"pool": "a", "owner": "x"}, {"pool": "a", "owner": "y"}]),
            "the pool a has an owner already",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(
    tmp_path: Path, entry: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError) as caught:
        prices(tmp_path, entry)
    assert problem in str(caught.value)
    assert "prices.yaml:" in caught.value.where


@pytest.mark.parametrize(
    ("versions", "problem"),
    [
        ((version(), version()), "has a version already"),
        ((version("2026-02-01"), version("2026-01-01")), "expected a later day"),
        ((version(until="2026-02-01"), version("2026-03-01")), "a gap"),
        ((version(until="2026-04-01"), version("2026-03-01")), "an overlap"),
    ],
)
def test_versions_follow_each_other(
    tmp_path: Path, versions: tuple[dict[str, Any], ...], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        prices(tmp_path, *versions)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"currency": "EURO"}, 'not a currency of ISO 4217; did you mean "EUR"'),
        ({"currency": "XXX"}, "not a currency"),
        ({"timeZone": "Europe/Nowhere"}, "expected a time zone"),
        ({"timeZone": "../etc/passwd"}, "expected a time zone"),
        ({"kind": "Prices"}, "PriceList"),
        ({"versions": []}, "expected 1 or more entries"),
    ],
)
def test_a_list_says_its_currency_and_zone(
    tmp_path: Path, fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        prices(tmp_path, **fields)


def test_versions_in_force_are_never_rewritten(tmp_path: Path) -> None:
    old = prices(tmp_path, version(), version("2026-06-01"))
    now = at("2026-03-01")
    check_rewritten(old, prices(tmp_path, version(), version("2026-05-01")), now)
    other_words = version(prices=[{"resource": GPU, "perHour": "2.00"}])
    check_rewritten(old, prices(tmp_path, other_words, version("2026-06-01")), now)
    dearer = version(prices=[{"resource": GPU, "perHour": 3}])
    with pytest.raises(InputError, match="2026-01-01 is changed"):
        check_rewritten(old, prices(tmp_path, dearer), now)
    with pytest.raises(InputError, match="2026-01-01 is missing"):
        check_rewritten(old, prices(tmp_path, version("2026-02-01")), now)
    with pytest.raises(InputError, match="never change"):
        check_rewritten(old, prices(tmp_path, version(), currency="USD"), now)


ACCOUNT: dict[str, Any] = {"tenant": "lab", "opening": {"month": "2026-01"}}


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ((ACCOUNT, ACCOUNT), "has an account already"),
        (({"tenant": "lab"},), 'field "opening" is missing'),
        ((ACCOUNT | {"opening": {"month": "2026-13"}},), "expected a month"),
        ((ACCOUNT | {"opening": {"month": 2026}},), "expected a month"),
        ((ACCOUNT | {"budget": {"perMonth": 0}},), "expected an amount above 0"),
        ((ACCOUNT | {"budget": {"perMonth": "1.005"}},), "at most 2 decimal places"),
        ((ACCOUNT | {"budget": {"perMonth": 1, "alerts": [0]}},), "alerts"),
        ((ACCOUNT | {"credits": [{"date": "2025-12-31", "amount": 1}]},), "before the opening"),
        ((ACCOUNT | {"credits": [{"date": "2026-01-01", "amount": "x"}]},), "a number"),
        ((ACCOUNT | {"credits": [{"date": "2026-01-01", "amount": 1e16}]},), "at most"),
    ],
)
def test_a_mistake_in_an_account_is_named(
    tmp_path: Path, entries: tuple[dict[str, Any], ...], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        accounts(tmp_path, *entries)


def test_accounts_and_prices_are_in_one_currency(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is in USD, but the prices"):
        accounts(tmp_path, ACCOUNT, currency="USD").check_currency(prices(tmp_path))
