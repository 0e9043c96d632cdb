"""Lists (cel-go's extension 3 and Kubernetes'), sets, math and optionals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import cmp_to_key
from typing import Any

from bayplan_dra.cel import types as t
from bayplan_dra.cel.library.operators import in_range, in_uint_range, member_of, ordered
from bayplan_dra.cel.library.registry import declare, fail
from bayplan_dra.cel.types import A, list_of, optional_of
from bayplan_dra.cel.values import (
    NONE,
    Optional,
    Uint,
    equal,
    is_number,
)

_LONGEST_LIST = 48

__all__ = ["sort_by_keys"]

# Lists -----------------------------------------------------------------------------------------


def _total(items: tuple[Any, ...]) -> Any:
    if not items:
        return 0
    if all(isinstance(item, timedelta) for item in items):
        return sum(items, start=timedelta())
    if not all(is_number(item) for item in items):
        raise fail("no such overload: sum")
    kinds = {type(item) for item in items}
    total = sum(items)
    if kinds == {int}:
        return in_range(int(total))
    return in_uint_range(int(total)) if kinds == {Uint} else float(total)


def _extreme(items: tuple[Any, ...], sign: int, name: str) -> Any:
    if not items:
        raise fail(f"{name} called on empty list")
    best = items[0]
    for item in items[1:]:
        if ordered(item, best) == sign:
            best = item
    return best


def _position(items: tuple[Any, ...], value: Any, indices: Iterable[int]) -> int:
    return next((index for index in indices if equal(items[index], value)), -1)


def _slice(items: tuple[Any, ...], start: int, end: int) -> tuple[Any, ...]:
    if not 0 <= start <= end <= len(items):
        raise fail(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


def _flatten(items: tuple[Any, ...], depth: int = 1) -> tuple[Any, ...]:
    if depth < 0:
        raise fail("flatten: level must be non-negative")
    found: list[Any] = []
    for item in items:
        if isinstance(item, tuple) and depth:
            found += _flatten(item, depth - 1)
        else:
            found.append(item)
    return tuple(found)


def _distinct(items: tuple[Any, ...]) -> tuple[Any, ...]:
    found: list[Any] = []
    for item in items:
        if not any(equal(item, other) for other in found):
            found.append(item)
    return tuple(found)


def _range(size: int) -> tuple[int, ...]:
    if not 0 <= size <= 1_000_000:
        raise fail(f"lists.range: expected 0 to 1000000, got {size}")
    return tuple(range(size))


def sort_by_keys(items: tuple[Any, ...], keys: Sequence[Any]) -> tuple[Any, ...]:
    """Return the items in the order of their keys.

    :raises EvaluationError: for keys that cannot be compared.
    """
    compare = cmp_to_key(ordered)
    order = sorted(range(len(items)), key=[compare(key) for key in keys].__getitem__)
    return tuple(items[index] for index in order)


def _is_sorted(items: tuple[Any, ...]) -> bool:
    return all(ordered(a, b) <= 0 for a, b in itertools.pairwise(items))


_L = (list_of(A),)
declare(".isSorted", _L, t.BOOL, _is_sorted)
declare(".sum", _L, A, _total)
declare(".min", _L, A, lambda items: _extreme(items, -1, "min"))
declare(".max", _L, A, lambda items: _extreme(items, 1, "max"))
declare(
    ".indexOf",
    (list_of(A), A),
    t.INT,
    lambda items, value: _position(items, value, range(len(items))),
)
declare(
    ".lastIndexOf",
    (list_of(A), A),
    t.INT,
    lambda items, value: _position(items, value, reversed(range(len(items)))),
)
declare(".slice", (list_of(A), t.INT, t.INT), list_of(A), _slice)
declare(".flatten", [list_of(t.DYN)], list_of(t.DYN), _flatten)
declare(".flatten", (list_of(t.DYN), t.INT), list_of(t.DYN), _flatten)
declare(".distinct", _L, list_of(A), _distinct)
declare(".reverse", _L, list_of(A), lambda items: items[::-1])
declare(".sort", _L, list_of(A), lambda items: sort_by_keys(items, items))
declare("lists.range", [t.INT], list_of(t.INT), _range)
declare(".first", _L, optional_of(A), lambda items: Optional(items[0], True) if items else NONE)
declare(".last", _L, optional_of(A), lambda items: Optional(items[-1], True) if items else NONE)


def _includes(value: Any, wanted: Any) -> bool:
    """Tell whether a list contains a value, or any other value equals it.

    :raises EvaluationError: for a longer list, unless the value is among the first 48.
    """
    if not isinstance(value, tuple):
        return equal(value, wanted)
    found = member_of(wanted, value[:_LONGEST_LIST])
    if not found and len(value) > _LONGEST_LIST:
        raise fail(
            f"'includes' function cannot be applied to lists longer than {_LONGEST_LIST} values"
        )
    return found


declare(".includes", (t.DYN, t.DYN), t.BOOL, _includes)


# Sets ------------------------------------------------------------------------------------------

_LL = (list_of(A), list_of(A))


def _contains_all(items: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return all(member_of(other, items) for other in others)


declare("sets.contains", _LL, t.BOOL, _contains_all)
declare("sets.equivalent", _LL, t.BOOL, lambda a, b: _contains_all(a, b) and _contains_all(b, a))
declare("sets.intersects", _LL, t.BOOL, lambda a, b: any(member_of(x, a) for x in b))


# Math ------------------------------------------------------------------------------------------


def _greatest(*values: Any) -> Any:
    flat = values[0] if len(values) == 1 and isinstance(values[0], tuple) else values
    return _extreme(flat, 1, "math.greatest")


def _least(*values: Any) -> Any:
    flat = values[0] if len(values) == 1 and isinstance(values[0], tuple) else values
    return _extreme(flat, -1, "math.least")


for _name, _run in (("math.greatest", _greatest), ("math.least", _least)):
    for _count in range(1, 9):
        declare(_name, [t.DYN] * _count, t.DYN, _run)


def _rounded(value: float) -> float:
    return math.copysign(math.floor(abs(value) + 0.5), value) if math.isfinite(value) else value


def _whole(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda value: float(function(value)) if math.isfinite(value) else value


for _name, _run in (
    ("ceil", _whole(math.ceil)),
    ("floor", _whole(math.floor)),
    ("trunc", _whole(math.trunc)),
    ("round", _rounded),
):
    declare(f"math.{_name}", [t.DOUBLE], t.DOUBLE, _run)
declare("math.abs", [t.INT], t.INT, lambda value: in_range(abs(value)))
declare("math.abs", [t.DOUBLE], t.DOUBLE, abs)
declare("math.sign", [t.INT], t.INT, lambda value: (value > 0) - (value < 0))
declare("math.sign", [t.DOUBLE], t.DOUBLE, lambda value: float((value > 0) - (value < 0)))
declare("math.isNaN", [t.DOUBLE], t.BOOL, math.isnan)
declare("math.isInf", [t.DOUBLE], t.BOOL, math.isinf)
declare("math.isFinite", [t.DOUBLE], t.BOOL, math.isfinite)


# Optionals -------------------------------------------------------------------------------------


def _value(optional: Optional) -> Any:
    if not optional.present:
        raise fail("optional.none() dereference")
    return optional.value


def _non_zero(value: Any) -> Optional:
    zero = value is None or (isinstance(value, bool | int | float | str | bytes) and not value)
    zero = zero or (isinstance(value, tuple | dict) and not value)
    return NONE if zero else Optional(value, True)


declare("optional.of", [A], optional_of(A), lambda value: Optional(value, True))
declare("optional.none", [], optional_of(t.DYN), lambda: NONE)
declare("optional.ofNonZeroValue", [A], optional_of(A), _non_zero)
declare(".hasValue", [optional_of(A)], t.BOOL, lambda o: o.present)
declare(".value", [optional_of(A)], A, _value)
declare(".or", (optional_of(A), optional_of(A)), optional_of(A), lambda a, b: a if a.present else b)
declare(".orValue", (optional_of(A), A), A, lambda a, b: a.value if a.present else b)
