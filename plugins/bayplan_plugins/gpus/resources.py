"""Which resources request GPUs, and how many."""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.api.gpus import GPU_RESOURCES

__all__ = ["gpu_count", "shares_gpus"]

_SHARES = frozenset(("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"))
"""Resources with which HAMi gives out shares of GPUs, which are not counted here."""


def gpu_count(requests: Mapping[str, int]) -> int:
    """Return how many whole GPUs are requested; 0 for shares of GPUs."""
    if shares_gpus(requests):
        return 0
    return sum(requests.get(name, 0) for name in GPU_RESOURCES)


def shares_gpus(requests: Mapping[str, int]) -> bool:
    """Tell whether shares of GPUs are requested."""
    return not _SHARES.isdisjoint(requests)
