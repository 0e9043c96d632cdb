"""What a pod will use, how full a node is, and how good that is.

Formulas: Koordinator v1.8 (pkg/scheduler/plugins/loadaware). Amounts are in milli-CPU, and in units
of any other resource.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bayplan.plugin.hookspecs import BoolColumn, IntColumn

__all__ = ["estimate", "least_loaded", "over"]

_MOST = 100
_UNSTATED = {
    "cpu": 250,
    "memory": 200 * 2**20,
    "kubernetes.io/batch-cpu": 250,
    "kubernetes.io/batch-memory": 200 * 2**20,
}
"""What a pod that states nothing is taken to use."""


def estimate(resource: str, request: int, limit: int, factor: int) -> int:
    """Return what a pod will use of a resource.

    :param factor: percent of what it states that pods use.
    """
    stated = max(request, limit)
    if not stated:
        return _UNSTATED.get(resource, 0)
    used = _rounded(stated * float(factor) / 100)
    return min(used, limit) if limit > 0 else used


def _rounded(value: float) -> int:
    """Round half away from zero, as Go does."""
    whole = math.floor(value)
    return whole + (value - whole >= 0.5)


def over(used: IntColumn, allocatable: IntColumn, threshold: int) -> BoolColumn:
    """Tell where usage is beyond a threshold.

    :param threshold: percent of what is allocatable, 0 for none.
    """
    if not threshold:
        return np.zeros(len(used), dtype=np.bool_)
    share = used / np.where(allocatable > 0, allocatable, 1) * 100
    whole = np.floor(share)
    return (allocatable > 0) & (whole + (share - whole >= 0.5) > threshold)


def least_loaded(
    used: npt.NDArray[np.int64],
    allocatable: npt.NDArray[np.int64],
    weights: Sequence[int],
    dominant_weight: int,
) -> IntColumn:
    """Return scores 0 to 100 by how much is left, the more the higher.

    :param used: nodes by resources, as ``allocatable``.
    :param weights: one for each resource.
    :param dominant_weight: the weight of the resource of which least is left.
    """
    total = sum(weights) + dominant_weight
    if total <= 0:
        return np.zeros(len(used), dtype=np.int64)
    left = (allocatable - used) * _MOST // np.where(allocatable > 0, allocatable, 1)
    scores = np.where((allocatable > 0) & (used <= allocatable), left, 0)
    found = scores @ np.asarray(weights, dtype=np.int64)
    if dominant_weight:
        found = found + np.minimum(scores.min(axis=1, initial=_MOST), _MOST) * dominant_weight
    return np.asarray(found // total, dtype=np.int64)
