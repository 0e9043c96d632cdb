"""Durations as people write them, and the annotation for the duration of a simulated pod."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["DURATION_ANNOTATION", "duration_text", "parse_duration", "stated_duration"]

DURATION_ANNOTATION = "bayplan.dev/duration"
"""The annotation with the duration, such as "90s", after which a pod succeeds; else it runs on."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 100 * 365.0 * 86_400.0
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")


def stated_duration(annotations: Mapping[str, str], deadline: int | None) -> float | None:
    """Return how long a pod says that it runs, in seconds; None if it does not say.

    :param annotations: the pod's; ``bayplan.dev/duration`` comes first.
    :param deadline: the pod's ``activeDeadlineSeconds``.
    """
    text = annotations.get(DURATION_ANNOTATION)
    if text is None:
        return float(deadline) if deadline is not None else None
    try:
        return parse_duration(text)
    except ValueError:
        return None


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as "90s" or "1h30m".

    :raises ValueError: for anything else, and for more than a hundred years.
    """
    if len(text) > 100 or not _DURATION.fullmatch(text):
        shown = text if len(text) <= 100 else f"{text[:100]}…"
        raise ValueError(f'expected a duration such as "90s" or "1h30m", got "{shown}"')
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds > _LONGEST:
        raise ValueError(f'expected a duration of at most 100 years, got "{text}"')
    return seconds


def duration_text(seconds: float) -> str:
    """Return a duration as kubectl shows it, in one unit or two."""
    total = max(0, int(seconds))
    steps = (
        # (limit, larger unit, its letter, smaller unit, its letter)
        (2 * _MINUTE, 1, "s", 0, ""),
        (10 * _MINUTE, _MINUTE, "m", 1, "s"),
        (3 * _HOUR, _MINUTE, "m", 0, ""),
        (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
        (2 * _DAY, _HOUR, "h", 0, ""),
        (8 * _DAY, _DAY, "d", _HOUR, "h"),
        (2 * _YEAR, _DAY, "d", 0, ""),
        (8 * _YEAR, _YEAR, "y", _DAY, "d"),
    )
    for limit, unit, letter, rest, small in steps:
        if total < limit:
            more = total % unit // rest if rest else 0
            return f"{total // unit}{letter}{more}{small}" if more else f"{total // unit}{letter}"
    return f"{total // _YEAR}y"
