"""The functions of the ``device`` environment: names, types and what they do.

The set is that of Kubernetes 1.36 for DRA selectors: CEL's standard library, optionals, the
Kubernetes libraries (quantity, semver, regex, lists, IP, CIDR, URL, format) and cel-go's
extensions (strings 2, lists 3, sets, math).
"""

from __future__ import annotations

import ipaddress
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import cmp_to_key
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit
from zoneinfo import ZoneInfo

import re2

from bayplan.api.quantity import MAX_QUANTITY, Quantity
from bayplan_dra.cel import types as t
from bayplan_dra.cel.errors import EvaluationError
from bayplan_dra.cel.types import A, B, CelType, list_of, map_of, optional_of
from bayplan_dra.cel.values import (
    NONE,
    CelFormat,
    Optional,
    Semver,
    TypeName,
    Uint,
    equal,
    is_number,
    normalized_semver,
    type_name,
)

__all__ = ["FUNCTIONS", "Overload", "ordered"]

_LOW, _HIGH = -(2**63), 2**63 - 1
_LONGEST_LIST = 48


@dataclass(frozen=True, slots=True)
class Overload:
    """One form of a function: the types that it takes and returns.

    ``member`` says that the first argument stands before the dot. ``pure`` calls with constants
    are made once, when the expression is compiled.
    """

    member: bool
    takes: tuple[CelType, ...]
    returns: CelType
    run: Callable[..., Any]
    pure: bool = True


FUNCTIONS: dict[str, list[Overload]] = {}


def _declare(
    name: str, takes: Sequence[CelType], returns: CelType, run: Callable[..., Any]
) -> None:
    """Declare a function; ``.name`` is a member of its first argument."""
    member = name.startswith(".")
    overload = Overload(member, tuple(takes), returns, run)
    FUNCTIONS.setdefault(name.lstrip("."), []).append(overload)


def _fail(message: str) -> EvaluationError:
    return EvaluationError(message)


# Arithmetic and comparison -------------------------------------------------------------------


def _in_range(number: int) -> int:
    if not _LOW <= number <= _HIGH:
        raise _fail("integer overflow")
    return number


def _in_uint_range(number: int) -> Uint:
    if not 0 <= number < 2**64:
        raise _fail("unsigned integer overflow")
    return Uint(number)


def _quotient(left: int, right: int) -> int:
    if right == 0:
        raise _fail("division by zero")
    whole = abs(left) // abs(right)
    return whole if (left < 0) == (right < 0) else -whole


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise _fail("modulus by zero")
    if left == _LOW and right == -1:
        raise _fail("integer overflow")
    return left - right * _quotient(left, right)


def _divide(left: float, right: float) -> float:
    if right:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1, right)


for _kind, _fit in ((t.INT, _in_range), (t.UINT, _in_uint_range)):
    _pair: tuple[CelType, CelType] = (_kind, _kind)
    _declare("_+_", _pair, _kind, lambda a, b, fit=_fit: fit(int(a) + int(b)))
    _declare("_-_", _pair, _kind, lambda a, b, fit=_fit: fit(int(a) - int(b)))
    _declare("_*_", _pair, _kind, lambda a, b, fit=_fit: fit(int(a) * int(b)))
    _declare("_/_", _pair, _kind, lambda a, b, fit=_fit: fit(_quotient(int(a), int(b))))
    _declare("_%_", _pair, _kind, lambda a, b, fit=_fit: fit(_remainder(int(a), int(b))))
_declare("-_", [t.INT], t.INT, lambda a: _in_range(-a))
_declare("-_", [t.DOUBLE], t.DOUBLE, lambda a: -a)
_doubles = (t.DOUBLE, t.DOUBLE)
_declare("_+_", _doubles, t.DOUBLE, lambda a, b: a + b)
_declare("_-_", _doubles, t.DOUBLE, lambda a, b: a - b)
_declare("_*_", _doubles, t.DOUBLE, lambda a, b: a * b)
_declare("_/_", _doubles, t.DOUBLE, _divide)
for _kind in (t.STRING, t.BYTES):
    _declare("_+_", (_kind, _kind), _kind, lambda a, b: a + b)
_declare("_+_", (list_of(A), list_of(A)), list_of(A), lambda a, b: a + b)
_declare("_+_", (t.DURATION, t.DURATION), t.DURATION, lambda a, b: a + b)
_declare("_-_", (t.DURATION, t.DURATION), t.DURATION, lambda a, b: a - b)


