"""The gangs whose objects may have to say something else."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["ChangedGangs"]


class ChangedGangs:
    """Collects the keys of gangs until their statuses are written."""

    def __init__(self) -> None:
        self._changed: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._changed)

    def add(self, gang: str) -> None:
        """Mark a gang, by key, whose status may have changed."""
        self._changed[gang] = None

    def take(self) -> list[str]:
        """Return the marked gangs in the order in which they were marked, and unmark them."""
        changed, self._changed = self._changed, {}
        return list(changed)

    def forget(self, gone: Callable[[str], bool]) -> None:
        """Unmark the gangs that are gone."""
        self._changed = {key: None for key in self._changed if not gone(key)}
