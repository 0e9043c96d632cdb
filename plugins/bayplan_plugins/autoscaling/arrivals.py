"""Nodes that came for a gang are kept for it until all of them are there.

Otherwise whatever is small takes the first ones, and the gang needs one node more each time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np

from bayplan import Handle, PodInfo, Unit
from bayplan.plugin.hookspecs import BoolColumn

__all__ = ["Arrivals"]

_PAUSE = 5.0
"""Seconds between two looks at what is kept."""


@dataclass
class _Kept:
    """What is kept for a unit.

    ``gangs`` may have it, pods of a higher ``priority`` as well. Times are in seconds; ``looked``
    is when it was last found out which nodes the unit can use: newer ones are kept, too.
    """

    gangs: frozenset[str]
    priority: int
    until: float
    looked: float
    nodes: frozenset[str] = field(default_factory=frozenset)


class Arrivals:
    """The nodes that have come since units began to ask for some."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._uids: dict[str, str] = {}
        """The uid of each node, by name."""
        self._new: dict[str, float] = {}
        """When each node came that was not there before, in seconds."""
        self._at: object = None
        self._watching = 0
        self._kept: dict[str, _Kept] = {}

    def begin(self) -> None:
        """Watch for new nodes: another unit asks for some."""
        if not self._watching:
            self._at = None
            self._uids.clear()
            self._new.clear()
        self._watching += 1
        self.look()

    def end(self) -> None:
        """Stop: a unit asks for nodes no longer."""
        self._watching -= 1

    def look(self) -> None:
        """Note which nodes are new."""
        table = self._handle.snapshot.nodes
        at = table.epoch, table.node_version
        if not self._watching or at == self._at:
            return
        first = self._at is None
        self._at = at
        uids = {node.metadata.name: node.metadata.uid for node in table.nodes}
        new = {} if first else {n: uid for n, uid in uids.items() if self._uids.get(n) != uid}
        kept = {name: came for name, came in self._new.items() if name in uids}
        self._new = kept | dict.fromkeys(new, self._handle.now)
        self._uids = uids

    def since(self, at: float) -> dict[str, float]:
        """Return the nodes that came after a time, with when they did, in seconds."""
        self.look()
        return {name: came for name, came in self._new.items() if came >= at}

    # Keeping -----------------------------------------------------------------------------------

    def keep(self, unit: Unit, since: float, until: float) -> bool:
        """Keep for a unit as many of the nodes that came since it asks as it can use.

        :return: whether any is not kept any more that was.
        :raises PluginError: when another plugin of the profile fails.
        """
        new = self.since(since)
        before = self._held_by(unit.key)
        taken = {n for key, one in self._kept.items() if key != unit.key for n in one.nodes}
        gangs = frozenset(pod.gang for pod in unit.pods if pod.gang)
        now = self._handle.now
        # What it may use itself is asked without what is kept for it.
        kept = self._kept[unit.key] = _Kept(gangs, unit.priority, until, now)
        usable = [name for name in new if name not in taken]
        kept.nodes = frozenset(self._usable(unit, usable)) if usable else frozenset()
        return bool(before - kept.nodes)

    def _usable(self, unit: Unit, names: list[str]) -> set[str]:
        """Return those nodes that the members of a unit can use, no more than they need."""
        rows = self._handle.snapshot.nodes.row_of
        kinds: dict[Hashable, list[PodInfo]] = {}
        for pod in unit.pods[: unit.min_placed]:
            kinds.setdefault((pod.facts, tuple(sorted(pod.requests.items()))), []).append(pod)
        chosen: set[str] = set()
        for pods in kinds.values():
            slots, left = self._handle.free_slots(pods[0]), len(pods)
            for name in names:
                room = int(slots[rows[name]]) if name in rows else 0
                if left > 0 and room > 0:
                    chosen.add(name)
                    left -= room
        return chosen

    def _held_by(self, unit: str) -> frozenset[str]:
        """Return the nodes that are kept for a unit, those included that it has not looked at."""
        one = self._kept.get(unit)
        if one is None:
            return frozenset()
        return one.nodes.union(n for n, came in self._new.items() if came > one.looked)

    def release(self, unit: str) -> bool:
        """Keep nothing for a unit any more; tell whether anything was."""
        held = self._held_by(unit)
        self._kept.pop(unit, None)
        return bool(held)

    def expire(self) -> bool:
        """Give up what was kept for too long; tell whether anything was."""
        over = [key for key, one in self._kept.items() if one.until <= self._handle.now]
        for key in over:
            del self._kept[key]
        return bool(over)

    def next_time(self) -> float | None:
        """Return when to look whether something is given up, in seconds; None for never."""
        return self._handle.now + _PAUSE if self._kept else None

    def kept_from(self, pod: PodInfo, names: Mapping[str, int]) -> BoolColumn | None:
        """Return which of all nodes are kept from a pod, as a mask; None for none.

        :param names: the rows of the nodes by name.
        """
        if not self._kept:
            return None
        self.look()
        # Those that ask for nodes themselves take part in finding out what is whose.
        asks = any(pod.gang in one.gangs for one in self._kept.values())
        others = [
            key
            for key, one in self._kept.items()
            if pod.gang not in one.gangs and pod.priority <= one.priority
        ]
        held = [self._kept[key].nodes if asks else self._held_by(key) for key in others]
        found = {names[name] for nodes in held for name in nodes if name in names}
        if not found:
            return None
        mask = np.zeros(len(names), dtype=bool)
        mask[list(found)] = True
        return mask
