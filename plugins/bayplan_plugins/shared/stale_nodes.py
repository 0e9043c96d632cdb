"""The nodes whose rows changed since somebody last looked."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.snapshot import Snapshot

__all__ = ["StaleNodes"]


class StaleNodes:
    """Follows the node table's list of changes, for one reader."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._table = snapshot.nodes
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
        table = self._table
        moved = table.epoch != self._epoch or table.node_version != self._node_version
        return moved or bool(self._touched)

    @property
    def up_to_date(self) -> bool:
        """Whether nothing changed since the last look."""
        table = self._table
        seen = self._seen == table.position and table.epoch == self._epoch
        return seen and not self._touched and table.node_version == self._node_version

    def take(self) -> tuple[bool, Sequence[str]]:
        """Return whether rows may have moved, and the names of stale nodes: all of them then."""
        table = self._table
        changes = table.changed_since(self._seen)
        self._node_version = table.node_version
        # Whatever adds or removes rows starts an epoch.
        if table.epoch != self._epoch or changes is None:
            self._epoch, self._seen = table.epoch, table.position
            self._touched.clear()
            return True, table.names
        if not changes and not self._touched:
            return False, ()
        names = self._touched.union([table.names[row] for row in changes])
        self._seen = table.position
        self._touched.clear()
        return False, tuple(names)
