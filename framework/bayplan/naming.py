"""The order of names: digits count as numbers, so that node-2 comes before node-10."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["counted", "natural_key", "short_key"]

_PARTS = re.compile(r"([0-9]{1,300})")


@lru_cache(maxsize=65536)
def natural_key(name: str) -> tuple[tuple[str, int], ...]:
    """Return a sort key: text parts compare as text, runs of digits as numbers."""
    parts = _PARTS.split(name)
    # Pairs of (text, number) keep the types comparable; the name itself breaks "a01" against "a1".
    pairs = [
        (parts[i], int(parts[i + 1]) if i + 1 < len(parts) else -1) for i in range(0, len(parts), 2)
    ]
    return (*pairs, (name, 0))


def counted(number: int, noun: str) -> str:
    """Return "1 pair" or "2 pairs"."""
    return f"{number} {noun}{'s'[: number != 1]}"


def short_key(key: str) -> str:
    """Return a pod's key without the namespace ``default``."""
    return key.removeprefix("default/")
