"""Admission: objects go in, each cycle decides who gets quota, who has to go, and who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy

import msgspec

from bayplan.api.kueue import KueueWorkload
from bayplan_plugins.queues.kueue.amounts import column
from bayplan_plugins.queues.kueue.conditions import (
    Reason,
    condition,
    evicted,
    finished,
    has_quota,
    is_true,
    pending,
    reserved,
    since,
    with_pods_ready,
)
from bayplan_plugins.queues.kueue.cycle import Cycle, Outcome
from bayplan_plugins.queues.kueue.entry import Entry, State
from bayplan_plugins.queues.kueue.flavor_assignment import Assignment, Mode
from bayplan_plugins.queues.kueue.flavor_search import FlavorSearch
from bayplan_plugins.queues.kueue.lifecycle import (
    after_checks,
    due_eviction,
    requeued,
    required_checks,
    with_checks,
    without_quota,
    without_reservation,
)
from bayplan_plugins.queues.kueue.pending import Requeue
from bayplan_plugins.queues.kueue.preemption import Preemptor
from bayplan_plugins.queues.kueue.settings import Settings
from bayplan_plugins.queues.kueue.slices import replaced_key, replacement_message
from bayplan_plugins.queues.kueue.snapshot import (
    Assumed,
    Placement,
    Snapshot,
    Waits,
    anywhere,
    never,
    unnoticed,
)
from bayplan_plugins.queues.kueue.store import BLOCKED, KueueObject, Store
from bayplan_plugins.queues.kueue.usage_over_time import counts_usage, pays_on_entry
from bayplan_plugins.queues.kueue.victims import (
    compared_priorities,
    preempted_message,
    preemption_message,
)
from bayplan_plugins.queues.kueue.workloads import (
    WorkloadInfo,
    beyond_limits,
    creation,
    local_queue_key,
)

__all__ = ["Admission", "CycleResult", "WorkloadEvent"]

_INVALID = "resources validation failed"
_FAILED_CHECKS = "The workload has failed admission checks"
_SLICE_GOES = "The workload slice that it replaces is being evicted"
_EVALUATED = "Workload is pending evaluation in the scheduling queue"
_WRONG_NAMESPACE = "workload namespace doesn't match ClusterQueue selector"


class WorkloadEvent(msgspec.Struct, frozen=True):
    """An event to be recorded; ``type`` is Normal or Warning."""

    workload: str
    type: str
    reason: str
    message: str


class CycleResult(msgspec.Struct):
    """What a cycle decided, or what became of workloads between two.

    :param changed: the workloads as they are written back, by ``namespace/name``.
    :param admitted: the keys of those that got quota.
    :param evicted: the keys of those that have to go.
    :param waiting: the keys of those that were tried and got none.
    """

    changed: dict[str, KueueWorkload] = msgspec.field(default_factory=dict)
    admitted: list[str] = msgspec.field(default_factory=list)
    evicted: list[str] = msgspec.field(default_factory=list)
    waiting: list[str] = msgspec.field(default_factory=list)
    events: list[WorkloadEvent] = msgspec.field(default_factory=list)
    outcome: Outcome = msgspec.field(default_factory=Outcome)


class Admission:
    """Kueue's admission over all ClusterQueues.

    What it decides counts at once; the caller writes the changed workloads, and sets them again
    when others change them. Quota of an evicted workload is free after :meth:`release`.

    :param placement: whether the pods of an assignment would really get nodes.
    :param assumed: called with each workload that a cycle admits.
    :param waits: whether a workload gets what it lacks without a preemption, if it waits.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        placement: Placement = anywhere,
        assumed: Assumed = unnoticed,
        waits: Waits = never,
    ) -> None:
        self._assumed = assumed
        self._waits = waits
        self.settings = settings if settings is not None else Settings()
        self.store = Store(self.settings)
        self._placement = placement
        self._cycles = 0

    def set(self, obj: KueueObject, now: float) -> None:
        """Add or replace an object.

        :param now: seconds since 1970.
        """
        self.store.set(obj, now)

    def delete(self, obj: KueueObject, now: float) -> None:
        """Remove an object."""
        self.store.delete(obj, now)

    def release(self, key: str, now: float) -> KueueWorkload | None:
        """Return an evicted workload without its quota, once its pods have ended."""
        workload = self.store.workloads.get(key)
        if workload is None or not has_quota(workload):
            return None
        waiting = without_quota(workload, now)
        # What waits for nothing else is in the queue again at once, and the others say for what.
        waiting = self._requeued(waiting, now) or waiting
        waiting = self._blocked(waiting, now) or waiting
        self.store.set(waiting, now)
        return waiting

    # Between cycles ----------------------------------------------------------------------

    def tick(self, now: float) -> CycleResult:
        """Change the workloads that time, checks or stopped queues change."""
        result = CycleResult()
        for workload in self.store.take_due(now):
            new = self._due(workload, now)
            if new is None:
                continue
            self._write(new, now, result)
            result.events += _events_of(workload, new, now)
            if is_true(new, "Evicted") and has_quota(new):
                result.evicted.append(new.key)
        self._sample(now)
        return result

    def next_change(self) -> float | None:
        """Return when time alone may change a workload, in seconds since 1970; None for never."""
        times = (self.store.next_change(), self._next_sample())
        return min((at for at in times if at is not None), default=None)

    def _next_sample(self) -> float | None:
        """Return when usage is sampled next, where any queue counts it; it decays meanwhile."""
        ledger, sharing = self.store.ledger, self.settings.usage_sharing
        counted = any(counts_usage(one, sharing) for one in self.store.cluster_queues.values())
        queues = self.store.local_queues
        return ledger.next_sample(queues) if ledger is not None and counted else None

    def await_checks(self, now: float) -> bool:
        """Note the admission checks that workloads with quota wait for; tell if any changed."""
        changed = False
        for name, queue in self.store.cluster_queues.items():
            asks = bool(queue.spec.admission_checks_strategy.admission_checks)
            for info in list(self.store.reserving.get(name, {}).values()):
                if not asks and not info.workload.status.admission_checks:
                    continue
                waiting = with_checks(info.workload, queue, now)
                if waiting is not None:
                    self.store.set(waiting, now)
                    changed = True
        return changed

    def note_pods(self, ready: Callable[[WorkloadInfo], bool], now: float) -> None:
        """Note which admitted workloads have their pods ready, where that matters.

        :param ready: tells whether all pods of a workload are ready or have succeeded.
        """
        if self.settings.pods_ready is None:
            return
        for reserving in list(self.store.reserving.values()):
            for info in list(reserving.values()):
                if is_true(info.workload, "Admitted") and not info.evicted:
                    noted = with_pods_ready(info.workload, ready(info), now)
                    if noted != info.workload:
                        self.store.set(noted, now)

    def _due(self, workload: KueueWorkload, now: float) -> KueueWorkload | None:
        admission = workload.status.admission
        if admission is None:
            return self._requeued(workload, now) or self._blocked(workload, now)
        queue = self.store.cluster_queues.get(admission.cluster_queue)
        if queue is None:
            return None
        local = self.store.local_queues.get(local_queue_key(workload))
        gone = due_eviction(workload, queue, local, self.settings.pods_ready, now)
        gone = gone or without_reservation(workload, queue, local, now)
        return gone if gone is not None else after_checks(workload, queue, now)

    def _requeued(self, workload: KueueWorkload, now: float) -> KueueWorkload | None:
        local = self.store.local_queues.get(local_queue_key(workload))
        name = local.spec.cluster_queue if local is not None else ""
        return requeued(workload, self.store.cluster_queues.get(name), local, now)

    def _blocked(self, workload: KueueWorkload, now: float) -> KueueWorkload | None:
        """Return a workload that says whether it may not be admitted; None if it does."""
        if is_true(workload, "Finished"):
            return None
        stated, found = condition(workload, "QuotaReserved"), self.store.blocker(workload)
        if found is None:
            if stated is None or not stated.message.endswith(BLOCKED):
                return None
            found = Reason.PENDING, _EVALUATED
        if stated is not None and (stated.reason, stated.message) == found:
            return None
        return pending(workload, *found, workload.status.resource_requests, now)

    def _sample(self, now: float) -> None:
        ledger = self.store.ledger
        if ledger is None:
            return
        usage: dict[str, dict[str, float]] = {key: {} for key in self.store.local_queues}
        for reserving in self.store.reserving.values():
            for info in reserving.values():
                total = usage.setdefault(local_queue_key(info.workload), {})
                for name, amount in info.total_requests().items():
                    total[name] = total.get(name, 0) + amount
        for key, amounts in usage.items():
            ledger.sample(key, amounts, now)
        ledger.keep(now)

    def would_fit(self, info: WorkloadInfo, gone: Iterable[str], now: float) -> bool:
        """Tell whether a workload would be admitted if others ended.

        :param gone: the keys of workloads that have quota; their pods are gone already.
        """
        snapshot = self.store.snapshot(now)
        held = {one.key: one for by in self.store.reserving.values() for one in by.values()}
        with snapshot.without([held[key] for key in gone if key in held]):
            return self._fitting(info, snapshot, now) is not None

    def would_fit_beside(
        self, info: WorkloadInfo, smaller: Iterable[tuple[WorkloadInfo, WorkloadInfo]], now: float
    ) -> bool:
        """Tell whether a workload would be admitted if others that have quota were smaller.

        Those of its own queue are preempted for it even if it borrows, those of other queues not.

        :param smaller: such workloads as they are, and as they would be; their pods are gone.
        """
        pairs = list(smaller)
        own = [pair for pair in pairs if pair[0].queue == info.queue]
        for some in (own, pairs):
            snapshot = self.store.snapshot(now)
            for old, new in some:
                snapshot.remove(old)
                snapshot.add_usage(new.queue, new.usage)
            found = self._fitting(info, snapshot, now) if some or not pairs else None
            if found is not None and (some is own or not found.borrow):
                return True
        return False

    def _fitting(self, info: WorkloadInfo, snapshot: Snapshot, now: float) -> Assignment | None:
        """Return how a workload would be admitted at once; None if it would not."""
        tried = copy(info)
        tried.last_tried = None
        preemptor = Preemptor(snapshot, self.settings, self._placement, now)
        found = FlavorSearch(tried, snapshot, self.settings, preemptor.way, None).assign()
        fits = found.mode is Mode.FIT and self._placement(tried, found, ()) is None
        return found if fits else None

    # Cycle -------------------------------------------------------------------------------

    def cycle(self, now: float) -> CycleResult:
        """Try the head of each ClusterQueue; empty when none waits."""
        store, result = self.store, CycleResult()
        snapshot = store.snapshot(now)
        entries: list[Entry] = []
        refused: list[Entry] = []
        for entry in self._heads(snapshot):
            (refused if self._refuse(entry) else entries).append(entry)
        ready = self._pods_ready()
        self._cycles += 1
        run = Cycle(
            snapshot,
            self.settings,
            self._placement,
            now,
            ready,
            self._assumed,
            self._waits,
            self._cycles,
        )
        result.outcome = outcome = run.run(entries)
        for victim, preemptor in outcome.evicted:
            self._evict(victim.workload, preemptor, victim.why, now, result)
        for sibling, entry in outcome.migrated:
            self._migrate(sibling, entry, now, result)
        # In the order in which they were placed, since they get their nodes in it.
        for entry in outcome.entries:
            if entry.state is State.ASSUMED:
                self._admit(entry, outcome, now, result)
        for old, entry in outcome.replaced:
            self._replace(old, entry, now, result)
        for entry in (*entries, *refused):
            if entry.state is not State.ASSUMED:
                self.requeue(entry, now, result)
        return result

    def _heads(self, snapshot: Snapshot) -> Iterator[Entry]:
        """Take the head of each queue, and those that a strict one does not hold back."""
        store = self.store
        for name in sorted(store.pending):
            if store.inactive_reason(name) is not None:
                continue
            head = store.pending[name].pop()
            if head is not None:
                yield Entry(head, is_preemptor=store.pending[name].is_preemptor(head.key))
            if head is not None and store.pending[name].strict:
                yield from map(Entry, self._beside(head, snapshot))

    def _beside(self, head: WorkloadInfo, snapshot: Snapshot) -> list[WorkloadInfo]:
        """Return the workloads of a strict queue that share no flavor's quota with any before."""
        groups = snapshot.queues[head.queue].spec.spec.resource_groups
        most = {
            column(flavor.name, resource)
            for group in groups
            for flavor in group.flavors
            for resource in group.covered_resources
        }

        def takes(info: WorkloadInfo) -> frozenset[str]:
            return FlavorSearch(info, snapshot, self.settings).columns()

        return self.store.pending[head.queue].pop_beside(head, takes, frozenset(most))

    def _refuse(self, entry: Entry) -> bool:
        """Tell whether an entry cannot be nominated, and note why."""
        states = {check.state for check in entry.workload.workload.status.admission_checks}
        if states & {"Retry", "Rejected"}:
            entry.message, entry.reason = _FAILED_CHECKS, Reason.PENDING
            return True
        replaced = self.store.workloads.get(replaced_key(entry.workload.workload) or "")
        if replaced is not None and _is_going(replaced):
            entry.message, entry.reason = _SLICE_GOES, Reason.PENDING
            return True
        if not self.store.namespace_fits(entry.workload):
            entry.message, entry.reason = _WRONG_NAMESPACE, Reason.MISCONFIGURED
            entry.requeue = Requeue.NAMESPACE_MISMATCH
            return True
        beyond = beyond_limits(entry.workload.workload)
        if beyond:
            entry.message, entry.reason = f"{_INVALID}: {beyond}", Reason.MISCONFIGURED
        return bool(beyond)

    def _pods_ready(self) -> bool:
        """Tell whether no admitted workload waits for its pods, where that blocks others."""
        settings = self.settings.pods_ready
        if settings is None or not settings.block_admission:
            return True
        return all(
            is_true(info.workload, "PodsReady") or is_true(info.workload, "Evicted")
            for reserving in self.store.reserving.values()
            for info in reserving.values()
        )

    # Results -----------------------------------------------------------------------------

    def _write(self, workload: KueueWorkload, now: float, result: CycleResult) -> None:
        self.store.set(workload, now)
        result.changed[workload.key] = workload

    def _admit(self, entry: Entry, outcome: Outcome, now: float, result: CycleResult) -> None:
        info, store = entry.workload, self.store
        old = info.workload
        admission = outcome.admitted[info.key]
        queue = store.cluster_queues[info.queue]
        with_flavors = reserved(old, admission, (), now)
        new = reserved(old, admission, required_checks(queue, with_flavors), now)
        if store.ledger is not None and pays_on_entry(info, queue, self.settings.usage_sharing):
            store.ledger.enter(local_queue_key(old), info.key, info.total_requests())
        self._write(new, now, result)
        result.admitted.append(info.key)
        wait = max(0, round(now - creation(old)))
        text = f"Quota reserved in ClusterQueue {info.queue}, wait time since queued was {wait}s"
        considered = entry.assignment.considered()
        text += f"; Flavors considered: {considered}" if considered else ""
        result.events.append(WorkloadEvent(info.key, "Normal", "QuotaReserved", text))
        if is_true(new, "Admitted"):
            text = _admitted_text(info.queue, 0)
            result.events.append(WorkloadEvent(info.key, "Normal", "Admitted", text))

    def _evict(
        self, victim: WorkloadInfo, preemptor: Entry, why: str, now: float, result: CycleResult
    ) -> None:
        forest = self.store.forest()
        if is_true(victim.workload, "Evicted"):
            return
        paths = [forest.path(forest.row_of[q]) for q in (preemptor.workload.queue, victim.queue)]
        text = preemption_message(preemptor.workload.workload, why, *paths)
        self._write(evicted(victim.workload, "Preempted", text, now, why), now, result)
        result.evicted.append(victim.key)
        both = preemptor.workload.workload, victim.workload
        priorities = compared_priorities(*both, self.settings)
        reported = preempted_message(victim)
        result.events += [
            WorkloadEvent(victim.key, "Normal", "EvictedDueToPreempted", text),
            WorkloadEvent(victim.key, "Normal", "Preempted", text + priorities),
            WorkloadEvent(
                preemptor.workload.key, "Normal", "PreemptedWorkload", reported + priorities
            ),
        ]

    def _migrate(
        self, sibling: WorkloadInfo, entry: Entry, now: float, result: CycleResult
    ) -> None:
        text = (
            f"Evicted to accommodate a workload (UID: {entry.workload.uid}) due to migration to "
            "more favorable resource flavor"
        )
        self._write(evicted(sibling.workload, "FlavorMigration", text, now), now, result)
        result.evicted.append(sibling.key)

    def _replace(self, old: WorkloadInfo, entry: Entry, now: float, result: CycleResult) -> None:
        reason, text = "WorkloadSliceReplaced", replacement_message(entry.workload.workload)
        self._write(finished(old.workload, reason, text, now), now, result)
        result.events.append(WorkloadEvent(old.key, "Normal", reason, text))

    def requeue(self, entry: Entry, now: float, result: CycleResult) -> None:
        """Put back an entry that was not admitted, and write why."""
        info = entry.workload
        if entry.state is not State.NOT_NOMINATED and entry.requeue is Requeue.GENERIC:
            entry.requeue = Requeue.FAILED_AFTER_NOMINATION
        queue = self.store.pending.get(info.queue)
        if queue is not None:
            queue.requeue(info, entry.requeue, entry.reason, now)
        result.waiting.append(info.key)
        if entry.state not in (State.NOT_NOMINATED, State.SKIPPED, State.GATED):
            return
        reason = entry.reason or "Pending"
        requests = info.resource_requests()
        gated = entry.state is State.GATED
        new = pending(info.workload, reason, entry.message, requests, now, gated)
        info.workload = new
        self.store.workloads[info.key] = new
        result.changed[info.key] = new
        result.events.append(WorkloadEvent(info.key, "Warning", reason, entry.message))


