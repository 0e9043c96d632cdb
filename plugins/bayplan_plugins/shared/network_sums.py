"""Sums over the network domains around each node."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bayplan.topology.network.tree import NetworkTree

__all__ = ["sums_around"]


def sums_around(tree: NetworkTree, column: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Return, per layer from the innermost outwards, each row's sum over its domain.

    :param column: one number for each row of the tree.
    """
    found = []
    sums = np.concatenate([[0], np.cumsum(column[tree.order])])
    for layer in reversed(tree.layers):
        summed = np.zeros_like(column)
        starts, ends = tree.bounds(layer)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            summed[tree.order[start:end]] = sums[end] - sums[start]
        found.append(summed)
    return found
