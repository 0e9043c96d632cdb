"""Parked units: those of one queue and equivalence that are no easier to place than one refused."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

__all__ = ["ParkedUnits"]

_Place = tuple[float, ...]
UnitT = TypeVar("UnitT", bound=Hashable)


class ParkedUnits(Generic[UnitT]):
    """The parked units of one queue and equivalence, each with its place in the order and its size.

    Only some of them are ever tried after the first one was refused: those that are smaller than
    all before them. They are found once and kept, so that a pass in which they are refused again
    does not look at the others.

    :param actions: the actions of its units.
    """

    def __init__(self, actions: Sequence[int]) -> None:
        self.actions = actions
        self._waiting: dict[UnitT, tuple[_Place, int]] = {}
        self._steps: list[tuple[UnitT, _Place, int]] | None = None
        """The units that are smaller than all before them, in order; None once that may be wrong.

        Units of these that have left stay here until one of them would be returned.
        """

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, unit: UnitT, place: _Place, size: int) -> None:
        """Add a unit; places are unique, the smallest comes first."""
        self._waiting[unit] = (place, size)
        if self._steps is None or (unit, place, size) in self._steps:
            return
        shadowed = any(other <= place and least <= size for _, other, least in self._steps)
        if not shadowed or any(other == unit for other, _, _ in self._steps):
            self._steps = None

    def remove(self, unit: UnitT) -> None:
        """Remove a parked unit."""
        del self._waiting[unit]

    def first_below(self, size: float) -> UnitT | None:
        """Return the first unit in order that is smaller than ``size``; None for none."""
        while True:
            if self._steps is None:
                self._steps = self._find_steps()
            found = next((step for step in self._steps if step[2] < size), None)
            if found is None:
                return None
            if self._waiting.get(found[0]) == found[1:]:
                return found[0]
            self._steps = None

    def _find_steps(self) -> list[tuple[UnitT, _Place, int]]:
        steps: list[tuple[UnitT, _Place, int]] = []
        least = math.inf
        for unit, (place, size) in sorted(self._waiting.items(), key=lambda item: item[1]):
            if size < least:
                steps.append((unit, place, size))
                least = size
        return steps
