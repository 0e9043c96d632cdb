"""Scores of devices and of nodes by how much of their resources is requested."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from bayplan.dialects.koordinator.requests import GPU_MEMORY, GPU_MEMORY_RATIO, Amounts

__all__ = ["DEFAULT_WEIGHTS", "Scorer"]

DEFAULT_WEIGHTS = (
    (GPU_MEMORY_RATIO, 1),
    (GPU_MEMORY, 1),
    ("koordinator.sh/rdma", 1),
    ("koordinator.sh/fpga", 1),
)
_HIGHEST = 100


class Scorer(msgspec.Struct, frozen=True):
    """LeastAllocated, or with ``most`` MostAllocated: 0 to 100, rounded down.

    The mean over resources, by weight, of the part that would be left (or taken) of each, as in
    koordinator-sh/koordinator (pkg/scheduler/plugins/deviceshare/scoring.go).
    """

    most: bool = False
    weights: tuple[tuple[str, int], ...] = DEFAULT_WEIGHTS

    def device(self, request: Amounts, total: Amounts, free: Amounts) -> int:
        """Return the score of a device for what is requested of it."""
        score = weights = 0
        for name, weight in self.weights:
            all_ = total.get(name, 0)
            if all_:
                used = max(0, all_ - free.get(name, 0))
                score += weight * self._part(used + request.get(name, 0), all_)
                weights += weight
        return score // weights if weights else 0

    def node(self, request: Amounts, totals: Iterable[Amounts], free: Iterable[Amounts]) -> int:
        """Return the score of a node's devices of one type together."""
        return self.device(request, self._sum(totals), self._sum(free))

    def _sum(self, parts: Iterable[Amounts]) -> Amounts:
        sums = {name: 0 for name, _ in self.weights}
        for part in parts:
            for name in sums:
                sums[name] += part.get(name, 0)
        return sums

    def _part(self, requested: int, total: int) -> int:
        if self.most:
            return min(requested, total) * _HIGHEST // total
        return (total - requested) * _HIGHEST // total if requested <= total else 0
