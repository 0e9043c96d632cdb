"""Types made into fast tests: does a value fit, and is no field of it unknown?

A test only says yes or no. ``problems.py`` finds out what is wrong where the answer is no.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from bayplan.schemas.catalog import ListOf, MapOf, Record, Scalar, Type

__all__ = ["SCALARS", "Budget", "Test", "test_of"]


@dataclass(slots=True)
class Budget:
    """How many items of lists and mappings may still be looked at.

    A few lines of YAML aliases can spell billions of them.
    """

    left: int = 200_000


Test = Callable[[Any, Budget], bool]

SCALARS: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "bytes": (str,),
    "int-or-string": (int, str),
    "int32": (int,),
    "int64": (int,),
    "integer": (int,),
    "number": (int, float),
    "quantity": (str, int, float),
    "string": (str,),
    "time": (str,),
}
"""Which classes the values of a scalar may have."""


@cache
def test_of(type_: Type) -> Test:
    """Return the test of a type; null fits every type, as it means absent.

    Nothing fits once the budget is spent.
    """
    if isinstance(type_, Record):
        return _RecordTest(type_)
    if isinstance(type_, ListOf):
        return _list_test(test_of(type_.items))
    if isinstance(type_, MapOf):
        return _map_test(type_.values)
    return _scalar_test(type_)


class _RecordTest:
    """The test of a record; those of its fields are made when they are first needed."""

    def __init__(self, record: Record) -> None:
        self._record = record
        # Two tables: one look-up decides on most values, which are texts, integers and booleans.
        self._plain: dict[str, type] = {}
        self._tests: dict[str, Test] = {}
        self._ready = False

    def __call__(self, value: Any, budget: Budget) -> bool:
        if type(value) is not dict:
            return value is None
        if not self._ready:
            self._prepare()
        plain, tests = self._plain, self._tests
        for key, item in value.items():
            if plain.get(key) is type(item):
                continue
            test = tests.get(key)
            if test is None:
                if not self._record.open:
                    return False
            elif not test(item, budget):
                return False
        return True

    def _prepare(self) -> None:
        self._ready = True
        for name, field in self._record.fields.items():
            self._tests[name] = test_of(field.type)
            if isinstance(field.type, Scalar) and field.type.name != "any":
                self._plain[name] = SCALARS[field.type.name][0]


def _list_test(test: Test) -> Test:
    def fits(value: Any, budget: Budget) -> bool:
        if type(value) is not list:
            return value is None
        budget.left -= len(value)
        if budget.left < 0:
            return False
        for item in value:  # noqa: SIM110 - a third faster than all()
            if not test(item, budget):
                return False
        return True

    return fits


def _map_test(values: Type) -> Test:
    test = test_of(values)

    def fits(value: Any, budget: Budget) -> bool:
        if type(value) is not dict:
            return value is None
        budget.left -= len(value)
        if budget.left < 0:
            return False
        for key, item in value.items():
            if type(key) is not str or not test(item, budget):
                return False
        return True

    return fits


def _scalar_test(scalar: Scalar) -> Test:
    if scalar.name == "any":
        return lambda _value, _budget: True
    classes = (*SCALARS[scalar.name], type(None))

    def fits(value: Any, _budget: Budget) -> bool:
        return type(value) in classes

    return fits
