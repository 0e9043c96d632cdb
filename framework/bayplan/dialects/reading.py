"""Parsing that several dialects share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from bayplan.api.quantity import Quantity
from bayplan.api.queue import Share
from bayplan.api.resources import amount_of

__all__ = ["amounts", "is_index", "share", "timestamp"]


def is_index(text: str) -> bool:
    """Tell whether a text is a number of 0 or more: up to nine ASCII digits."""
    return text.isascii() and text.isdigit() and len(text) < 10


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
    try:
        return datetime.fromisoformat((text or "").replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
