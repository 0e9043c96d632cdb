"""Calls and accesses at run time: choosing a function's overload, and what the call costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bayplan_dra.cel import types as t
from bayplan_dra.cel.compiled import Compiled
from bayplan_dra.cel.errors import EvaluationError
from bayplan_dra.cel.frame import BUDGET, Frame, Run, size_of, spend
from bayplan_dra.cel.library import Overload
from bayplan_dra.cel.values import (
    NONE,
    DomainMap,
    Optional,
    Uint,
    equal,
    go_type,
    no_such_key,
    type_name,
)

__all__ = [
    "as_bool",
    "as_key",
    "dispatch",
    "fast_comparison",
    "get",
    "try_get",
]


def as_bool(value: Any) -> bool:
    """Return a bool unchanged.

    :raises EvaluationError: for any other value.
    """
    if value is True or value is False:
        return bool(value)
    raise EvaluationError("no such overload")


def as_key(value: Any) -> Any:
    """Return a value that can be a key of a map.

    :raises EvaluationError: for one that cannot.
    """
    if type(value) not in (bool, int, Uint, str):
        raise EvaluationError(f"unsupported key type: {go_type(value)}")
    return value


def get(holder: Any, key: Any) -> Any:
    """Return an entry of a map or list.

    :raises EvaluationError: when there is none.
    """
    if isinstance(holder, dict):
        try:
            found = holder[key]
        except (KeyError, TypeError):
            raise no_such_key(key) from None
        if isinstance(key, bool) and not any(k is key for k in holder):
            raise no_such_key(key)
        return found
    if isinstance(holder, tuple):
        index = _index(key)
        if not 0 <= index < len(holder):
            raise EvaluationError(f"index out of bounds: {key}")
        return holder[index]
    raise no_such_key(key)


def _index(key: Any) -> int:
    """Return a key as an index of a list.

    :raises EvaluationError: for a key that is no whole number.
    """
    if isinstance(key, bool) or not isinstance(key, int | float):
        raise EvaluationError(f"unsupported index type '{type_name(key)}' in list")
    if isinstance(key, float) and not key.is_integer():
        raise EvaluationError(f"unsupported index value {key} in list")
    return int(key)


def try_get(holder: Any, key: Any) -> Optional:
    """Return an entry of a map or list, or of an optional one, as an optional value.

    :raises EvaluationError: for a key that a list cannot have.
    """
    if isinstance(holder, Optional):
        if not holder.present:
            return NONE
        holder = holder.value
    if isinstance(holder, DomainMap) and isinstance(key, str):
        return Optional(holder[key], True)
    if isinstance(holder, dict):
        return Optional(holder[key], True) if key in holder else NONE
    if isinstance(holder, tuple):
        index = _index(key)
        return Optional(holder[index], True) if 0 <= index < len(holder) else NONE
    return NONE


_SCALARS = {
    kind.name
    for kind in (
        *(t.BOOL, t.INT, t.UINT, t.DOUBLE, t.NULL, t.TYPE, t.TIMESTAMP, t.DURATION),
        *(t.QUANTITY, t.SEMVER, t.IP, t.CIDR, t.FORMAT),
    )
}
_QUADRATIC = {"distinct", "sets.contains", "sets.equivalent", "sets.intersects", "replace", "@in"}
"""Functions that take time in proportion to the product of the sizes of their arguments."""


def dispatch(overloads: Sequence[Overload], args: Sequence[Compiled], name: str) -> Run:
    """Return the call of the matching overload, which is chosen now if the types are known."""
    runs = [arg.run for arg in args]
    first = overloads[0]
    if len(overloads) == 1 and all(kind.name in _SCALARS for kind in (*first.takes, first.returns)):
        return _scalar_call(first, args)

    def choose(f: Frame) -> Any:
        values = [one(f) for one in runs]
        for overload in overloads:
            for kind, value in zip(overload.takes, values, strict=True):
                if not t.holds(kind, value):
                    break
            else:
                spend(f, _work(name, values, f[BUDGET]))
                return overload.run(*values)
        raise EvaluationError("no such overload")

    return choose


def _scalar_call(overload: Overload, args: Sequence[Compiled]) -> Run:
    """Return the call of a function that takes constant time."""
    function, takes = overload.run, overload.takes
    runs = [arg.run for arg in args]
    if all(arg.type == kind for arg, kind in zip(args, takes, strict=True)):
        if len(runs) == 1:
            (only,) = runs
            return lambda f: function(only(f))
        if len(runs) == 2:
            left, right = runs
            return lambda f: function(left(f), right(f))
        return lambda f: function(*[one(f) for one in runs])
    tests = [t.test_of(kind) for kind in takes]
    if len(runs) == 2:
        (left, right), (is_left, is_right) = runs, tests

        def check(f: Frame) -> Any:
            a, b = left(f), right(f)
            if is_left(a) and is_right(b):
                return function(a, b)
            raise EvaluationError("no such overload")

        return check

    def check_all(f: Frame) -> Any:
        values = [one(f) for one in runs]
        if all(test(value) for test, value in zip(tests, values, strict=True)):
            return function(*values)
        raise EvaluationError("no such overload")

    return check_all


def _work(name: str, values: Sequence[Any], most: int) -> int:
    """Return what a call costs: the sum of the sizes of its arguments, or their product."""
    sizes = [size_of(value, most) for value in values]
    if name == "lists.range":
        return int(values[0]) if values and values[0] > 0 else 1
    if name == "distinct":
        return sizes[0] * sizes[0]
    if name in _QUADRATIC:
        total = 1
        for size in sizes:
            total *= size
        return total
    return sum(sizes)


def fast_comparison(name: str, args: Sequence[Compiled]) -> Run | None:
    """Return a direct comparison for == and !=, None for other functions."""
    if name not in ("_==_", "_!=_") or len(args) != 2:
        return None
    left, right = args
    if left.constant and not right.constant:
        left, right = right, left
    a, b = left.run, right.run
    if right.constant and isinstance(right.value, str):
        text = right.value
        if name == "_==_":
            return lambda f: a(f) == text
        return lambda f: a(f) != text
    wanted = name == "_==_"

    def compare(f: Frame) -> bool:
        x, y = a(f), b(f)
        if isinstance(x, tuple | dict | Optional):
            spend(f, min(size_of(x, f[BUDGET]), size_of(y, f[BUDGET])))
        return equal(x, y) is wanted

    return compare
