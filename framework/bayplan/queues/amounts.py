"""Amounts of resources as people read them."""

from __future__ import annotations

__all__ = ["amount_text"]

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi")


def amount_text(resource: str, value: float) -> str:
    """Return an amount for people: cores, bytes with a binary suffix, or a number."""
    if value == float("inf"):
        return "unlimited"
    if resource == "cpu":
        return f"{value / 1000:g}"
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        for suffix in _BINARY[:-1]:
            if abs(value) < 1024:
                return f"{value:.4g}{suffix}"
            value /= 1024
        return f"{value:.4g}{_BINARY[-1]}"
    return f"{value:g}"
