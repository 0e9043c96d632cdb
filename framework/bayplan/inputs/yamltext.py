"""YAML to plain values in one linear pass over libyaml's events, and the position of each value.

The dialect is that of Kubernetes (sigs.k8s.io/yaml): YAML 1.1, with ``yes`` and ``on`` as booleans,
without timestamps and sexagesimal numbers. Duplicate keys are refused. Depth, values and aliases
are counted while events arrive, so no structure is built beyond the limits. Parsing does not
recurse, and neither does libyaml's event parser.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import yaml
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from bayplan.inputs.limits import LimitExceeded, Limits

__all__ = ["Position", "YamlProblem", "parse_yaml", "positions"]

_TOO_DEEP = "exceeded maximum nesting depth"
"""libyaml's own limit; it may look so far ahead before it tells of anything."""
_MOST_DIRECTIVES = 16
"""The most ``%TAG`` lines; libyaml compares each with all earlier ones."""


class YamlProblem(ValueError):
    """A text cannot be read as YAML; ``line`` and ``column`` count from 1, 0 if unknown."""

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column


def parse_yaml(
    text: str, limits: Limits, repeats: list[tuple[int, str]] | None = None
) -> Iterator[Any]:
    """Yield the value of each document of a text, None for an empty document.

    :param repeats: collects the line and name of duplicate keys, whose last value then counts. If
        None, duplicate keys are errors.
    :raises YamlProblem: for a text that is not YAML as Kubernetes reads it.
    :raises LimitExceeded: for a text beyond the limits; it is a ``ValueError``.
    """
    limits.check_size(text)
    events = _events(text)
    count = 0
    while True:
        try:
            event = events.get_event()
            kind = type(event)
            if kind is StreamEndEvent:
                return
            if kind is not DocumentStartEvent:
                continue
            builder = _Builder(limits, count, repeats)
            value = builder.build(events)
        except yaml.YAMLError as exc:
            if _TOO_DEEP in str(exc):
                raise LimitExceeded(f"is nested more than {limits.depth} deep") from None
            raise _problem(exc, text) from None
        count = builder.count
        yield value


def _events(text: str) -> Any:
    """Return a source of events: libyaml, or PyYAML's own parser if libyaml is missing."""
    if text.count("\n%TAG") > _MOST_DIRECTIVES:
        raise LimitExceeded(f"holds more than {_MOST_DIRECTIVES} %TAG directives")
    try:
        return (yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader)(text)
    except yaml.YAMLError as exc:
        raise _problem(exc, text) from None
    except UnicodeEncodeError as exc:
        line = text.count("\n", 0, exc.start) + 1
        raise YamlProblem("holds half of a surrogate pair", line) from None


def _problem(exc: yaml.YAMLError, text: str) -> YamlProblem:
    if isinstance(exc, yaml.MarkedYAMLError):
        mark = exc.problem_mark
        message = f"{exc.problem or exc.context}"
        if mark is None:
            return YamlProblem(message)
        return YamlProblem(message, mark.line + 1, mark.column + 1)
    if isinstance(exc, yaml.reader.ReaderError):
        line = text.count("\n", 0, exc.position) + 1 if isinstance(exc.position, int) else 0
        character = exc.character
        shown = repr(chr(character)) if isinstance(character, int) else repr(character)
        return YamlProblem(f"the character {shown} is not allowed", line)
    return YamlProblem(str(exc))


_NO_KEY: Any = object()
_NO_VALUE: Any = object()
_UNFINISHED: Any = object()


