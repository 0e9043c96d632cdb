"""Nodes that came for a gang are kept for it until all of them are there.

Otherwise whatever is small takes the first ones, and the gang needs one node more each time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import msgspec

from bayplan import Handle, PodInfo, Unit
from bayplan.dialects.autoscaling import KARPENTER_LABEL

__all__ = ["LOOK_SECONDS", "Arrivals"]

LOOK_SECONDS = 5.0
"""Seconds between two looks at what is kept."""


class _Kept(msgspec.Struct):
    """What is kept for a unit.

    ``gangs`` may have it, pods of a higher ``priority`` as well, and everybody at ``until``, in
    seconds. Of the nodes in ``seen`` it is known whether the unit can use them: those that came
    since, from ``since`` on, are kept, too.
    """

    gangs: frozenset[str]
    priority: int
    until: float
    since: float
    seen: frozenset[str]
    places: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The nodes that are kept, by the key of the pod that they are for."""

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes that are kept."""
        return frozenset(self.places.values())


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
        if unit.key not in self._kept:
            self._remember(unit)
        new = self.since(since)
        before = self._held_by(unit.key)
        gangs = frozenset(pod.gang for pod in unit.pods if pod.gang)
        # What it may use itself is asked without what is kept for it.
        kept = _Kept(gangs, unit.priority, until, since, frozenset(self._new))
        self._kept[unit.key] = kept
        if new:
            others = (one for key, one in self._kept.items() if key != unit.key)
            taken = {name for one in others for name in one.nodes}
            kept.places = self._places(unit, [name for name in new if name not in taken])
        return bool(before - kept.nodes)

    def _remember(self, unit: Unit) -> None:
        """Take the nodes that a process before this one nominated for a unit for new ones."""
        for pod in unit.pods:
            name = pod.pod.status.nominated_node_name
            if name in self._uids:
                self._new.setdefault(name, self._handle.now)

    def _places(self, unit: Unit, names: Sequence[str]) -> dict[str, str]:
        """Return which of those nodes the members of a unit can use, by the pod's key."""
        rows = self._handle.snapshot.nodes.row_of
        kinds: dict[Hashable, list[PodInfo]] = {}
        for pod in unit.pods[: unit.min_placed]:
            kinds.setdefault((pod.facts, tuple(sorted(pod.requests.items()))), []).append(pod)
        places: dict[str, str] = {}
        for pods in kinds.values():
            slots, left = self._handle.free_slots(pods[0]), list(reversed(pods))
            for name in names:
                room = int(slots[rows[name]]) if name in rows else 0
                for _ in range(min(room, len(left))):
                    places[left.pop().key] = name
        return places

    def promised(self, unit: str) -> dict[str, str]:
        """Return the nodes that are kept for the pods of a unit, by key, to nominate them.

        Nodes of Karpenter are left out: it takes a nominated node for free, and would buy too few.
        """
        table = self._handle.snapshot.nodes
        one = self._kept.get(unit)
        return {
            pod: name
            for pod, name in (one.places if one is not None else {}).items()
            if KARPENTER_LABEL not in table.nodes[table.row_of[name]].metadata.labels
        }

    def _held_by(self, unit: str) -> frozenset[str]:
        """Return the nodes that are kept for a unit, those included that it has not looked at."""
        one = self._kept.get(unit)
        if one is None:
            return frozenset()
        unseen = self._new.keys() - one.seen
        return one.nodes.union(name for name in unseen if self._new[name] >= one.since)

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
        return self._handle.now + LOOK_SECONDS if self._kept else None

    def kept_from(self, pod: PodInfo) -> frozenset[str]:
        """Return the nodes that are kept from a pod."""
        if not self._kept:
            return frozenset()
        self.look()
        if not self._new:
            return frozenset()
        # Those that ask for nodes themselves take part in finding out what is whose.
        asks = any(pod.gang in one.gangs for one in self._kept.values())
        others = [
            key
            for key, one in self._kept.items()
            if pod.gang not in one.gangs and pod.priority <= one.priority
        ]
        held = [self._kept[key].nodes if asks else self._held_by(key) for key in others]
        return frozenset[str]().union(*held)
