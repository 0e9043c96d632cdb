"""What a policy for the placement of shares answers, and what all policies have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from bayplan.api.gpu_shares import WHOLE
from bayplan.plugin.hookspecs import FloatColumn, IntColumn
from bayplan_plugins.gpu_fragmentation.pod_classes import PodClass, WeightedClass
from bayplan_plugins.gpu_fragmentation.states import NodeStates, Rows
from bayplan_plugins.gpus.columns import GpuMatrix

__all__ = [
    "FIRST",
    "Policy",
    "Rated",
    "best_fit",
    "best_of_each",
    "different_gpus",
    "several_taken",
    "with_room",
]

FIRST = -1
"""Instead of a GPU's place: the first free GPUs, as all free GPUs are alike."""
_NO_FIT = 1 << 40
_PLACE_BITS = 32
_PLACES = (1 << _PLACE_BITS) - 1


_NO_LOSSES = np.zeros(0, dtype=np.int64)


class Rated(msgspec.Struct):
    """What is known of a pod on each node, which holds until the node changes.

    ``scores``: higher is better. ``gpus``: the place of the GPU to take. ``lost``: which slots
    for pods of several GPUs the pod would use up, by the policy's number for that, 0 for none.
    """

    scores: FloatColumn
    gpus: IntColumn
    lost: IntColumn = msgspec.field(default_factory=lambda: _NO_LOSSES)

    @classmethod
    def nowhere(cls, size: int) -> Rated:
        """Return the scores of nodes none of which has room."""
        gpus = np.empty(size, dtype=np.int64)
        gpus.fill(FIRST)
        return cls(np.zeros(size), gpus)

    def forget(self, row: int) -> None:
        """Take note that one node has no room."""
        self.scores[row], self.gpus[row], self.lost[row] = 0.0, FIRST, 0

    def update(self, rows: Rows, found: Rated) -> None:
        """Take over what is known now of some nodes."""
        self.scores[rows], self.gpus[rows] = found.scores, found.gpus
        if len(self.lost):
            self.lost[rows] = found.lost


class Policy(Protocol):
    """Rates nodes for a pod by what is left of them."""

    def forget(self, workload: list[WeightedClass]) -> None:
        """Forget everything about nodes; pods come as this workload says."""

    def learn(self, workload: list[WeightedClass]) -> None:
        """Take note of a workload that differs little from the one in use."""

    def changed(self, rows: Sequence[int]) -> None:
        """Take note that nodes changed, by row."""

    def rate(self, pod_class: PodClass, states: NodeStates) -> Rated:
        """Rate nodes; the scores of nodes where the pod class does not fit do not count."""

    def renew(self, pod_class: PodClass, rows: Rows, rated: Rated) -> bool:
        """Rate nodes that changed again; False if ``rate`` is to be asked."""

    def scores(self, pod_class: PodClass, rated: Rated) -> FloatColumn:
        """Return the scores of nodes now, from what is known of each."""

    def normalized(self, scores: FloatColumn) -> FloatColumn:
        """Bring the scores of the feasible nodes, of which there is one at least, to 0 to 100."""


def best_fit(left: GpuMatrix, compute: int) -> IntColumn:
    """Return, by node, the place of the first fitting GPU with the least left."""
    places: IntColumn = np.where(left >= compute, left, _NO_FIT).argmin(axis=1)
    return places


def with_room(pod_class: PodClass, states: NodeStates) -> Rows:
    """Return the places of the nodes whose CPU and GPUs are enough for a pod."""
    fits = states.cpu >= pod_class.cpu
    if pod_class.gpus == 1:
        fits &= np.logical_or.reduce(states.left >= pod_class.compute, axis=1)
    elif pod_class.gpus:
        fits &= (states.left >= pod_class.compute).sum(axis=1) >= pod_class.gpus
    return fits.nonzero()[0]


def several_taken(pod_class: PodClass, left: GpuMatrix) -> GpuMatrix:
    """Return what is left of GPUs when each node gives a pod whole GPUs, or shares of several.

    Whole GPUs are the first free ones, shares those of the fitting GPUs with the least left.
    """
    if not pod_class.gpus:
        return left
    if pod_class.whole:
        free = left >= WHOLE
        return np.where(free & (free.cumsum(axis=1) <= pod_class.gpus), 0, left)
    fitting = np.where(left >= pod_class.compute, left, _NO_FIT)
    rank = fitting.argsort(axis=1, kind="stable").argsort(axis=1)
    taken = (rank < pod_class.gpus) & (fitting != _NO_FIT)
    return np.where(taken, left - pod_class.compute, left)


def different_gpus(left: GpuMatrix, compute: int) -> tuple[Rows, Rows]:
    """Return pairs of a node's place and a GPU's: the first of each node's equal GPUs.

    GPUs with too little left are left out.
    """
    # What is left and the place in one number, so that sorting keeps them together.
    keys = (left << _PLACE_BITS) + np.arange(left.shape[1])
    keys.sort(axis=1)
    ordered = keys >> _PLACE_BITS
    first = ordered >= compute
    first[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    nodes, places = np.nonzero(first)
    return nodes, keys[nodes, places] & _PLACES


def best_of_each(nodes: Rows, gpus: IntColumn, scores: FloatColumn) -> Rows:
    """Return, of pairs of a node and a GPU, the best of each node; of equal ones the first GPU.

    :param nodes: the pairs' nodes, equal ones next to each other.
    """
    order = np.lexsort((gpus, -scores, nodes))
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = nodes[order][1:] != nodes[order][:-1]
    return order[first]
