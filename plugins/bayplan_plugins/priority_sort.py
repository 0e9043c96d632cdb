"""PrioritySort: the highest priority first, then gangs that lost members, then first come."""

from __future__ import annotations

from bayplan import Args, Plugin, Unit, hookimpl

__all__ = ["PrioritySort"]


class PrioritySort(Plugin[Args]):
    """Order units by priority, then by arrival; a gang has the priority of its highest member.

    Of equal priority, a gang whose members hold too few nodes to run comes first: what it holds is
    idle until the others are back.
    """

    @hookimpl
    def queue_sort(self, unit: Unit, added: float) -> tuple[float, ...]:
        """Sort by descending priority, then by ascending time (seconds)."""
        return (-float(unit.priority), float(not unit.is_broken), added)
