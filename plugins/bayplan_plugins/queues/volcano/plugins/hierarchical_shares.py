"""Volcano's hierarchical DRF: queues as a tree with jobs as leaves, divided by weight.

As volcano-sh/volcano, plugin drf with ``enableHierarchy``; the rule is that of Bhattacharya et al.,
Hierarchical Scheduling for Diverse Datacenter Workloads, SoCC 2013.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bayplan.api import VolcanoQueue
from bayplan.queues.tree import EPSILON, AmountRows, QueueTree
from bayplan_plugins.queues.volcano.plugins.job_table import JobRows

__all__ = ["HierarchicalShares", "Hierarchy"]

_PATH = "volcano.sh/hierarchy"
_WEIGHTS = "volcano.sh/hierarchy-weights"
_ROOT = "root"


class Hierarchy:
    """The nodes of the tree: 0 is the root; queues of one path share a node.

    :param queues: by name; ``tree`` has their rows.
    """

    def __init__(self, queues: Mapping[str, VolcanoQueue], tree: QueueTree) -> None:
        self._queues = queues
        self._known: dict[tuple[str, ...], int] = {(): 0}
        self.weights = [1.0]
        self.parents = [0]
        self.depths = [0]
        self.paths: dict[int, Sequence[int]] = {}
        """The nodes from the root to that of a queue, by the queue's row."""
        for name in queues:
            row = tree.row_of.get(name)
            if row is not None:
                self.paths[row] = self._add(*self._place(name))

    def node_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the nodes of queues by their rows, -1 for those that are not in the tree."""
        found = np.full(max(self.paths, default=0) + 2, -1)
        for row, path in self.paths.items():
            found[row] = path[-1]
        nodes: npt.NDArray[np.int64] = found[rows]
        return nodes

    def _place(self, name: str) -> tuple[list[str], list[float]]:
        """Return a queue's path below the root, and the weights along it.

        As its annotations say if it has both, or else below the path of its parent.
        """
        path: list[str] = []
        weights: list[float] = []
        while name in self._queues and name != _ROOT and name not in path:
            queue = self._queues[name]
            stated = queue.metadata.annotations
            if stated.get(_PATH) and stated.get(_WEIGHTS):
                names = stated[_PATH].split("/")[1:] or [name]
                given = stated[_WEIGHTS].split("/")
                found = [_weight(given, index) for index in range(1, len(names) + 1)]
                return [*names, *path], [*found, *weights]
            path.insert(0, name)
            weights.insert(0, max(float(queue.spec.weight), 1.0))
            name = queue.spec.parent
        return path, weights

    def _add(self, names: Sequence[str], weights: Sequence[float]) -> Sequence[int]:
        path = [0]
        for depth, weight in enumerate(weights, 1):
            at = tuple(names[:depth])
            if at not in self._known:
                self._known[at] = len(self.weights)
                self.weights.append(weight)
                self.parents.append(path[-1])
                self.depths.append(depth)
            path.append(self._known[at])
        return path


class HierarchicalShares:
    """The shares of all nodes, as follows from what jobs have and ask for.

    A job is saturated if it has all that it asks for of some resource, or asks for one of which
    nothing is left; a node if all below it are. What is not saturated counts as much as its sibling
    with the smallest share, so that no queue gains by a job that asks for what nobody else wants.

    :param total: what the cluster has of each of the ``resources``.
    """

    def __init__(
        self, hierarchy: Hierarchy, jobs: JobRows, total: AmountRows, resources: Sequence[str]
    ) -> None:
        self._hierarchy = hierarchy
        self._total = total
        count = len(hierarchy.weights)
        self._used: AmountRows = np.zeros((count, len(total)))
        self._shares: npt.NDArray[np.float64] = np.zeros(count)
        self._saturated: npt.NDArray[np.bool_] = np.ones(count, np.bool_)
        self._divide(jobs, self._saturation(jobs, resources))

    def key(self, row: int) -> tuple[float, ...]:
        """Return a queue's key: saturated nodes come last, level by level from the root."""
        weights = self._hierarchy.weights
        return tuple(
            part
            for node in self._hierarchy.paths.get(row, ())
            for part in (float(self._saturated[node]), float(self._shares[node]) / weights[node])
        )

    def _saturation(self, jobs: JobRows, resources: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Tell which jobs are saturated; of what a job lacks wholly, CPU and memory count only."""
        has, asks = jobs.has, jobs.asks
        exhausted = has.sum(axis=0) >= self._total - EPSILON
        counts = (has > EPSILON) | np.isin(resources, ("cpu", "memory"))
        met = (has > EPSILON) & (has >= asks - EPSILON)
        found: npt.NDArray[np.bool_] = (counts & (asks > EPSILON) & (met | exhausted)).any(axis=1)
        return found

    def _divide(self, jobs: JobRows, saturated: npt.NDArray[np.bool_]) -> None:
        """Sum up level by level: the jobs of the nodes of a level, and the nodes below it."""
        nodes = self._hierarchy.node_of(jobs.queues)
        shares = self._dominant(jobs.has)
        parents, depths = np.array(self._hierarchy.parents), np.array(self._hierarchy.depths)
        job_depths = np.where(nodes >= 0, depths[nodes], -1)
        for depth in range(int(depths.max()), -1, -1):
            own, below = job_depths == depth, depths == depth + 1
            self._sum_up(
                np.concatenate((nodes[own], parents[below])),
                np.concatenate((jobs.has[own], self._used[below])),
                np.concatenate((shares[own], self._shares[below])),
                np.concatenate((saturated[own], self._saturated[below])),
            )
            here = depths == depth
            self._shares[here] = self._dominant(self._used[here])

    def _sum_up(
        self,
        parents: npt.NDArray[np.int64],
        used: AmountRows,
        shares: npt.NDArray[np.float64],
        saturated: npt.NDArray[np.bool_],
    ) -> None:
        scaled = ~saturated & (shares > 0)
        least = np.ones(len(self._shares))
        np.minimum.at(least, parents[scaled], shares[scaled])
        parts = np.ones(len(shares))
        parts[scaled] = least[parents[scaled]] / shares[scaled]
        np.add.at(self._used, parents, used * parts[:, None])
        np.logical_and.at(self._saturated, parents, saturated)

    def _dominant(self, used: AmountRows) -> npt.NDArray[np.float64]:
        """Return the largest part of the cluster that each row has of any resource."""
        total = np.broadcast_to(self._total, used.shape)
        parts = np.divide(used, total, out=np.zeros_like(used), where=total > EPSILON)
        largest: npt.NDArray[np.float64] = parts.max(axis=1, initial=0.0)
        return largest


def _weight(weights: Sequence[str], index: int) -> float:
    """Return a weight of at least one, as it is stated at a level."""
    try:
        return max(float(weights[index]), 1.0)
    except (IndexError, ValueError):
        return 1.0
