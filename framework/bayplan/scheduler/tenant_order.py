"""The order of the queues that share the cluster: whose unit is tried next, and by which action.

Active units are in a heap for each action and queue. Without queues there is one, "", and its first
unit is tried next. With several, plugins choose among the first of each. A unit that is no easier
to place than one that was refused is not tried: it goes on to its next action, or is parked.

This module decides; :class:`~bayplan.scheduler.queue.UnitQueue` moves the units.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator

import msgspec

from bayplan.scheduler.known_refusals import KnownRefusals, Refusal
from bayplan.scheduler.parked_units import ParkedUnits
from bayplan.scheduler.queued_unit import EquivalenceClass, QueuedUnit, QueueRules

__all__ = ["Decision", "NextAction", "Park", "TenantOrder", "Try", "Unchosen"]

_Entry = tuple[tuple[float, ...], int, QueuedUnit]


class Try(msgspec.Struct, frozen=True):
    """Try this unit now; it has left the order."""

    unit: QueuedUnit


class NextAction(msgspec.Struct, frozen=True):
    """Go on with a unit to a later action, as it would be refused by this one."""

    unit: QueuedUnit
    action: int


class Park(msgspec.Struct, frozen=True):
    """Let a unit wait until the cluster changes, as no action would place it."""

    unit: QueuedUnit
    refusal: Refusal


class Unchosen(msgspec.Struct, frozen=True):
    """None of these units, the first of their queues, may be tried by an action."""

    units: tuple[QueuedUnit, ...]


Decision = Try | NextAction | Park | Unchosen


class TenantOrder:
    """Active and parked units by queue, and what is known of refused ones. Times are in seconds.

    :param delay: returns the seconds before units like a refused one are tried again, given how
        often such were refused.
    """

    def __init__(self, rules: QueueRules, delay: Callable[[int], float]) -> None:
        self._rules = rules
        self._refusals = KnownRefusals(delay)
        self._heaps: list[dict[str, list[_Entry]]] = []
        """The units of each action and queue."""
        self._parked: dict[EquivalenceClass, ParkedUnits[QueuedUnit]] = {}
        self._offered: dict[EquivalenceClass, QueuedUnit] = {}
        """The one of each class that is tried on behalf of the others."""
        self._blocked: dict[str, QueuedUnit] = {}
        """For a strict queue, the unit that holds back all after it."""
        self._reopen_at: float | None = None

    def push(self, unit: QueuedUnit) -> None:
        """Add an active unit; the smallest ``order`` of its queue comes first, then the ticket."""
        while len(self._heaps) <= unit.action:
            self._heaps.append({})
        heap = self._heaps[unit.action].setdefault(unit.queue, [])
        heapq.heappush(heap, (unit.order, unit.ticket, unit))

    def decisions(self, now: float) -> Iterator[Decision]:
        """Yield what to do, in order: the first action first, up to a unit that is tried.

        Each decision has to be carried out before the next one is asked for.
        """
        for action, heaps in enumerate(self._heaps):
            heads: dict[str, QueuedUnit] = {}
            for queue, heap in list(heaps.items()):
                head = yield from self._head(action, queue, heap, now)
                if head is not None:
                    heads[queue] = head
                if not heap:
                    del heaps[queue]
            if not heads:
                continue
            alone = len(heads) == 1 and "" in heads
            chosen = "" if alone else self._rules.choose(heads, action)
            if chosen is not None:
                heapq.heappop(heaps[chosen])
                yield Try(heads[chosen])
                return
            yield Unchosen(tuple(unit for queue, unit in heads.items() if queue))

    def _head(
        self, action: int, queue: str, heap: list[_Entry], now: float
    ) -> Generator[Decision, None, QueuedUnit | None]:
        """Return the first unit of a queue that is worth a try; decide on those before it."""
        while heap:
            _, ticket, unit = heap[0]
            if unit.ticket == ticket:
                if not queue:
                    return unit
                if self._blocked.get(queue, unit) is not unit:
                    return None
                known = self._refusal_of(action, unit)
                if known is None:
                    return unit
                heapq.heappop(heap)
                yield self._without_try(unit, known, now)
            else:
                heapq.heappop(heap)
        return None

    def _without_try(self, unit: QueuedUnit, known: Refusal, now: float) -> Decision:
        """Decide on a unit that need not be tried, as another one was refused."""
        if unit.strict:
            self._blocked[unit.queue] = unit
        unit.refused_like, unit.held_by_queue = known.unit, known.held
        later = self.next_action(unit, now)
        return Park(unit, known) if later is None else NextAction(unit, later)

    def next_action(self, unit: QueuedUnit, now: float) -> int | None:
        """Return the next action that may help a unit that did not fit; None for none."""
        for later in unit.actions:
            if later <= unit.action:
                continue
            if self._refusal_of(later, unit) is not None:
                continue
            if self._rules.may_preempt(unit, later):
                return later
            self._refuse(unit, later, unit.queue, now)
        return None

    def refused(self, unit: QueuedUnit, everywhere: bool, now: float) -> None:
        """Record that its action did not place a unit of a queue.

        :param everywhere: whether that holds for such units of all queues.
        """
        self._refuse(unit, unit.action, "" if everywhere else unit.queue, now)
        if unit.strict:
            self._blocked[unit.queue] = unit

    def _refuse(self, unit: QueuedUnit, action: int, queue: str, now: float) -> None:
        held = unit.held_by_queue
        self._assess(unit)
        self._refusals.add(action, queue, unit.equivalence, unit.size, unit.key, now, held)

    def placed(self, unit: QueuedUnit) -> None:
        """Forget how often units like a placed one were refused."""
        if unit.queue and unit.equivalence is not None:
            self._refusals.placed(unit.queue, unit.equivalence)

    def _refusal_of(self, action: int, unit: QueuedUnit) -> Refusal | None:
        """Return the refusal because of which a unit need not be tried; None for none."""
        if not self._refusals.were_any:
            return None
        self._assess(unit)
        return self._refusals.of(action, unit.queue, unit.equivalence, unit.size)

    def _assess(self, unit: QueuedUnit) -> None:
        """Find out how hard a unit is to place, once for each time that it becomes active."""
        if unit.equivalence is None:
            unit.equivalence, unit.size = self._rules.equivalence(unit)

    # Parked units ------------------------------------------------------------------------

    def park(self, unit: QueuedUnit) -> None:
        """Add a unit that waits until the cluster changes."""
        self._assess(unit)
        parked = self._parked.setdefault(unit.equivalence_class, ParkedUnits(unit.actions))
        parked.add(unit, unit.order, unit.size)

    def unpark(self, unit: QueuedUnit) -> None:
        """Remove a parked unit."""
        parked = self._parked[unit.equivalence_class]
        parked.remove(unit)
        if not parked:
            del self._parked[unit.equivalence_class]

    def has_untried(self, unit: QueuedUnit) -> bool:
        """Tell whether any of its actions may place a unit, for all that is known."""
        return any(self._refusal_of(action, unit) is None for action in unit.actions)

    def offer(self, group: EquivalenceClass) -> QueuedUnit | None:
        """Return the first parked unit of a class that is easier than all that were refused.

        The others are no easier, or come after it: one at a time is tried on behalf of them all.
        None while one is tried, and where none is easier.
        """
        parked, offered = self._parked.get(group), self._offered.get(group)
        if parked is None or (offered is not None and offered.offered_for == group):
            return None
        unit = parked.first_below(self._refusals.least(parked.actions, *group))
        if unit is not None:
            self._offered[group] = unit
            unit.offered_for = group
        return unit

    def tried(self, unit: QueuedUnit) -> QueuedUnit | None:
        """Return the parked unit to try now that another was tried on behalf of its class."""
        group, unit.offered_for = unit.offered_for, None
        if group is None or self._offered.get(group) is not unit:
            return None
        del self._offered[group]
        return self.offer(group)

    def helped(self) -> list[QueuedUnit]:
        """Record that the cluster has changed in favour of all; return whom to try at once."""
        if self._refusals:
            # Also those of a unit that is between two of its actions, and not parked.
            self._refusals.help()
            self._reopen_at = self._refusals.next_time()
            return []
        # Nobody is known to be refused, so whoever is still parked may be tried.
        return self._offers()

    def reopen(self, now: float) -> list[QueuedUnit]:
        """Return the parked units to try, as the delays of some refusals are over."""
        if self._reopen_at is None or self._reopen_at > now:
            return []
        found: list[QueuedUnit] = []
        if self._refusals.expire(now):
            self._blocked.clear()
            found = self._offers()
        self._reopen_at = self._refusals.next_time()
        return found

    def _offers(self) -> list[QueuedUnit]:
        offers = (self.offer(group) for group in list(self._parked))
        return [unit for unit in offers if unit is not None]

    def next_time(self) -> float | None:
        """Return when parked units may be tried again, in seconds; None for never."""
        return self._reopen_at

    def forget(self, unit: QueuedUnit) -> None:
        """Drop what is known of a unit that is gone."""
        if self._blocked.get(unit.queue) is unit:
            del self._blocked[unit.queue]
