"""The workloads that wait in one ClusterQueue: those to be tried, and those parked until room.

A parked workload waits for an event that may let it fit. With BestEffortFIFO a head that
does not fit is parked, and with it all that are equivalent to it; with StrictFIFO it stays
(Kueue's pkg/cache/queue/cluster_queue.go), and holds back those that may take what it may take.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from enum import StrEnum

import msgspec

from bayplan.api.kueue import KueueCondition, KueueWorkload
from bayplan.api.times import seconds_of
from bayplan_plugins.queues.kueue.conditions import Reason, condition, has_closed_gate
from bayplan_plugins.queues.kueue.settings import Settings
from bayplan_plugins.queues.kueue.workloads import (
    BOOST,
    WorkloadInfo,
    local_queue_key,
    priority_of,
    queue_time,
)

__all__ = ["PendingQueue", "Requeue", "may_run_again"]

_Key = tuple[float, bool, int, float, str, str]


class Requeue(StrEnum):
    """Why a workload comes back from a cycle."""

    GENERIC = ""
    FAILED_AFTER_NOMINATION = "FailedAfterNomination"
    NAMESPACE_MISMATCH = "NamespaceMismatch"
    PREEMPTION_GATED = "PreemptionGated"
    PENDING_PREEMPTION = "PendingPreemption"
    PENDING_MIGRATION = "PendingMigration"
    PREEMPTION_FAILED = "PreemptionFailed"
    NO_FIT = "NoFit"
    NO_CANDIDATES = "PreemptionNoCandidates"


_AT_ONCE = {
    Requeue.FAILED_AFTER_NOMINATION,
    Requeue.PENDING_PREEMPTION,
    Requeue.PENDING_MIGRATION,
    Requeue.PREEMPTION_FAILED,
}
_HOPELESS = {Requeue.NO_FIT, Requeue.NO_CANDIDATES}


def may_run_again(workload: KueueWorkload, now: float) -> bool:
    """Tell whether a workload's backoff is over."""
    requeued = condition(workload, "Requeued")
    if requeued is not None and requeued.status == "False":
        return False
    state = workload.status.requeue_state
    if state is None or state.requeue_at is None:
        return True
    return now >= seconds_of(state.requeue_at)


class _Preemptor(msgspec.Struct):
    """The workload whose victims are on their way out; ``sticky`` keeps it at the head."""

    key: str
    sticky: bool


