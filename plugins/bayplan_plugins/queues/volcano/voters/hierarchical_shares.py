"""Volcano's hierarchical DRF: queues as a tree by annotation, shares by weight at every level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bayplan.api import VolcanoQueue
from bayplan.queues.tree import EPSILON, AmountRows
from bayplan_plugins.queues.volcano.session import Session

__all__ = ["HierarchicalShares"]

_PATH = "volcano.sh/hierarchy"
_WEIGHTS = "volcano.sh/hierarchy-weights"


@dataclass
class _Node:
    """A node of the tree; a queue is the leaf at the end of its path."""

    weight: float = 1.0
    children: dict[str, _Node] = field(default_factory=dict)
    row: int | None = None
    used: AmountRows = field(default_factory=lambda: np.zeros(0))
    share: float = 0.0
    saturated: bool = True


class HierarchicalShares:
    """The shares of all nodes, with some change of what queues use.

    Children that are not satisfied count as much as the one with the smallest share, so that a
    queue cannot gain by asking for what nobody else wants (volcano-sh/volcano, plugin drf).

    :param changes: what to add to the usage of queues, by row.
    """

    def __init__(self, session: Session, changes: Mapping[int, AmountRows] | None = None) -> None:
        self._session = session
        self._changes = changes or {}
        self._total = session.total()
        tree = session.tree
        demanded = tree.demand[tree.roots].sum(axis=0) if len(tree) else np.zeros(0)
        self._scarce: npt.NDArray[np.bool_] = demanded > self._total + EPSILON
        self._root = _Node()
        self._paths: dict[int, Sequence[_Node]] = {}
        for name, queue in session.handle.snapshot.objects(VolcanoQueue).items():
            row = tree.row_of.get(name)
            if row is not None:
                self._paths[row] = self._add(queue, row)
        self._divide(self._root)

    def key(self, row: int) -> tuple[float, ...]:
        """Return a queue's key: saturated nodes come last, level by level from the root."""
        return tuple(
            part
            for node in self._paths.get(row, ())
            for part in (float(node.saturated), node.share / node.weight)
        )

    def _add(self, queue: VolcanoQueue, row: int) -> Sequence[_Node]:
        stated = queue.metadata.annotations
        names = stated.get(_PATH, f"root/{queue.metadata.name}").split("/")
        weights = stated.get(_WEIGHTS, "").split("/")
        node = self._root
        path = []
        for index, name in enumerate(names[1:] or [queue.metadata.name], 1):
            node = node.children.setdefault(name, _Node(_weight(weights, index)))
            path.append(node)
        node.row = row
        return path

    def _divide(self, node: _Node) -> None:
        if node.row is not None and not node.children:
            self._fill_leaf(node, node.row)
            return
        for child in node.children.values():
            self._divide(child)
        busy = [child for child in node.children.values() if child.share > 0]
        hungry = [child.share for child in busy if not child.saturated]
        least = min(hungry, default=1.0)
        node.saturated = all(child.saturated for child in node.children.values())
        node.used = np.zeros(len(self._total))
        for child in busy:
            node.used = node.used + child.used * (1.0 if child.saturated else least / child.share)
        node.share = self._share(node.used)

    def _fill_leaf(self, node: _Node, row: int) -> None:
        tree, wide = self._session.tree, self._session.wide
        node.used = wide(tree.used[row])
        if row in self._changes:
            node.used = node.used + wide(self._changes[row])
        asked = wide(tree.demand[row]) > EPSILON
        met = (node.used > EPSILON) & asked & (node.used >= wide(tree.demand[row]) - EPSILON)
        node.saturated = bool((met | (asked & ~self._scarce)).any()) or not asked.any()
        node.share = self._share(node.used)

    def _share(self, used: AmountRows) -> float:
        total = self._total
        parts = np.divide(used, total, out=np.zeros_like(used), where=total > EPSILON)
        return float(parts.max(initial=0.0))


def _weight(weights: Sequence[str], index: int) -> float:
    try:
        return max(float(weights[index]), 1e-9)
    except (IndexError, ValueError):
        return 1.0
