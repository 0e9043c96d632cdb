"""JSON to plain values, within limits; duplicate keys can be found."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import numpy as np

from bayplan.inputs.limits import LimitExceeded, Limits

__all__ = ["check_depth", "duplicate_key", "parse_json", "parse_json_sequence"]


def parse_json(text: str | bytes, limits: Limits) -> Any:
    """Return the value of a JSON text; integers beyond 64 bits become floats.

    :raises LimitExceeded: for a text beyond the limits; it is a ``ValueError``.
    :raises ValueError: for a text that is not JSON, with the position.
    """
    limits.check_size(text)
    content = text.encode(errors="replace") if isinstance(text, str) else text
    check_depth(content, limits)
    # A value takes at least two characters.
    if len(content) > 2 * limits.values and (
        content.count(b",") + content.count(b":") > limits.values
    ):
        raise LimitExceeded(f"holds more than {limits.values:,} values")
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ValueError(f"not JSON: {exc}") from None
    try:
        return _within_64_bits(value) if _has_long_number(content) else value
    except OverflowError:
        raise ValueError("not JSON: a number is out of range") from None


def parse_json_sequence(text: str) -> list[Any] | None:
    """Return the objects of a text that holds several in a row, as jq prints them.

    None if it holds anything else.

    :param text: a text whose size and depth have been checked.
    """
    decoder, place = json.JSONDecoder(), 0
    values: list[Any] = []
    try:
        while place < len(text):
            match = _BLANKS.match(text, place)
            place = match.end() if match is not None else place
            if place == len(text):
                break
            value, place = decoder.raw_decode(text, place)
            if not isinstance(value, dict):
                return None
            values.append(value)
    except (ValueError, RecursionError):
        return None
    return values if len(values) > 1 else None


_BLANKS = re.compile(r"[ \t\r\n]*")
_DIGITS = bytes(ord("0") if chr(code).isdigit() else 32 for code in range(128)) + b" " * 128


def _has_long_number(content: bytes) -> bool:
    # Searching a translated copy is ten times as fast as a regular expression.
    return b"0" * 19 in content.translate(_DIGITS)


def _within_64_bits(value: Any) -> Any:
    """Convert integers beyond 64 bits to floats, as Go's decoder does."""
    if isinstance(value, dict):
        return {key: _within_64_bits(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_within_64_bits(part) for part in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value)
    return value


_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def check_depth(content: bytes, limits: Limits) -> None:
    """Check the nesting depth of JSON without parsing it.

    :raises LimitExceeded: when it is nested too deeply, naming the limit.
    """
    # First with brackets in strings: few texts come near the limit even so.
    if _nesting(content) > limits.depth and _nesting(_STRING.sub(b"", content)) > limits.depth:
        raise LimitExceeded(f"is nested more than {limits.depth} deep")


def _nesting(content: bytes) -> int:
    brackets = np.frombuffer(content.translate(None, _NO_BRACKETS), dtype=np.uint8)
    if len(brackets) == 0:
        return 0
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    steps = np.where(opening, np.int8(1), np.int8(-1))
    return int(np.cumsum(steps, dtype=np.int32).max())


def duplicate_key(content: bytes, value: Any) -> str | None:
    """Return a key that appears twice in one mapping of a JSON text, None if there is none.

    :param value: the parsed text.
    """
    # Decoding drops one of the two values, so encoding yields a shorter text.
    if len(msgspec.json.format(content, indent=-1)) == len(msgspec.json.encode(value)):
        return None
    found: list[str] = []

    def check(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                found.append(key)
            seen.add(key)

    json.loads(content, object_pairs_hook=check)
    return found[0] if found else None
