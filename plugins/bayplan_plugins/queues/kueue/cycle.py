"""One admission cycle: each queue's head is nominated, then they are admitted in order.

Each entry counts what those before it were given. An entry that preempts sets its quota aside until
its victims are gone (Kueue's pkg/scheduler/scheduler.go).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bayplan.api.kueue import QuotaAdmission
from bayplan_plugins.queues.kueue.conditions import Reason, has_closed_gate
from bayplan_plugins.queues.kueue.entry import Entry, State, to_reserve
from bayplan_plugins.queues.kueue.flavor_assignment import Assignment, Mode
from bayplan_plugins.queues.kueue.flavor_search import FlavorSearch
from bayplan_plugins.queues.kueue.order import FairOrder, classical_order
from bayplan_plugins.queues.kueue.pending import Requeue
from bayplan_plugins.queues.kueue.preemption import Preemptor, can_always_reclaim
from bayplan_plugins.queues.kueue.reduction import largest_counts, largest_in_order
from bayplan_plugins.queues.kueue.settings import Settings
from bayplan_plugins.queues.kueue.slices import replaced_slice
from bayplan_plugins.queues.kueue.snapshot import (
    Assumed,
    Awaited,
    Placement,
    Snapshot,
    Waits,
    never,
    unnoticed,
)
from bayplan_plugins.queues.kueue.variants import (
    flavor_rank,
    less_favorable,
    more_favorable,
    rank_of,
)
from bayplan_plugins.queues.kueue.victims import Victim, Why
from bayplan_plugins.queues.kueue.workloads import WorkloadInfo

__all__ = ["Cycle", "Outcome"]

_OVERLAP = "Workload has overlapping preemption targets with another workload"


class Outcome(msgspec.Struct):
    """What a cycle decided.

    :param entries: all that took part, in the order in which they were processed.
    :param admitted: quota to reserve, by workload.
    :param replaced: slices that end because an admitted one replaces them, with that one.
    :param evicted: victims and their preemptors, in order.
    :param skipped_preemptions: entries by queue that could not preempt in this cycle.
    :param recomputed: what came of seeking other victims, counted by queue.
    """

    entries: list[Entry] = msgspec.field(default_factory=list)
    admitted: dict[str, QuotaAdmission] = msgspec.field(default_factory=dict)
    replaced: list[tuple[WorkloadInfo, Entry]] = msgspec.field(default_factory=list)
    evicted: list[tuple[Victim, Entry]] = msgspec.field(default_factory=list)
    migrated: list[tuple[WorkloadInfo, Entry]] = msgspec.field(default_factory=list)
    skipped_preemptions: dict[str, int] = msgspec.field(default_factory=dict)
    recomputed: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)


class Cycle:
    """Nominates and admits entries in one snapshot.

    :param pods_ready: whether all admitted workloads have their pods ready, where that matters.
    :param now: seconds since 1970.
    :param assumed: called with each workload that is admitted.
    :param waits: whether a workload gets what it lacks without a preemption, if it waits.
    :param number: of the cycle, counted from the first.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        settings: Settings,
        placement: Placement,
        now: float,
        pods_ready: bool = True,
        assumed: Assumed = unnoticed,
        waits: Waits = never,
        number: int = 0,
    ) -> None:
        self._number = number
        self._assumed = assumed
        self._waits = waits
        self._snapshot = snapshot
        self._settings = settings
        self._placement = placement
        self._preemptor = Preemptor(snapshot, settings, self._refusal, now)
        self._pods_ready = pods_ready
        self._taken: dict[str, WorkloadInfo] = {}
        self._replaced: set[str] = set()
        self._awaited: list[Awaited] = []
        """Those that come once whom the entries so far preempt has left."""
        self._outcome = Outcome()

    def run(self, entries: Sequence[Entry]) -> Outcome:
        """Nominate entries and process them in order."""
        for entry in entries:
            self._nominate(entry)
        for entry in self._ordered(entries):
            self._outcome.entries.append(entry)
            self._process(entry)
        return self._outcome

    def _ordered(self, entries: Sequence[Entry]) -> Iterable[Entry]:
        if self._settings.fair_sharing:
            return FairOrder(self._snapshot, entries, self._settings)
        return classical_order(entries, self._settings)

    # Nomination --------------------------------------------------------------------------

    def _nominate(self, entry: Entry) -> None:
        workload = entry.workload
        generation = self._snapshot.queues[workload.queue].generation
        if workload.tried_in != generation and workload.tried_at < self._number - 1:
            # More may fit by now, so the search begins with the first flavor. While it is under
            # way it goes on all the same: where much changes it would never get to the last one.
            workload.last_tried = None
        entry.assign(*self._assignment(workload))
        workload.tried_in, workload.tried_at = generation, self._number

    def _assignment(self, workload: WorkloadInfo) -> tuple[Assignment, list[Victim]]:
        """Return the best assignment, with fewer pods if need be, and whom it preempts."""
        replaced = None
        if self._settings.elastic_slices:
            replaced = replaced_slice(workload, self._snapshot)
        first = [Victim(replaced, Why.REPLACED)] if replaced is not None else []
        search = FlavorSearch(
            workload, self._snapshot, self._settings, self._preemptor.way, replaced
        )
        whole = self._placed(workload, search.assign(), first)
        if whole.mode is Mode.FIT:
            return whole, first
        if whole.mode is Mode.PREEMPT and self._waits(workload):
            return whole, []
        found = self._victims(workload, whole)
        if found:
            return whole, first + found
        if self._settings.partial_admission and workload.can_shrink():
            # What grows loses its least important pods first.
            largest = largest_counts if replaced is None else largest_in_order
            smaller = largest(
                workload.workload.spec.pod_sets,
                lambda counts: self._accepted(workload, search.assign(counts), first),
            )
            if smaller is not None:
                return smaller[0], first + smaller[1]
        return whole, []

    def _accepted(
        self, workload: WorkloadInfo, assignment: Assignment, first: list[Victim]
    ) -> tuple[Assignment, list[Victim]] | None:
        """Return an assignment of fewer pods with its victims; None if it does not help."""
        assignment = self._placed(workload, assignment, first)
        if assignment.mode is Mode.FIT:
            return assignment, []
        found = self._victims(workload, assignment)
        return (assignment, found) if found else None

    def _victims(self, workload: WorkloadInfo, assignment: Assignment) -> list[Victim]:
        if assignment.mode is not Mode.PREEMPT:
            return []
        return self._preemptor.victims(workload, assignment)

    def _placed(
        self, workload: WorkloadInfo, assignment: Assignment, first: list[Victim]
    ) -> Assignment:
        """Require preemption where quota is there, but not the nodes."""
        if assignment.mode is not Mode.FIT:
            return assignment
        problem = self._refusal(workload, assignment, [victim.workload for victim in first])
        if problem is not None:
            assignment.set_mode(Mode.PREEMPT)
            assignment.unplaced = True
            for one in assignment.pod_sets:
                one.reasons.append(problem)
        return assignment

    # Processing --------------------------------------------------------------------------

    def _process(self, entry: Entry) -> None:
        """Admit an entry, or have its victims evicted, or say what it waits for."""
        if self._settings.concurrent_admission and more_favorable(entry.workload, self._snapshot):
            entry.skip("A more favorable variant is already admitted", Reason.PENDING)
            return
        usage, fits = self._refreshed(entry)
        mode = entry.assignment.mode
        if mode is Mode.NO_FIT:
            entry.requeue, entry.reason = Requeue.NO_FIT, entry.assignment.no_fit_reason
            return
        if mode is Mode.PREEMPT and self._cannot_preempt(entry):
            return
        queue = entry.workload.queue
        if self._overlaps(entry):
            entry.skip(_OVERLAP, Reason.WAITING_FOR_QUOTA, goes_on=True)
            self._count_skipped(queue)
            return
        if not fits:
            text = "Workload no longer fits after processing another workload"
            entry.skip(text, Reason.WAITING_FOR_QUOTA, goes_on=True)
            if mode is Mode.PREEMPT:
                self._count_skipped(queue)
            return
        self._taken |= {victim.workload.key: victim.workload for victim in entry.victims}
        self._replaced |= {v.workload.key for v in entry.victims if v.why is Why.REPLACED}
        self._snapshot.add_usage(queue, usage)
        if mode is Mode.DEFERRED_FIT:
            text = f"{_OVERLAP}, but will fit after these preemptions complete"
            entry.skip(text, Reason.WAITING_FOR_VICTIMS)
            self._awaited.append((entry.workload, entry.assignment))
        elif mode is Mode.PREEMPT:
            self._preempt(entry)
        else:
            self._admit(entry)

    def _cannot_preempt(self, entry: Entry) -> bool:
        """Note what an entry waits for that would have to preempt and cannot."""
        if not entry.victims:
            entry.requeue = Requeue.NO_CANDIDATES
            unplaced = entry.assignment.unplaced
            entry.reason = Reason.TOPOLOGY if unplaced else Reason.WAITING_FOR_QUOTA
            queue = self._snapshot.queues[entry.workload.queue]
            if not can_always_reclaim(queue):
                # Else workloads of lower priority would take what becomes free.
                self._snapshot.add_usage(queue.name, to_reserve(entry, self._snapshot, queue))
            return True
        settings = self._settings
        heeded = settings.concurrent_admission or settings.preemption_gates
        gated = heeded and has_closed_gate(entry.workload.workload)
        if gated:
            entry.skip("Workload requires preemption, but it's gated", Reason.GATED)
            entry.state, entry.requeue = State.GATED, Requeue.PREEMPTION_GATED
        return gated

    def _leaving(self) -> dict[str, WorkloadInfo]:
        """Return whom the entries so far preempt.

        A slice that is replaced stays: what replaces it counts with what it has more.
        """
        return {key: one for key, one in self._taken.items() if key not in self._replaced}

    def _overlaps(self, entry: Entry) -> bool:
        return any(victim.workload.key in self._taken for victim in entry.victims)

    def _count_skipped(self, queue: str) -> None:
        counts = self._outcome.skipped_preemptions
        counts[queue] = counts.get(queue, 0) + 1

    def _refreshed(self, entry: Entry) -> tuple[Mapping[str, float], bool]:
        """Return what an entry uses and whether it fits; victims taken by others are replaced."""
        if not (self._settings.recompute_overlaps and self._overlaps(entry)):
            return entry.usage(), self._fits(entry)
        entry.workload.last_tried = None
        entry.workload.nominated = entry.assignment.flavors()
        with self._snapshot.without(self._leaving().values()):
            assignment, victims = self._assignment(entry.workload)
        entry.workload.nominated = {}
        if assignment.mode is Mode.FIT:
            assignment.set_mode(Mode.DEFERRED_FIT)
        entry.assign(assignment, victims)
        self._count_recomputed(entry)
        return entry.usage(), self._fits(entry)

    def _count_recomputed(self, entry: Entry) -> None:
        outcome = "new_targets" if entry.victims else "skipped"
        if entry.assignment.mode is Mode.DEFERRED_FIT:
            outcome = "deferred_fit"
        counts = self._outcome.recomputed.setdefault(entry.workload.queue, {})
        counts[outcome] = counts.get(outcome, 0) + 1

    def _fits(self, entry: Entry) -> bool:
        """Tell whether quota and nodes are there once all victims so far are gone."""
        victims = {v.workload.key: v.workload for v in entry.victims if v.why is not Why.REPLACED}
        with self._snapshot.without((self._leaving() | victims).values()):
            return self._has_room(entry, victims.values())

    def _has_room(self, entry: Entry, gone: Iterable[WorkloadInfo]) -> bool:
        forest, row = self._snapshot.forest, self._snapshot.queues[entry.workload.queue].row
        for name, amount in entry.usage().items():
            if amount > forest.available(row, name):
                return False
        if entry.assignment.mode is Mode.NO_FIT:
            return True
        return self._refusal(entry.workload, entry.assignment, gone) is None

    def _refusal(
        self, workload: WorkloadInfo, assignment: Assignment, removed: Iterable[WorkloadInfo]
    ) -> str | None:
        """Return why a workload gets no nodes once victims are gone, and who preempts has come."""
        gone = {one.key: one for one in removed}
        leaving = self._leaving()
        if leaving.keys() - gone.keys() and assignment.mode is not Mode.FIT:
            # Its own victims mostly are enough; taking off those of all others takes longer.
            if self._placement(workload, assignment, list(gone.values())) is None:
                return None
        return self._placement(workload, assignment, list((leaving | gone).values()), self._awaited)

    def _preempt(self, entry: Entry) -> None:
        entry.reason = Reason.WAITING_FOR_VICTIMS
        victims = [victim for victim in entry.victims if victim.why is not Why.REPLACED]
        self._outcome.evicted += [(victim, entry) for victim in victims]
        entry.workload.last_tried = None
        if victims:
            entry.message += f". Pending the preemption of {len(victims)} workload(s)"
            entry.requeue = Requeue.PENDING_PREEMPTION
            self._awaited.append((entry.workload, entry.assignment))

    def _admit(self, entry: Entry) -> None:
        if not self._pods_ready:
            text = "waiting for all admitted workloads to be in PodsReady condition"
            entry.skip(text, Reason.WAITING_FOR_PODS)
            return
        if self._settings.concurrent_admission and self._migrates(entry):
            return
        entry.state = State.ASSUMED
        self._assumed(entry.workload, entry.assignment)
        key, queue = entry.workload.key, entry.workload.queue
        self._outcome.admitted[key] = QuotaAdmission(queue, entry.assignment.as_status())
        self._outcome.replaced += [
            (victim.workload, entry) for victim in entry.victims if victim.why is Why.REPLACED
        ]

    def _migrates(self, entry: Entry) -> bool:
        """Preempt a variant on a worse flavor; tell whether the entry waits for it."""
        sibling = less_favorable(entry.workload, self._snapshot)
        if sibling is None:
            return False
        queue = self._snapshot.queues[entry.workload.queue]
        policy = queue.spec.spec.concurrent_admission_policy
        constraints = policy.migration.constraints if policy is not None else None
        last = constraints.last_acceptable_flavor_name if constraints is not None else ""
        mine, worst = flavor_rank(entry.workload, queue), rank_of(queue, last)
        if mine is not None and worst is not None and mine > worst:
            entry.message = "Target flavor is below LastAcceptableFlavorName"
            entry.reason = Reason.PENDING
            return True
        self._outcome.migrated.append((sibling, entry))
        entry.workload.last_tried = None
        entry.reason, entry.requeue = Reason.WAITING_FOR_VICTIMS, Requeue.PENDING_MIGRATION
        entry.message += ". Pending the migration of 1 workload(s)"
        return True
