"""FGD, the published policy: fragmentation gradient descent.

Q. Weng and others, "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023. The fragmentation F of a node is what of its idle GPUs a pod of
the workload could not use, in thousandths of a GPU, summed over the typical pods by their part of
the workload: everything that is idle if the pod does not fit there, else the GPUs that have less
left than it needs. With dF the growth of F, a node's score is the whole part of
100 / (1 + exp(dF / 1000)); the GPU is the first with the best score.

The order of the sums is the published one: a difference of nothing gives 50, or 49 by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bayplan.plugin.hookspecs import FloatColumn, IntColumn
from bayplan_plugins.gpu_fragmentation.known_states import KnownStates, StateTable, kinds_of
from bayplan_plugins.gpu_fragmentation.pod_classes import PodClass, WeightedClass, weighted
from bayplan_plugins.gpu_fragmentation.policy import (
    Rated,
    best_of_each,
    different_gpus,
    several_taken,
    with_room,
)
from bayplan_plugins.gpu_fragmentation.states import NodeStates, Rows, StateSource

__all__ = ["FragmentationGradient"]

_TYPICAL = 0.95
_EACH = 1000.0
_NOT_BUILT = np.zeros(0)


class FragmentationGradient:
    """Choose the node and GPU where the fragmentation grows least."""

    def __init__(self, source: StateSource) -> None:
        self._source = source
        self.forget([])

    def forget(self, workload: list[WeightedClass]) -> None:
        """Take over the workload: the pod classes that make up 95 % of its pods."""
        typical = (
            weighted(((one.pod_class, one.part) for one in workload), _TYPICAL) if workload else []
        )
        self._typical = [one.pod_class for one in typical]
        self._part = np.array([[one.part] for one in typical])
        self._cpu = np.array([[one.pod_class.cpu] for one in typical])
        self._compute = np.array([[one.pod_class.compute] for one in typical])
        self._gpus = np.array([[one.pod_class.gpus] for one in typical])
        self._cpus = np.unique(self._cpu)
        self._fragments = _NOT_BUILT
        self._stale = np.zeros(0, dtype=np.bool_)
        self._kind: IntColumn | None = None
        self._forget_states()

    def _forget_states(self) -> None:
        self._states = KnownStates()
        self._table = StateTable(lambda states: self.fragmentation(states)[:, None])

    def learn(self, workload: list[WeightedClass]) -> None:
        """Do nothing: typical pods stay while they differ little."""

    def changed(self, rows: Sequence[int]) -> None:
        """Compute the fragmentation of nodes again when it is next asked for."""
        if self._states.full:
            self._forget_states()
        if len(self._fragments):
            self._stale[rows] = True

    def _kinds(self, rows: Rows) -> IntColumn:
        """Return which nodes allow the same of the typical pods."""
        if self._kind is None:
            columns = [self._source.allowed(one.choice) for one in self._typical]
            self._allowed, self._kind = kinds_of(np.stack(columns, axis=1))
        return self._kind[rows]

    def _values(self, states: NodeStates) -> FloatColumn:
        """Return F for each node; each state is computed once."""
        # Of the CPU that is left, only which of the typical pods it is enough for counts.
        enough_for = np.searchsorted(self._cpus, states.cpu, side="right")
        numbers = self._states.of(states, enough_for, self._kinds(states.rows))
        return self._table.of(numbers, states)[:, 0]

    def fragmentation(self, states: NodeStates) -> FloatColumn:
        """Return F for each node, in thousandths of a GPU."""
        if not self._typical:
            return np.zeros(len(states))
        if len(states) == 1:
            # NumPy adds up a single column in another order, whose last bits differ.
            return self.fragmentation(states.part(np.zeros(2, dtype=np.intp)))[:1]
        kinds = self._kinds(states.rows)
        allowed = self._allowed[kinds].T
        left = states.left[None]
        need = self._compute[:, :, None]
        fits = left >= need
        idle = states.left.sum(axis=1)[None]
        small = np.where(fits, 0, left).sum(axis=2)
        enough_gpus = fits.sum(axis=2) >= self._gpus
        enough_cpu = self._cpu <= states.cpu[None]
        with_gpus = self._gpus > 0
        usable = with_gpus & allowed
        lost = self._part * idle
        sums = (
            np.where(usable & ~enough_cpu & ~enough_gpus, lost, 0.0),
            np.where(usable & enough_cpu, np.where(enough_gpus, self._part * small, lost), 0.0),
            np.where(usable & ~enough_cpu & enough_gpus, lost, 0.0),
            np.where(~with_gpus & enough_cpu, lost, 0.0),
            np.where(~with_gpus & ~enough_cpu, lost, 0.0),
            np.where(with_gpus & ~allowed, lost, 0.0),
        )
        total = np.zeros(len(states))
        for part in sums:
            total = total + part.sum(axis=0)
        return total

    def rate(self, pod_class: PodClass, states: NodeStates) -> Rated:
        """Rate nodes by how much more fragmented they would be."""
        if not self._typical:
            return Rated.nowhere(len(states))
        if not len(self._fragments):
            size = len(self._source.allowed(pod_class.choice))
            self._fragments = self._values(self._source.of(np.arange(size)))
            self._stale = np.zeros(size, dtype=np.bool_)
        rated = Rated.nowhere(len(states))
        places = with_room(pod_class, states)
        if not len(places):
            return rated
        own = states.part(places)
        if pod_class.gpus != 1 or pod_class.whole:
            after = own.without(pod_class.cpu, several_taken(pod_class, own.left))
            rated.scores[places] = self._scores(own, after)
        else:
            self._rate_share(pod_class, own, places, rated)
        return rated

    def _rate_share(self, pod_class: PodClass, own: NodeStates, places: Rows, rated: Rated) -> None:
        """Rate nodes for a share; of each one's GPUs take the best, of equal ones the first."""
        nodes, gpus = different_gpus(own.left, pod_class.compute)
        tried = own.part(nodes)
        left = tried.left.copy()
        left[np.arange(len(nodes)), gpus] -= pod_class.compute
        scores = self._scores(own, tried.without(pod_class.cpu, left))
        chosen = best_of_each(nodes, gpus, scores)
        into = places[nodes[chosen]]
        rated.scores[into], rated.gpus[into] = scores[chosen], gpus[chosen]

    def _scores(self, before: NodeStates, after: NodeStates) -> FloatColumn:
        """Return the scores of states by what they were before, each node of which is there once.

        What nodes were before is computed again with the rest where they have changed.
        """
        stale = self._stale[before.rows].nonzero()[0]
        if len(stale):
            changed = before.part(stale)
            values = self._values(changed.and_also(after))
            self._fragments[changed.rows] = values[: len(stale)]
            self._stale[changed.rows] = False
            values = values[len(stale) :]
        else:
            values = self._values(after)
        return _scores(self._fragments[after.rows], values)

    def renew(self, pod_class: PodClass, rows: Rows, rated: Rated) -> bool:
        """Leave it to ``rate``."""
        return False

    def scores(self, pod_class: PodClass, rated: Rated) -> FloatColumn:
        """Return the scores as they are."""
        return rated.scores

    def normalized(self, scores: FloatColumn) -> FloatColumn:
        """Return the scores as they are, from 0 to 100."""
        return scores


def _scores(before: FloatColumn, after: FloatColumn) -> FloatColumn:
    sigmoid: FloatColumn = np.trunc(100.0 * (1.0 / (1.0 + np.exp(-(before - after) / _EACH))))
    return sigmoid
