"""Policies to compare with: best fit, dot product, packing, clustering, and chance.

Formulas as in the simulator of "Beware of Fragmentation" (USENIX ATC 2023). The GPU is the fitting
one with the least left, the first of equal ones, except by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bayplan.api.gpu_shares import WHOLE
from bayplan.plugin.hookspecs import FloatColumn, IntColumn
from bayplan_plugins.gpu_fragmentation.pod_classes import PodClass, WeightedClass
from bayplan_plugins.gpu_fragmentation.policy import FIRST, Rated, best_fit
from bayplan_plugins.gpu_fragmentation.states import NodeStates, Rows, StateSource

__all__ = ["ByChance", "SimplePolicy", "best_fit_score", "clustering", "dot_product", "packing"]

Formula = Callable[[PodClass, NodeStates, StateSource], FloatColumn]
_HALF = 0.5
_ONLY_SUCH, _SUCH_TOO, _EMPTY = 75, 50, 25
_PACKED, _USED_LEAST, _USED_MOST = 33, 33, 50
_ON_USED_GPU = 100


class SimplePolicy:
    """Rate nodes by a formula that sees one node and one pod.

    :param spread: whether the lowest score of all feasible nodes counts 0 and the highest 100.
    """

    def __init__(self, source: StateSource, formula: Formula, spread: bool = False) -> None:
        self._source = source
        self._formula = formula
        self._spread = spread

    def forget(self, workload: list[WeightedClass]) -> None:
        """Do nothing: the formula does not know the workload."""

    def learn(self, workload: list[WeightedClass]) -> None:
        """Do nothing: the workload is not known."""

    def changed(self, rows: Sequence[int]) -> None:
        """Do nothing: nothing is kept."""

    def rate(self, pod_class: PodClass, states: NodeStates) -> Rated:
        """Rate nodes."""
        return Rated(self._formula(pod_class, states, self._source), _gpus(pod_class, states))

    def renew(self, pod_class: PodClass, rows: Rows, rated: Rated) -> bool:
        """Leave it to ``rate``."""
        return False

    def scores(self, pod_class: PodClass, rated: Rated) -> FloatColumn:
        """Return the scores as they are."""
        return rated.scores

    def normalized(self, scores: FloatColumn) -> FloatColumn:
        """Spread the scores where the formula's own does so; in whole numbers."""
        low, high = scores.min(), scores.max()
        if not self._spread:
            return scores
        if high == low:
            return np.zeros(len(scores))
        spread: FloatColumn = (scores - low) * 100.0 // (high - low)
        return spread


class ByChance:
    """Rate nodes at random, and take any GPU that fits.

    :param seed: of the random numbers.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def forget(self, workload: list[WeightedClass]) -> None:
        """Do nothing: chance does not know the workload."""

    def learn(self, workload: list[WeightedClass]) -> None:
        """Do nothing: the workload is not known."""

    def changed(self, rows: Sequence[int]) -> None:
        """Do nothing: nothing is kept."""

    def rate(self, pod_class: PodClass, states: NodeStates) -> Rated:
        """Choose GPUs."""
        if pod_class.gpus != 1 or pod_class.whole:
            return Rated(np.zeros(len(states)), _gpus(pod_class, states))
        drawn = self._random.random(states.left.shape)
        return Rated(
            np.zeros(len(states)),
            np.where(states.left >= pod_class.compute, drawn, -1.0).argmax(axis=1),
        )

    def renew(self, pod_class: PodClass, rows: Rows, rated: Rated) -> bool:
        """Leave it to ``rate``."""
        return False

    def scores(self, pod_class: PodClass, rated: Rated) -> FloatColumn:
        """Return new random numbers each time."""
        drawn: FloatColumn = 100.0 * self._random.random(len(rated.scores))
        return drawn

    def normalized(self, scores: FloatColumn) -> FloatColumn:
        """Return the scores as they are, from 0 to 100."""
        return scores


def best_fit_score(pod_class: PodClass, states: NodeStates, source: StateSource) -> FloatColumn:
    """Return more for nodes that the pod leaves fuller."""
    most_cpu, most_gpus = source.most()
    cpu = (states.cpu - pod_class.cpu) / most_cpu
    gpus = (states.left.sum(axis=1) - pod_class.total) / most_gpus
    score: FloatColumn = np.maximum(0.0, np.trunc(100.0 * (1.0 - _HALF * cpu - _HALF * gpus)))
    return score


def dot_product(pod_class: PodClass, states: NodeStates, source: StateSource) -> FloatColumn:
    """Return less for nodes whose rest looks in the direction of what the pod asks for."""
    most_cpu, most_gpus = source.most()
    cpu = states.cpu / most_cpu * pod_class.cpu / most_cpu
    gpus = states.left.sum(axis=1) / most_gpus * pod_class.total / most_gpus
    score: FloatColumn = np.trunc(100.0 * (1.0 - (cpu + gpus) / 2.0))
    return score


def packing(pod_class: PodClass, states: NodeStates, source: StateSource) -> FloatColumn:
    """Prefer used GPUs, then free GPUs of used nodes, then other nodes."""
    scores = np.zeros(len(states))
    if not pod_class.gpus:
        return scores
    exists = source.all_gpus(states.rows) > 0
    free = ((states.left >= WHOLE) & exists).sum(axis=1)
    untouched = free == exists.sum(axis=1)
    scores[:] = np.where(
        untouched, np.maximum(_PACKED - free, free), max(_USED_MOST - pod_class.gpus, _USED_LEAST)
    )
    if not pod_class.whole:
        used = np.where(states.left < WHOLE, states.left, 0)
        left = used[np.arange(len(states)), best_fit(used, pod_class.compute)]
        fits = (used >= pod_class.compute).any(axis=1)
        tight = np.maximum(_ON_USED_GPU - (left * 100 // WHOLE) // 10, _USED_MOST)
        scores = np.where(fits, tight, scores)
    return scores


def clustering(pod_class: PodClass, states: NodeStates, source: StateSource) -> FloatColumn:
    """Prefer nodes that have pods of the same size, above all those that have no others."""
    if not pod_class.gpus:
        return np.zeros(len(states))
    _, most_gpus = source.most()
    idle = states.left.sum(axis=1)
    own = pod_class.cluster
    classes = [source.clusters(row) for row in states.rows.tolist()]
    parts = [
        (_ONLY_SUCH if found == {own} else _SUCH_TOO) if own in found else (0 if found else _EMPTY)
        for found in classes
    ]
    packed = 25 * (most_gpus - idle) // most_gpus
    score: FloatColumn = np.array(parts, dtype=np.float64) + packed
    return score


def _gpus(pod_class: PodClass, states: NodeStates) -> IntColumn:
    if pod_class.gpus == 1 and not pod_class.whole:
        return best_fit(states.left, pod_class.compute)
    return np.full(len(states), FIRST)
