"""A number for every node's state, so that nodes in equal states are evaluated once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot import Snapshot
from bayplan.snapshot.row_changes import moved
from bayplan_plugins.shared.stale_nodes import StaleNodes

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
        self._stale = StaleNodes(snapshot)

    def touch(self, name: str) -> None:
        """Mark a node's code as stale, though the snapshot did not change."""
        self._stale.touch(name)

    def read_new(self) -> None:
        """Compute codes again if nodes themselves changed, not only what their pods take."""
        if self._stale.any_new:
            self.column()

    def column(self) -> IntColumn:
        """Return the codes by row (int64); do not change them."""
        stale = self._stale.take()
        table = self._snapshot.nodes
        if stale.all:
            self._codes = np.full(len(table), NO_CODE, dtype=np.int64)
        elif stale.origin is not None:
            self._codes = moved(self._codes, stale.origin, NO_CODE)
        for name in stale.names:
            row = table.row_of.get(name)
            if row is not None:
                self._codes[row] = self._code(name)
        return self._codes
