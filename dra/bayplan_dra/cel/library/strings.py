"""Strings (cel-go's extension 2) and regular expressions (RE2, linear in the text)."""

from __future__ import annotations

import re
from typing import Any

import re2

from bayplan_dra.cel import types as t
from bayplan_dra.cel.library.conversions import to_string
from bayplan_dra.cel.library.registry import declare, fail
from bayplan_dra.cel.types import list_of
from bayplan_dra.cel.values import (
    Uint,
    is_number,
    type_name,
)

__all__ = ["TEXT", "regex"]

# Strings ---------------------------------------------------------------------------------------


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise fail(f"index out of range: {index}")
    return text[index : index + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if not 0 <= start <= len(text):
        raise fail(f"index out of range: {start}")
    return text.find(part, start)


def _last_index_of(text: str, part: str, end: int | None = None) -> int:
    if end is not None and not 0 <= end <= len(text):
        raise fail(f"index out of range: {end}")
    return text.rfind(part, 0, None if end is None else end + len(part))


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    return text.replace(old, new, count if count >= 0 else -1)


def _split(text: str, separator: str, count: int = -1) -> tuple[str, ...]:
    if count == 0:
        return ()
    if not separator:
        parts = list(text)
        if 0 < count < len(parts):
            parts = [*parts[: count - 1], "".join(parts[count - 1 :])]
        return tuple(parts)
    return tuple(text.split(separator, count - 1 if count > 0 else -1))


def _substring(text: str, start: int, end: int | None = None) -> str:
    stop = len(text) if end is None else end
    if not 0 <= start <= stop <= len(text):
        raise fail(f"invalid substring range: {start}, {stop}")
    return text[start:stop]


_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_ASCII_UPPER = {lower: upper for upper, lower in _ASCII_LOWER.items()}
_QUOTED = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


def _quote(text: str) -> str:
    return '"' + "".join(_QUOTED.get(char, char) for char in text) + '"'


def _shown(value: Any, nested: bool = False) -> str:
    """Return a value as ``%s`` of format() prints it."""
    if isinstance(value, str):
        return _quote(value) if nested else value
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return "[" + ", ".join(_shown(item, True) for item in value) + "]"
    if isinstance(value, dict):
        pairs = sorted((_shown(key, True), _shown(item, True)) for key, item in value.items())
        return "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}"
    return to_string(value)


def _format_one(verb: str, precision: int | None, value: Any) -> str:
    if verb == "s":
        return _shown(value)
    if verb == "d" and type(value) in (int, Uint):
        return str(int(value))
    if verb in "fe" and is_number(value):
        return format(float(value), f".{6 if precision is None else precision}{verb}")
    if verb == "b" and isinstance(value, int):
        return format(int(value), "b")
    if verb in "xX" and type(value) in (int, Uint):
        return format(int(value), verb)
    if verb in "xX" and isinstance(value, str | bytes):
        octets = value.encode() if isinstance(value, str) else value
        return octets.hex().upper() if verb == "X" else octets.hex()
    if verb == "o" and type(value) in (int, Uint):
        return format(int(value), "o")
    raise fail(f"error during formatting: %{verb} takes no {type_name(value)}")


_VERB = re.compile(r"%(?:(?P<percent>%)|(?:\.(?P<precision>\d{1,3}))?(?P<verb>.)|(?P<end>$))", re.S)


def _format(text: str, args: tuple[Any, ...]) -> str:
    left = iter(args)

    def one(match: re.Match[str]) -> str:
        if match["percent"]:
            return "%"
        verb = match["verb"] or ""
        if not verb or verb not in "sdfebxXo":
            raise fail(f'could not parse formatting clause: unrecognized "{match[0]}"')
        try:
            value = next(left)
        except StopIteration:
            raise fail("error during formatting: index out of range") from None
        return _format_one(verb, int(match["precision"]) if match["precision"] else None, value)

    return _VERB.sub(one, text)


TEXT, TEXTS = (t.STRING,), (t.STRING, t.STRING)
declare(".contains", TEXTS, t.BOOL, lambda a, b: b in a)
declare(".startsWith", TEXTS, t.BOOL, lambda a, b: a.startswith(b))
declare(".endsWith", TEXTS, t.BOOL, lambda a, b: a.endswith(b))
declare(".charAt", (t.STRING, t.INT), t.STRING, _char_at)
declare(".indexOf", TEXTS, t.INT, _index_of)
declare(".indexOf", (*TEXTS, t.INT), t.INT, _index_of)
declare(".lastIndexOf", TEXTS, t.INT, _last_index_of)
declare(".lastIndexOf", (*TEXTS, t.INT), t.INT, _last_index_of)
declare(".lowerAscii", TEXT, t.STRING, lambda a: a.translate(_ASCII_LOWER))
declare(".upperAscii", TEXT, t.STRING, lambda a: a.translate(_ASCII_UPPER))
declare(".trim", TEXT, t.STRING, lambda a: a.strip())
declare(".replace", (*TEXTS, t.STRING), t.STRING, _replace)
declare(".replace", (*TEXTS, t.STRING, t.INT), t.STRING, _replace)
declare(".split", TEXTS, list_of(t.STRING), _split)
declare(".split", (*TEXTS, t.INT), list_of(t.STRING), _split)
declare(".substring", (t.STRING, t.INT), t.STRING, _substring)
declare(".substring", (t.STRING, t.INT, t.INT), t.STRING, _substring)
declare(".join", [list_of(t.STRING)], t.STRING, lambda items: _joined(items, ""))
declare(".join", (list_of(t.STRING), t.STRING), t.STRING, lambda items, mark: _joined(items, mark))
declare(".format", (t.STRING, list_of(t.DYN)), t.STRING, _format)
declare("strings.quote", TEXT, t.STRING, _quote)


def _joined(items: tuple[Any, ...], mark: str) -> str:
    if not all(isinstance(item, str) for item in items):
        raise fail("no such overload: join takes a list of strings")
    return mark.join(items)


# Regular expressions ---------------------------------------------------------------------------


def regex(pattern: str) -> Any:
    """Compile a regular expression.

    :raises EvaluationError: for one that RE2 does not accept.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as exc:
        raise fail(f"error parsing regexp: {exc}") from None


def _find(text: str, pattern: str) -> str:
    found = regex(pattern).search(text)
    return str(found.group(0)) if found else ""


def _find_all(text: str, pattern: str, most: int = -1) -> tuple[str, ...]:
    found: list[str] = []
    for match in regex(pattern).finditer(text):
        if 0 <= most <= len(found):
            break
        found.append(str(match.group(0)))
    return tuple(found)


def _matches(text: str, pattern: str) -> bool:
    return regex(pattern).search(text) is not None


declare("matches", TEXTS, t.BOOL, _matches)
declare(".matches", TEXTS, t.BOOL, _matches)
declare(".find", TEXTS, t.STRING, _find)
declare(".findAll", TEXTS, list_of(t.STRING), _find_all)
declare(".findAll", (*TEXTS, t.INT), list_of(t.STRING), _find_all)
