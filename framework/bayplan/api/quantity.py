"""Kubernetes quantities, parsed exactly into integers.

Grammar (k8s.io/apimachinery/pkg/api/resource): a signed decimal number followed by a binary
suffix (Ki Mi Gi Ti Pi Ei), a decimal suffix (n u m k M G T P E) or a decimal exponent (e3, E-2).
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

__all__ = ["MAX_QUANTITY", "Quantity", "countable", "is_quantity"]

MAX_QUANTITY = 2**63 - 1

_SYNTAX = re.compile(
    r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))"
    r"(?:[eE](?P<exponent>[+-]?\d{1,3})|(?P<suffix>[KMGTPE]i|[numkMGTPE]))?",
    re.ASCII,
)
_LONGEST = 100
_BINARY = {suffix: Fraction(1024) ** n for n, suffix in enumerate("KMGTPE", start=1)}
_DECIMAL = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_EXPECTED = 'expected a quantity such as "8", "500m", "1.5Gi" or "1e3"'


class Quantity:
    """An exact amount of a resource. Immutable; equal when the amounts are equal.

    ``units`` is the amount in whole units, ``milli`` the amount in thousandths; both are rounded
    away from zero, as in Kubernetes (resource.Quantity.ScaledValue). ``number`` is the exact
    amount, an int if it is whole. Equal spellings share one object.

    :raises ValueError: for text that is not a quantity, or an amount beyond 2**63-1.
    """

    __slots__ = ("amount", "milli", "number", "text", "units")

    amount: Fraction
    milli: int
    number: int | Fraction
    text: str
    units: int

    def __new__(cls, value: str | int | float) -> Quantity:
        """Return the quantity of a value as written in a manifest."""
        if type(value) is str:
            return _parse(value)
        if isinstance(value, bool):
            raise ValueError(f"{_EXPECTED}, got {value}")
        return _parse(value if isinstance(value, str) else _number_text(value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.amount == other.amount

    def __hash__(self) -> int:
        return hash(self.amount)

    def __repr__(self) -> str:
        return f"Quantity({self.text!r})"


def is_quantity(value: object) -> bool:
    """Tell whether a plain value is a valid quantity."""
    try:
        return isinstance(value, str | int | float) and Quantity(value) is not None
    except ValueError:
        return False


def countable(amount: float) -> float:
    """Return an amount that a quantity can hold: a sum of many is as much as one can hold at most.

    An amount within that is returned as it is, exact.
    """
    if -MAX_QUANTITY < amount < MAX_QUANTITY:
        return amount
    return MAX_QUANTITY if amount > 0 else -MAX_QUANTITY


def _number_text(value: int | float) -> str:
    return str(value) if isinstance(value, int) else format(value, ".12g")


@lru_cache(maxsize=65536)
def _parse(text: str) -> Quantity:
    match = _SYNTAX.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'{_EXPECTED}, got "{text[:_LONGEST]}"')
    if len(text) > _LONGEST:
        raise ValueError(f'"{text[:20]}…" is beyond what Kubernetes can count (2^63-1)')
    amount = Fraction(match["number"])
    suffix = match["suffix"] or ""
    if match["exponent"]:
        amount *= Fraction(10) ** int(match["exponent"])
    elif suffix.endswith("i"):
        amount *= _BINARY[suffix[0]]
    elif suffix:
        amount *= _DECIMAL[suffix]
    if abs(amount) > MAX_QUANTITY:
        raise ValueError(f'"{text}" is beyond what Kubernetes can count (2^63-1)')
    quantity = object.__new__(Quantity)
    quantity.text = text
    quantity.amount = amount
    quantity.number = int(amount) if amount.denominator == 1 else amount
    quantity.units = _away_from_zero(amount)
    quantity.milli = _away_from_zero(amount * 1000)
    return quantity


def _away_from_zero(amount: Fraction) -> int:
    whole = -((-abs(amount)) // 1)
    return int(whole) if amount >= 0 else -int(whole)