def _moved(moment: datetime, by: timedelta) -> datetime:
    try:
        return moment + by
    except OverflowError:
        raise _fail("timestamp overflow") from None


_declare("_+_", (t.TIMESTAMP, t.DURATION), t.TIMESTAMP, _moved)
_declare("_+_", (t.DURATION, t.TIMESTAMP), t.TIMESTAMP, lambda a, b: _moved(b, a))
_declare("_-_", (t.TIMESTAMP, t.DURATION), t.TIMESTAMP, lambda a, b: _moved(a, -b))
_declare("_-_", (t.TIMESTAMP, t.TIMESTAMP), t.DURATION, lambda a, b: a - b)
_declare("!_", [t.BOOL], t.BOOL, lambda a: not a)
_declare("_==_", (A, A), t.BOOL, equal)
_declare("_!=_", (A, A), t.BOOL, lambda a, b: not equal(a, b))

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
            _declare(_name, (_left, _right), t.BOOL, _compare)
    for _kind in _ORDERED:
        _declare(_name, (_kind, _kind), t.BOOL, _compare)


def ordered(left: Any, right: Any) -> int:
    """Return -1, 0 or 1 for two values of the same ordered type.

    :raises EvaluationError: for values that have no order.
    """
    same = type_name(left) == type_name(right)
    if not (is_number(left) and is_number(right)) and not (
        same and isinstance(left, str | bytes | bool | datetime | timedelta | Quantity | Semver)
    ):
        raise _fail("no such overload")
    if isinstance(left, Quantity):
        left, right = left.amount, right.amount
    return int(left > right) - int(left < right)


def _member_of(item: Any, holder: Any) -> bool:
    if isinstance(holder, dict):
        if isinstance(item, bool | str):
            return item in holder and any(type(key) is type(item) for key in holder)
        return any(equal(item, key) for key in holder)
    return any(equal(item, other) for other in holder)


_declare("@in", (A, list_of(A)), t.BOOL, _member_of)
_declare("@in", (A, map_of(A, B)), t.BOOL, _member_of)

# Sizes, conversions and types ----------------------------------------------------------------

for _kind in (t.STRING, t.BYTES, list_of(A), map_of(A, B)):
    _declare("size", [_kind], t.INT, len)
    _declare(".size", [_kind], t.INT, len)
_declare("type", [A], t.TYPE, lambda value: TypeName(type_name(value)))
_declare("dyn", [A], t.DYN, lambda value: value)


_INTEGER = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_FLOAT = re.compile(
    r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,6})?|[+-]?(inf|infinity|nan)",
    re.ASCII | re.IGNORECASE,
)


