"""How near nodes are to the pods of an elastic job, in the first network of the cluster."""

from __future__ import annotations

import numpy as np

from bayplan import Handle, PodInfo
from bayplan.plugin.hookspecs import FloatColumn
from bayplan.snapshot.networks import Networks
from bayplan.topology.network.tree import NetworkTree
from bayplan_plugins.resizer.jobs import ElasticJobs
from bayplan_plugins.shared.network_sums import sums_around

__all__ = ["Nearness"]


class Nearness:
    """Scores nodes by the part of a job's pods that each domain around them has."""

    def __init__(self, handle: Handle, jobs: ElasticJobs) -> None:
        self._handle = handle
        self._jobs = jobs
        self._networks: Networks | None = None

    def applies(self, pod: PodInfo) -> bool:
        """Tell whether the pod is of an elastic job, some of which runs in a network."""
        if self._jobs.part_of(pod) is None or self.tree is None:
            return False
        return bool(self.counts(pod).any())

    @property
    def tree(self) -> NetworkTree | None:
        """The first network of the cluster."""
        if self._networks is None:
            self._networks = Networks.of(self._handle.snapshot)
        return next(iter(self._networks.trees().values()), None)

    def counts(self, pod: PodInfo) -> FloatColumn:
        """Return how many other pods of the pod's job each node has, one number a row."""
        snapshot = self._handle.snapshot
        counts = np.zeros(len(snapshot.nodes))
        part = self._jobs.part_of(pod)
        for other in self._jobs.pods_of(part) if part is not None else ():
            placed = snapshot.placed.get(other.key)
            row = snapshot.nodes.row_of.get(placed[1]) if placed is not None else None
            if row is not None and other.key != pod.key:
                counts[row] += 1
        return counts

    def scores(self, pod: PodInfo) -> FloatColumn:
        """Return a score of 0..100 for every node: the mean over the layers, inner and outer."""
        counts, tree = self.counts(pod), self.tree
        if tree is None or not counts.any():
            return np.zeros(len(counts))
        layers = sums_around(tree, counts)
        result: FloatColumn = 100.0 * np.mean(layers, axis=0) / counts.sum()
        return result
