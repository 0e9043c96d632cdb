"""Parsing that several dialects share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.api.quantity import Quantity
from bayplan.api.queue import Share
from bayplan.api.resources import amount_of
from bayplan.api.times import seconds_of

__all__ = ["amounts", "entries_of", "is_index", "share", "text_of", "timestamp"]


def is_index(text: str) -> bool:
    """Tell whether a text is a number of 0 or more: up to nine ASCII digits."""
    return text.isascii() and text.isdigit() and len(text) < 10


def entries_of(content: Mapping[str, Any], key: str, where: str = "") -> list[Mapping[str, Any]]:
    """Return the objects in a list of JSON under a key; none where it is not there.

    :raises ValueError: for anything else.
    """
    value = content.get(key)
    found = list(value) if isinstance(value, (list, tuple)) else []
    is_list = value is None or isinstance(value, (list, tuple))
    if not is_list or not all(isinstance(one, Mapping) for one in found):
        raise ValueError(f"{where}{key}: expected a list of objects, got {str(value)[:40]}")
    return found


def text_of(content: Mapping[str, Any], key: str) -> str:
    """Return a text of JSON under a key.

    :raises ValueError: for anything else, and for an empty one.
    """
    value = content.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key}: expected a text, got {str(value)[:40]}")
    return value


def amounts(quantities: Mapping[str, Quantity]) -> tuple[tuple[str, int], ...]:
    """Return resource amounts: CPU in milli-CPU, everything else in whole units."""
    return tuple((name, amount_of(name, quantity)) for name, quantity in quantities.items())


def share(quantities: Mapping[str, Quantity], other: float = 0.0) -> Share:
    """Return amounts of a queue: CPU in milli-CPU, everything else in its unit, also in parts.

    :param other: the amount of every resource that is not named.
    """
    found = {
        name: float(quantity.amount * 1000 if name == "cpu" else quantity.amount)
        for name, quantity in quantities.items()
    }
    return Share(found, other)


def timestamp(text: str | None) -> float:
    """Return an RFC 3339 time in seconds since 1970; 0 for none or one that cannot be read."""
    return seconds_of(text)