def _float_text(value: float) -> str:
    """Spell a double as Go does: the shortest digits, an exponent from 1e+21 and below 1e-4."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    exponent += len(digits) - 1
    minus = "-" if sign else ""
    if value and not -4 <= exponent < 21:
        mantissa = text[0] + (f".{text[1:]}" if len(text) > 1 else "")
        return f"{minus}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02}"
    return minus + (format(Decimal(repr(abs(value))), "f").removesuffix(".0"))


def _to_int(value: Any) -> int:
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, str) and not _INTEGER.fullmatch(value):
        raise _fail(f"cannot convert {value[:40]!r} to int")
    try:
        number = int(value)
    except (ValueError, OverflowError):
        raise _fail(f"cannot convert {value!r} to int") from None
    return _in_range(number)


def _to_uint(value: Any) -> Uint:
    if isinstance(value, str) and not _INTEGER.fullmatch(value):
        raise _fail(f"cannot convert {value[:40]!r} to uint")
    try:
        return _in_uint_range(int(value))
    except (ValueError, OverflowError):
        raise _fail(f"cannot convert {value!r} to uint") from None


def _to_double(value: Any) -> float:
    if isinstance(value, str) and not _FLOAT.fullmatch(value):
        raise _fail(f"cannot convert {value[:40]!r} to double")
    try:
        number = float(value)
        if math.isinf(number) and isinstance(value, str) and "inf" not in value.lower():
            raise ValueError(value)
        return number
    except ValueError:
        raise _fail(f"cannot convert {value!r} to double") from None


def _to_bool(text: str) -> bool:
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise _fail(f"cannot convert {text!r} to bool")


def _to_string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise _fail("invalid UTF-8 in bytes, cannot convert to string") from None
    if isinstance(value, datetime):
        fraction = f".{value.microsecond:06}".rstrip("0") if value.microsecond else ""
        return f"{value:%Y-%m-%dT%H:%M:%S}{fraction}Z"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    if isinstance(value, Quantity | Semver):
        return value.text
    return str(value)


for _kind in (t.INT, t.UINT, t.DOUBLE, t.STRING, t.TIMESTAMP):
    _declare("int", [_kind], t.INT, _to_int)
for _kind in (t.INT, t.UINT, t.DOUBLE, t.STRING):
    _declare("uint", [_kind], t.UINT, _to_uint)
    _declare("double", [_kind], t.DOUBLE, _to_double)
_declare("bool", [t.BOOL], t.BOOL, lambda value: value)
_declare("bool", [t.STRING], t.BOOL, _to_bool)
for _kind in (
    *(t.BOOL, t.INT, t.UINT, t.DOUBLE, t.STRING, t.BYTES, t.TIMESTAMP, t.DURATION),
    *(t.IP, t.CIDR),
):
    _declare("string", [_kind], t.STRING, _to_string)
_declare("bytes", [t.STRING], t.BYTES, lambda text: text.encode())
_declare("bytes", [t.BYTES], t.BYTES, lambda value: value)

# Time ----------------------------------------------------------------------------------------

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<unit>ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def _duration(text: str) -> timedelta:
    sign = -1 if text.startswith("-") else 1
    rest = text.lstrip("+-")
    parts = list(_DURATION.finditer(rest))
    if rest != "0" and (not parts or "".join(part[0] for part in parts) != rest):
        raise _fail(f"cannot convert {text!r} to duration")
    try:
        seconds = sum(float(part["number"]) * _SECONDS[part["unit"]] for part in parts)
        return timedelta(seconds=sign * seconds)
    except OverflowError:
        raise _fail("duration overflow") from None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET = re.compile(r"(?P<sign>[+-]?)(?P<hours>\d\d):(?P<minutes>\d\d)", re.ASCII)


def _seconds(number: int) -> timedelta:
    try:
        return timedelta(seconds=number)
    except OverflowError:
        raise _fail("timestamp overflow") from None


def _in_zone(at: datetime, zone: str) -> datetime:
    """Return the moment in a time zone: an offset such as "+02:00", or a name."""
    offset = _OFFSET.fullmatch(zone)
    try:
        if offset is not None:
            span = timedelta(hours=int(offset["hours"]), minutes=int(offset["minutes"]))
            return at.astimezone(timezone(-span if offset["sign"] == "-" else span))
        return at.astimezone(ZoneInfo(zone))
    except (ValueError, OSError, OverflowError):
        raise _fail(f"unknown time zone {zone[:40]}") from None


def _timestamp(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _fail(f"cannot convert {text!r} to timestamp") from None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


_declare("duration", [t.STRING], t.DURATION, _duration)
_declare("timestamp", [t.STRING], t.TIMESTAMP, _timestamp)
_declare("timestamp", [t.INT], t.TIMESTAMP, lambda seconds: _moved(_EPOCH, _seconds(seconds)))
_PARTS: dict[str, Callable[[datetime], int]] = {
    "getFullYear": lambda at: at.year,
    "getMonth": lambda at: at.month - 1,
    "getDate": lambda at: at.day,
    "getDayOfMonth": lambda at: at.day - 1,
    "getDayOfWeek": lambda at: at.isoweekday() % 7,
    "getDayOfYear": lambda at: at.timetuple().tm_yday - 1,
    "getHours": lambda at: at.hour,
    "getMinutes": lambda at: at.minute,
    "getSeconds": lambda at: at.second,
    "getMilliseconds": lambda at: at.microsecond // 1000,
}
for _name, _part in _PARTS.items():
    _declare(f".{_name}", [t.TIMESTAMP], t.INT, _part)
    _declare(
        f".{_name}",
        (t.TIMESTAMP, t.STRING),
        t.INT,
        lambda at, zone, part=_part: part(_in_zone(at, zone)),
    )
for _name, _divisor in (("getHours", 3600), ("getMinutes", 60), ("getSeconds", 1)):
    _declare(
        f".{_name}",
        [t.DURATION],
        t.INT,
        lambda span, divisor=_divisor: int(span.total_seconds() / divisor),
    )

# Strings -------------------------------------------------------------------------------------


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise _fail(f"index out of range: {index}")
    return text[index : index + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if not 0 <= start <= len(text):
        raise _fail(f"index out of range: {start}")
    return text.find(part, start)


def _last_index_of(text: str, part: str, end: int | None = None) -> int:
    if end is not None and not 0 <= end <= len(text):
        raise _fail(f"index out of range: {end}")
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
        raise _fail(f"invalid substring range: {start}, {stop}")
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
    """Return a value as ``%s`` of format() shows it."""
    if isinstance(value, str):
        return _quote(value) if nested else value
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return "[" + ", ".join(_shown(item, True) for item in value) + "]"
    if isinstance(value, dict):
        pairs = sorted((_shown(key, True), _shown(item, True)) for key, item in value.items())
        return "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}"
    return _to_string(value)


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
    raise _fail(f"error during formatting: %{verb} takes no {type_name(value)}")


_VERB = re.compile(r"%(?:(?P<percent>%)|(?:\.(?P<precision>\d{1,3}))?(?P<verb>.)|(?P<end>$))", re.S)


def _format(text: str, args: tuple[Any, ...]) -> str:
    left = iter(args)

    def one(match: re.Match[str]) -> str:
        if match["percent"]:
            return "%"
        verb = match["verb"] or ""
        if not verb or verb not in "sdfebxXo":
            raise _fail(f'could not parse formatting clause: unrecognized "{match[0]}"')
        try:
            value = next(left)
        except StopIteration:
            raise _fail("error during formatting: index out of range") from None
        return _format_one(verb, int(match["precision"]) if match["precision"] else None, value)

    return _VERB.sub(one, text)


_S, _SS = (t.STRING,), (t.STRING, t.STRING)
_declare(".contains", _SS, t.BOOL, lambda a, b: b in a)
_declare(".startsWith", _SS, t.BOOL, lambda a, b: a.startswith(b))
_declare(".endsWith", _SS, t.BOOL, lambda a, b: a.endswith(b))
_declare(".charAt", (t.STRING, t.INT), t.STRING, _char_at)
_declare(".indexOf", _SS, t.INT, _index_of)
_declare(".indexOf", (*_SS, t.INT), t.INT, _index_of)
_declare(".lastIndexOf", _SS, t.INT, _last_index_of)
_declare(".lastIndexOf", (*_SS, t.INT), t.INT, _last_index_of)
_declare(".lowerAscii", _S, t.STRING, lambda a: a.translate(_ASCII_LOWER))
_declare(".upperAscii", _S, t.STRING, lambda a: a.translate(_ASCII_UPPER))
_declare(".trim", _S, t.STRING, lambda a: a.strip())
_declare(".replace", (*_SS, t.STRING), t.STRING, _replace)
_declare(".replace", (*_SS, t.STRING, t.INT), t.STRING, _replace)
_declare(".split", _SS, list_of(t.STRING), _split)
_declare(".split", (*_SS, t.INT), list_of(t.STRING), _split)
_declare(".substring", (t.STRING, t.INT), t.STRING, _substring)
_declare(".substring", (t.STRING, t.INT, t.INT), t.STRING, _substring)
_declare(".join", [list_of(t.STRING)], t.STRING, lambda items: _joined(items, ""))
_declare(".join", (list_of(t.STRING), t.STRING), t.STRING, lambda items, mark: _joined(items, mark))
_declare(".format", (t.STRING, list_of(t.DYN)), t.STRING, _format)
_declare("strings.quote", _S, t.STRING, _quote)


def _joined(items: tuple[Any, ...], mark: str) -> str:
    if not all(isinstance(item, str) for item in items):
        raise _fail("no such overload: join takes a list of strings")
    return mark.join(items)


# Regular expressions: RE2, whose time is linear in the text -----------------------------------


def _regex(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as exc:
        raise _fail(f"error parsing regexp: {exc}") from None


def _find(text: str, pattern: str) -> str:
    found = _regex(pattern).search(text)
    return str(found.group(0)) if found else ""


def _find_all(text: str, pattern: str, most: int = -1) -> tuple[str, ...]:
    found: list[str] = []
    for match in _regex(pattern).finditer(text):
        if 0 <= most <= len(found):
            break
        found.append(str(match.group(0)))
    return tuple(found)


_matches: Callable[[str, str], bool] = lambda a, b: _regex(b).search(a) is not None  # noqa: E731
_declare("matches", _SS, t.BOOL, _matches)
_declare(".matches", _SS, t.BOOL, _matches)
_declare(".find", _SS, t.STRING, _find)
_declare(".findAll", _SS, list_of(t.STRING), _find_all)
_declare(".findAll", (*_SS, t.INT), list_of(t.STRING), _find_all)

# Lists ---------------------------------------------------------------------------------------


def _total(items: tuple[Any, ...]) -> Any:
    if not items:
        return 0
    if all(isinstance(item, timedelta) for item in items):
        return sum(items, start=timedelta())
    if not all(is_number(item) for item in items):
        raise _fail("no such overload: sum")
    kinds = {type(item) for item in items}
    total = sum(items)
    if kinds == {int}:
        return _in_range(int(total))
    return _in_uint_range(int(total)) if kinds == {Uint} else float(total)


def _extreme(items: tuple[Any, ...], sign: int, name: str) -> Any:
    if not items:
        raise _fail(f"{name} called on empty list")
    best = items[0]
    for item in items[1:]:
        if ordered(item, best) == sign:
            best = item
    return best


def _position(items: tuple[Any, ...], value: Any, indices: Iterable[int]) -> int:
    return next((index for index in indices if equal(items[index], value)), -1)


def _slice(items: tuple[Any, ...], start: int, end: int) -> tuple[Any, ...]:
    if not 0 <= start <= end <= len(items):
        raise _fail(f"cannot slice({start}, {end}), list has length {len(items)}")
    return items[start:end]


def _flatten(items: tuple[Any, ...], depth: int = 1) -> tuple[Any, ...]:
    if depth < 0:
        raise _fail("flatten: level must be non-negative")
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
        raise _fail(f"lists.range: expected 0 to 1000000, got {size}")
    return tuple(range(size))


def sort_by_keys(items: tuple[Any, ...], keys: Sequence[Any]) -> tuple[Any, ...]:
    """Return the items in the order of their keys."""
    compare = cmp_to_key(ordered)
    order = sorted(range(len(items)), key=[compare(key) for key in keys].__getitem__)
    return tuple(items[index] for index in order)


def _is_sorted(items: tuple[Any, ...]) -> bool:
    return all(ordered(a, b) <= 0 for a, b in itertools.pairwise(items))


_L = (list_of(A),)
_declare(".isSorted", _L, t.BOOL, _is_sorted)
_declare(".sum", _L, A, _total)
_declare(".min", _L, A, lambda items: _extreme(items, -1, "min"))
_declare(".max", _L, A, lambda items: _extreme(items, 1, "max"))
_declare(
    ".indexOf",
    (list_of(A), A),
    t.INT,
    lambda items, value: _position(items, value, range(len(items))),
)
_declare(
    ".lastIndexOf",
    (list_of(A), A),
    t.INT,
    lambda items, value: _position(items, value, reversed(range(len(items)))),
)
_declare(".slice", (list_of(A), t.INT, t.INT), list_of(A), _slice)
_declare(".flatten", [list_of(t.DYN)], list_of(t.DYN), _flatten)
_declare(".flatten", (list_of(t.DYN), t.INT), list_of(t.DYN), _flatten)
_declare(".distinct", _L, list_of(A), _distinct)
_declare(".reverse", _L, list_of(A), lambda items: items[::-1])
_declare(".sort", _L, list_of(A), lambda items: sort_by_keys(items, items))
_declare("lists.range", [t.INT], list_of(t.INT), _range)
_declare(".first", _L, optional_of(A), lambda items: Optional(items[0], True) if items else NONE)
_declare(".last", _L, optional_of(A), lambda items: Optional(items[-1], True) if items else NONE)


def _includes(value: Any, wanted: Any) -> bool:
    """Tell whether a list attribute holds a value, or a scalar attribute is it."""
    if not isinstance(value, tuple):
        if type_name(value) in ("map", "null_type"):
            raise _fail("no such overload: includes")
        return equal(value, wanted)
    if len(value) > _LONGEST_LIST:
        raise _fail(
            f"'includes' function cannot be applied to lists longer than {_LONGEST_LIST} values"
        )
    return _member_of(wanted, value)


_declare(".includes", (t.DYN, t.DYN), t.BOOL, _includes)

# Sets ----------------------------------------------------------------------------------------

_LL = (list_of(A), list_of(A))


def _contains_all(items: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return all(_member_of(other, items) for other in others)


_declare("sets.contains", _LL, t.BOOL, _contains_all)
_declare("sets.equivalent", _LL, t.BOOL, lambda a, b: _contains_all(a, b) and _contains_all(b, a))
_declare("sets.intersects", _LL, t.BOOL, lambda a, b: any(_member_of(x, a) for x in b))

# Math ----------------------------------------------------------------------------------------


def _greatest(*values: Any) -> Any:
    flat = values[0] if len(values) == 1 and isinstance(values[0], tuple) else values
    return _extreme(flat, 1, "math.greatest")


def _least(*values: Any) -> Any:
    flat = values[0] if len(values) == 1 and isinstance(values[0], tuple) else values
    return _extreme(flat, -1, "math.least")


for _name, _run in (("math.greatest", _greatest), ("math.least", _least)):
    for _count in range(1, 9):
        _declare(_name, [t.DYN] * _count, t.DYN, _run)


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
    _declare(f"math.{_name}", [t.DOUBLE], t.DOUBLE, _run)
_declare("math.abs", [t.INT], t.INT, lambda value: _in_range(abs(value)))
_declare("math.abs", [t.DOUBLE], t.DOUBLE, abs)
_declare("math.sign", [t.INT], t.INT, lambda value: (value > 0) - (value < 0))
_declare("math.sign", [t.DOUBLE], t.DOUBLE, lambda value: float((value > 0) - (value < 0)))
_declare("math.isNaN", [t.DOUBLE], t.BOOL, math.isnan)
_declare("math.isInf", [t.DOUBLE], t.BOOL, math.isinf)
_declare("math.isFinite", [t.DOUBLE], t.BOOL, math.isfinite)

# Optionals -----------------------------------------------------------------------------------


def _value(optional: Optional) -> Any:
    if not optional.present:
        raise _fail("optional.none() dereference")
    return optional.value


def _non_zero(value: Any) -> Optional:
    zero = value is None or (isinstance(value, bool | int | float | str | bytes) and not value)
    zero = zero or (isinstance(value, tuple | dict) and not value)
    return NONE if zero else Optional(value, True)


_declare("optional.of", [A], optional_of(A), lambda value: Optional(value, True))
_declare("optional.none", [], optional_of(t.DYN), lambda: NONE)
_declare("optional.ofNonZeroValue", [A], optional_of(A), _non_zero)
_declare(".hasValue", [optional_of(A)], t.BOOL, lambda o: o.present)
_declare(".value", [optional_of(A)], A, _value)
_declare(
    ".or", (optional_of(A), optional_of(A)), optional_of(A), lambda a, b: a if a.present else b
)
_declare(".orValue", (optional_of(A), A), A, lambda a, b: a.value if a.present else b)

# Quantities ----------------------------------------------------------------------------------


def _quantity(text: str) -> Quantity:
    try:
        return Quantity(text)
    except ValueError:
        raise _fail(
            f"quantities must match the regular expression of Kubernetes, got {text[:80]!r}"
        ) from None


def _is_quantity(text: str) -> bool:
    try:
        Quantity(text)
    except ValueError:
        return False
    return True


def _as_quantity(amount: Fraction) -> Quantity:
    if abs(amount) > MAX_QUANTITY:
        raise _fail("quantity overflow")
    nano = amount * 10**9
    return Quantity(str(int(amount)) if amount.denominator == 1 else f"{int(nano)}n")


def _as_integer(quantity: Quantity) -> int:
    if quantity.amount.denominator != 1:
        raise _fail("cannot convert value to integer")
    return _in_range(int(quantity.amount))


def _signum(value: Any) -> int:
    return int((value > 0) - (value < 0))


_Q, _QQ = (t.QUANTITY,), (t.QUANTITY, t.QUANTITY)
_declare("quantity", _S, t.QUANTITY, _quantity)
_declare("isQuantity", _S, t.BOOL, _is_quantity)
_declare(".sign", _Q, t.INT, lambda q: _signum(q.amount))
_declare(".isInteger", _Q, t.BOOL, lambda q: q.amount.denominator == 1)
_declare(".asInteger", _Q, t.INT, _as_integer)
_declare(".asApproximateFloat", _Q, t.DOUBLE, lambda q: float(q.amount))
_declare(".isGreaterThan", _QQ, t.BOOL, lambda a, b: a.number > b.number)
_declare(".isLessThan", _QQ, t.BOOL, lambda a, b: a.number < b.number)
_declare(".compareTo", _QQ, t.INT, lambda a, b: _signum(a.amount - b.amount))
_declare(".add", _QQ, t.QUANTITY, lambda a, b: _as_quantity(a.amount + b.amount))
_declare(".sub", _QQ, t.QUANTITY, lambda a, b: _as_quantity(a.amount - b.amount))
_declare(".add", (t.QUANTITY, t.INT), t.QUANTITY, lambda a, b: _as_quantity(a.amount + b))
_declare(".sub", (t.QUANTITY, t.INT), t.QUANTITY, lambda a, b: _as_quantity(a.amount - b))

# Versions ------------------------------------------------------------------------------------


def _semver(text: str, normalize: bool = False) -> Semver:
    try:
        return normalized_semver(text) if normalize else Semver(text)
    except ValueError as exc:
        raise _fail(str(exc)) from None


def _is_semver(text: str, normalize: bool = False) -> bool:
    try:
        _semver(text, normalize)
    except EvaluationError:
        return False
    return True


_V, _VV = (t.SEMVER,), (t.SEMVER, t.SEMVER)
_declare("semver", _S, t.SEMVER, _semver)
_declare("semver", (t.STRING, t.BOOL), t.SEMVER, _semver)
_declare("isSemver", _S, t.BOOL, _is_semver)
_declare("isSemver", (t.STRING, t.BOOL), t.BOOL, _is_semver)
_declare(".major", _V, t.INT, lambda v: v.major)
_declare(".minor", _V, t.INT, lambda v: v.minor)
_declare(".patch", _V, t.INT, lambda v: v.patch)
_declare(".isGreaterThan", _VV, t.BOOL, lambda a, b: a > b)
_declare(".isLessThan", _VV, t.BOOL, lambda a, b: a < b)
_declare(".compareTo", _VV, t.INT, lambda a, b: (a > b) - (a < b))

# Addresses -----------------------------------------------------------------------------------

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


def _ip(text: str) -> Address:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise _fail(f"IP Address {text[:80]!r} parse error during conversion from string") from None
    if isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped or address.scope_id):
        raise _fail(f"IP Address {text[:80]!r}: IPv4-mapped addresses and zones are not allowed")
    return address


def _cidr(text: str) -> Interface:
    """Return a network together with the address as it was written."""
    address, slash, bits = text.partition("/")
    if not slash or not (bits.isascii() and bits.isdigit()):
        raise _fail(f"network address parse error during conversion from string: {text[:80]!r}")
    try:
        return ipaddress.ip_interface((_ip(address), int(bits)))
    except ValueError:
        raise _fail(
            f"network address parse error during conversion from string: {text[:80]!r}"
        ) from None


def _parses(function: Callable[[str], Any]) -> Callable[[str], bool]:
    def parses(text: str) -> bool:
        try:
            function(text)
        except EvaluationError:
            return False
        return True

    return parses


def _contains_network(outer: Interface, inner: Interface) -> bool:
    if isinstance(outer, ipaddress.IPv4Interface):
        return isinstance(inner, ipaddress.IPv4Interface) and inner.network.subnet_of(outer.network)
    return isinstance(inner, ipaddress.IPv6Interface) and inner.network.subnet_of(outer.network)


def _global_unicast(address: Address) -> bool:
    special = address.is_unspecified or address.is_loopback or address.is_multicast
    return not (special or address.is_link_local or str(address) == "255.255.255.255")


_I, _C = (t.IP,), (t.CIDR,)
_declare("ip", _S, t.IP, _ip)
_declare("isIP", _S, t.BOOL, _parses(_ip))
_declare("ip.isCanonical", _S, t.BOOL, lambda text: str(_ip(text)) == text)
_declare(".family", _I, t.INT, lambda address: address.version)
_declare(".isUnspecified", _I, t.BOOL, lambda address: address.is_unspecified)
_declare(".isLoopback", _I, t.BOOL, lambda address: address.is_loopback)
_declare(
    ".isLinkLocalMulticast",
    _I,
    t.BOOL,
    lambda address: (
        address in ipaddress.ip_network("224.0.0.0/24")
        if address.version == 4
        else address in ipaddress.ip_network("ff02::/16")
    ),
)
_declare(".isLinkLocalUnicast", _I, t.BOOL, lambda address: address.is_link_local)
_declare(".isGlobalUnicast", _I, t.BOOL, _global_unicast)
_declare("cidr", _S, t.CIDR, _cidr)
_declare("isCIDR", _S, t.BOOL, _parses(_cidr))
_declare(".containsIP", (t.CIDR, t.IP), t.BOOL, lambda cidr, address: address in cidr.network)
_declare(".containsIP", (t.CIDR, t.STRING), t.BOOL, lambda cidr, text: _ip(text) in cidr.network)
_declare(".containsCIDR", (t.CIDR, t.CIDR), t.BOOL, _contains_network)
_declare(
    ".containsCIDR",
    (t.CIDR, t.STRING),
    t.BOOL,
    lambda network, text: _contains_network(network, _cidr(text)),
)
_declare(".ip", _C, t.IP, lambda cidr: cidr.ip)
_declare(".masked", _C, t.CIDR, lambda cidr: ipaddress.ip_interface(cidr.network))
_declare(".prefixLength", _C, t.INT, lambda cidr: cidr.network.prefixlen)

# URLs ----------------------------------------------------------------------------------------


def _url(text: str) -> SplitResult:
    try:
        found = urlsplit(text)
        _ = found.port
    except ValueError:
        raise _fail(f"URL parse error during conversion from string: {text[:80]!r}") from None
    if not found.scheme and not found.path.startswith("/"):
        raise _fail(f"URL parse error during conversion from string: {text[:80]!r}")
    return found


def _query(url: SplitResult) -> Mapping[str, tuple[str, ...]]:
    return {key: tuple(values) for key, values in parse_qs(url.query, True).items()}


_U = (t.URL,)
_declare("url", _S, t.URL, _url)
_declare("isURL", _S, t.BOOL, _parses(_url))
_declare(".getScheme", _U, t.STRING, lambda url: url.scheme)
_declare(".getHost", _U, t.STRING, lambda url: url.netloc.rpartition("@")[2])
_declare(".getHostname", _U, t.STRING, lambda url: url.hostname or "")
_declare(".getPort", _U, t.STRING, lambda url: "" if url.port is None else str(url.port))
_declare(".getEscapedPath", _U, t.STRING, lambda url: url.path)
_declare(".getQuery", _U, map_of(t.STRING, list_of(t.STRING)), _query)

# Formats -------------------------------------------------------------------------------------

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_FORMATS: dict[str, tuple[str, int]] = {
    "dns1123Label": (_LABEL, 63),
    "dns1123Subdomain": (rf"{_LABEL}(\.{_LABEL})*", 253),
    "dns1035Label": (r"[a-z]([-a-z0-9]*[a-z0-9])?", 63),
    "dns1123LabelPrefix": (rf"{_LABEL}-?", 63),
    "dns1123SubdomainPrefix": (rf"{_LABEL}(\.{_LABEL})*-?", 253),
    "dns1035LabelPrefix": (r"[a-z]([-a-z0-9]*[a-z0-9])?-?", 63),
    "qualifiedName": (rf"({_LABEL}(\.{_LABEL})*/)?{_QUALIFIED}", 317),
    "labelValue": (rf"({_QUALIFIED})?", 63),
    "uuid": (r"[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}", 36),
    "byte": (r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", 2**20),
    "date": (r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01])", 10),
    "datetime": (
        r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01])[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)",
        64,
    ),
    "uri": (r"[A-Za-z][A-Za-z0-9+.-]*:\S*|/\S*", 2**20),
}


def _validate(named: CelFormat, text: str) -> Optional:
    pattern, longest = _FORMATS[named.name]
    problems = []
    if len(text) > longest:
        problems.append(f"must be no more than {longest} characters")
    elif _regex(pattern).fullmatch(text) is None:
        problems.append(f"must be a {named.name}")
    return Optional(tuple(problems), True) if problems else NONE


def _named(name: str) -> Optional:
    return Optional(CelFormat(name), True) if name in _FORMATS else NONE


_declare("format.named", _S, optional_of(t.FORMAT), _named)
for _name in _FORMATS:
    _declare(f"format.{_name}", [], t.FORMAT, lambda name=_name: CelFormat(name))
_declare(".validate", (t.FORMAT, t.STRING), optional_of(list_of(t.STRING)), _validate)
