"""Sizes, conversions between types, and time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from bayplan.api.quantity import Quantity
from bayplan_dra.cel import types as t
from bayplan_dra.cel.library.operators import in_range, in_uint_range, moved
from bayplan_dra.cel.library.registry import declare, fail
from bayplan_dra.cel.types import A, B, list_of, map_of
from bayplan_dra.cel.values import (
    Semver,
    TypeName,
    Uint,
    type_name,
)

__all__ = ["to_string"]

# Sizes, conversions and types ------------------------------------------------------------------

for _kind in (t.STRING, t.BYTES, list_of(A), map_of(A, B)):
    declare("size", [_kind], t.INT, len)
    declare(".size", [_kind], t.INT, len)
declare("type", [A], t.TYPE, lambda value: TypeName(type_name(value)))
declare("dyn", [A], t.DYN, lambda value: value)


_INTEGER = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_FLOAT = re.compile(
    r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,6})?|[+-]?(inf|infinity|nan)",
    re.ASCII | re.IGNORECASE,
)


def _float_text(value: float) -> str:
    """Format a double as Go does: shortest digits, an exponent from 1e+21 and below 1e-4."""
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
        raise fail(f"cannot convert {value[:40]!r} to int")
    try:
        number = int(value)
    except (ValueError, OverflowError):
        raise fail(f"cannot convert {value!r} to int") from None
    return in_range(number)


def _to_uint(value: Any) -> Uint:
    if isinstance(value, str) and not _INTEGER.fullmatch(value):
        raise fail(f"cannot convert {value[:40]!r} to uint")
    try:
        return in_uint_range(int(value))
    except (ValueError, OverflowError):
        raise fail(f"cannot convert {value!r} to uint") from None


def _to_double(value: Any) -> float:
    if isinstance(value, str) and not _FLOAT.fullmatch(value):
        raise fail(f"cannot convert {value[:40]!r} to double")
    try:
        number = float(value)
        if math.isinf(number) and isinstance(value, str) and "inf" not in value.lower():
            raise ValueError(value)
        return number
    except ValueError:
        raise fail(f"cannot convert {value!r} to double") from None


def _to_bool(text: str) -> bool:
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise fail(f"cannot convert {text!r} to bool")


def to_string(value: Any) -> str:
    """Return a value as text, formatted as in Go.

    :raises EvaluationError: for bytes that are not UTF-8.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise fail("invalid UTF-8 in bytes, cannot convert to string") from None
    if isinstance(value, datetime):
        fraction = f".{value.microsecond:06}".rstrip("0") if value.microsecond else ""
        return f"{value:%Y-%m-%dT%H:%M:%S}{fraction}Z"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    if isinstance(value, Quantity | Semver):
        return value.text
    return str(value)


for _kind in (t.INT, t.UINT, t.DOUBLE, t.STRING, t.TIMESTAMP):
    declare("int", [_kind], t.INT, _to_int)
for _kind in (t.INT, t.UINT, t.DOUBLE, t.STRING):
    declare("uint", [_kind], t.UINT, _to_uint)
    declare("double", [_kind], t.DOUBLE, _to_double)
declare("bool", [t.BOOL], t.BOOL, lambda value: value)
declare("bool", [t.STRING], t.BOOL, _to_bool)
for _kind in (
    *(t.BOOL, t.INT, t.UINT, t.DOUBLE, t.STRING, t.BYTES, t.TIMESTAMP, t.DURATION),
    *(t.IP, t.CIDR),
):
    declare("string", [_kind], t.STRING, to_string)
declare("bytes", [t.STRING], t.BYTES, lambda text: text.encode())
declare("bytes", [t.BYTES], t.BYTES, lambda value: value)


# Time ------------------------------------------------------------------------------------------

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<unit>ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def _duration(text: str) -> timedelta:
    sign = -1 if text.startswith("-") else 1
    rest = text.lstrip("+-")
    parts = list(_DURATION.finditer(rest))
    if rest != "0" and (not parts or "".join(part[0] for part in parts) != rest):
        raise fail(f"cannot convert {text!r} to duration")
    try:
        seconds = sum(float(part["number"]) * _SECONDS[part["unit"]] for part in parts)
        return timedelta(seconds=sign * seconds)
    except OverflowError:
        raise fail("duration overflow") from None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET = re.compile(r"(?P<sign>[+-]?)(?P<hours>\d\d):(?P<minutes>\d\d)", re.ASCII)


def _seconds(number: int) -> timedelta:
    try:
        return timedelta(seconds=number)
    except OverflowError:
        raise fail("timestamp overflow") from None


def _in_zone(at: datetime, zone: str) -> datetime:
    """Convert a moment to a time zone: an offset such as "+02:00", or a name."""
    offset = _OFFSET.fullmatch(zone)
    try:
        if offset is not None:
            span = timedelta(hours=int(offset["hours"]), minutes=int(offset["minutes"]))
            return at.astimezone(timezone(-span if offset["sign"] == "-" else span))
        return at.astimezone(ZoneInfo(zone))
    except (ValueError, OSError, OverflowError):
        raise fail(f"unknown time zone {zone[:40]}") from None


def _timestamp(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise fail(f"cannot convert {text!r} to timestamp") from None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


declare("duration", [t.STRING], t.DURATION, _duration)
declare("timestamp", [t.STRING], t.TIMESTAMP, _timestamp)
declare("timestamp", [t.INT], t.TIMESTAMP, lambda seconds: moved(_EPOCH, _seconds(seconds)))
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
    declare(f".{_name}", [t.TIMESTAMP], t.INT, _part)
    declare(
        f".{_name}",
        (t.TIMESTAMP, t.STRING),
        t.INT,
        lambda at, zone, part=_part: part(_in_zone(at, zone)),
    )
for _name, _divisor in (("getHours", 3600), ("getMinutes", 60), ("getSeconds", 1)):
    declare(
        f".{_name}",
        [t.DURATION],
        t.INT,
        lambda span, divisor=_divisor: int(span.total_seconds() / divisor),
    )
