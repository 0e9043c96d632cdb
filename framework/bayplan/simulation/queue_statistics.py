"""What a simulation says of its queues: shares over time, waits, use, evictions and fairness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

__all__ = ["QueueStatistics", "Statistics", "Waits", "jain"]


class Waits(msgspec.Struct, frozen=True):
    """How long jobs waited, in seconds; None without any job.

    Jobs that still wait count with their wait so far, so that starving shows. ``started`` and
    ``waiting`` are their numbers; an evicted job counts again.
    """

    p50: float | None
    p95: float | None
    longest: float | None
    started: int
    waiting: int

    @staticmethod
    def of(started: Sequence[float], waiting: Sequence[float]) -> Waits:
        """Return the figures of these waits."""
        waits = [*started, *waiting]
        if not waits:
            return Waits(None, None, None, 0, 0)
        p50, p95 = np.percentile(waits, (50, 95)).tolist()
        return Waits(p50, p95, max(waits), len(started), len(waiting))

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; times are seconds."""
        return {
            "p50": _rounded(self.p50),
            "p95": _rounded(self.p95),
            "max": _rounded(self.longest),
            "started": self.started,
            "waiting": self.waiting,
        }


class QueueStatistics(msgspec.Struct, frozen=True):
    """One queue over a whole simulation; a queue counts what its descendants do.

    ``share`` is its dominant share of the cluster over time: (seconds, the most of any resource
    that it uses of what all nodes offer), one entry per change. ``mean_share`` is its mean.
    ``utilisation`` is what it used of what it deserves, over time and of the resource of which that
    is the most; None if it deserves nothing. ``satisfaction`` is what it got of what it was
    entitled to, 1 at most: that is the less of what it asked for and what its policy let it have;
    None if it asked for nothing. ``evictions`` counts pods.
    """

    system: str
    name: str
    parent: str
    leaf: bool
    share: Sequence[tuple[float, float]]
    mean_share: float
    waits: Waits
    utilisation: float | None
    satisfaction: float | None
    evictions: int

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; shares are parts of 1, times are seconds."""
        return {
            "system": self.system,
            "parent": self.parent,
            "share": [[round(at, 3), round(share, 6)] for at, share in self.share],
            "meanShare": round(self.mean_share, 6),
            "wait": self.waits.as_json(),
            "utilisation": _rounded(self.utilisation),
            "satisfaction": _rounded(self.satisfaction),
            "evictions": self.evictions,
        }


class Statistics(msgspec.Struct, frozen=True):
    """All queues, parents before children, and the cluster.

    ``until`` is the end in virtual seconds. ``utilisation`` is how much of each resource of the
    nodes was used over that time, as a part of 1. ``jain`` is the fairness among the leaves that
    asked for anything: Jain's index of their satisfaction.
    """

    until: float
    queues: Sequence[QueueStatistics]
    utilisation: Mapping[str, float]
    jain: float | None

    def queues_json(self) -> dict[str, Any]:
        """Return the queues by name, or by ``SYSTEM/NAME`` where two systems share one."""
        names = [one.name for one in self.queues]
        return {
            one.name if names.count(one.name) == 1 else f"{one.system}/{one.name}": one.as_json()
            for one in self.queues
        }

    def cluster_json(self) -> dict[str, Any]:
        """Return what concerns all queues together."""
        return {
            "until": round(self.until, 3),
            "jain": _rounded(self.jain),
            "utilisation": {name: round(part, 6) for name, part in self.utilisation.items()},
        }


def jain(values: Sequence[float]) -> float | None:
    """Return Jain's fairness index of what several got: 1 is all alike, 1/n is one got everything.

    ``(sum x)^2 / (n * sum x^2)``: Jain, Chiu, Hawe: A Quantitative Measure of Fairness and
    Discrimination for Resource Allocation in Shared Computer Systems (DEC-TR-301, 1984). None if
    nobody got anything.
    """
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