def _events_of(old: KueueWorkload, new: KueueWorkload, now: float) -> Iterator[WorkloadEvent]:
    """Yield what is to be reported of a workload that time, checks or stopped queues changed."""
    key, gone = new.key, condition(new, "Evicted")
    if gone is not None and gone.status == "True" and has_quota(new):
        if gone.reason == "DeactivatedDueToAdmissionCheck":
            text = gone.message.replace("The workload is deactivated", "Deactivated")
            yield WorkloadEvent(key, "Warning", "AdmissionCheckRejected", text)
        if gone.reason == "DeactivatedDueToMaximumExecutionTimeExceeded":
            text = (
                f"The maximum execution time ({new.spec.maximum_execution_time_seconds}s) exceeded"
            )
            yield WorkloadEvent(key, "Warning", "MaximumExecutionTimeExceeded", text)
        yield WorkloadEvent(key, "Normal", f"EvictedDueTo{gone.reason}", gone.message)
    elif is_true(new, "Admitted") and not is_true(old, "Admitted"):
        admission, at = new.status.admission, since(old, "QuotaReserved")
        queue = admission.cluster_queue if admission is not None else ""
        wait = max(0, round(now - at)) if at is not None else 0
        yield WorkloadEvent(key, "Normal", "Admitted", _admitted_text(queue, wait))


def _admitted_text(queue: str, wait: int) -> str:
    return f"Admitted by ClusterQueue {queue}, wait time since reservation was {wait}s"


def _is_going(workload: KueueWorkload) -> bool:
    """Tell whether a workload was evicted and still has its quota."""
    ended = is_true(workload, "Finished")
    return has_quota(workload) and is_true(workload, "Evicted") and not ended
