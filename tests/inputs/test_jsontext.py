"""JSON within limits."""

from __future__ import annotations

import pytest

from bayplan.inputs.jsontext import duplicate_key, parse_json
from bayplan.inputs.limits import ANNOTATION, LimitExceeded, Limits

SMALL = Limits(size=1_000_000, depth=5, values=100)


def test_json_is_read() -> None:
    assert parse_json('{"a": [1, 2.5, null, true, "\\u00e4"]}', SMALL) == {
        "a": [1, 2.5, None, True, "ä"]
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 6 + "]" * 6, "nested more than 5 deep"),
        ("[" * 100_000, "nested more than 5 deep"),
        ('{"a":' * 100_000, "nested more than 5 deep"),
        ("[" + "1," * 200 + "1]", "more than 100 values"),
        ('"' + "a" * 1_000_000 + '"', "larger than 976 KiB"),
    ],
)
def test_json_beyond_a_limit_is_refused(text: str, message: str) -> None:
    with pytest.raises(LimitExceeded, match=message):
        parse_json(text, SMALL)


def test_brackets_in_strings_are_not_depth() -> None:
    assert parse_json('["[[[[[[[[[{{{{{{", "\\"[[[[[["]', SMALL) == ["[[[[[[[[[{{{{{{", '"[[[[[[']


@pytest.mark.parametrize("text", ["", "{", "nope", "{1: 2}", "\ud800", "[1] 2", "1" + "0" * 400])
def test_invalid_json_is_reported(text: str) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        parse_json(text, ANNOTATION)


def test_a_key_that_appears_twice_is_found() -> None:
    def found(text: str) -> str | None:
        return duplicate_key(text.encode(), parse_json(text, SMALL))

    assert found('{"a": {"b": 1, "c": 2, "b": 1}}') == "b"
    assert found('{"a": {"b": 1}, "c": [{"b": 2}, {"b": 2}]}') is None
    assert found('{"a": "\\u003c", "b": 1e5}') is None
