"""A number for every node's state, so that nodes in equal states are evaluated once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot import Snapshot

__all__ = ["NO_CODE", "NodeCodes"]

NO_CODE = -1


class NodeCodes:
    """The codes of all node rows; recomputed only for nodes that changed.

    :param code: returns the code of a node by name, NO_CODE where it has none.
    """

    def __init__(self, snapshot: Snapshot, code: Callable[[str], int]) -> None:
        self._snapshot = snapshot
        self._code = code
        self._codes: IntColumn = np.zeros(0, dtype=np.int64)
        self._epoch: object = None
        self._seen = 0
        self._dirty: set[str] = set()

    def touch(self, name: str) -> None:
        """Mark a node's code as stale, though the snapshot did not change."""
        self._dirty.add(name)

    def column(self) -> IntColumn:
        """Return the codes by row (int64); do not change them."""
        table = self._snapshot.nodes
        epoch = (table.epoch, len(table))
        if epoch != self._epoch:
            self._epoch = epoch
            self._codes = np.full(len(table), NO_CODE, dtype=np.int64)
            stale: Iterable[str] = table.names
        elif not self._dirty and self._seen == len(table.changes):
            return self._codes
        else:
            stale = self._dirty.union(table.names[row] for row in table.changes[self._seen :])
        self._seen = len(table.changes)
        for name in tuple(stale):
            row = table.row_of.get(name)
            if row is not None:
                self._codes[row] = self._code(name)
        self._dirty.clear()
        return self._codes