class PendingQueue(msgspec.Struct):
    """The pending workloads of one ClusterQueue.

    :param strict: whether a head that does not fit blocks the others (StrictFIFO).
    :param usage_of: the usage over time of a LocalQueue, where that comes first in the order.
    :param usage_version: changes when usages do.
    """

    settings: Settings
    strict: bool = False
    usage_of: Callable[[str], float] | None = None
    usage_version: Callable[[], int] = lambda: 0
    _active: dict[str, WorkloadInfo] = msgspec.field(default_factory=dict)
    _parked: dict[str, WorkloadInfo] = msgspec.field(default_factory=dict)
    _locals: dict[str, str] = msgspec.field(default_factory=dict)
    """The LocalQueue of each."""
    _counts: Counter[str] = msgspec.field(default_factory=Counter)
    """How many there are of each LocalQueue."""
    _heap: list[tuple[_Key, str]] = msgspec.field(default_factory=list)
    _ordered_by: int = 0
    _preemptor: _Preemptor | None = None
    _hopeless: dict[Hashable, str] = msgspec.field(default_factory=dict)
    _pops: int = 0
    _flushed_at: int = -1

    # Contents ----------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether there is anything to try."""
        return bool(self._active)

    @property
    def active(self) -> list[str]:
        """The keys of the workloads to be tried, in order."""
        return [one.key for one in self.in_order(self._active.values())]

    @property
    def parked(self) -> list[str]:
        """The keys of the parked workloads, in order."""
        return [one.key for one in self.in_order(self._parked.values())]

    def __len__(self) -> int:
        return len(self._active) + len(self._parked)

    def __iter__(self) -> Iterator[WorkloadInfo]:
        """Yield all pending workloads in order."""
        yield from self.in_order([*self._active.values(), *self._parked.values()])

    def count_of(self, local: str) -> int:
        """Return how many workloads of a LocalQueue wait."""
        return self._counts[local]

    def _enter(self, one: WorkloadInfo) -> None:
        local = local_queue_key(one.workload)
        before = self._locals.get(one.key)
        if before != local:
            self._leave(one.key)
            self._locals[one.key] = local
            self._counts[local] += 1

    def _leave(self, key: str) -> None:
        local = self._locals.pop(key, None)
        if local is not None:
            self._counts[local] -= 1

    def get(self, key: str) -> WorkloadInfo | None:
        """Return a pending workload."""
        return self._active.get(key) or self._parked.get(key)

    def is_preemptor(self, key: str) -> bool:
        """Tell whether a workload waits for its victims to go."""
        return self._preemptor is not None and self._preemptor.key == key

    @property
    def sticky(self) -> str | None:
        """The workload that stays at the head until its victims are gone."""
        return self._preemptor.key if self._preemptor and self._preemptor.sticky else None

    # Order -------------------------------------------------------------------------------

    def in_order(self, workloads: Iterable[WorkloadInfo]) -> list[WorkloadInfo]:
        """Return workloads with the next one first."""
        return sorted(workloads, key=self._key)

    def _key(self, one: WorkloadInfo) -> _Key:
        usage = self.usage_of(local_queue_key(one.workload)) if self.usage_of is not None else 0.0
        return (
            usage,
            one.key != self.sticky,
            -priority_of(one.workload, self.settings),
            queue_time(one.workload, self.settings),
            one.uid,
            one.key,
        )

    def _push(self, one: WorkloadInfo) -> None:
        self._enter(one)
        self._parked.pop(one.key, None)
        self._active[one.key] = one
        heapq.heappush(self._heap, (self._key(one), one.key))

    def _park(self, one: WorkloadInfo) -> None:
        self._enter(one)
        self._parked[one.key] = one

    def _set_preemptor(self, preemptor: _Preemptor | None) -> None:
        before, self._preemptor = self.sticky, preemptor
        if self.sticky != before:
            self._ordered_by = -1

    def _reorder(self) -> None:
        self._ordered_by = self.usage_version()
        self._heap = [(self._key(one), key) for key, one in self._active.items()]
        heapq.heapify(self._heap)

    # Changes -----------------------------------------------------------------------------

    def push(self, one: WorkloadInfo, now: float) -> None:
        """Add a workload, or replace it after it changed.

        A parked workload is tried again only if the change may let it in.
        """
        old = self._parked.get(one.key)
        if old is not None:
            if _same_chances(old.workload, one.workload):
                one.resume(old)
                self._park(one)
                return
            del self._parked[one.key]
        known = self._active.get(one.key)
        if known is None:
            hopeless = one.equivalence is not None and one.equivalence in self._hopeless
            if not may_run_again(one.workload, now) or (hopeless and not self.strict):
                self._park(one)
                return
        else:
            one.resume(known)
        self._push(one)

    def delete(self, key: str) -> WorkloadInfo | None:
        """Remove a workload."""
        if self.is_preemptor(key):
            self._set_preemptor(None)
        self._leave(key)
        return self._active.pop(key, None) or self._parked.pop(key, None)

    def pop(self) -> WorkloadInfo | None:
        """Take the head for a cycle; None if there is nothing to try."""
        self._pops += 1
        if self._ordered_by != self.usage_version() or len(self._heap) > 2 * len(self._active) + 8:
            self._reorder()
        while self._heap:
            key, name = heapq.heappop(self._heap)
            one = self._active.get(name)
            # Entries of workloads that left, or changed, are stale.
            if one is not None and self._key(one) == key:
                self._leave(name)
                return self._active.pop(name)
        return None

    def pop_beside(
        self,
        head: WorkloadInfo,
        takes: Callable[[WorkloadInfo], frozenset[str]],
        most: frozenset[str],
    ) -> list[WorkloadInfo]:
        """Take those for the same cycle that may take nothing of what any before them may take.

        :param takes: returns the columns that a workload may take; none for one that nothing suits,
            which holds back all.
        :param most: all columns of the queue.
        """
        held = takes(head) or most
        found = []
        for one in [] if held >= most else self.in_order(self._active.values()):
            own = takes(one) or most
            if not own & held:
                self._leave(one.key)
                found.append(self._active.pop(one.key))
            held |= own
            if held >= most:
                break
        return found

    def requeue(self, one: WorkloadInfo, why: Requeue, reason: str, now: float) -> bool:
        """Put back a workload that a cycle did not admit; False if it is there already.

        :param reason: of its condition, for workloads that are parked with it.
        """
        if why in (Requeue.PENDING_PREEMPTION, Requeue.PENDING_MIGRATION):
            self._set_preemptor(_Preemptor(one.key, not self.strict))
        elif self.is_preemptor(one.key):
            self._set_preemptor(None)
        at_once = why is not Requeue.NAMESPACE_MISMATCH if self.strict else why in _AT_ONCE
        flushed = self._flushed_at >= self._pops
        if may_run_again(one.workload, now) and (at_once or flushed or _has_flavors_left(one)):
            parked = self._parked.get(one.key)
            if one.key in self._active:
                return False
            self._push(parked if parked is not None else one)
            return True
        if self.get(one.key) is not None:
            return False
        self._park(one)
        if self.settings.equivalence_hashing and one.equivalence is not None and why in _HOPELESS:
            self.park_equivalent(one.equivalence, reason or Reason.PENDING)
        return True

    def park_equivalent(self, equivalence: Hashable, reason: str) -> int:
        """Park all that are equivalent to a workload that cannot be admitted; return how many."""
        if self.strict:
            return 0
        self._hopeless[equivalence] = reason
        same = [one for one in self._active.values() if one.equivalence == equivalence]
        for one in same:
            self._parked[one.key] = self._active.pop(one.key)
        return len(same)

    def reason_of_equivalent(self, equivalence: Hashable) -> str | None:
        """Return why equivalent workloads were parked together."""
        return self._hopeless.get(equivalence)

    def flush(self, allowed: Callable[[WorkloadInfo], bool], now: float) -> int:
        """Try the parked workloads again; return how many.

        :param allowed: whether a workload's namespace may use the queue.
        """
        self._flushed_at = self._pops
        self._hopeless.clear()
        ready = [
            one
            for one in self._parked.values()
            if allowed(one) and may_run_again(one.workload, now)
        ]
        for one in ready:
            self._push(one)
        return len(ready)


def _has_flavors_left(one: WorkloadInfo) -> bool:
    return any(tried != -1 for by in one.last_tried or () for tried in by.values())


def _same_chances(old: KueueWorkload, new: KueueWorkload) -> bool:
    """Tell whether a change leaves a parked workload as it was."""

    def relevant(one: KueueWorkload) -> tuple[object, ...]:
        status = one.status
        boost = one.metadata.annotations.get(BOOST)
        kept: list[KueueCondition | None] = [condition(one, t) for t in ("Evicted", "Requeued")]
        gated = has_closed_gate(one)
        return (one.spec, boost, status.reclaimable_pods, status.requeue_state, gated, *kept)

    return relevant(old) == relevant(new)
