"""HeadReservation: reserve a domain for the first unit in the queue, so that it does not starve.

Once the first unit has waited for ``after`` seconds, the domain where it could run soonest, if the
pods there ended one after the other, is reserved for it: later units are refused there. A pod that
states how long it runs (``bayplan.dev/duration``, or ``activeDeadlineSeconds``) may backfill if it
ends before the first unit can start. Units of higher priority ignore the reservation. It ends when
the unit is placed or gone, or after ``atMost`` seconds; then nothing is reserved for that unit for
the same time again.

Nothing is reserved for a unit that would not fit even in an empty domain. A reservation leaves
nodes idle, so the plugin runs only where a profile enables it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence

import msgspec
import numpy as np
from pydantic import Field

from bayplan import (
    SKIP,
    Args,
    ClusterEvent,
    Handle,
    NodeView,
    Placement,
    Plugin,
    PodInfo,
    Reads,
    Reject,
    Unit,
    hookimpl,
)
from bayplan.inputs.durations import stated_duration
from bayplan.plugin.decision import Decision

__all__ = ["HeadReservation", "HeadReservationArgs"]

_MOST_DOMAINS = 8


class HeadReservationArgs(Args):
    """Arguments of HeadReservation, in seconds."""

    after: float = Field(default=30.0, ge=0)
    at_most: float = Field(default=3600.0, gt=0)


class _Reservation(msgspec.Struct, frozen=True):
    """Nodes reserved for a unit; ``start`` is when it can run there, infinite if unknown.

    Times are those of the handle's clock, in seconds.
    """

    unit: str
    gangs: frozenset[str]
    priority: int
    domain: str
    nodes: frozenset[str]
    start: float
    since: float


class HeadReservation(Plugin[HeadReservationArgs]):
    """Reserve a domain for the unit at the head of the queue, and let short pods backfill."""

    Args = HeadReservationArgs
    reads = Reads.NODE
    requeue_on = ClusterEvent.ANY

    def __init__(self, args: HeadReservationArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._kept: _Reservation | None = None
        self._version = 0
        self._waits: dict[str, float] = {}
        self._starts: dict[str, float] = {}

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by the reservation, and whether the pod may ignore it."""
        kept = self._current()
        return None if kept is None else (self._version, self._passes(pod, kept))

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods that may ignore the reservation."""
        kept = self._current()
        return SKIP if kept is None or self._passes(pod, kept) else None

    @hookimpl
    def filter(self, nodes: NodeView) -> Iterator[Reject]:
        """Refuse the reserved nodes."""
        kept = self._current()
        if kept is not None:
            mask = np.array([name in kept.nodes for name in nodes.names], dtype=np.bool_)
            yield Reject(mask, f"node(s) were reserved for {kept.unit}", resolvable=False)

    @hookimpl
    def post_bind(self, pod: PodInfo) -> None:
        """Record when the pod started."""
        self._starts[pod.key] = self.handle.now

    @hookimpl
    def post_filter(self, unit: Unit, decision: Decision) -> str | None:
        """Reserve a domain for the unit if it is first in the queue and has waited long enough."""
        now = self.handle.now
        first = self._waits.setdefault(unit.key, now)
        kept = self._current()
        if kept is not None and kept.unit != unit.key and unit.priority <= kept.priority:
            return None
        if now - first < self.args.after or not self.handle.is_first(unit):
            return None
        if kept is None and now - first >= self.args.after + self.args.at_most:
            # It had its time; the others get as much before its next turn.
            self._waits[unit.key] = now + self.args.at_most - self.args.after
            return None
        found = self._soonest(unit)
        if found is None:
            self._set(None)
            return None
        placement, start = found
        names = self.handle.snapshot.nodes.names
        rows = range(len(names)) if placement.rows is None else placement.rows.tolist()
        domain = placement.name or "the cluster"
        nodes = frozenset(names[row] for row in rows)
        since = kept.since if kept is not None and kept.unit == unit.key else now
        gangs = frozenset(pod.gang for pod in unit.pods if pod.gang is not None)
        self._set(_Reservation(unit.key, gangs, unit.priority, domain, nodes, start, since))
        when = "" if math.isinf(start) else f", where it can run in about {start - now:.0f} s"
        return f"reservation: {domain} is kept for it{when}."

    # The reservation ---------------------------------------------------------------------

    def _current(self) -> _Reservation | None:
        """Return the reservation; ends it if its unit is gone or its time is over."""
        kept = self._kept
        if kept is None:
            return None
        over = self.handle.now - kept.since >= self.args.at_most
        if over or not self.handle.is_waiting(kept.unit):
            if not over:
                self._waits.pop(kept.unit, None)
            self._set(None)
        return self._kept

    def _set(self, kept: _Reservation | None) -> None:
        if kept != self._kept:
            self._kept = kept
            self._version += 1

    def _passes(self, pod: PodInfo, kept: _Reservation) -> bool:
        if pod.priority > kept.priority or pod.key == kept.unit:
            return True
        if pod.gang is not None and pod.gang in kept.gangs:
            return True
        seconds = stated_duration(pod.annotations, pod.spec.active_deadline_seconds)
        return seconds is not None and self.handle.now + seconds <= kept.start

    # When and where ----------------------------------------------------------------------

    def _soonest(self, unit: Unit) -> tuple[Placement, float] | None:
        """Return the placement in which the unit could run first, and when."""
        snapshot = self.handle.snapshot
        own = {pod.key for pod, _ in unit.bound}
        with snapshot.trial():
            for key in [key for key in snapshot.placed if key not in own]:
                snapshot.remove_pod(key)
            candidates = list(self.handle.offers(unit).candidates)
        kept = self._kept
        if kept is not None and kept.unit == unit.key:
            # A reserved domain stays reserved while it can hold the unit.
            candidates.sort(key=lambda placement: (placement.name or "the cluster") != kept.domain)
            again = self._start_in(unit, candidates[0]) if candidates else None
            if again is not None:
                return candidates[0], again[0]
        best: tuple[tuple[float, int, int], Placement] | None = None
        for index, placement in enumerate(candidates[:_MOST_DOMAINS]):
            found = self._start_in(unit, placement)
            if found is not None and (best is None or (*found, index) < best[0]):
                best = ((*found, index), placement)
        return None if best is None else (best[1], best[0][0])

    def _start_in(self, unit: Unit, placement: Placement) -> tuple[float, int] | None:
        """Return when the unit could run in a placement, and how many pods end before that."""
        snapshot = self.handle.snapshot
        table = snapshot.nodes
        rows = range(len(table)) if placement.rows is None else placement.rows.tolist()
        own = {pod.key for pod, _ in unit.bound}
        ending = sorted(
            (
                (self._end(pod), key)
                for row in rows
                for key, pod in table.pods[row].items()
                if key not in own
            ),
        )
        if not self._fits(unit, placement, [key for _, key in ending]):
            return None
        low, high = 0, len(ending)
        while high - low > 1:
            middle = (low + high) // 2
            if self._fits(unit, placement, [key for _, key in ending[:middle]]):
                high = middle
            else:
                low = middle
        return (ending[high - 1][0] if ending else self.handle.now, high)

    def _fits(self, unit: Unit, placement: Placement, gone: Sequence[str]) -> bool:
        snapshot = self.handle.snapshot
        with snapshot.trial():
            for key in gone:
                snapshot.remove_pod(key)
            return self.handle.place(unit, placement) is not None

    def _end(self, pod: PodInfo) -> float:
        """Return when a pod will have ended, infinite if it does not say."""
        seconds = stated_duration(pod.annotations, pod.spec.active_deadline_seconds)
        now = self.handle.now
        if pod.terminating:
            return now + pod.spec.termination_grace_period_seconds
        if seconds is None:
            return math.inf
        return max(now, self._starts.setdefault(pod.key, now) + seconds)
