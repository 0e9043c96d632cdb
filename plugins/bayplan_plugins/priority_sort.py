"""PrioritySort: the highest priority first, then whoever came first."""

from __future__ import annotations

from bayplan import Args, Plugin, Unit, hookimpl

__all__ = ["PrioritySort"]


class PrioritySort(Plugin[Args]):
    """Order units by priority, then by when they came; a gang counts with its highest member."""

    @hookimpl
    def queue_sort(self, unit: Unit, added: float) -> tuple[float, ...]:
        """Sort by falling priority, then by rising time."""
        return (-float(unit.priority), added)
