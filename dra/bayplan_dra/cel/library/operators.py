"""Arithmetic, comparison and membership."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from bayplan.api.quantity import Quantity
from bayplan_dra.cel import types as t
from bayplan_dra.cel.library.registry import declare, fail
from bayplan_dra.cel.types import A, B, CelType, list_of, map_of
from bayplan_dra.cel.values import (
    Semver,
    Uint,
    equal,
    is_number,
    type_name,
)

_LOW, _HIGH = -(2**63), 2**63 - 1

__all__ = ["in_range", "in_uint_range", "member_of", "moved", "ordered"]

# Arithmetic and comparison ---------------------------------------------------------------------


def in_range(number: int) -> int:
    """Return an int unchanged.

    :raises EvaluationError: when it does not fit into 64 bits.
    """
    if not _LOW <= number <= _HIGH:
        raise fail("integer overflow")
    return number


def in_uint_range(number: int) -> Uint:
    """Return a number as an unsigned int.

    :raises EvaluationError: when it does not fit into 64 bits.
    """
    if not 0 <= number < 2**64:
        raise fail("unsigned integer overflow")
    return Uint(number)


def _quotient(left: int, right: int) -> int:
    if right == 0:
        raise fail("division by zero")
    whole = abs(left) // abs(right)
    return whole if (left < 0) == (right < 0) else -whole


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise fail("modulus by zero")
    if left == _LOW and right == -1:
        raise fail("integer overflow")
    return left - right * _quotient(left, right)


def _divide(left: float, right: float) -> float:
    if right:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1, right)


for _kind, _fit in ((t.INT, in_range), (t.UINT, in_uint_range)):
    _pair: tuple[CelType, CelType] = (_kind, _kind)
    declare("_+_", _pair, _kind, lambda a, b, fit=_fit: fit(int(a) + int(b)))
    declare("_-_", _pair, _kind, lambda a, b, fit=_fit: fit(int(a) - int(b)))
    declare("_*_", _pair, _kind, lambda a, b, fit=_fit: fit(int(a) * int(b)))
    declare("_/_", _pair, _kind, lambda a, b, fit=_fit: fit(_quotient(int(a), int(b))))
    declare("_%_", _pair, _kind, lambda a, b, fit=_fit: fit(_remainder(int(a), int(b))))
declare("-_", [t.INT], t.INT, lambda a: in_range(-a))
declare("-_", [t.DOUBLE], t.DOUBLE, lambda a: -a)
_doubles = (t.DOUBLE, t.DOUBLE)
declare("_+_", _doubles, t.DOUBLE, lambda a, b: a + b)
declare("_-_", _doubles, t.DOUBLE, lambda a, b: a - b)
declare("_*_", _doubles, t.DOUBLE, lambda a, b: a * b)
declare("_/_", _doubles, t.DOUBLE, _divide)
for _kind in (t.STRING, t.BYTES):
    declare("_+_", (_kind, _kind), _kind, lambda a, b: a + b)
declare("_+_", (list_of(A), list_of(A)), list_of(A), lambda a, b: a + b)
declare("_+_", (t.DURATION, t.DURATION), t.DURATION, lambda a, b: a + b)
declare("_-_", (t.DURATION, t.DURATION), t.DURATION, lambda a, b: a - b)


def moved(moment: datetime, by: timedelta) -> datetime:
    """Return a moment shifted by a duration.

    :raises EvaluationError: outside the years 1 to 9999.
    """
    try:
        return moment + by
    except OverflowError:
        raise fail("timestamp overflow") from None


declare("_+_", (t.TIMESTAMP, t.DURATION), t.TIMESTAMP, moved)
declare("_+_", (t.DURATION, t.TIMESTAMP), t.TIMESTAMP, lambda a, b: moved(b, a))
declare("_-_", (t.TIMESTAMP, t.DURATION), t.TIMESTAMP, lambda a, b: moved(a, -b))
declare("_-_", (t.TIMESTAMP, t.TIMESTAMP), t.DURATION, lambda a, b: a - b)
declare("!_", [t.BOOL], t.BOOL, lambda a: not a)
declare("_==_", (A, A), t.BOOL, equal)
declare("_!=_", (A, A), t.BOOL, lambda a, b: not equal(a, b))

_NUMBERS = (t.INT, t.UINT, t.DOUBLE)
_ORDERED = (t.STRING, t.BYTES, t.BOOL, t.TIMESTAMP, t.DURATION)
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "_<_": lambda a, b: a < b,
    "_<=_": lambda a, b: a <= b,
    "_>_": lambda a, b: a > b,
    "_>=_": lambda a, b: a >= b,
}
for _name, _compare in _COMPARED.items():
    for _left in _NUMBERS:
        for _right in _NUMBERS:
            declare(_name, (_left, _right), t.BOOL, _compare)
    for _kind in _ORDERED:
        declare(_name, (_kind, _kind), t.BOOL, _compare)


def ordered(left: Any, right: Any) -> int:
    """Return -1, 0 or 1 for two values of the same ordered type.

    :raises EvaluationError: for values that have no order.
    """
    same = type_name(left) == type_name(right)
    if not (is_number(left) and is_number(right)) and not (
        same and isinstance(left, str | bytes | bool | datetime | timedelta | Quantity | Semver)
    ):
        raise fail("no such overload")
    if isinstance(left, Quantity):
        left, right = left.amount, right.amount
    return int(left > right) - int(left < right)


def member_of(item: Any, holder: Any) -> bool:
    """Tell whether a list holds a value, or a map has it as a key."""
    if isinstance(holder, dict):
        if isinstance(item, bool | str):
            return item in holder and any(type(key) is type(item) for key in holder)
        return any(equal(item, key) for key in holder)
    return any(equal(item, other) for other in holder)


declare("@in", (A, list_of(A)), t.BOOL, member_of)
declare("@in", (A, map_of(A, B)), t.BOOL, member_of)
