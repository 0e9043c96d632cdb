"""The span of time that a request for costs names, in OpenCost's words."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec

from bayplan.billing.month import Month

__all__ = ["Window", "parse_step", "parse_window"]

_DAY = 86_400_000
_WEEK = 7 * _DAY
_SUNDAY = 3 * _DAY
"""The first Sunday after 1970 began, on a Thursday; weeks begin on Sundays."""
_UNITS = {"m": 60_000, "h": 3_600_000, "d": _DAY, "w": _WEEK}
_LENGTH = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
_SECONDS = re.compile(r"[0-9]{1,10}")
_LONGEST = 400 * _DAY
_MOST_STEPS = 1_000
_EXPECTED = (
    'expected a window such as "24h", "7d", "today", "lastmonth" or "BEGIN,END" in RFC 3339 or '
    "seconds"
)


class Window(msgspec.Struct, frozen=True):
    """A span of time in milliseconds since 1970."""

    since: int
    until: int

    def steps(self, step: int | None) -> list[Window]:
        """Return the parts of the window, the last one cut at its end; None is one step."""
        if step is None:
            return [self]
        begins = range(self.since, self.until, step)
        return [Window(begin, min(begin + step, self.until)) for begin in begins]


def parse_window(text: str, now: int) -> Window:
    """Return the window that a text names.

    :param now: milliseconds since 1970.
    :raises ValueError: for what is no window, for an empty one, and for one of over 400 days.
    """
    named = _named(text, now)
    if named is None:
        begin, comma, end = text.partition(",")
        if not comma:
            raise ValueError(_EXPECTED)
        named = Window(_moment(begin), _moment(end))
    if named.until <= named.since:
        raise ValueError("expected a window whose end is after its begin")
    if named.until - named.since > _LONGEST:
        raise ValueError("expected a window of at most 400 days")
    return named


def parse_step(text: str, window: Window) -> int:
    """Return the milliseconds of a step such as "1h", "day" or "week".

    :raises ValueError: for anything else, and for more than 1,000 steps in the window.
    """
    words = {"hour": "1h", "hourly": "1h", "day": "1d", "daily": "1d", "week": "1w", "weekly": "1w"}
    found = _LENGTH.fullmatch(words.get(text, text))
    if found is None:
        raise ValueError('expected a step such as "1h" or "1d"')
    step = int(found[1]) * _UNITS[found[2]]
    if (window.until - window.since) > step * _MOST_STEPS:
        raise ValueError(f"expected at most {_MOST_STEPS:,} steps")
    return step


def _named(text: str, now: int) -> Window | None:
    """Return the window of a word or of a length that ends now."""
    today = now - now % _DAY
    week = now - (now - _SUNDAY) % _WEEK
    month = Month.at(now)
    words = {
        "today": Window(today, max(now, today + 1)),
        "yesterday": Window(today - _DAY, today),
        "week": Window(week, max(now, week + 1)),
        "lastweek": Window(week - _WEEK, week),
        "month": Window(month.since, max(now, month.since + 1)),
        "lastmonth": Window(Month.at(max(0, month.since - 1)).since, month.since),
    }
    if text in words:
        return words[text]
    found = _LENGTH.fullmatch(text)
    return None if found is None else Window(now - int(found[1]) * _UNITS[found[2]], now)


def _moment(text: str) -> int:
    if _SECONDS.fullmatch(text):
        return int(text) * 1000
    try:
        when = datetime.fromisoformat(text)
        if not 1970 <= when.year <= 9000:
            raise ValueError
        return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()) * 1000
    except (ValueError, OverflowError):
        raise ValueError(_EXPECTED) from None
