"""Units that were refused, kept in groups, so that a look at a group walks over no other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from bayplan.plugin.base import NodeRequest, Unit
from bayplan.plugin.decision import Decision
from bayplan.scheduler.queued_unit import QueuedUnit
from bayplan.snapshot import PodInfo

__all__ = ["GroupedUnits", "RefusedUnit"]


class RefusedUnit(msgspec.Struct, frozen=True, dict=True):
    """A unit that no action placed, and why."""

    queued: QueuedUnit
    unit: Unit
    decision: Decision
    answer: NodeRequest | None = None
    """What a plugin says that asks for its nodes."""

    @property
    def equivalence(self) -> Hashable:
        """What equivalent units have in common; as long as it is not known, it is like no other."""
        known = self.queued.equivalence
        return self.unit.key if known is None else known

    @property
    def kind(self) -> Hashable:
        """What units have in common that are equal for their queue."""
        return self.queued.queue, self.equivalence, self.queued.size

    @property
    def count(self) -> int:
        """How many pods its queue has to take at once."""
        return min(len(self.unit.pods), max(1, self.unit.min_placed))

    @cached_property
    def least(self) -> tuple[Sequence[PodInfo], int]:
        """The pods that its queue has to take at once, and how often: one if all are equal."""
        pods = self.unit.pods[: self.count]
        first = pods[0]
        said = first.pod.metadata.annotations
        claims = first.spec.resource_claims
        for pod in pods:
            if claims or pod.facts is not first.facts or pod.pod.metadata.annotations != said:
                return pods, 1
        return (first,), self.count


class GroupedUnits:
    """Refused units by key, in the order in which they came, and in groups within their queues.

    :param group_of: returns the group of a unit; asked when it comes, and again in another queue.
    """

    def __init__(self, group_of: Callable[[RefusedUnit], Hashable]) -> None:
        self._group_of = group_of
        self._groups: dict[Hashable, dict[str, RefusedUnit]] = {}
        self._of_unit: dict[str, Hashable] = {}
        self._queues: dict[str, str] = {}
        """In which queue each unit was when it came, by its key."""

    @property
    def groups(self) -> Mapping[Hashable, Mapping[str, RefusedUnit]]:
        """The units of each group by key; no group is empty."""
        return self._groups

    def __contains__(self, key: str) -> bool:
        return key in self._of_unit

    def __len__(self) -> int:
        return len(self._of_unit)

    def __iter__(self) -> Iterator[str]:
        return iter(self._of_unit)

    def last_of(self, group: Hashable) -> str | None:
        """Return the key of the unit that came last into a group; None if there is none."""
        units = self._groups.get(group)
        return next(reversed(units)) if units is not None else None

    def add(self, one: RefusedUnit) -> None:
        """Add a unit; one that is there already keeps its place in its group."""
        key, group = one.unit.key, self._group_of(one)
        if self._of_unit.get(key, group) != group:
            self.pop(key)
        self._of_unit[key], self._queues[key] = group, one.queued.queue
        self._groups.setdefault(group, {})[key] = one

    def moved(self) -> list[RefusedUnit]:
        """Return the units that are in another queue now than when they came."""
        units = ((key, self._groups[group][key]) for key, group in self._of_unit.items())
        return [one for key, one in units if one.queued.queue != self._queues[key]]

    def pop(self, key: str) -> RefusedUnit | None:
        """Remove a unit and return it; None if it is not there."""
        if key not in self._of_unit:
            return None
        group = self._of_unit.pop(key)
        del self._queues[key]
        units = self._groups[group]
        found = units.pop(key)
        if not units:
            del self._groups[group]
        return found
