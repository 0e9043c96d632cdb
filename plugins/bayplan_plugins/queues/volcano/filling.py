"""How full a pod would make nodes, as Volcano's binpack and resource-strategy-fit rate it.

Formula: volcano-sh/volcano, pkg/scheduler/plugins/{binpack,resource-strategy-fit}. Unlike
kube-scheduler's strategies only what the pod requests counts, nothing is rounded, and a resource
that a node lacks counts with the score 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from bayplan import NodeView, PodInfo
from bayplan.plugin.hookspecs import FloatColumn

__all__ = ["Strategy", "filling", "requested"]

_MOST = 100.0


class Strategy(NamedTuple):
    """How the use of a resource counts: with which weight, and whether full nodes are better.

    Without ``packs`` and ``spreads`` the weight counts with the score 0.
    """

    weight: int
    packs: bool
    spreads: bool = False


def requested(pod: PodInfo) -> Mapping[str, int]:
    """Return what a pod requests; Volcano counts the pod itself besides."""
    return {**pod.requests, "pods": 1}


def filling(nodes: NodeView, wanted: Iterable[tuple[str, int, Strategy]]) -> FloatColumn:
    """Return scores 0 to 100, the weighted mean over resources; 0 where anything does not fit.

    :param wanted: each requested resource that counts, with the amount.
    """
    total, short = np.zeros(len(nodes)), np.zeros(len(nodes), dtype=np.bool_)
    weights = 0
    for name, amount, strategy in wanted:
        weights += strategy.weight
        if not strategy.weight or not (strategy.packs or strategy.spreads):
            continue
        offered = nodes.allocatable(name)
        after = nodes.used(name) + amount
        there = offered > 0
        short |= there & (after > offered)
        counted = after if strategy.packs else offered - after
        total += np.where(there, counted * strategy.weight / np.maximum(offered, 1), 0.0)
    if not weights:
        return total
    scores: FloatColumn = np.where(short, 0.0, np.clip(total / weights * _MOST, 0.0, _MOST))
    return scores
