"""The unit queue: which unit is tried next, which wait, and for what.

A unit is *active* (tried in the order of its lane), *making room* (it did not fit, and plugins may
evict pods for it once no active unit is left), *in line* (it is no easier to place than one that
was refused), in *backoff* (tried when its delay is over), *unschedulable* (until an event that can
help one of the plugins that refused it, or at most ``FLUSH_AFTER`` seconds), *gated*
(``pre_enqueue`` refused all of its pods) or *in flight* (in its cycle, at Permit or being bound).
The delay doubles with each attempt.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Protocol

from bayplan.plugin.events import ClusterEvent
from bayplan.scheduler.known_refusals import KnownRefusals, Refusal
from bayplan.scheduler.lanes import Lanes, Skip
from bayplan.scheduler.lines import Line
from bayplan.snapshot.pods import PodInfo

__all__ = ["FLUSH_AFTER", "Place", "QueueRules", "QueuedUnit", "UnitQueue"]

_Group = tuple[str, Hashable]

FLUSH_AFTER = 300.0
"""Seconds after which an unschedulable unit is tried again without an event."""


class Place(Enum):
    """Where a unit is."""

    ACTIVE = "active"
    MAKING_ROOM = "making room"
    IN_LINE = "in line"
    BACKOFF = "backoff"
    UNSCHEDULABLE = "unschedulable"
    GATED = "gated"
    IN_FLIGHT = "in flight"


_ASLEEP = (Place.GATED, Place.UNSCHEDULABLE, Place.IN_LINE)
"""Where a unit is until something changes."""


@dataclass(eq=False)
class QueuedUnit:
    """A unit in the queue; times in seconds.

    ``ready`` are the pods that may be tried, ``gated`` those that a gate holds back, with its
    reason, by pod key. ``added`` is when the unit came, ``retry_at`` the end of its backoff.
    ``refused_by`` are the plugins that refused it last. ``action`` counts the actions that have
    been tried for it since it became active: plain placement, then each way to make room. ``lane``
    and ``order`` are those of its last try, ``shape`` and ``size`` say how hard it is to place (see
    :mod:`bayplan.scheduler.known_refusals`). ``actions`` counts those of its
    profile, ``strict`` says that it holds back its lane. ``told`` says that its pods know why they
    wait. ``arrival`` counts the units that came before it, ``version`` the changes of its pods and
    their gates. ``offered_for`` is the lane and shape of the units on whose behalf it is tried; its
    own shape may change meanwhile. ``seen`` tells what was known when its lane was looked up.
    ``stand_in`` is the unit whose refusal counted for its own last, ``held`` says whether its
    queue held it back last, however many nodes there are.
    Entries of the queue's heaps with another ``ticket`` are stale.
    """

    key: str
    added: float
    ready: dict[str, PodInfo] = field(default_factory=dict)
    gated: dict[str, tuple[PodInfo, str]] = field(default_factory=dict)
    place: Place = Place.GATED
    attempts: int = 0
    retry_at: float = 0.0
    refused_by: frozenset[str] = frozenset()
    action: int = 0
    lane: str = ""
    order: tuple[float, ...] = ()
    shape: Hashable = None
    size: int = 0
    actions: tuple[int, ...] = (0,)
    strict: bool = False
    told: bool = False
    arrival: int = 0
    version: int = 0
    offered_for: _Group | None = None
    seen: tuple[int, int] = (0, 0)
    ticket: int = 0
    stand_in: str = ""
    held: bool = False

    @property
    def pods(self) -> dict[str, PodInfo]:
        """All pods of the unit, gated or not."""
        return {**self.ready, **{key: pod for key, (pod, _) in self.gated.items()}}


class QueueRules(Protocol):
    """What the queue asks about units and events."""

    def gate(self, pod: PodInfo) -> str | None:
        """Return why a pod must not be tried yet, or None."""

    def sort_key(self, queued: QueuedUnit) -> tuple[float, ...]:
        """Return a unit's place in its lane: smallest first, then the first to arrive."""

    def lane(self, queued: QueuedUnit) -> str:
        """Return the lane of a unit, "" without queues."""

    def shape(self, queued: QueuedUnit) -> tuple[Hashable, int]:
        """Return a unit's shape, and how many of its pods have to be placed at once."""

    def actions(self, queued: QueuedUnit) -> tuple[int, ...]:
        """Return the actions for a unit by their places: plain placement, 0, then its others."""

    def may_make_room(self, queued: QueuedUnit, action: int) -> bool:
        """Tell whether an action may help a unit that did not fit; cheap."""

    def is_strict(self, queued: QueuedUnit) -> bool:
        """Tell whether a unit that does not fit holds back all after it in its lane."""

    def choose(self, heads: Mapping[str, QueuedUnit], action: int) -> str | None:
        """Return the lane whose first unit is tried next; None for none."""

    def listens(self, plugins: frozenset[str], event: ClusterEvent) -> bool:
        """Tell whether an event can help any unit that these plugins refused."""

    def helps(self, queued: QueuedUnit, event: ClusterEvent, subject: PodInfo | None) -> bool:
        """Tell whether an event, about the pod ``subject`` if any, can help a refused unit."""


