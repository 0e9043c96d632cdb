"""Our compiler against cel-python's evaluator, on random expressions that both support."""

from __future__ import annotations

import random
from typing import Any

import celpy
import pytest
from celpy import celtypes
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.api.dra import DeviceAttribute
from bayplan_dra.cel import CelDevice, EvaluationError, compile_selector

DRIVER = "d.example.com"
INTS = {"a": 3, "b": -2, "c": 0}
TEXTS = {"s": "fish", "t": "", "u": "a-b-c"}
FLAGS = {"p": True, "q": False}
RELATIONS = ("<", "<=", ">", ">=", "==", "!=")
# cel-python fails for "contains" on concatenated texts.
TESTS = ("startsWith", "endsWith")
QUANTIFIERS = ("all", "exists")


def device() -> CelDevice:
    attributes = {name: DeviceAttribute(integer=value) for name, value in INTS.items()}
    attributes |= {name: DeviceAttribute(string=value) for name, value in TEXTS.items()}
    attributes |= {name: DeviceAttribute(boolean=value) for name, value in FLAGS.items()}
    return CelDevice(DRIVER, attributes, {})


def oracle(expression: str) -> bool | None:
    """Return cel-python's answer, None for an error."""
    environment = celpy.Environment()
    program = environment.program(environment.compile(expression))
    entries: dict[Any, Any] = {
        **{celtypes.StringType(k): celtypes.IntType(v) for k, v in INTS.items()},
        **{celtypes.StringType(k): celtypes.StringType(v) for k, v in TEXTS.items()},
        **{celtypes.StringType(k): celtypes.BoolType(v) for k, v in FLAGS.items()},
    }
    domains = celtypes.MapType({celtypes.StringType(DRIVER): celtypes.MapType(entries)})
    found = celtypes.MapType(
        {
            celtypes.StringType("driver"): celtypes.StringType(DRIVER),
            celtypes.StringType("attributes"): domains,
        }
    )
    try:
        return bool(program.evaluate({"device": found}))
    except celpy.CELEvalError:
        return None


# cel-python raises the recursion limit when it first evaluates; hypothesis wants that before.
oracle("true")


class Writer:
    """Writes random expressions of a wanted type."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def boolean(self, depth: int) -> str:
        if depth <= 0:
            return self._pick("true", "false", self._attribute(FLAGS))
        one, two = depth - 1, depth - 2
        return self._pick(
            f"({self.boolean(one)} && {self.boolean(one)})",
            f"({self.boolean(one)} || {self.boolean(one)})",
            f"!({self.boolean(two)})",
            f"{self.integer(one)} {self._pick(*RELATIONS)} {self.integer(one)}",
            f"{self.text(one)} {self._pick('==', '!=', '<')} {self.text(one)}",
            f"{self.text(two)}.{self._pick(*TESTS)}({self.text(two)})",
            f"{self.integer(two)} in [{self.integer(two)}, {self.integer(two)}]",
            f"[{self.integer(two)}, 1, 2].{self._pick(*QUANTIFIERS)}(x, x > {self.integer(two)})",
            f"({self.boolean(two)} ? {self.boolean(two)} : {self.boolean(two)})",
            f'"{self._pick("a", "s", "none")}" in device.attributes["{DRIVER}"]',
        )

    def integer(self, depth: int) -> str:
        if depth <= 0:
            return self._pick(str(self._chance.randint(0, 9)), self._attribute(INTS))
        one = depth - 1
        return self._pick(
            f"({self.integer(one)} {self._pick('+', '-', '*', '/', '%')} {self.integer(one)})",
            f"size({self.text(one)})",
            f"({self.boolean(one)} ? {self.integer(one)} : {self.integer(one)})",
            f"[{self.integer(one)}, 5].filter(x, x > 2).size()",
        )

    def text(self, depth: int) -> str:
        if depth <= 0:
            return self._pick('"fish"', '"a"', '""', self._attribute(TEXTS))
        one = depth - 1
        return self._pick(
            f"({self.text(one)} + {self.text(one)})",
            f"string({self.integer(one)})",
            f"({self.boolean(one)} ? {self.text(one)} : {self.text(one)})",
        )

    def _attribute(self, names: dict[str, Any]) -> str:
        name = self._chance.choice(sorted(names))
        if self._chance.random() < 0.5:
            return f'device.attributes["{DRIVER}"].{name}'
        return f'device.attributes["{DRIVER}"]["{name}"]'

    def _pick(self, *options: str) -> str:
        return self._chance.choice(options)


@settings(max_examples=120, deadline=None)
@given(st.integers(min_value=0, max_value=10**9))
def test_our_answer_is_cel_pythons(seed: int) -> None:
    expression = Writer(seed).boolean(4)
    expected = oracle(expression)
    program = compile_selector(expression)
    if expected is None:
        with pytest.raises(EvaluationError):
            program.matches(device())
    else:
        assert program.matches(device()) is expected, expression