class _Builder:
    """Builds the value of one document from events.

    ``count`` continues from earlier documents, because the limit holds for the whole text.
    """

    def __init__(
        self, limits: Limits, count: int, repeats: list[tuple[int, str]] | None = None
    ) -> None:
        self._repeats = repeats
        self.count = count
        self._limits = limits
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._repeated = 0

    def build(self, events: Any) -> Any:
        """Return the value of the document whose start event was just read.

        :raises YamlProblem: when it is not YAML as Kubernetes reads it.
        :raises LimitExceeded: for a document beyond the limits.
        """
        get_event = events.get_event
        keys: dict[str, str] = {}
        stack: list[tuple[Any, Any, str | None, int, Any]] = []
        top: Any = None
        key: Any = _NO_KEY
        anchor: str | None = None
        began: Any = None
        start = count = self.count
        most, deepest = self._limits.values, self._limits.depth
        root: Any = _NO_VALUE
        while True:
            event = get_event()
            kind = type(event)
            if kind is ScalarEvent:
                count += 1
                value = event.value
                if type(top) is dict and key is _NO_KEY:
                    value = keys.setdefault(value, value)
                    if event.anchor is not None:
                        self._anchors[event.anchor] = (value, 1)
                    if value == "<<" and event.implicit[0]:
                        value = _MERGE
                    elif value in top:
                        self._repeat(event, value)
                    key = value
                    continue
                if event.implicit[0]:
                    if value[:1] in _SUSPECTS:
                        value = _resolved(value)
                elif event.tag is not None:
                    value = _tagged(value, event)
                if event.anchor is not None:
                    self._anchors[event.anchor] = (value, 1)
            elif kind is MappingStartEvent or kind is SequenceStartEvent:
                count += 1
                if type(top) is dict and key is _NO_KEY:
                    raise _at(event, "expected a string as the key")
                if len(stack) >= deepest:
                    raise LimitExceeded(_located(f"is nested more than {deepest} deep", event))
                if count > most:
                    raise LimitExceeded(f"holds more than {most:,} values")
                if event.tag is not None and event.tag not in _COLLECTIONS:
                    raise _at(event, f"the tag {_short_tag(event.tag)} is not supported")
                stack.append((top, key, anchor, start, began))
                top = {} if kind is MappingStartEvent else []
                key, anchor, start, began = _NO_KEY, event.anchor, count, event
                if anchor is not None:
                    self._anchors[anchor] = (_UNFINISHED, 0)
                continue
            elif kind is MappingEndEvent or kind is SequenceEndEvent:
                value = top
                if type(value) is dict and _MERGE in value:
                    value = _merged(value, began)
                if anchor is not None:
                    self._anchors[anchor] = (value, count - start + 1)
                top, key, anchor, start, began = stack.pop()
            elif kind is AliasEvent:
                value, size = self._alias(event, deepest - len(stack))
                count += size
                if type(top) is dict and key is _NO_KEY:
                    if type(value) is not str:
                        raise _at(event, "expected a string as the key")
                    if value in top:
                        self._repeat(event, value)
                    key = value
                    continue
            elif kind is DocumentEndEvent:
                self.count = count
                return None if root is _NO_VALUE else root
            else:
                continue
            if count > most:
                raise LimitExceeded(f"holds more than {most:,} values")
            if top is None:
                root = value
            elif type(top) is list:
                top.append(value)
            elif key is _MERGE and _MERGE in top:
                raise _at(event, 'the key "<<" appears twice')
            else:
                top[key] = value
                key = _NO_KEY

    def _repeat(self, event: Any, key: str) -> None:
        if self._repeats is None:
            raise _at(event, f'the key "{key[:80]}" appears twice')
        self._repeats.append((event.start_mark.line + 1, key))

    def _alias(self, event: AliasEvent, room: int) -> tuple[Any, int]:
        """Return a copy of the value that an alias stands for, and its number of values.

        :param room: how many levels of nesting the value may have.
        """
        name = str(event.anchor)
        found = self._anchors.get(name)
        if found is None:
            raise _at(event, f'there is no anchor "{name[:80]}"')
        value, size = found
        if value is _UNFINISHED:
            raise _at(event, f'"*{name[:80]}" contains itself')
        self._repeated += size
        if self._repeated > self._limits.repeated:
            most = self._limits.repeated
            raise LimitExceeded(_located(f"repeats more than {most:,} values by aliases", event))
        try:
            return _copy(value, room), size
        except _TooDeepError:
            deepest = self._limits.depth
            raise LimitExceeded(_located(f"is nested more than {deepest} deep", event)) from None


