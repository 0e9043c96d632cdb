"""Lists of CPUs as Linux and Kubernetes write them: "0-3,8,10-11"."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["MOST_CPUS", "cpu_list", "cpus_in"]

MOST_CPUS = 8192
"""The most CPUs that Linux supports on one machine; larger numbers are refused."""


def cpus_in(text: str) -> frozenset[int]:
    """Return the numbers of a list; empty for an empty text.

    :raises ValueError: for a text that is no such list, saying which part is wrong.
    """
    found: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        first, dash, last = part.strip().partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise ValueError(f'expected a list of CPUs such as "0-3,8", got "{part[:40]}"')
        start, end = int(first), int(last or first)
        if end < start or end >= MOST_CPUS:
            raise ValueError(f'expected CPUs from 0 to {MOST_CPUS - 1}, rising, got "{part[:40]}"')
        found.update(range(start, end + 1))
    return frozenset(found)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(MOST_CPUS))


def cpu_list(cpus: Iterable[int]) -> str:
    """Return the shortest list of some CPUs, in rising order."""
    parts: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
