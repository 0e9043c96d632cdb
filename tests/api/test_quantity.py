"""Quantities: every spelling of Kubernetes, exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.quantity import MAX_QUANTITY, Quantity, is_quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("8", Fraction(8)),
        ("0", Fraction(0)),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("+5", Fraction(5)),
        ("-3", Fraction(-3)),
        ("-1.5Gi", Fraction(-3 * 2**29)),
        ("1500m", Fraction(3, 2)),
        ("100u", Fraction(1, 10_000)),
        ("1n", Fraction(1, 10**9)),
        ("1k", Fraction(1000)),
        ("1M", Fraction(10**6)),
        ("1G", Fraction(10**9)),
        ("1T", Fraction(10**12)),
        ("1P", Fraction(10**15)),
        ("1E", Fraction(10**18)),
        ("1E3", Fraction(1000)),
        ("1e3", Fraction(1000)),
        ("1e+3", Fraction(1000)),
        ("15e-1", Fraction(3, 2)),
        (".5E3", Fraction(500)),
        ("1Ki", Fraction(2**10)),
        ("1Mi", Fraction(2**20)),
        ("1.5Gi", Fraction(3 * 2**29)),
        ("1Ti", Fraction(2**40)),
        ("1Pi", Fraction(2**50)),
        ("1Ei", Fraction(2**60)),
        (" 2Gi ", Fraction(2**31)),
        (str(MAX_QUANTITY), Fraction(MAX_QUANTITY)),
    ],
)
def test_each_spelling_is_read_exactly(text: str, amount: Fraction) -> None:
    assert Quantity(text).amount == amount


@pytest.mark.parametrize(
    ("value", "amount"),
    [(8, Fraction(8)), (0.5, Fraction(1, 2)), (0.1, Fraction(1, 10)), (1e3, Fraction(1000))],
)
def test_numbers_mean_what_they_look_like(value: float, amount: Fraction) -> None:
    assert Quantity(value).amount == amount


@pytest.mark.parametrize(
    ("text", "units", "milli"),
    [
        ("1500m", 2, 1500),
        ("1n", 1, 1),
        ("100u", 1, 1),
        ("1001u", 1, 2),
        ("0.0001", 1, 1),
        ("-1n", -1, -1),
        ("-1500m", -2, -1500),
        ("0", 0, 0),
        ("2", 2, 2000),
        ("1.5Gi", 3 * 2**29, 3 * 2**29 * 1000),
    ],
)
def test_parts_are_rounded_away_from_zero(text: str, units: int, milli: int) -> None:
    assert (Quantity(text).units, Quantity(text).milli) == (units, milli)


@pytest.mark.parametrize(
    "spellings",
    [
        ("1", "1000m", "1.0", "1e0", "1000000u", "10E-1"),
        ("1Gi", "1024Mi", "1073741824"),
        ("0", "-0"),
    ],
)
def test_equal_amounts_are_equal_and_hash_alike(spellings: tuple[str, ...]) -> None:
    assert len({Quantity(text) for text in spellings}) == 1


def test_different_amounts_and_other_types_differ() -> None:
    assert Quantity("1G") != Quantity("1Gi")
    assert Quantity("1") != 1


def test_the_text_is_kept_as_written() -> None:
    assert Quantity("1.50Gi").text == "1.50Gi"
    assert repr(Quantity("8")) == "Quantity('8')"


@pytest.mark.parametrize(
    "text",
    [
        *("8 cores", "", " ", ".", "-", "1.5.2", "Gi", "0x10", "nan", "inf", "1ki", "1K", "1gi"),
        *("1,5", "1e", "1e3Gi", "1 Gi", "1_000", "--1", "1e1.5", "1Zi"),
    ],
)
def test_an_invalid_quantity_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r'^expected a quantity such as "8", "500m"') as caught:
        Quantity(text)
    assert str(caught.value).endswith(f'got "{text}"')
    assert not is_quantity(text)


@pytest.mark.parametrize("text", ["１", "٣", "1\u0662", "²"])  # noqa: RUF001
def test_digits_of_other_scripts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a quantity"):
        Quantity(text)


@pytest.mark.parametrize("value", [True, False])
def test_a_truth_value_is_refused(value: bool) -> None:
    with pytest.raises(ValueError, match="expected a quantity"):
        Quantity(value)
    assert not is_quantity(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="expected a quantity"):
        Quantity(value)


@pytest.mark.parametrize("text", ["1e999", "-1e999", "8Ei", "10E", str(2**63), "99999999999999Ti"])
def test_more_than_kubernetes_can_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"beyond what Kubernetes can count \(2\^63-1\)"):
        Quantity(text)


def test_thousands_of_digits_are_refused_in_our_own_words() -> None:
    with pytest.raises(ValueError, match="beyond what Kubernetes can count") as caught:
        Quantity("9" * 5000)
    assert "set_int_max_str_digits" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [None, [], {}, b"1"])
def test_other_values_do_not_spell_a_quantity(value: object) -> None:
    assert not is_quantity(value)


numbers = st.decimals(0, 1000, places=6, allow_nan=False).map(lambda number: f"{number:f}")
suffixes = st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"])


@given(numbers, suffixes)
def test_rounding_never_takes_away_and_adds_less_than_one(number: str, suffix: str) -> None:
    quantity = Quantity(number + suffix)
    assert 0 <= quantity.units - quantity.amount < 1
    assert 0 <= quantity.milli - quantity.amount * 1000 < 1


@given(numbers, suffixes)
def test_a_negative_amount_mirrors_the_positive_one(number: str, suffix: str) -> None:
    positive, negative = Quantity(number + suffix), Quantity(f"-{number}{suffix}")
    assert negative.amount == -positive.amount
    assert (negative.units, negative.milli) == (-positive.units, -positive.milli)


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_is_refused(text: str) -> None:
    if is_quantity(text):
        assert abs(Quantity(text).amount) <= MAX_QUANTITY
    else:
        with pytest.raises(ValueError, match=r"expected a quantity|beyond what Kubernetes"):
            Quantity(text)
