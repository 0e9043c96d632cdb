"""Nominated nodes: kept for units that wait for evicted pods to end, as pods in the snapshot.

A nominated node counts as taken for all units but its own, so that what an eviction frees is
still free when the victims have ended. A unit that may evict pods of that priority may also take
their nominated nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["Nomination", "Nominator"]


class Nomination(msgspec.Struct):
    """The nodes nominated for a unit's pods, by pod key, until a time in seconds.

    ``victims`` are the pods, by key, whose end the unit waits for. ``domain`` is the network
    domain of the nodes, "" without one. ``reason`` is reported to the victims, ``moves`` names the
    node where a victim, by key, fits once it is created again. ``action`` is the one that preempts.
    ``reasons`` is what single victims, by key, get instead of ``reason``, ``together`` how
    many pods of each gang are evicted. ``stated`` says that it was read from the pods' status.
    """

    unit: str
    pods: Sequence[PodInfo]
    nodes: Mapping[str, str]
    until: float
    victims: set[str]
    domain: str = ""
    reason: str = ""
    moves: Mapping[str, str] = msgspec.field(default_factory=dict)
    action: str = ""
    reasons: Mapping[str, str] = msgspec.field(default_factory=dict)
    together: Mapping[str, int] = msgspec.field(default_factory=dict)
    stated: bool = False

    def reason_for(self, victim: str) -> str:
        """Return why a victim, by key, is evicted."""
        reported = self.reasons.get(victim) or self.reason
        return reported or f"preempted for {self.unit}"


class Nominator:
    """All nominations by unit, with their pods in the snapshot.

    :param freed: called with a unit that no longer waits for victims: they have ended, or its
        nomination has.
    """

    def __init__(self, snapshot: Snapshot, freed: Callable[[str], None]) -> None:
        self._snapshot = snapshot
        self._freed = freed
        self._nominations: dict[str, Nomination] = {}
        self._unit_of: dict[str, str] = {}
        self._units_by_victim: dict[str, set[str]] = {}

    def __contains__(self, pod_key: str) -> bool:
        return pod_key in self._unit_of

    def get(self, unit: str) -> Nomination | None:
        """Return a unit's nomination."""
        return self._nominations.get(unit)

    def unit_of(self, pod_key: str) -> str | None:
        """Return the unit of a pod that has a nominated node."""
        return self._unit_of.get(pod_key)

    def all(self) -> Iterable[Nomination]:
        """Return all nominations."""
        return tuple(self._nominations.values())

    def add(self, nomination: Nomination) -> None:
        """Add a nomination; it replaces an earlier one of the unit."""
        self.drop(nomination.unit)
        self._nominations[nomination.unit] = nomination
        for pod in nomination.pods:
            self._unit_of[pod.key] = nomination.unit
        for victim in nomination.victims:
            self._units_by_victim.setdefault(victim, set()).add(nomination.unit)
        self.resume(nomination.unit)

    def drop(self, unit: str) -> None:
        """End a unit's nomination and free its nodes."""
        self.suspend(unit)
        self.forget(unit)

    def forget(self, unit: str) -> None:
        """End a suspended nomination; what is in the snapshot now stays."""
        nomination = self._nominations.pop(unit, None)
        if nomination is None:
            return
        for pod in nomination.pods:
            self._unit_of.pop(pod.key, None)
        for victim in nomination.victims:
            self._ended(victim, unit)
        self._freed(unit)

    def _ended(self, victim: str, unit: str) -> None:
        units = self._units_by_victim[victim]
        units.discard(unit)
        if not units:
            del self._units_by_victim[victim]

    def suspend(self, unit: str) -> None:
        """Take the pods of a nomination out of the snapshot, for the unit's own cycle."""
        nomination = self._nominations.get(unit)
        for pod in reversed(nomination.pods) if nomination is not None else ():
            self._snapshot.remove_pod(pod.key)

    def resume(self, unit: str) -> None:
        """Put the pods of a nomination back into the snapshot after the unit's cycle."""
        nomination = self._nominations.get(unit)
        if nomination is None:
            return
        for pod in nomination.pods:
            if pod.key not in self._snapshot.placed:
                self._snapshot.add_pod(pod, nomination.nodes[pod.key])

    def victim_ended(self, pod_key: str) -> None:
        """Record that a pod has ended; units stop waiting for it."""
        for unit in self._units_by_victim.pop(pod_key, ()):
            victims = self._nominations[unit].victims
            victims.discard(pod_key)
            if not victims:
                self._freed(unit)
