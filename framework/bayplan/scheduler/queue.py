"""The unit queue: which unit is tried next, which wait, and for what.

A unit is *active* (tried in the order of its queue), *preempting* (it did not fit, and plugins may
evict pods for it once no active unit is left), *parked* (it is no easier to place than one that was
refused), in *backoff* (tried when its delay is over), *unschedulable* (until an event that can
help one of the plugins that refused it, or at most ``flush_after`` seconds), *gated*
(``pre_enqueue`` refused all of its pods) or *in flight* (in its cycle, at Permit or being bound).
The delay doubles with each attempt. :mod:`.tenant_order` decides which of the active, preempting
and parked units is tried.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Set

from bayplan.plugin.events import ClusterEvent
from bayplan.scheduler.gate_index import GateIndex
from bayplan.scheduler.known_refusals import Refusal
from bayplan.scheduler.queued_unit import Gate, Place, QueuedUnit, QueueRules
from bayplan.scheduler.tenant_order import NextAction, Park, TenantOrder, Try, Unchosen
from bayplan.snapshot.pods import PodInfo

__all__ = ["FLUSH_AFTER", "UnitQueue"]

FLUSH_AFTER = 300.0
"""Seconds after which an unschedulable unit is tried again without an event."""

_ASLEEP = (Place.GATED, Place.UNSCHEDULABLE, Place.PARKED)
"""Where a unit is until something changes."""


class UnitQueue:
    """Units by key, each in one place. Times are in seconds.

    :param unit_of: returns the key of the unit that a pod belongs to.
    :param initial_backoff: the delay after the first attempt.
    :param max_backoff: the longest delay.

    ``flush_after`` is for how many seconds a unit is unschedulable without an event.
    """

    def __init__(
        self,
        rules: QueueRules,
        unit_of: Callable[[PodInfo], str],
        initial_backoff: float = 1.0,
        max_backoff: float = 10.0,
    ) -> None:
        self._rules = rules
        self._unit_key = unit_of
        self._initial_backoff = initial_backoff
        self._max_backoff = max_backoff
        self.flush_after = FLUSH_AFTER
        self._units: dict[str, QueuedUnit] = {}
        self._unit_of: dict[str, str] = {}
        self._moved = False
        """Whether a unit has come to another queue since the last choice."""
        self._changes = 0
        """How many events may have given units other queues."""
        self._timed: list[tuple[float, int, str]] = []
        self._unschedulable: dict[frozenset[str], dict[str, QueuedUnit]] = {}
        """Units by the plugins that refused them, so that an event skips those it cannot help."""
        self._waiting: dict[frozenset[str], dict[str, QueuedUnit]] = {}
        """The same of units that wait for evicted pods to end, which other pods do not help."""
        self._tickets = 0
        self._arrivals = 0
        self._order = TenantOrder(rules, self._delay_after)
        self._unrecorded: dict[str, Refusal] = {}
        self._gates = GateIndex()
        self._now = 0.0

    @property
    def units(self) -> Mapping[str, QueuedUnit]:
        """All units by key."""
        return self._units

    def __contains__(self, pod_key: str) -> bool:
        return pod_key in self._unit_of

    def unit_key(self, pod_key: str) -> str | None:
        """Return the key of the unit that a queued pod is in."""
        return self._unit_of.get(pod_key)

    def pod(self, pod_key: str) -> PodInfo | None:
        """Return a queued pod."""
        unit_key = self._unit_of.get(pod_key)
        return self._units[unit_key].pods.get(pod_key) if unit_key is not None else None

    def add(self, pod: PodInfo, now: float) -> None:
        """Add a pod or its new version; either may make its unit worth a try."""
        key = self._unit_key(pod)
        unit = self._units.get(key)
        if unit is None:
            self._arrivals += 1
            unit = self._units[key] = QueuedUnit(key, now, arrival=self._arrivals)
        self._unit_of[pod.key] = key
        unit.version += 1
        unit.ready.pop(pod.key, None)
        if not self._passes(unit, pod):
            return
        unit.ready[pod.key] = pod
        if unit.gated:
            self._reopen(unit)
        if unit.place in _ASLEEP:
            self._wake(unit, now)

    def remove(self, pod_key: str) -> None:
        """Remove a pod that is gone or has a node."""
        key = self._unit_of.pop(pod_key, None)
        if key is None:
            return
        unit = self._units[key]
        unit.version += 1
        unit.ready.pop(pod_key, None)
        self._free(unit, pod_key)
        if not unit.ready and not unit.gated:
            self._forget(unit)

    def recheck(self, unit_key: str, now: float, opens: bool = False) -> None:
        """Check the gates of all pods of a unit again, because its gang changed.

        :param opens: whether no gate that is open can have closed.
        """
        unit = self._units.get(unit_key)
        if unit is None:
            return
        unit.version += 1
        for pod_key, pod in [] if opens else list(unit.ready.items()):
            if not self._passes(unit, pod):
                del unit.ready[pod_key]
        self._reopen(unit)
        if not unit.ready and unit.place is not Place.IN_FLIGHT:
            self._move(unit, Place.GATED)
        elif unit.place in _ASLEEP:
            self._wake(unit, now)

    def recheck_pod(self, pod_key: str, now: float) -> None:
        """Check the gates of one pod again, because an object that it names changed."""
        key = self._unit_of.get(pod_key)
        unit = self._units[key] if key is not None else None
        if unit is None:
            return
        unit.version += 1
        pod = unit.pods[pod_key]
        unit.ready.pop(pod_key, None)
        if not self._passes(unit, pod):
            if not unit.ready and unit.place is not Place.IN_FLIGHT:
                self._move(unit, Place.GATED)
            return
        unit.ready[pod_key] = pod
        if unit.place in _ASLEEP:
            self._wake(unit, now)

    def gated_by_readers_of(self, kinds: Set[type]) -> list[str]:
        """Return the keys of units with pods behind gates that read any of some kinds."""
        readers = [one for one in self._gates.plugins if self._rules.reads_at_gate(one, kinds)]
        return list(dict.fromkeys(key for one in readers for key in self._gates.units(one)))

    def postpone(self, unit_key: str, now: float) -> None:
        """Let other units go first: retry this one after the longest delay, or later."""
        unit = self._units.get(unit_key)
        if unit is not None:
            unit.retry_at = now + self._max_backoff
            if unit.place is Place.ACTIVE:
                self._wake(unit, now)

    def refresh_gates(self, unit_key: str, now: float) -> bool:
        """Check the gates of a unit's gated pods again; return whether any answers differently."""
        unit = self._units.get(unit_key)
        if unit is None or not unit.gated:
            return False
        ready, before = len(unit.ready), dict(unit.gated)
        self._reopen(unit)
        if len(unit.ready) > ready and unit.place in _ASLEEP:
            self._wake(unit, now)
        return unit.gated != before

    def pop(self, now: float) -> QueuedUnit | None:
        """Return the unit to try next, or None when nothing is active at this time."""
        self._now = now
        while self._timed and self._timed[0][0] <= now:
            _, ticket, key = heapq.heappop(self._timed)
            unit = self._units.get(key)
            if unit is not None and unit.ticket == ticket:
                self._activate(unit)
        self._offer(self._order.reopen(now))
        while True:
            self._moved = False
            unit, unchosen = self._next_unit(now)
            if unit is None:
                if not self._leave_old_queues(unchosen) and not self._moved:
                    return None
            elif unit.seen != self._seen(unit) and self._rules.queue_of(unit) != unit.queue:
                self._activate(unit)
            else:
                unit.attempts += unit.action == 0
                self._move(unit, Place.IN_FLIGHT)
                return unit

    def _next_unit(self, now: float) -> tuple[QueuedUnit | None, list[QueuedUnit]]:
        """Carry out what the order decides, up to a unit to try; return the unchosen, too."""
        unchosen: list[QueuedUnit] = []
        for decision in self._order.decisions(now):
            if isinstance(decision, Try):
                return decision.unit, unchosen
            if isinstance(decision, Unchosen):
                unchosen += decision.units
            else:
                self._carry_out(decision)
        return None, unchosen

    def _carry_out(self, decision: NextAction | Park) -> None:
        unit = decision.unit
        if isinstance(decision, NextAction):
            unit.action = decision.action
            self._push(unit, Place.PREEMPTING)
            return
        self._park(unit)
        self._after_try(unit)
        if not unit.recorded:
            unit.recorded = True
            self._unrecorded[unit.key] = decision.refusal

    def _seen(self, unit: QueuedUnit) -> tuple[int, int]:
        """Return what changes with all that a unit's queue may follow from."""
        return self._changes, unit.version

    def _leave_old_queues(self, unchosen: Iterable[QueuedUnit]) -> bool:
        """Activate units whose queue was not chosen, as it is gone; return whether any is."""
        gone = {one.queue for one in unchosen if self._rules.queue_of(one) != one.queue}
        if gone:
            for unit in list(self._units.values()):
                waits = unit.place in (Place.ACTIVE, Place.PREEMPTING, Place.PARKED)
                if waits and unit.queue in gone:
                    self._activate(unit)
        return bool(gone)

    def take_unrecorded(self, most: int) -> dict[str, Refusal]:
        """Return units that do not know yet why they wait, each with the refusal of another one.

        :param most: how many to return; the others are returned by later calls.
        """
        keys = list(self._unrecorded)[:most]
        return {key: self._unrecorded.pop(key) for key in keys}

    def _park(self, unit: QueuedUnit) -> None:
        self._move(unit, Place.PARKED)
        self._order.park(unit)

    def _offer(self, units: Iterable[QueuedUnit | None]) -> None:
        """Let parked units be tried; they stay on the clock that parked them."""
        for unit in units:
            if unit is not None:
                unit.action = 0
                ticket = unit.ticket
                self._move(unit, Place.ACTIVE)
                unit.ticket = ticket
                self._order.push(unit)

    def _after_try(self, unit: QueuedUnit) -> None:
        """Let the next parked unit be tried after one that was tried on behalf of its class."""
        self._offer([self._order.tried(unit)])

    def next_time(self) -> float | None:
        """Return when the next timed unit becomes active, or None."""
        while self._timed:
            at, ticket, key = self._timed[0]
            unit = self._units.get(key)
            if unit is not None and unit.ticket == ticket:
                reopen_at = self._order.next_time()
                return at if reopen_at is None else min(at, reopen_at)
            heapq.heappop(self._timed)
        return self._order.next_time()

    def refuse(self, unit: QueuedUnit, refused_by: set[str], now: float) -> None:
        """Put a refused unit back, to wait for an event that helps these plugins."""
        if unit.key not in self._units:
            return
        unit.retry_at = now + self._delay(unit)
        unit.recorded = True
        if not unit.ready:
            self._move(unit, Place.GATED)
            unit.refused_by = frozenset(refused_by)
            return
        self._move(unit, Place.UNSCHEDULABLE)
        unit.refused_by = frozenset(refused_by)
        waits = self._rules.waits_for_victims(unit)
        place = self._waiting if waits else self._unschedulable
        place.setdefault(unit.refused_by, {})[unit.key] = unit
        heapq.heappush(self._timed, (now + self.flush_after, unit.ticket, unit.key))
        self._after_try(unit)

    def not_placed(
        self, unit: QueuedUnit, everywhere: bool, now: float, held: bool = False
    ) -> None:
        """Record that an action did not place a unit of a queue.

        :param everywhere: whether that holds for such units of all queues.
        :param held: whether its queue holds it back, however many nodes there are.
        """
        unit.held_by_queue = held
        self._order.refused(unit, everywhere, now)

    def next_action(self, unit: QueuedUnit) -> bool:
        """Put a unit that did not fit back, for its next action once no unit before it is left.

        :returns: False when no action is left that may help it.
        """
        if unit.key not in self._units or not unit.ready:
            return False
        action = self._order.next_action(unit, self._now)
        if action is None:
            return False
        self._carry_out(NextAction(unit, action))
        return True

    def park(self, unit: QueuedUnit, now: float) -> None:
        """Put a unit of a queue back that no action placed, until the cluster changes."""
        if unit.key not in self._units:
            return
        unit.recorded = True
        if not unit.ready:
            self._move(unit, Place.GATED)
            return
        self._park(unit)
        heapq.heappush(self._timed, (now + self.flush_after, unit.ticket, unit.key))
        self._after_try(unit)
        if self._order.has_untried(unit):
            # The cluster changed between two of its actions, so that one is worth a try again.
            self._offer([self._order.offer(unit.equivalence_class)])

    def retry(self, unit: QueuedUnit, now: float) -> None:
        """Put a unit back, to be tried when its backoff is over."""
        if unit.key not in self._units:
            return
        unit.retry_at = now + self._delay(unit)
        self._wake(unit, now)

    def try_again(self, unit: QueuedUnit) -> None:
        """Put a unit back in its place: its try was broken off and decided nothing."""
        if unit.key in self._units:
            unit.attempts -= unit.action == 0
            self._push(unit, Place.PREEMPTING if unit.action else Place.ACTIVE, first=True)

    def has_nodes(self, unit: QueuedUnit) -> None:
        """Record that a unit in flight was placed; it may wait for long before it is bound."""
        self._after_try(unit)

    def settle(self, unit: QueuedUnit, now: float) -> None:
        """Reset a unit whose pods were bound; pods that came meanwhile get another cycle."""
        self._order.placed(unit)
        if self._units.get(unit.key) is unit:
            unit.attempts = 0
            unit.retry_at = now
            if unit.ready:
                self._wake(unit, now)
            else:
                self._move(unit, Place.GATED)

    def on_event(self, event: ClusterEvent, subject: PodInfo | None, now: float) -> None:
        """Wake the units that an event can help.

        :param event: one event, no union.
        :param subject: the pod that was placed, changed or removed, None for any other event.
        """
        self._changes += event is not ClusterEvent.POD_PLACED
        if event is not ClusterEvent.POD_PLACED:
            self._offer(self._order.helped())
        self._wake_helped(self._unschedulable, event, subject, now)
        if subject is None:
            self._wake_helped(self._waiting, event, None, now)

    def _wake_helped(
        self,
        refused: Mapping[frozenset[str], dict[str, QueuedUnit]],
        event: ClusterEvent,
        subject: PodInfo | None,
        now: float,
    ) -> None:
        for plugins, units in list(refused.items()):
            if self._rules.listens(plugins, event):
                for unit in list(units.values()):
                    if self._rules.helps(unit, event, subject):
                        self._wake(unit, now)

    def no_longer_waits(self, unit_key: str) -> None:
        """Let any pod's end help a unit, as the evicted pods have ended that it waited for."""
        unit = self._units.get(unit_key)
        if unit is not None and self._take_out(unit, self._waiting):
            self._unschedulable.setdefault(unit.refused_by, {})[unit_key] = unit

    def is_first(self, unit_key: str) -> bool:
        """Tell whether no other unit that is to be tried comes before this one.

        False for a unit that is not in the queue.
        """
        mine = self._units.get(unit_key)
        return mine is not None and not self._before(mine, self._units.values())

    def _before(self, mine: QueuedUnit, others: Iterable[QueuedUnit]) -> bool:
        """Tell whether any other unit that is to be tried comes before this one."""
        key = self._rules.sort_key(mine)
        untried = (Place.GATED, Place.IN_FLIGHT)
        return any(
            other is not mine and other.place not in untried and self._rules.sort_key(other) < key
            for other in others
        )

    def pending(self, queue: str) -> list[QueuedUnit]:
        """Return the units of a queue that no gate holds back, in order."""
        waiting = (u for u in self._units.values() if u.place is not Place.GATED and u.pods)
        mine = [unit for unit in waiting if self._rules.queue_of(unit) == queue]
        return sorted(mine, key=lambda unit: (self._rules.sort_key(unit), unit.added))

    def _reopen(self, unit: QueuedUnit) -> None:
        for pod_key, (pod, _) in list(unit.gated.items()):
            if self._passes(unit, pod):
                unit.ready[pod_key] = pod
                unit.version += 1

    def _passes(self, unit: QueuedUnit, pod: PodInfo) -> bool:
        """Check the gates of a pod; put it behind the first that is closed, if any is."""
        gate: Gate | None = self._rules.gate(pod)
        if gate is None:
            self._free(unit, pod.key)
            return True
        unit.gated[pod.key] = (pod, gate.reason)
        self._gates.hold(unit.key, pod.key, gate.plugin)
        return False

    def _free(self, unit: QueuedUnit, pod_key: str) -> None:
        if unit.gated.pop(pod_key, None) is not None:
            self._gates.free(pod_key)

    def _delay(self, unit: QueuedUnit) -> float:
        return self._delay_after(unit.attempts)

    def _delay_after(self, attempts: int) -> float:
        doublings = min(attempts - 1, 60)
        return float(min(self._initial_backoff * 2 ** max(0, doublings), self._max_backoff))

    def _wake(self, unit: QueuedUnit, now: float) -> None:
        if unit.retry_at > now:
            self._move(unit, Place.BACKOFF)
            heapq.heappush(self._timed, (unit.retry_at, unit.ticket, unit.key))
        else:
            self._activate(unit)

    def _activate(self, unit: QueuedUnit) -> None:
        unit.action = 0
        self._push(unit, Place.ACTIVE)

    def _push(self, unit: QueuedUnit, place: Place, first: bool = False) -> None:
        """Add a unit to the order; ``first`` puts it before those that are equal in order."""
        queue = self._rules.queue_of(unit)
        if queue != unit.queue and unit.action:
            # What was tried for it held in its old queue only.
            unit.action, place, self._moved = 0, Place.ACTIVE, True
        self._move(unit, place)
        if first:
            unit.ticket = -unit.ticket
        unit.order = self._rules.sort_key(unit)
        unit.queue, unit.seen = queue, self._seen(unit)
        if queue:
            unit.order += (unit.arrival,)
            unit.equivalence = None
            unit.actions, unit.strict = self._rules.actions(unit), self._rules.is_strict(unit)
        self._order.push(unit)

    def _move(self, unit: QueuedUnit, place: Place) -> None:
        self._leave(unit)
        unit.place = place
        # A new ticket makes every older entry of the unit in the heaps stale.
        self._tickets += 1
        unit.ticket = self._tickets

    def _leave(self, unit: QueuedUnit) -> None:
        """Remove a unit from those that wait for an event, if it is one of them."""
        if unit.place is Place.PARKED:
            self._order.unpark(unit)
        for refused in (self._unschedulable, self._waiting):
            if refused:
                self._take_out(unit, refused)

    def _take_out(
        self, unit: QueuedUnit, refused: dict[frozenset[str], dict[str, QueuedUnit]]
    ) -> bool:
        units = refused.get(unit.refused_by)
        if units is None or units.pop(unit.key, None) is None:
            return False
        if not units:
            del refused[unit.refused_by]
        return True

    def _forget(self, unit: QueuedUnit) -> None:
        self._leave(unit)
        self._unrecorded.pop(unit.key, None)
        self._order.forget(unit)
        # Its entries in heaps are stale.
        unit.ticket = 0
        del self._units[unit.key]
        self._after_try(unit)
