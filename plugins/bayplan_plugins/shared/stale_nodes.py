"""The nodes whose rows changed since somebody last looked."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bayplan.snapshot import Snapshot
from bayplan.snapshot.row_changes import Rows

__all__ = ["StaleNames", "StaleNodes"]


class StaleNames(msgspec.Struct, frozen=True):
    """The names of the nodes to read again.

    ``all`` says that these are all nodes, and that any row may be another node's. Otherwise
    ``origin`` is, for each row, the row that it was at the last look, -1 for a new one; None if no
    row has another number.
    """

    names: Sequence[str]
    all: bool = False
    origin: Rows | None = None


class StaleNodes:
    """Follows the node table's list of changes, for one reader."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._table = snapshot.nodes
        self._changes = snapshot.nodes.changes
        self._epoch = -1
        self._seen = 0
        self._node_version = -1
        self._touched: set[str] = set()

    def touch(self, name: str) -> None:
        """Mark a node as stale, though its row did not change."""
        self._touched.add(name)

    @property
    def any_new(self) -> bool:
        """Whether nodes came, went or changed themselves, or were marked; pods do not count."""
        moved = self._changes.epoch != self._epoch or self._table.node_version != self._node_version
        return moved or bool(self._touched)

    @property
    def up_to_date(self) -> bool:
        """Whether nothing changed since the last look."""
        # Asked many times in each cycle.
        changes = self._changes
        seen = self._seen == changes.position and self._epoch == changes.epoch
        return seen and not self._touched and self._table.node_version == self._node_version

    def take(self) -> StaleNames:
        """Return what is stale since the last look."""
        table = self._table
        changes = self._changes
        stale = changes.stale_since(self._epoch, self._seen)
        self._node_version, self._epoch, self._seen = (
            table.node_version,
            changes.epoch,
            changes.position,
        )
        touched, self._touched = self._touched, set()
        if stale is None:
            return StaleNames(table.names, all=True)
        touched.update(table.names[row] for row in stale.rows)
        return StaleNames(tuple(touched), origin=stale.origin)