class _TooDeepError(Exception):
    """The value of an alias is nested too deeply for its position."""


def _copy(value: Any, room: int) -> Any:
    if type(value) is not dict and type(value) is not list:
        return value
    if room <= 0:
        raise _TooDeepError
    if type(value) is dict:
        return {key: _copy(part, room - 1) for key, part in value.items()}
    return [_copy(part, room - 1) for part in value]


# Merge keys ---------------------------------------------------------------------------------


class _Merge:
    """The key ``<<`` while its mapping is built; no value of a text equals it."""


_MERGE: Any = _Merge()


def _merged(mapping: dict[Any, Any], began: MappingStartEvent) -> dict[str, Any]:
    """Merge the mappings of ``<<`` into a mapping; its own keys win."""
    given = mapping.pop(_MERGE)
    sources = given if isinstance(given, list) else [given]
    if not all(isinstance(source, dict) for source in sources):
        raise _at(began, 'expected a mapping, or a list of mappings, for the key "<<"')
    merged: dict[str, Any] = {}
    for source in reversed(sources):
        merged.update(source)
    merged.update(mapping)
    return merged


# Scalars ------------------------------------------------------------------------------------

_SUSPECTS = "0123456789+-.~tTfFyYnNoO"
"""The first characters of plain scalars that may not be strings; an empty scalar may not either."""
_WORDS: dict[str, Any] = {
    "": None,
    "~": None,
    **dict.fromkeys(("null", "Null", "NULL")),
    **{w: True for word in ("true", "yes", "on") for w in (word, word.title(), word.upper())},
    **{w: False for word in ("false", "no", "off") for w in (word, word.title(), word.upper())},
}
_INTEGER = re.compile(r"[-+]?(?:0[bB][01]+|0[oO]?[0-7]+|0[xX][0-9a-fA-F]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_LONGEST_NUMBER = 400
_WHOLE = 2.0**63
_TAG = "tag:yaml.org,2002:"
_COLLECTIONS = (f"{_TAG}map", f"{_TAG}seq", "!")


def _resolved(text: str) -> Any:
    """Return the value of a plain scalar, as go-yaml resolves it."""
    if text in _WORDS:
        return _WORDS[text]
    first = text[0]
    if first.isalpha() or first == "~":
        return text
    number = _number(text)
    return text if number is _NO_VALUE else number


def _number(text: str) -> Any:
    """Return the number of a scalar (a float beyond 64 bits), or ``_NO_VALUE``."""
    if len(text) > _LONGEST_NUMBER:
        return _NO_VALUE
    digits = text.replace("_", "") if "_" in text else text
    if _INTEGER.fullmatch(digits):
        value = _integer(digits)
        if -(2**63) <= value < 2**63:
            return value
    if _FLOAT.fullmatch(digits):
        number = float(digits)
        if not math.isfinite(number):
            return _NO_VALUE
        # Kubernetes converts YAML to JSON, which has one kind of number: 1e+06 is an integer.
        return int(number) if number.is_integer() and abs(number) < _WHOLE else number
    if _SPECIAL.fullmatch(digits):
        return float(digits.replace(".", ""))
    return _NO_VALUE


def _integer(digits: str) -> int:
    plain = digits.lstrip("+-")
    if len(plain) > 1 and plain[0] == "0" and plain[1] in "01234567":
        value = int(plain, 8)
    else:
        value = int(plain, 0)
    return -value if digits[0] == "-" else value


def _tagged(text: str, event: ScalarEvent) -> Any:
    """Return the value of a scalar with a tag of YAML itself; other tags are errors."""
    tag = str(event.tag)
    if tag in (f"{_TAG}str", "!"):
        return text
    value = _resolved(text) if text[:1] in _SUSPECTS else text
    if tag == f"{_TAG}null" and value is None:
        return value
    if tag == f"{_TAG}bool" and isinstance(value, bool):
        return value
    if tag == f"{_TAG}int" and type(value) is int:
        return value
    if tag == f"{_TAG}float" and type(value) in (int, float):
        return float(value)
    if tag in (f"{_TAG}null", f"{_TAG}bool", f"{_TAG}int", f"{_TAG}float"):
        raise _at(event, f'"{text[:80]}" is not a value of type {tag.removeprefix(_TAG)}')
    raise _at(event, f"the tag {_short_tag(tag)} is not supported")


def _short_tag(tag: str) -> str:
    return f"!!{tag.removeprefix(_TAG)}"[:80] if tag.startswith(_TAG) else tag[:80]


def _at(event: Any, message: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=message, problem_mark=event.start_mark)


def _located(message: str, event: Any) -> str:
    return f"{message} (line {event.start_mark.line + 1})"


# Positions ----------------------------------------------------------------------------------


class Position(msgspec.Struct, frozen=True):
    """The position of a value; line and column count from 1.

    ``key`` is the line and column of its key, for values of mappings. ``parts`` are the positions
    of the values inside it.
    """

    line: int
    column: int
    key: tuple[int, int] | None
    parts: dict[str, Position] | list[Position] | None

    def find(self, path: Sequence[str | int]) -> tuple[Position, int]:
        """Follow a path as far as it exists; return the position and the number of steps taken."""
        position = self
        for taken, step in enumerate(path):
            parts = position.parts
            if isinstance(parts, dict) and str(step) in parts:
                position = parts[str(step)]
            elif isinstance(parts, list) and isinstance(step, int) and step < len(parts):
                position = parts[step]
            else:
                return position, taken
        return position, len(path)


def positions(text: str) -> list[Position | None]:
    """Return the positions of the values of each document, up to where the text stops being YAML.

    :param text: a text that was parsed before, within its limits.
    """
    found: list[Position | None] = []
    try:
        events = _events(text)
        while True:
            event = events.get_event()
            if type(event) is StreamEndEvent:
                return found
            if type(event) is DocumentStartEvent:
                found.append(None)
                found[-1] = _positions_of(events)
    except (yaml.YAMLError, ValueError):
        return found


def _positions_of(events: Any) -> Position | None:
    stack: list[tuple[Any, Any]] = []
    anchors: dict[str, Position] = {}
    top: Any = None
    key: Any = None
    root: Position | None = None
    while True:
        event = events.get_event()
        kind = type(event)
        if kind is DocumentEndEvent:
            return root
        if kind is MappingEndEvent or kind is SequenceEndEvent:
            top, key = stack.pop()
            key = None
            continue
        at = (event.start_mark.line + 1, event.start_mark.column + 1)
        if type(top) is dict and key is None:
            if kind is MappingStartEvent or kind is SequenceStartEvent:
                raise ValueError("a key that is not a scalar: Kubernetes cannot read such YAML")
            key = (event.value if kind is ScalarEvent else "", at)
            continue
        parts: Any = None
        if kind is MappingStartEvent:
            parts = {}
        elif kind is SequenceStartEvent:
            parts = []
        elif kind is AliasEvent and event.anchor in anchors:
            parts = anchors[event.anchor].parts
        position = Position(*at, key[1] if key is not None else None, parts)
        if kind is not AliasEvent and event.anchor is not None:
            anchors[event.anchor] = position
        if top is None:
            root = position
        elif type(top) is dict:
            top.setdefault(key[0], position)
        else:
            top.append(position)
        if kind is MappingStartEvent or kind is SequenceStartEvent:
            stack.append((top, key))
            top = parts
        key = None
