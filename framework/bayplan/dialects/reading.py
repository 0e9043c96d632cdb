"""Parsing that several dialects share."""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.api.quantity import Quantity
from bayplan.api.resources import amount_of

__all__ = ["amounts", "is_index"]


def is_index(text: str) -> bool:
    """Tell whether a text is a number of 0 or more: up to nine ASCII digits."""
    return text.isascii() and text.isdigit() and len(text) < 10


def amounts(quantities: Mapping[str, Quantity]) -> tuple[tuple[str, int], ...]:
    """Return resource amounts: CPU in milli-CPU, everything else in whole units."""
    return tuple((name, amount_of(name, quantity)) for name, quantity in quantities.items())