class UnitQueue:
    """Units by key, each in one place. Times are in seconds.

    :param unit_of: returns the key of the unit that a pod belongs to.
    :param initial_backoff: the delay after the first attempt.
    :param max_backoff: the longest delay.
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
        self._units: dict[str, QueuedUnit] = {}
        self._unit_of: dict[str, str] = {}
        self._lanes: list[Lanes] = []
        """The units of each action: active ones first, then those that make room."""
        self._unchosen: list[str] = []
        """The first units of lanes of which none was chosen."""
        self._moved = False
        """Whether a unit has come to another lane since the last choice."""
        self._changes = 0
        """How many events may have given units other lanes."""
        self._timed: list[tuple[float, int, str]] = []
        self._unschedulable: dict[frozenset[str], dict[str, QueuedUnit]] = {}
        """Units by the plugins that refused them, so that an event skips those it cannot help."""
        self._tickets = 0
        self._arrivals = 0
        self._refusals = KnownRefusals(self._delay_after)
        self._in_line: dict[_Group, Line] = {}
        """The units in line, by lane and shape."""
        self._offered: dict[_Group, str] = {}
        """The one of each group that is tried on behalf of the others."""
        self._blocked: dict[str, str] = {}
        """For a strict lane, the unit that holds back all after it."""
        self._reopen_at: float | None = None
        self._untold: dict[str, Refusal] = {}
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
        unit.gated.pop(pod.key, None)
        refusal = self._rules.gate(pod)
        if refusal is not None:
            unit.gated[pod.key] = (pod, refusal)
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
        unit.gated.pop(pod_key, None)
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
            refusal = self._rules.gate(pod)
            if refusal is not None:
                del unit.ready[pod_key]
                unit.gated[pod_key] = (pod, refusal)
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
        refusal = self._rules.gate(pod)
        unit.ready.pop(pod_key, None)
        unit.gated.pop(pod_key, None)
        if refusal is not None:
            unit.gated[pod_key] = (pod, refusal)
            if not unit.ready and unit.place is not Place.IN_FLIGHT:
                self._move(unit, Place.GATED)
            return
        unit.ready[pod_key] = pod
        if unit.place in _ASLEEP:
            self._wake(unit, now)

    def postpone(self, unit_key: str, now: float) -> None:
        """Let other units go first: retry this one after the longest delay, or later."""
        unit = self._units.get(unit_key)
        if unit is not None:
            unit.retry_at = now + self._max_backoff
            if unit.place is Place.ACTIVE:
                self._wake(unit, now)

    def refresh_gates(self, unit_key: str, now: float) -> None:
        """Check the gates of a unit's gated pods again."""
        unit = self._units.get(unit_key)
        if unit is None or not unit.gated:
            return
        ready = len(unit.ready)
        self._reopen(unit)
        if len(unit.ready) > ready and unit.place in _ASLEEP:
            self._wake(unit, now)

    def pop(self, now: float) -> QueuedUnit | None:
        """Return the unit to try next, or None when nothing is active at this time."""
        self._now = now
        while self._timed and self._timed[0][0] <= now:
            _, ticket, key = heapq.heappop(self._timed)
            unit = self._units.get(key)
            if unit is not None and unit.ticket == ticket:
                self._activate(unit)
        if self._reopen_at is not None and self._reopen_at <= now:
            self._reopen_lines(now)
        while True:
            self._unchosen.clear()
            self._moved = False
            unit = self._choose_unit()
            if unit is None:
                if not self._leave_old_lanes() and not self._moved:
                    return None
            elif unit.seen != self._seen(unit) and self._rules.lane(unit) != unit.lane:
                self._activate(unit)
            else:
                unit.attempts += unit.action == 0
                self._move(unit, Place.IN_FLIGHT)
                return unit

    def _seen(self, unit: QueuedUnit) -> tuple[int, int]:
        """Return what changes with all that a unit's lane may follow from."""
        return self._changes, unit.version

    def _choose_unit(self) -> QueuedUnit | None:
        """Take the next unit from its lane: active ones first, then those that make room."""
        for action, lanes in enumerate(self._lanes):
            popped = lanes.pop(partial(self._choose, action), partial(self._skip, action))
            if popped is not None:
                return self._units[popped]
        return None

    def _leave_old_lanes(self) -> bool:
        """Activate units whose lane was not chosen, as its queue is gone; return whether any is."""
        heads = [self._units[key] for key in self._unchosen if key in self._units]
        gone = {unit.lane for unit in heads if self._rules.lane(unit) != unit.lane}
        if gone:
            for unit in list(self._units.values()):
                waits = unit.place in (Place.ACTIVE, Place.MAKING_ROOM, Place.IN_LINE)
                if waits and unit.lane in gone:
                    self._activate(unit)
        return bool(gone)

    def _skip(self, action: int, lane: str, key: str) -> Skip:
        """Tell whether the first unit of a lane need not be tried; give it its next action."""
        unit = self._units[key]
        if self._blocked.get(lane, key) != key:
            return Skip.WHOLE_LANE
        known = self._refusals.of(action, lane, unit.shape, unit.size)
        if known is None:
            return Skip.NO
        if unit.strict:
            self._blocked[lane] = key
        unit.action = action
        unit.stand_in, unit.held = known.unit, known.held
        if self.make_room(unit):
            return Skip.YES
        self._wait_in_line(unit)
        self._offer_next(unit)
        if not unit.told:
            unit.told = True
            self._untold[key] = known
        return Skip.YES

    def take_untold(self, most: int) -> dict[str, Refusal]:
        """Return units that do not know yet why they wait, each with the refusal of another one.

        :param most: how many to return; the others are returned by later calls.
        """
        keys = list(self._untold)[:most]
        return {key: self._untold.pop(key) for key in keys}

    def _wait_in_line(self, unit: QueuedUnit) -> None:
        self._move(unit, Place.IN_LINE)
        line = self._in_line.setdefault((unit.lane, unit.shape), Line(unit.actions))
        line.add(unit.key, unit.order, unit.size)

    def _reopen_lines(self, now: float) -> None:
        """Let the units in line be tried again whose shapes may be tried again."""
        if self._refusals.expire(now):
            self._blocked.clear()
            for group in list(self._in_line):
                self._offer(group)
        self._reopen_at = self._refusals.next_time()

    def _offer(self, group: _Group) -> None:
        """Let the first unit of a group be tried that is easier than all that were refused.

        The others are no easier, or come after it: one at a time is tried on behalf of them all.
        """
        line = self._in_line.get(group)
        offered = self._units.get(self._offered.get(group, ""))
        if line is None or (offered is not None and offered.offered_for == group):
            return
        key = line.first_below(self._refusals.least(line.actions, *group))
        if key is not None:
            self._offered[group] = key
            chosen = self._units[key]
            chosen.offered_for = group
            chosen.action = 0
            ticket = chosen.ticket
            self._move(chosen, Place.ACTIVE)
            chosen.ticket = ticket
            self._lanes[0].push(chosen.lane, chosen.order, chosen.ticket, chosen.key)

    def _offer_next(self, unit: QueuedUnit) -> None:
        """After an offered unit was tried, let the next of its group be tried."""
        group, unit.offered_for = unit.offered_for, None
        if group is not None and self._offered.get(group) == unit.key:
            del self._offered[group]
            self._offer(group)

    def _choose(self, action: int, heads: Mapping[str, str]) -> str | None:
        lane = self._rules.choose({k: self._units[unit] for k, unit in heads.items()}, action)
        if lane is None:
            self._unchosen.extend(key for own, key in heads.items() if own)
        return lane

    def _ticket_of(self, key: str) -> int | None:
        unit = self._units.get(key)
        return None if unit is None else unit.ticket

    def next_time(self) -> float | None:
        """Return when the next timed unit becomes active, or None."""
        while self._timed:
            at, ticket, key = self._timed[0]
            unit = self._units.get(key)
            if unit is not None and unit.ticket == ticket:
                return at if self._reopen_at is None else min(at, self._reopen_at)
            heapq.heappop(self._timed)
        return self._reopen_at

    def refuse(self, unit: QueuedUnit, refused_by: set[str], now: float) -> None:
        """Put a refused unit back, to wait for an event that helps these plugins."""
        if unit.key not in self._units:
            return
        unit.retry_at = now + self._delay(unit)
        unit.told = True
        if not unit.ready:
            self._move(unit, Place.GATED)
            unit.refused_by = frozenset(refused_by)
            return
        self._move(unit, Place.UNSCHEDULABLE)
        unit.refused_by = frozenset(refused_by)
        self._unschedulable.setdefault(unit.refused_by, {})[unit.key] = unit
        heapq.heappush(self._timed, (now + FLUSH_AFTER, unit.ticket, unit.key))
        self._offer_next(unit)

    def not_placed(
        self, unit: QueuedUnit, everywhere: bool, now: float, held: bool = False
    ) -> None:
        """Record that an action did not place a unit of a lane.

        :param everywhere: whether that holds for such units of all lanes.
        :param held: whether its queue holds it back, however many nodes there are.
        """
        unit.held = held
        lane = "" if everywhere else unit.lane
        refused = unit.action, lane, unit.shape, unit.size, unit.key
        self._refusals.add(*refused, now, held)
        if unit.strict:
            self._blocked[unit.lane] = unit.key

    def make_room(self, unit: QueuedUnit) -> bool:
        """Put a unit that did not fit back, for its next action once no unit before it is left.

        :returns: False when no action is left that may help it.
        """
        if unit.key not in self._units or not unit.ready:
            return False
        for later in unit.actions:
            if later <= unit.action:
                continue
            if self._refusals.of(later, unit.lane, unit.shape, unit.size) is not None:
                continue
            if self._rules.may_make_room(unit, later):
                unit.action = later
                self._push(unit, Place.MAKING_ROOM)
                return True
            refused = later, unit.lane, unit.shape, unit.size, unit.key
            self._refusals.add(*refused, self._now, unit.held)
        return False

    def keep_in_line(self, unit: QueuedUnit, now: float) -> None:
        """Put a unit of a lane back that no action placed, until the cluster changes."""
        if unit.key not in self._units:
            return
        unit.told = True
        if not unit.ready:
            self._move(unit, Place.GATED)
            return
        self._wait_in_line(unit)
        heapq.heappush(self._timed, (now + FLUSH_AFTER, unit.ticket, unit.key))
        self._offer_next(unit)
        of = partial(self._refusals.of, queue=unit.lane, shape=unit.shape, size=unit.size)
        if any(of(action) is None for action in unit.actions):
            # The cluster changed between two of its actions, so that one is worth a try again.
            self._offer((unit.lane, unit.shape))

    def retry(self, unit: QueuedUnit, now: float) -> None:
        """Put a unit back, to be tried when its backoff is over."""
        if unit.key not in self._units:
            return
        unit.retry_at = now + self._delay(unit)
        self._wake(unit, now)

    def has_nodes(self, unit: QueuedUnit) -> None:
        """Record that a unit in flight was placed; it may wait for long before it is bound."""
        self._offer_next(unit)

    def settle(self, unit: QueuedUnit, now: float) -> None:
        """Reset a unit whose pods were bound; pods that came meanwhile get another cycle."""
        if unit.lane:
            self._refusals.placed(unit.lane, unit.shape)
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
        if event is not ClusterEvent.POD_PLACED and self._refusals:
            # Also those of a unit that is between two of its actions, and in no line.
            self._refusals.help()
            self._reopen_at = self._refusals.next_time()
        elif event is not ClusterEvent.POD_PLACED:
            # Nobody is known to be refused, so whoever is still in line may be tried.
            for group in list(self._in_line):
                self._offer(group)
        for plugins, units in list(self._unschedulable.items()):
            if self._rules.listens(plugins, event):
                for unit in list(units.values()):
                    if self._rules.helps(unit, event, subject):
                        self._wake(unit, now)

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

    def line(self, lane: str) -> list[QueuedUnit]:
        """Return the units of a lane that wait for their turn, in order."""
        waiting = (u for u in self._units.values() if u.place is not Place.GATED and u.pods)
        mine = [unit for unit in waiting if self._rules.lane(unit) == lane]
        return sorted(mine, key=lambda unit: (self._rules.sort_key(unit), unit.added))

    def _reopen(self, unit: QueuedUnit) -> None:
        for pod_key, (pod, _) in list(unit.gated.items()):
            refusal = self._rules.gate(pod)
            if refusal is None:
                del unit.gated[pod_key]
                unit.ready[pod_key] = pod
                unit.version += 1
            else:
                unit.gated[pod_key] = (pod, refusal)

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

    def _push(self, unit: QueuedUnit, place: Place) -> None:
        lane = self._rules.lane(unit)
        if lane != unit.lane and unit.action:
            # What was tried for it held in its old queue only.
            unit.action, place, self._moved = 0, Place.ACTIVE, True
        self._move(unit, place)
        while len(self._lanes) <= unit.action:
            self._lanes.append(Lanes(self._ticket_of))
        unit.order = self._rules.sort_key(unit)
        unit.lane, unit.seen = lane, self._seen(unit)
        if lane:
            unit.order += (unit.arrival,)
            unit.shape, unit.size = self._rules.shape(unit)
            unit.actions, unit.strict = self._rules.actions(unit), self._rules.is_strict(unit)
        self._lanes[unit.action].push(unit.lane, unit.order, unit.ticket, unit.key)

    def _move(self, unit: QueuedUnit, place: Place) -> None:
        self._leave(unit)
        unit.place = place
        # A new ticket makes every older entry of the unit in the heaps stale.
        self._tickets += 1
        unit.ticket = self._tickets

    def _leave(self, unit: QueuedUnit) -> None:
        """Remove a unit from those that wait for an event, if it is one of them."""
        if unit.place is Place.IN_LINE:
            group = (unit.lane, unit.shape)
            line = self._in_line[group]
            line.remove(unit.key)
            if not line:
                del self._in_line[group]
        units = self._unschedulable.get(unit.refused_by)
        if units is not None and units.pop(unit.key, None) is not None and not units:
            del self._unschedulable[unit.refused_by]

    def _forget(self, unit: QueuedUnit) -> None:
        self._leave(unit)
        self._untold.pop(unit.key, None)
        if self._blocked.get(unit.lane) == unit.key:
            del self._blocked[unit.lane]
        del self._units[unit.key]
        self._offer_next(unit)
