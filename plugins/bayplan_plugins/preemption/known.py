"""What preemption has learned of the cluster, kept from unit to unit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from bayplan import Handle
from bayplan_plugins.preemption.bounds import StepBounds
from bayplan_plugins.preemption.columns import EvictionColumns

__all__ = ["KnownEvictions"]

_MOST_PRIORITIES = 8
_MOST_KINDS = 16
_ROWS_A_STEP = 16_384
"""So many nodes are read before the scheduler looks at what came: about a fifth of a second."""

_Kind = tuple[int, frozenset[tuple[str, int]], bool, bool]


class KnownEvictions:
    """The columns of the priorities that asked last, and the bounds for the latest pods."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._columns: OrderedDict[int, EvictionColumns] = OrderedDict()
        self._bounds: OrderedDict[_Kind, StepBounds] = OrderedDict()

    def read_on(self, priority: int) -> bool:
        """Read some of what changed for units of a priority; return whether that was all."""
        return self._of(priority).read_on(_ROWS_A_STEP)

    def columns(self, priority: int) -> EvictionColumns:
        """Return the columns for units of a priority, up to date."""
        found = self._of(priority)
        found.refresh()
        return found

    def _of(self, priority: int) -> EvictionColumns:
        found = self._columns.pop(priority, None) or EvictionColumns(self._handle, priority)
        self._columns[priority] = found
        if len(self._columns) > _MOST_PRIORITIES:
            self._columns.popitem(last=False)
        return found

    def bounds(
        self, priority: int, needs: Mapping[str, int], alike: bool, protect: bool
    ) -> StepBounds:
        """Return the bounds of steps for a kind of pod; they have to be refreshed."""
        columns = self.columns(priority)
        key = (priority, frozenset(needs.items()), alike, protect)
        found = self._bounds.pop(key, None)
        if found is None or found.columns is not columns:
            table = self._handle.snapshot.nodes
            found = StepBounds(table, columns, needs, alike, protect)
        self._bounds[key] = found
        if len(self._bounds) > _MOST_KINDS:
            self._bounds.popitem(last=False)
        return found
