"""Kueue's policy: pods wait until their workload has quota of its ClusterQueue, and nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from bayplan import Handle, NodeView, Overdue, PodInfo, Reject, Unit
from bayplan.api import (
    ClusterQueue,
    Cohort,
    KueueWorkload,
    LocalQueue,
    Namespace,
    ResourceFlavor,
    Topology,
    WorkloadPriorityClass,
)
from bayplan.api.definition import same_definition
from bayplan.api.kueue import AdmissionCheck
from bayplan.api.queue import Amounts, Queue
from bayplan.cluster.protocol import Event, PatchStatus
from bayplan.dialects.queued_jobs import QUEUE_LABEL
from bayplan.naming import counted
from bayplan.queues.ledger import Ledger, PodRules
from bayplan.queues.report import PendingJob
from bayplan.queues.tree import AmountRows
from bayplan.queues.workload_owners import is_lone
from bayplan.snapshot import Snapshot
from bayplan_plugins.queues.kueue.admission import Admission
from bayplan_plugins.queues.kueue.amounts import column
from bayplan_plugins.queues.kueue.args import KueueArgs
from bayplan_plugins.queues.kueue.conditions import (
    condition,
    evicted,
    has_quota,
    is_true,
    since,
)
from bayplan_plugins.queues.kueue.counts import AdmissionCounts
from bayplan_plugins.queues.kueue.dry_run import DryRun
from bayplan_plugins.queues.kueue.finalizers import Finalizers
from bayplan_plugins.queues.kueue.gates import is_gated, mark, open_gate
from bayplan_plugins.queues.kueue.handles import Handles
from bayplan_plugins.queues.kueue.injection import queue_labels, topology_marks, updates_of
from bayplan_plugins.queues.kueue.job_workloads import JobWorkloads
from bayplan_plugins.queues.kueue.job_writes import JobWrites, taking_over
from bayplan_plugins.queues.kueue.lone_workloads import with_admission
from bayplan_plugins.queues.kueue.managed_jobs import ManagedJobs
from bayplan_plugins.queues.kueue.manager import KueueManager
from bayplan_plugins.queues.kueue.node_failures import NodeFailures
from bayplan_plugins.queues.kueue.pending_report import PendingReport
from bayplan_plugins.queues.kueue.pod_groups import is_ready, marks_of
from bayplan_plugins.queues.kueue.pod_set_info import ConflictError, PodSetInfo
from bayplan_plugins.queues.kueue.pod_workloads import PodWorkloads
from bayplan_plugins.queues.kueue.provisioning_checks import ProvisioningChecks
from bayplan_plugins.queues.kueue.quotas import queues_of
from bayplan_plugins.queues.kueue.status import KueueStatuses
from bayplan_plugins.queues.kueue.store import KueueObject
from bayplan_plugins.queues.kueue.topology_assignment import TopologyAssignments
from bayplan_plugins.queues.kueue.workloads import WorkloadInfo
from bayplan_plugins.queues.kueue.written import Written
from bayplan_plugins.queues.policy import (
    AdmitsJobs,
    AssignsNodes,
    EvictionCandidates,
    EvictionPlan,
    KeepsOffNodes,
    LendsToElasticJobs,
    MayLeaveAdmission,
    QuotaRefusal,
    RequeuesJobs,
    ReservesQuota,
)

__all__ = ["KueueArgs", "KueuePolicy"]

_LOCAL = "LocalQueue "
_NO_QUEUE = "(none)"
"""The queue of what is held because it names none; no object has such a name."""
_NAMELESS = f"waiting for a queue: it names none by the label {QUEUE_LABEL}"
_BY_PROFILE = "the profile leaves the ClusterQueues to Kueue's manager (kueue: null)"
_LEAVES = "node(s) had taint(s) that its pods tolerate for a time only"
_TICK_SECONDS = 1.0
_MOST_ROUNDS = 8
"""Rounds of cycles in one go, each of which lets victims go that have no pods on nodes."""


class KueuePolicy(
    AdmitsJobs,
    ReservesQuota,
    MayLeaveAdmission,
    RequeuesJobs,
    LendsToElasticJobs,
    AssignsNodes,
    KeepsOffNodes,
):
    """Admission by quota, in which nothing is admitted that would get no nodes.

    It admits pods, pod groups and suspended jobs. Where Kueue's own manager is at work, this policy
    leaves it to that, and only shows its queues.

    :param args: None leaves admission to Kueue whatever happens.
    """

    name = "cluster-queue"
    system = "kueue"
    actions: Sequence[str] = ()

    def __init__(self, args: KueueArgs | None, handle: Handle) -> None:
        self._handle = handle
        self._handles = Handles(handle)
        self._on_turn: list[Callable[[], None]] = []
        self._never = args is None
        settings = (args or KueueArgs()).settings()
        self._managed = ManagedJobs(handle.snapshot, settings.managed)
        self._jobs = JobWorkloads(handle, self._managed, self._turned)
        self._manager = KueueManager(handle, self._jobs)
        self._pods = PodWorkloads(handle, self._jobs, self._managed)
        self._written = Written(handle, self._pods.changed)
        self.counts = AdmissionCounts(handle)
        self._writes = JobWrites(handle, self._jobs, self._pods, self._written, self.counts)
        self._checks = ProvisioningChecks(handle, self._jobs, self._pods)
        self._dry_run = DryRun(
            self._handles, self._pods, self._checks, lambda: self._admission.store
        )
        self._statuses = KueueStatuses()
        self._topologies = TopologyAssignments(handle, self._pods)
        self._failures = NodeFailures(handle, self._pods, self._dry_run, self._topologies)
        self._finalizers = Finalizers(handle, self._pods)
        self._admission = Admission(settings, self._dry_run.fits, self._dry_run.assume, self._waits)
        self._report = PendingReport(handle, self._admission, self._pods, self._jobs, self._dry_run)
        self._any_fits: tuple[int, bool] = (-1, False)
        self._safe_until: float | None = None
        """When the next workload may be preempted that is too new now, in seconds since 1970."""
        self._redefined = True
        self._had_queues = False
        self._in_charge = False
        """Whether this policy admitted when it last looked."""
        self._ticked_at = 0.0
        self._next_change: float | None = None
        self._rests_until = -math.inf
        self._admitted = 0
        self._growth: dict[str, PodInfo] = {}
        """Pods on nodes in a trial by which elastic jobs would grow."""
        self._offered: list[PodInfo] | None = None
        """What elastic jobs would give up, once that was asked for in the present cycles."""
        self._places: dict[str, int] = {}
        """The order in which workloads were admitted; they get their nodes in the same one."""
        self._follow(handle.snapshot)
        rules = PodRules(
            queue_of=self.queue_of,
            amounts=self._amounts,
            is_fixed=lambda pod: False,
            counts=lambda pod: True,
        )
        kinds = (ClusterQueue, Cohort, LocalQueue)
        self.ledger = Ledger(handle.snapshot, _define, kinds, (), rules)

    @property
    def handle(self) -> Handle:
        """The handle of the profile that lets it act."""
        return self._handle

    def join(self, handle: Handle) -> None:
        """Try the pods of another profile by the plugins of that one."""
        self._handles.add(handle)

    def _follow(self, snapshot: Snapshot) -> None:
        snapshot.on_object(ClusterQueue, self._object_changed)
        snapshot.on_object(Cohort, self._object_changed)
        snapshot.on_object(LocalQueue, self._object_changed)
        snapshot.on_object(ResourceFlavor, self._object_changed)
        snapshot.on_object(AdmissionCheck, self._object_changed)
        snapshot.on_object(Topology, self._object_changed)
        snapshot.on_object(Namespace, self._object_changed)
        snapshot.on_object(WorkloadPriorityClass, lambda old, new: self._pods.all_changed())
        snapshot.on_object(KueueWorkload, self._workload_changed)
        snapshot.on_pod(self._pod_moved)

    def _object_changed(self, old: KueueObject | None, new: KueueObject | None) -> None:
        now = self._handle.unix_time
        if new is not None:
            self._had_queues |= isinstance(new, ClusterQueue)
            self._admission.set(new, now)
        elif old is not None:
            self._admission.delete(old, now)
            if isinstance(old, ClusterQueue):
                self.counts.forget(old.metadata.name)
        if isinstance(new or old, Namespace):
            # What waits there is tried again; which jobs are managed there is followed elsewhere.
            return
        # The status of a check says whether its queues are active.
        one = new if new is not None else old
        if isinstance(new, AdmissionCheck) or new is None or not same_definition(old, new):
            self._redefined = True
            assert one is not None, "a change is of something"
            self._pods.queues_changed(self._admission.store.workloads_of(one))

    def _workload_changed(self, old: KueueWorkload | None, new: KueueWorkload | None) -> None:
        one = new if new is not None else old
        assert one is not None, "a change is of something"
        if not self._in_charge or self.left_to:
            # A replica that stands by tells what waits, too.
            self._mirror(old, new)
        elif self._stands_alone(one):
            stored = self._admission.store.workloads.get(one.key)
            self._mirror(old, new if new is None else with_admission(stored, old, new))
            self._pods.changed(one.key)
        if new is None and old is not None:
            # Whoever deleted it gets it again, as it was.
            self._written.forget(old.key)

    def _pod_moved(self, pod: PodInfo, node: str, placed: bool) -> None:
        if placed and self._in_charge:
            # In a trial, too: those that it leaves on their nodes are placed in it.
            self._topologies.moved(pod)
        if not self._handle.snapshot.in_trial:
            if not placed:
                self._any_fits = (self._any_fits[0], True)
        elif not placed:
            self._growth.pop(pod.key, None)
        elif not self._dry_run.is_running and self._pods.would_grow(pod):
            self._growth[pod.key] = pod

    # Queues ------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether there is anything to decide, and Kueue's manager is not at work."""
        return self.has_queues and not self.left_to

    @property
    def has_queues(self) -> bool:
        """Whether the cluster has had any ClusterQueue, a job waits for one, or all are held.

        Jobs do not run without quota for as long as the last queue is being replaced.
        """
        held = self._managed.without_queue and not self._never
        return held or self._had_queues or self._jobs.any_waited

    @property
    def left_to(self) -> str:
        """Who admits instead, in words; "" where this policy does."""
        return _BY_PROFILE if self._never else self._manager.at_work

    def look(self) -> bool:
        """Look whether Kueue's manager is at work; tell whether that has changed."""
        if self._never:
            return False
        if not self.left_to:
            # Flavors go after the last queue.
            self._finalizers.release(self._admission.store)
        begins = not self._in_charge and self.active
        if begins:
            for pod, _ in self._handle.snapshot.placed.values():
                self._topologies.moved(pod)
        self._in_charge = self.active
        if self._in_charge:
            workloads = self._handle.snapshot.objects(KueueWorkload)
            for key in list(self._manager.foreign):
                self._written.once(key, "take over", "", taking_over(workloads[key]))
        if not self.has_queues:
            return False
        reported = self._manager.look(self._report.any_would_fit)
        if reported is None:
            if begins:
                self._begin_again()
            return False
        self._turned()
        self._begin_again()
        reason = "LeftToKueue" if self.left_to else "TakenOverFromKueue"
        for name in self._handle.snapshot.objects(ClusterQueue):
            self._handle.submit(Event(name, "Normal", reason, reported, about="ClusterQueue"))
        return True

    def on_turn(self, listener: Callable[[], None]) -> None:
        """Tell a listener when a first job waits, and when a look has changed who decides."""
        self._on_turn.append(listener)

    def _turned(self) -> None:
        for listener in self._on_turn:
            listener()

    def _begin_again(self) -> None:
        """Forget what is known of Workloads: they are taken from Kueue's manager, or left to it."""
        now = self._handle.unix_time
        for known in list(self._admission.store.workloads.values()):
            self._admission.delete(known, now)
        workloads = self._handle.snapshot.objects(KueueWorkload)
        left = bool(self.left_to)
        for one in workloads.values():
            if left or self._stands_alone(one):
                self._mirror(None, one)
        self._redefined = True
        self._pods.all_changed()

    def _mirror(self, old: KueueWorkload | None, new: KueueWorkload | None) -> None:
        """Take a Workload as it is."""
        now = self._handle.unix_time
        if new is not None and new.metadata.deletion_timestamp is None:
            self._admission.set(new, now)
        elif (one := new or old) is not None:
            self._admission.delete(one, now)

    def _stands_alone(self, workload: KueueWorkload) -> bool:
        """Tell whether no job, pod or group has a Workload."""
        key = workload.key
        return is_lone(workload) and self._jobs.job_of(key) is None and not self._pods.owns(key)

    def queue_of(self, pod: PodInfo) -> str | None:
        """Return the ClusterQueue of the LocalQueue that a pod's label, or its job's, names."""
        name = self._pods.queue_of(pod)
        if not name:
            return _NO_QUEUE if self._pods.is_held(pod) else None
        local = self._handle.snapshot.objects(LocalQueue).get(f"{pod.namespace}/{name}")
        return local.spec.cluster_queue if local is not None else f"{_LOCAL}{name}"

    def gate(self, pod: PodInfo, queue: str) -> str | None:
        """Hold back pods until their workload is admitted."""
        if queue == _NO_QUEUE:
            return _NAMELESS
        if queue.startswith(_LOCAL):
            return f'waiting for LocalQueue "{queue.removeprefix(_LOCAL)}", which does not exist'
        if queue not in self._admission.store.cluster_queues:
            return f'waiting for ClusterQueue "{queue}", which does not exist'
        key = self._pods.key_of(pod)
        if self._dry_run.flavors_of(key) is not None:
            return None
        found = self._admission.store.workloads.get(key)
        if found is not None and is_true(found, "Admitted") and not is_true(found, "Evicted"):
            if self._is_unwritten(found):
                return _waits_for(queue, "its admission is being written")
            if self._dry_run.runs_elsewhere(key):
                return f'it runs in the cluster "{found.status.cluster_name}"'
            return self._surplus(pod, found)
        return _waits_for(queue, self._why(pod, found, queue))

    def _is_unwritten(self, found: KueueWorkload) -> bool:
        """Tell whether the pods of a workload wait until the API server has its admission.

        A job that was not created suspended has pods by then, and others need no gate of Kueue's.
        Where nobody writes it, or may do so, they run; in a trial they take their nodes.
        """
        if self._dry_run.is_running or not self._handle.writes or self._is_stored(found):
            return False
        return not self._written.is_refused(found.key, ("create", "status"))

    def _surplus(self, pod: PodInfo, found: KueueWorkload) -> str | None:
        """Return why a pod beyond those that were admitted waits; None for one that was."""
        if any(one.metadata.name == pod.name for one in self._pods.excess(found)):
            return "its group has all its pods without it"
        admission = found.status.admission
        sets = admission.pod_set_assignments if admission is not None else ()
        most = sum(one.count or 0 for one in sets)
        members = self._pods.staying(found.key)
        if len(members) <= most:
            return None
        within = self._pods.within(found.key, {one.name: one.count or 0 for one in sets})
        if pod.key in {one.key for one in within} or self._jobs.is_of_next_cluster(pod):
            return None
        for queue, pending in self._admission.store.pending.items():
            for key in self._jobs.slices_of(self._jobs.home_of(found.key)):
                info = pending.get(key)
                if info is not None:
                    return _waits_for(queue, self._report.reason(info, queue))
        return f"its workload was admitted with {counted(most, 'pod')}, and has {len(members)}"

    def _why(self, pod: PodInfo, found: KueueWorkload | None, queue: str) -> str:
        stopped = self._admission.store.inactive_reason(queue)
        if stopped is not None:
            return stopped[1].rstrip(".")
        missing = self._pods.missing(pod)
        if missing is not None:
            return missing
        if found is not None and has_quota(found):
            evicted = is_true(found, "Evicted")
            return "it is being evicted" if evicted else "its admission checks are not ready"
        info = self._admission.store.pending[queue].get(self._pods.key_of(pod))
        if info is not None:
            return self._report.reason(info, queue)
        stated = condition(found, "QuotaReserved") if found is not None else None
        return stated.message if stated is not None else "its turn has not come"

    # Nodes -------------------------------------------------------------------------------

    def node_kind(self, pod: PodInfo) -> Hashable:
        """Return the taints that a pod of a topology tolerates for a time only; None for none."""
        return self._failures.leaving(pod) or None

    def refused_nodes(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes that a pod of a topology would have to leave again."""
        leaving = self._failures.leaving(pod)
        refused = [taints in leaving for taints in nodes.taint_sets]
        yield Reject(np.array(refused, dtype=np.bool_)[nodes.taint_codes], _LEAVES)

    # Admission ---------------------------------------------------------------------------

    def admit(self) -> None:
        """Run cycles of admission until nobody's chances change any more."""
        now = self._handle.unix_time
        store = self._admission.store
        before = dict(store.workloads)
        changed = self._pods.refresh(self._admission, now)
        self._tick(now)
        self._flush(now)
        self._failures.replace(self._admission, now)
        if self._rests_until <= now:
            changed += self._rounds(now)
        self._topologies.follow(store, now)
        awaited = self._admission.await_checks(now)
        followed = self._checks.follow(store, now) or awaited
        if followed:
            self._writes.tell(self._admission.tick(now).events)
        found = (key for key, one in store.workloads.items() if one is not before.get(key))
        altered = dict.fromkeys((*changed, *found))
        for key in altered:
            units = {pod.gang or pod.key: pod for pod in self._pods.without_node(key)}
            for pod in units.values():
                self._handle.recheck_gates(pod)
            self._open_gates(key)
            if (one := store.workloads.get(key)) is not None:
                self._writes.delete_excess(one)
            self._checks.forget(key, store.workloads.get(key))
        self._finalizers.look_again(altered)
        self._writes.write(store, altered)
        self._writes.stop_refused()
        self._writes.adopt_prebuilt()
        self._writes.name_default_queues(store)
        # What checks have decided is carried out in another round.
        self._next_change = now if followed else self._time_of_next_change(now)

    def _rounds(self, now: float) -> list[str]:
        """Run rounds of cycles until nobody goes without pods; return whose pods changed."""
        changed: list[str] = []
        for _ in range(_MOST_ROUNDS):
            self._cycles(now)
            if not self._release(now):
                return changed
            changed += self._pods.refresh(self._admission, now)
        # With fair sharing a circle of workloads may preempt each other for ever, as with Kueue.
        self._rests_until = now + _TICK_SECONDS
        return changed

    def _open_gates(self, key: str) -> None:
        """Open Kueue's gate of a workload's pods once the API server has its admission.

        So a manager, or another process, that comes next knows why they run.
        """
        found = self._admission.store.workloads.get(key)
        if found is None:
            self._written.forget(key)
        elif is_true(found, "Admitted") and not is_true(found, "Evicted"):
            if self._pods.owns(key) and not self._is_stored(found):
                return
            if self._dry_run.runs_elsewhere(key):
                # Its pods here stand for those of another cluster.
                return
            for pod in self._pods.members(key):
                if self._surplus(pod, found) is None:
                    self._let_go(pod, found)
        elif labels := self._pods.labels_of_part(key):
            for pod in self._pods.members(key):
                mark(self._written, key, pod, PodSetInfo(labels=labels))

    def _is_stored(self, workload: KueueWorkload) -> bool:
        """Tell whether the API server has a workload's admission."""
        seen = self._handle.snapshot.objects(KueueWorkload).get(workload.key)
        same = seen is not None and seen.status.admission == workload.status.admission
        return same and seen is not None and is_true(seen, "Admitted")

    def _let_go(self, pod: PodInfo, workload: KueueWorkload) -> None:
        """Let a pod run: with what its checks ask for, and the marks of one that was queued."""
        placed = pod.key in self._handle.snapshot.placed
        flavors = self._dry_run.flavors_for(pod)
        asked = PodSetInfo() if placed else self._asked_of(pod, workload)
        if not self._pods.is_of_job(workload.key):
            labels, marks = marks_of(pod, self._pods.pod_set_of(pod))
            if labels and not placed:
                labels |= queue_labels(self._pods.pod_set_of(pod), workload)
            labels |= self._pods.labels_of_part(workload.key)
            marks |= topology_marks(workload, flavors)
            asked = replace(asked.with_labels(labels), annotations={**asked.annotations, **marks})
        if is_gated(pod):
            if open_gate(self._written, workload.key, pod, flavors, asked):
                self.counts.opened(pod, workload, pod.gang is not None)
        else:
            mark(self._written, workload.key, pod, asked)

    def _asked_of(self, pod: PodInfo, workload: KueueWorkload) -> PodSetInfo:
        """Return what the admission checks of a workload ask for in one of its pods.

        A job's templates have it already.
        """
        asked = PodSetInfo()
        if self._pods.is_of_job(workload.key):
            return asked
        try:
            for update in updates_of(workload, self._pods.pod_set_of(pod)):
                asked = asked.merged(update)
        except ConflictError as exc:
            event = Event(pod.key, "Warning", "FailedToStart", str(exc))
            self._written.once(workload.key, f"event {pod.key}", str(exc), event)
        return asked

    def _tick(self, now: float) -> None:
        """Apply what time, admission checks and pods that get ready change."""
        due = self._next_change is not None and self._next_change <= now
        late = now >= self._ticked_at + _TICK_SECONDS
        if due or late or self._redefined or self._jobs.reported:
            self._redefined, self._jobs.reported, self._ticked_at = False, False, now
            self._admission.note_pods(self._ready, now)
            self._writes.tell(self._admission.tick(now).events)

    def _time_of_next_change(self, now: float) -> float | None:
        """Return when to look again though nothing happens, in seconds since 1970."""
        ends = (self._pods.end_of_holding(one.key) for one in self._holders() if one.evicted)
        safe = (one.safe_until for one in self._holders())
        self._safe_until = min((at for at in safe if at > now), default=None)
        times = [self._admission.next_change(), self._safe_until]
        times += [self._rests_until] if self._rests_until > now else []
        times += [at for at in ends if at is None or at > now]
        found = min((at for at in times if at is not None), default=None)
        if self._admission.settings.pods_ready is not None and any(
            not is_true(one.workload, "PodsReady") for one in self._holders()
        ):
            # No event tells of a pod that has become ready.
            soon = now + _TICK_SECONDS
            return soon if found is None else min(soon, found)
        return found

    def _ready(self, one: WorkloadInfo) -> bool:
        job = self._jobs.job_of(one.key)
        wanted = sum(pod_set.count for pod_set in one.pod_sets)
        if job is not None:
            return job.state.ready >= wanted
        return sum(is_ready(pod.pod) for pod in self._pods.members(one.key)) >= wanted

    def _flush(self, now: float) -> None:
        """Try all again that wait, if nodes changed, any pod left one, or a workload ran enough."""
        version = self._handle.snapshot.nodes.node_version
        due = self._safe_until is not None and self._safe_until <= now
        if due or self._any_fits != (version, False):
            self._any_fits = (version, False)
            for queue in self._admission.store.cluster_queues:
                self._admission.store.flush(queue, now)

    def _release(self, now: float) -> bool:
        """Give back the quota of evicted workloads without pods on nodes; tell if any did."""
        released = False
        for one in list(self._holders()):
            if one.evicted and self._has_stopped(one):
                released |= self._admission.release(one.key, now) is not None
                # What it waits with is its job's size by now, or it has no pods to wait for.
                self._pods.changed(one.key)
        return released

    def _has_stopped(self, one: WorkloadInfo) -> bool:
        """Tell whether an evicted workload has no pods on nodes, and a job is suspended again."""
        if self._pods.holding(one.key, self._handle.unix_time):
            return False
        return self._writes.has_stopped(one.key, one.workload)

    def _holders(self) -> Iterator[WorkloadInfo]:
        """Yield the workloads that have quota."""
        for holders in self._admission.store.reserving.values():
            yield from holders.values()

    def _cycles(self, now: float) -> None:
        store = self._admission.store
        if not any(queue.waits for queue in store.pending.values()):
            return
        tried: set[str] = set()
        self._offered = None
        with self._dry_run.running(self._without_nodes()):
            while True:
                self.counts.begin()
                result = self._admission.cycle(now)
                self.counts.ended(result)
                self._writes.tell(result.events)
                for old, entry in result.outcome.replaced:
                    self._jobs.replaced(old.key, entry.workload.key)
                for key in result.admitted:
                    self._admitted += 1
                    self._places[key] = self._admitted
                    self._topologies.plan(key, self._dry_run.nodes_of(key), store, now)
                if result.admitted or result.evicted:
                    tried.clear()
                elif tried.issuperset(result.waiting):
                    return
                else:
                    tried |= set(result.waiting)

    def _waits(self, one: WorkloadInfo) -> bool:
        """Tell whether elastic jobs will give up what a workload would otherwise preempt for."""
        if self._offered is None:
            placed = self._handle.snapshot.placed
            self._offered = [pod for pod in self._handles.may_give_up() if pod.key in placed]
        return bool(self._offered) and self._report.needs_no_victims(one, self._offered)

    def _without_nodes(self) -> Iterator[str]:
        """Yield the workloads that are admitted, and have pods without nodes, in their order."""
        holders = {one.key: one for one in self._holders()}
        self._places = {key: place for key, place in self._places.items() if key in holders}
        for key, one in sorted(holders.items(), key=lambda pair: self._places.get(pair[0], 0)):
            if not one.evicted and (self._pods.is_of_job(key) or self._pods.without_node(key)):
                yield key

    def node_labels(self, pod: PodInfo) -> Mapping[str, str]:
        """Return the labels of the nodes that a pod may use, by the flavors assigned to it."""
        if self._pods.queue_of(pod) is None:
            return {}
        labels: dict[str, str] = {}
        for flavor in self._flavors(pod).values():
            found = self._admission.store.flavors.get(flavor)
            labels |= found.spec.node_labels if found is not None else {}
        return labels

    def _flavors(self, pod: PodInfo) -> Mapping[str, str]:
        """Return the flavors of a pod's resources; none before its workload has quota."""
        key, pod_set = self._pods.key_of(pod), self._pods.pod_set_of(pod)
        tried = self._dry_run.flavors_of(key)
        if tried is not None:
            return tried.get(pod_set, {})
        found = self._admission.store.workloads.get(key)
        if found is None or found.status.admission is None:
            return {}
        sets = found.status.admission.pod_set_assignments
        return next((one.flavors for one in sets if one.name == pod_set), {})

    def _amounts(self, pod: PodInfo) -> Amounts:
        """Return what a pod takes of its queue; before it has flavors, of the first ones."""
        flavors = self._flavors(pod) or self._first_flavors(pod)
        asked = {**self._admission.settings.charged.of(pod.requests), "pods": 1}
        return {column(flavors[r], r): amount for r, amount in asked.items() if r in flavors}

    def _first_flavors(self, pod: PodInfo) -> Mapping[str, str]:
        queue = self._admission.store.cluster_queues.get(self.queue_of(pod) or "")
        groups = queue.spec.resource_groups if queue is not None else ()
        return {
            resource: group.flavors[0].name
            for group in groups
            if group.flavors
            for resource in group.covered_resources
        }

    # Order and limits --------------------------------------------------------------------

    def order(self, unit: Unit, added: float) -> tuple[float, ...]:
        """Order by when quota was reserved, as admission tried whether they fit; then by age."""
        key = self._pods.key_of(unit.pods[0])
        found = self._admission.store.workloads.get(key)
        at = since(found, "QuotaReserved") if found is not None else None
        return (at if at is not None else float("inf"), self._places.get(key, 0), added)

    def next_queue(self, heads: Mapping[str, Unit], action: str) -> str | None:
        """Return the queue whose first unit has quota for the longest."""
        return min(heads, key=lambda name: self.order(heads[name], 0.0), default=None)

    def turn(self, unit: Unit) -> Sequence[PodInfo] | None:
        """Place all pods: a workload is admitted as a whole."""
        return None

    def refusal(self, unit: Unit) -> str | None:
        """Return why a unit is not admitted; the gate says it, too."""
        queue = self.queue_of(unit.pods[0])
        return self.gate(unit.pods[0], queue) if queue is not None else None

    def overrun(self, pod: PodInfo) -> QuotaRefusal | str | None:
        """Return why a job may not grow by a pod; quota of other pods was reserved before."""
        queue = self.queue_of(pod)
        if pod.key not in self._growth or queue is None:
            return None
        others = [one for key, one in self._growth.items() if key != pod.key]
        added = [(self.queue_of(one) or "", self._amounts(one)) for one in others]
        return self._report.growth_refusal(queue, self._amounts(pod), added)

    def fair(self) -> AmountRows:
        """Return what each queue may have now: what is reserved, and what it could yet reserve."""
        tree, forest = self.ledger.tree, self._admission.store.forest()
        found = np.zeros(tree.deserved.shape)
        for name, row in forest.row_of.items():
            for resource, index in tree.column_of.items():
                if name in tree.row_of:
                    free = forest.available(row, resource)
                    most = forest.used[row].get(resource, 0.0) + free
                    found[tree.row_of[name], index] = most
        return found

    def reserved(self) -> AmountRows:
        """Return what the admitted workloads of each queue hold of its quota."""
        tree = self.ledger.tree
        found = np.zeros(tree.deserved.shape)
        for one in self._holders():
            rows = tree.path(tree.row_of[one.queue]) if one.queue in tree.row_of else ()
            for resource, amount in one.usage.items():
                if resource in tree.column_of:
                    found[list(rows), tree.column_of[resource]] += amount
        return found

    # The line for people -----------------------------------------------------------------

    def units_of_job(self, kind: str, key: str) -> Sequence[Unit]:
        """Return the pods that a suspended job would have, if it waits for a queue."""
        return self._report.units_of_job(kind, key)

    def pending_jobs(self, queue: str) -> Sequence[PendingJob]:
        """Return the workloads that wait for a ClusterQueue's quota."""
        return self._report.jobs(queue)

    def pending_name(self, pod: PodInfo) -> str:
        """Return what a pod's workload is called in the line."""
        return self._report.name_of(pod)

    def admitted_without(self, pods: Sequence[PodInfo], job: str) -> str | None:
        """Return the first job that waits and would be admitted without some pods."""
        if not any(map(len, self._admission.store.pending.values())):
            return None
        return self._report.admitted_without(pods, job, self._without_nodes()) or None

    def faults(self) -> Mapping[str, str]:
        """Return why ClusterQueues are inactive that nobody has stopped."""
        store = self._admission.store
        found = {
            name: [one.text for one in store.faults(name) if not one.is_stop]
            for name in store.cluster_queues
        }
        return {name: ", ".join(texts) for name, texts in found.items() if texts}

    def job_counts(self) -> Mapping[str, tuple[int, int]]:
        """Return how many workloads wait for each ClusterQueue, and how many have its quota."""
        return self._report.counts()

    def shortfall(self, unit: Unit) -> QuotaRefusal | None:
        """Return what of the queue's quota is missing most for a workload."""
        return self._report.shortfall(unit)

    def until_admitted(self, unit: Unit, jobs: Sequence[Sequence[PodInfo]]) -> int:
        """Return how many running jobs have to end, in order, for a workload to be admitted."""
        return self._report.until_admitted(unit, jobs)

    # Preemption --------------------------------------------------------------------------

    def may_preempt(self, unit: Unit, action: str) -> bool:
        """Make no room for single units: admission evicts before it admits."""
        return False

    def plan(self, unit: Unit, action: str) -> EvictionCandidates | EvictionPlan | str | None:
        """Make no room for single units."""
        return None

    def requeue(self, pod: PodInfo, why: str) -> bool:
        """Evict a workload whose nodes failed: all of it, as it was admitted."""
        key = self._pods.key_of(pod)
        found = self._admission.store.workloads.get(key)
        if found is None or not has_quota(found) or is_true(found, "Finished"):
            return False
        if not is_true(found, "Evicted"):
            now = self._handle.unix_time
            self._admission.set(evicted(found, "NodeFailures", why, now), now)
            self._pods.changed(key)
        return True

    def overdue(self) -> Overdue | None:
        """Evict the pods of workloads that were preempted, or whose queue was stopped."""
        if self.left_to:
            at = self._manager.next_time()
            return Overdue((), at) if at is not None else None
        victims: list[tuple[PodInfo, str]] = []
        for one in self._holders():
            stated = condition(one.workload, "Evicted") if one.evicted else None
            if stated is not None:
                # Of a suspended job its own controller deletes the pods.
                pods = self._pods.with_node(one.key) if not self._pods.is_of_job(one.key) else []
                stopped = [pod for pod in pods if not pod.terminating]
                victims += [(pod, stated.message) for pod in stopped]
                self._writes.tell_stopped(one.key, stopped, stated.message)
        due, again = self._next_change, None
        if due is not None:
            again = self._handle.now + max(0.0, due - self._handle.unix_time)
            due = None if due > self._handle.unix_time else due
        if not victims and again is None:
            return None
        return Overdue(victims, again, waited=due is not None)

    def statuses(self) -> Iterable[PatchStatus]:
        """Return the statuses of ClusterQueues, Cohorts and LocalQueues."""
        return self._statuses.all(self._admission.store, self._handle.unix_time)


def _waits_for(queue: str, why: str) -> str:
    return f'waiting for admission by ClusterQueue "{queue}": {why}'


def _define(snapshot: Snapshot) -> list[Queue]:
    queues = snapshot.objects(ClusterQueue).values()
    return queues_of(queues, snapshot.objects(Cohort).values())
