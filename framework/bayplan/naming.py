"""Names in order and in words: natural sorting, plurals and short lists."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Sequence
from functools import lru_cache

__all__ = ["counted", "listed", "merged", "natural_key", "short_key"]

_FEW = 8
"""By how much a list is longer than what is merged into it if that is few."""
_PARTS = re.compile(r"([0-9]{1,300})")


@lru_cache(maxsize=65536)
def natural_key(name: str) -> tuple[tuple[str, int], ...]:
    """Return a sort key that compares runs of digits as numbers: node-2 comes before node-10."""
    parts = _PARTS.split(name)
    # Pairs of (text, number) keep the types comparable; the name itself breaks "a01" against "a1".
    pairs = [
        (parts[i], int(parts[i + 1]) if i + 1 < len(parts) else -1) for i in range(0, len(parts), 2)
    ]
    return (*pairs, (name, 0))


def merged(names: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return the names of two lists, both in natural order, in one."""
    if len(new) * _FEW > len(names):
        return sorted([*names, *new], key=natural_key)
    found: list[str] = []
    last = 0
    for name in new:
        place = bisect(names, natural_key(name), last, key=natural_key)
        found += names[last:place]
        found.append(name)
        last = place
    return found + list(names[last:])


def counted(number: int, noun: str) -> str:
    """Return "1 pod" or "2 pods"; ``noun`` is singular and takes a plain s."""
    return f"{number} {noun}{'s'[: number != 1]}"


def listed(names: Iterable[str], most: int) -> str:
    """Return "a, b and 3 more": the first ``most`` names and the number of the others."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def short_key(key: str) -> str:
    """Return a pod's key without the namespace ``default``."""
    return key.removeprefix("default/")
