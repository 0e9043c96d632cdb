"""YAML as Kubernetes reads it, within limits, in one linear pass."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bayplan.inputs.limits import LimitExceeded, Limits
from bayplan.inputs.yamltext import YamlProblem, parse_yaml, positions

SMALL = Limits(size=100_000, depth=10, values=1_000, repeated=50)


def one(text: str, limits: Limits = SMALL) -> Any:
    (value,) = parse_yaml(text, limits)
    return value


# Values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("nullable", "nullable"),
        ("yes", True),
        ("On", True),
        ("FALSE", False),
        ("no", False),
        ("n", "n"),
        ("yEs", "yEs"),
        ("0", 0),
        ("-12", -12),
        ("+7", 7),
        ("1_000", 1000),
        ("010", 8),
        ("0o10", 8),
        ("0x1F", 31),
        ("0b101", 5),
        ("1.5", 1.5),
        ("1e3", 1000),
        ("1e+06", 1_000_000),
        ("2.0", 2),
        ("08", 8),
        ("0X1f", 31),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", 2.0**63),
        ("1e999", "1e999"),
        ("9" * 500, "9" * 500),
        ("500m", "500m"),
        ("12:30:00", "12:30:00"),
        ("0000:10:00.0", "0000:10:00.0"),
        ("2024-01-01", "2024-01-01"),
        ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z"),
        ('"1"', "1"),
        ("'yes'", "yes"),
        ("!!str 1", "1"),
        ("!!float 1", 1.0),
        ("|\n  a\n  b\n", "a\nb\n"),
        ("{a: [1, {b: c}], d: }", {"a": [1, {"b": "c"}], "d": None}),
        ("1: a\ntrue: b\n", {"1": "a", "true": "b"}),
    ],
)
def test_a_value_is_what_kubernetes_reads(text: str, value: Any) -> None:
    found = one(text if ": " in text else f"--- {text}")
    assert found == value
    assert type(found) is type(value)


def test_documents_come_one_by_one_and_empty_ones_are_none() -> None:
    assert list(parse_yaml("a: 1\n---\n---\n# nothing\n---\nb: 2\n", SMALL)) == [
        {"a": 1},
        None,
        None,
        {"b": 2},
    ]


def test_an_alias_is_a_copy() -> None:
    found = one("a: &x {b: [1]}\nc: *x\n")
    found["a"]["b"].append(2)
    assert found["c"] == {"b": [1]}


def test_merge_keys_yield_to_a_mappings_own_keys() -> None:
    text = "x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz: {c: 3, <<: [*x, *y]}\nw: {<<: *x, a: 0}\n"
    found = one(text)
    assert found["z"] == {"a": 1, "b": 1, "c": 3}
    assert found["w"] == {"a": 0, "b": 1}


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@given(_VALUES)
def test_what_yaml_libraries_write_is_read_as_it_was(value: Any) -> None:
    limits = Limits(size=10**6, depth=100, values=10**6)
    assert one(yaml.safe_dump(value), limits) == value


# Problems ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, 1, 'the key "a" appears twice'),
        ("a: 1\n? [b]\n: c\n", 2, 3, "expected a string as the key"),
        ("a: &a [1, *a]\n", 1, 11, '"*a" contains itself'),
        ("a: *b\n", 1, 4, 'there is no anchor "b"'),
        ("a: !!python/object:os.system x\n", 1, 4, "the tag !!python/object:os.system is not"),
        ("a: !!int x\n", 1, 4, '"x" is not a value of type int'),
        ("a: {<<: 3}\n", 1, 4, 'a mapping, or a list of mappings, for the key "<<"'),
        ("a: [1\nb: 2\n", 2, 2, "did not find expected ',' or ']'"),
        ("a: \x00\n", 1, 0, "is not allowed"),
    ],
)
def test_a_problem_says_where_it_is(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(YamlProblem) as caught:
        list(parse_yaml(text, SMALL))
    assert message in caught.value.message
    assert caught.value.line == line
    assert column in (0, caught.value.column)


def test_what_comes_before_a_problem_is_yielded() -> None:
    found = parse_yaml("a: 1\n---\nb: [\n", SMALL)
    assert next(found) == {"a": 1}
    with pytest.raises(YamlProblem):
        next(found)


# Limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a" * 100_001, "larger than 97 KiB"),
        ("[" * 11, "nested more than 10 deep"),
        ("[" * 50_000, "nested more than 10 deep"),
        ("{a: " * 20_000, "nested more than 10 deep"),
        ("- " * 11, "nested more than 10 deep"),
        (f"[{'a,' * 1_001}]", "holds more than 1,000 values"),
        ("a\n---\n" * 1_001, "holds more than 1,000 values"),
        ("a: &a [x, x, x, x, x, x]\nb: [" + "*a, " * 8 + "]", "repeats more than 50 values"),
        ("%TAG !a! x\n" * 100 + "--- a", "more than 16 %TAG"),
    ],
)
def test_a_text_beyond_a_limit_is_refused(text: str, message: str) -> None:
    with pytest.raises(LimitExceeded, match=message):
        list(parse_yaml(text, SMALL))


def test_aliases_cannot_nest_deeper_than_the_limit() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 20)]
    with pytest.raises(LimitExceeded, match="nested more than 10 deep"):
        one("\n".join(lines), Limits(size=10**6, depth=10, values=10**6))


def test_a_bomb_of_aliases_is_refused_before_it_unfolds() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 20)]
    with pytest.raises(LimitExceeded, match="repeats more than"):
        one("\n".join(lines), Limits(size=10**6, depth=100, values=10**9))


# Positions --------------------------------------------------------------------------------------

TEXT = """\
a: 1
b:
  c: [x, {d: 2}]
---
- e
- {f: 3}
"""


@pytest.mark.parametrize(
    ("document", "path", "line", "column", "steps"),
    [
        (0, [], 1, 1, 0),
        (0, ["a"], 1, 4, 1),
        (0, ["b", "c", 1, "d"], 3, 14, 4),
        (0, ["b", "nowhere", 7], 3, 3, 1),
        (1, [1, "f"], 6, 7, 2),
        (1, [9], 5, 1, 0),
    ],
)
def test_the_position_of_a_path_is_that_of_its_nearest_parent(
    document: int, path: list[str | int], line: int, column: int, steps: int
) -> None:
    root = positions(TEXT)[document]
    assert root is not None
    place, taken = root.find(path)
    assert (place.line, place.column, taken) == (line, column, steps)


def test_a_position_knows_its_key() -> None:
    root = positions(TEXT)[0]
    assert root is not None
    assert root.find(["b"])[0].key == (2, 1)


def test_positions_end_where_kubernetes_cannot_read_the_yaml() -> None:
    found = positions("a: 1\n---\nb: 2\n? c: 3\n  d\n")
    assert found[0] is not None
    assert found[1:] == [None]
