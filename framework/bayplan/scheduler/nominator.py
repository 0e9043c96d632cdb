"""Places held for units that wait for room: nominated nodes, as pods in the snapshot.

A held place counts as taken for everybody but its unit, so that the room which an eviction frees
is still there when the evicted pods have ended. Whoever may evict pods of that priority may also
take their held places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["Hold", "Holds"]


@dataclass
class Hold:
    """Nodes held for a unit's pods, by pod key, until a time (seconds); whose end it waits for."""

    unit: str
    pods: Sequence[PodInfo]
    nodes: Mapping[str, str]
    until: float
    victims: set[str]
    domain: str = ""


class Holds:
    """All holds by unit, with their pods in the snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._holds: dict[str, Hold] = {}
        self._unit_of: dict[str, str] = {}

    def __contains__(self, pod_key: str) -> bool:
        return pod_key in self._unit_of

    def get(self, unit: str) -> Hold | None:
        """Return a unit's hold."""
        return self._holds.get(unit)

    def unit_of(self, pod_key: str) -> str | None:
        """Return the unit for whose pod a place is held."""
        return self._unit_of.get(pod_key)

    def all(self) -> Iterable[Hold]:
        """Return all holds."""
        return tuple(self._holds.values())

    def add(self, hold: Hold) -> None:
        """Hold places; an earlier hold of the unit is dropped."""
        self.drop(hold.unit)
        self._holds[hold.unit] = hold
        for pod in hold.pods:
            self._unit_of[pod.key] = hold.unit
        self.restore(hold.unit)

    def drop(self, unit: str) -> None:
        """Give a unit's places back."""
        self.lift(unit)
        self.forget(unit)

    def forget(self, unit: str) -> None:
        """End a hold whose places were lifted already; what is in the snapshot now stays."""
        hold = self._holds.pop(unit, None)
        for pod in hold.pods if hold is not None else ():
            self._unit_of.pop(pod.key, None)

    def lift(self, unit: str) -> None:
        """Take the places out of the snapshot, for the unit's own cycle."""
        hold = self._holds.get(unit)
        for pod in reversed(hold.pods) if hold is not None else ():
            self._snapshot.remove_pod(pod.key)

    def restore(self, unit: str) -> None:
        """Put the places back into the snapshot after the unit's cycle."""
        hold = self._holds.get(unit)
        if hold is None:
            return
        for pod in hold.pods:
            if pod.key not in self._snapshot.placed:
                self._snapshot.add_pod(pod, hold.nodes[pod.key])

    def ended(self, pod_key: str) -> None:
        """Note that a pod is gone for which units may wait."""
        for hold in self._holds.values():
            hold.victims.discard(pod_key)
