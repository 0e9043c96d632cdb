"""NetworkNear: score nodes by how near they are to pods with the same topology selector.

Pods with the same value of Koordinator's annotation
``scheduling.koordinator.sh/network-topology-selector`` attract each other, across gangs and
namespaces. Candidates are ranked by the number of such pods on the node, then in each domain around
it, then by the fewest candidates there, then by name; the first scores 100, the last 0.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from bayplan import SKIP, Args, NodeView, Normalize, Plugin, PodInfo, hookimpl
from bayplan.dialects.koordinator.gangs import SELECTOR_ANNOTATION
from bayplan.plugin.hookspecs import FloatColumn, IntColumn
from bayplan.snapshot.networks import Networks
from bayplan.topology.network.tree import NetworkTree
from bayplan_plugins.shared.network_sums import sums_around

__all__ = ["NetworkNear"]


class NetworkNear(Plugin[Args]):
    """Prefer nodes near the pods of the same network-topology-selector."""

    normalize_scores = Normalize.HOOK
    _networks: Networks | None = None

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods with a selector."""
        return SELECTOR_ANNOTATION in pod.annotations

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by the selector."""
        return pod.annotations.get(SELECTOR_ANNOTATION)

    @hookimpl
    def pre_score(self, pod: PodInfo) -> object:
        """Skip pods without the annotation, and clusters without a network."""
        if not pod.annotations.get(SELECTOR_ANNOTATION) or self._tree() is None:
            return SKIP
        return None

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> IntColumn:
        """Return how many pods with the selector each node has."""
        return nodes.pick(self._existing(pod))

    @hookimpl
    def normalize(self, pod: PodInfo, scores: FloatColumn, nodes: NodeView) -> FloatColumn:
        """Rank the feasible nodes."""
        tree = self._tree()
        if tree is None or len(nodes) < 2:
            return np.full(len(nodes), 100.0)
        rows = np.arange(len(nodes.table)) if nodes.rows is None else nodes.rows
        existing, candidates = self._existing(pod), np.zeros(len(nodes.table), dtype=np.int64)
        candidates[rows] = 1
        near = [existing, *sums_around(tree, existing)]
        tight = sums_around(tree, candidates)
        # lexsort sorts by its last key first.
        keys = [rows, *(column[rows] for column in reversed(tight))]
        keys += [-column[rows] for column in reversed(near)]
        ranks = np.empty(len(rows))
        ranks[np.lexsort(keys)] = np.arange(len(rows))
        result: FloatColumn = 100.0 * (1.0 - ranks / max(1, len(rows) - 1))
        return result

    def _tree(self) -> NetworkTree | None:
        if self._networks is None:
            self._networks = Networks.of(self.handle.snapshot)
        return next(iter(self._networks.trees().values()), None)

    def _existing(self, pod: PodInfo) -> IntColumn:
        """Return, per row, the other pods with the pod's selector."""
        wanted = pod.annotations.get(SELECTOR_ANNOTATION)
        snapshot = self.handle.snapshot
        counts = np.zeros(len(snapshot.nodes), dtype=np.int64)
        for other, node in snapshot.placed.values():
            if other.annotations.get(SELECTOR_ANNOTATION) == wanted:
                row = snapshot.nodes.row_of.get(node)
                if row is not None and other.key != pod.key:
                    counts[row] += 1
        return counts
