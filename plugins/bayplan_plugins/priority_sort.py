"""PrioritySort: the highest priority first, then first come, first served."""

from __future__ import annotations

from bayplan import Args, Plugin, Unit, hookimpl

__all__ = ["PrioritySort"]


class PrioritySort(Plugin[Args]):
    """Order units by priority, then by arrival; a gang has the priority of its highest member."""

    @hookimpl
    def queue_sort(self, unit: Unit, added: float) -> tuple[float, ...]:
        """Sort by descending priority, then by ascending time (seconds)."""
        return (-float(unit.priority), added)
