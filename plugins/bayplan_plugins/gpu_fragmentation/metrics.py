"""Prometheus metrics of repacking."""

from __future__ import annotations

from prometheus_client import Counter

from bayplan_plugins.gpu_fragmentation.repacking import Move

__all__ = ["moved"]

_MOVES = Counter("bayplan_repack_moves", "Pods that were moved so that GPUs become of use again")
_FREED = Counter(
    "bayplan_repack_freed_gpus", "GPUs that would have stayed idle without the moves of repacking"
)


def moved(move: Move) -> None:
    """Count a move."""
    _MOVES.inc(len(move.pods))
    _FREED.inc(move.gain)
