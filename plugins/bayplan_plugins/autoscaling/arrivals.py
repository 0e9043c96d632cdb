"""Nodes that came for a gang are kept for it until all of them are there.

Otherwise whatever is small takes the first ones, and the gang needs one node more each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from bayplan import Handle, PodInfo, Unit
from bayplan.plugin.hookspecs import BoolColumn

__all__ = ["Arrivals"]


@dataclass(frozen=True)
class _Kept:
    """The nodes that are kept for a unit, from whom, and until when (in seconds)."""

    nodes: frozenset[str]
    pods: frozenset[str]
    priority: int
    until: float


class Arrivals:
    """The nodes that have come since gangs began to ask for some."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._seen: dict[str, float] = {}
        """When each node was seen first, in seconds; those of the start at no time."""
        self._at: object = None
        self._kept: dict[str, _Kept] = {}

    def look(self) -> None:
        """Note which nodes are new."""
        table = self._handle.snapshot.nodes
        at = table.epoch, len(table)
        if at == self._at:
            return
        at_start = self._at is None
        self._at = at
        now = float("-inf") if at_start else self._handle.now
        self._seen = {name: self._seen.get(name, now) for name in table.names}

    def keep(self, unit: Unit, since: float, until: float) -> None:
        """Keep for a unit as many of the nodes that came since it asks as it can use.

        :raises PluginError: when another plugin of the profile fails.
        """
        self.look()
        taken = {name for key, one in self._kept.items() if key != unit.key for name in one.nodes}
        rows = self._handle.snapshot.nodes.row_of
        new = [n for n, at in self._seen.items() if at >= since and n in rows and n not in taken]
        if not new:
            self._kept.pop(unit.key, None)
            return
        slots = self._handle.free_slots(unit.pods[0])
        chosen: list[str] = []
        left = unit.min_placed
        for name in new:
            if left > 0 and slots[rows[name]] > 0:
                chosen.append(name)
                left -= int(slots[rows[name]])
        pods = frozenset(pod.key for pod in unit.pods)
        self._kept[unit.key] = _Kept(frozenset(chosen), pods, unit.priority, until)

    def release(self, unit: str) -> bool:
        """Keep nothing for a unit any more; tell whether anything was."""
        return self._kept.pop(unit, None) is not None

    def expire(self) -> bool:
        """Give up what was kept for too long; tell whether anything was."""
        over = [key for key, one in self._kept.items() if one.until <= self._handle.now]
        for key in over:
            del self._kept[key]
        return bool(over)

    def next_time(self) -> float | None:
        """Return when something is given up, in seconds; None for never."""
        return min((one.until for one in self._kept.values()), default=None)

    def kept_from(self, pod: PodInfo, names: Mapping[str, int]) -> BoolColumn | None:
        """Return which of all nodes are kept from a pod, as a mask; None for none.

        :param names: the rows of the nodes by name.
        """
        kept: Iterable[_Kept] = self._kept.values()
        found = {
            names[name]
            for one in kept
            if pod.key not in one.pods and pod.priority <= one.priority
            for name in one.nodes
            if name in names
        }
        if not found:
            return None
        mask = np.zeros(len(names), dtype=bool)
        mask[list(found)] = True
        return mask
