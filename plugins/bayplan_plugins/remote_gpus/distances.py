"""Which distance class each pair of nodes is in, over columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot import Snapshot
from bayplan.snapshot.networks import Networks
from bayplan.topology.network.tree import NODE_LAYER, ROOT_LAYER, NetworkTree, TopologyError
from bayplan_plugins.remote_gpus.settings import DistanceArgs

__all__ = ["Distances"]

_NOWHERE = -1


class Distances:
    """The domains of each class, read again when nodes or networks change.

    :param classes: the nearest first; the first is the same node, the last any two nodes.
    """

    def __init__(self, snapshot: Snapshot, classes: Sequence[DistanceArgs]) -> None:
        self.classes = tuple(classes)
        self._snapshot = snapshot
        self._networks: Networks | None = None
        self._read: object = None
        self._domains: list[IntColumn] = []

    def domains(self) -> Sequence[IntColumn]:
        """Return, per class, the number of each row's domain; -1 for rows outside of all."""
        if self._networks is None:
            self._networks = Networks.of(self._snapshot)
        table = self._snapshot.nodes
        trees = self._networks.trees()
        read = (table.epoch, len(table), table.label_version, id(trees))
        if read != self._read:
            self._read, self._trees = read, trees
            rows = len(table)
            inner = [self._of_layers(self._networks, one.layers) for one in self.classes[1:-1]]
            self._domains = [np.arange(rows), *inner, np.zeros(rows, dtype=np.int64)]
        return self._domains

    def _of_layers(self, networks: Networks, layers: Sequence[str]) -> IntColumn:
        for layer in layers:
            try:
                tree = networks.find([layer])
            except TopologyError:
                continue
            return _numbers(tree, tree.find_layer(layer) or layer, len(self._snapshot.nodes))
        return np.full(len(self._snapshot.nodes), _NOWHERE, dtype=np.int64)

    def from_row(self, row: int) -> IntColumn:
        """Return the class of each row's way to one row, as its place in ``classes``."""
        domains = self.domains()
        found = np.full(len(self._snapshot.nodes), len(domains) - 1, dtype=np.int64)
        for place in range(len(domains) - 2, -1, -1):
            own = domains[place][row]
            if own != _NOWHERE:
                found[domains[place] == own] = place
        return found


def _numbers(tree: NetworkTree, layer: str, rows: int) -> IntColumn:
    if layer == NODE_LAYER:
        return np.arange(rows)
    if layer == ROOT_LAYER:
        return np.zeros(rows, dtype=np.int64)
    numbers = np.full(rows, _NOWHERE, dtype=np.int64)
    for number, domain in enumerate(tree.layers.get(layer, ())):
        numbers[domain.rows] = number
    return numbers
