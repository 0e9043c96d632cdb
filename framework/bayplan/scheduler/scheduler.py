"""The scheduler: cluster events in, cycles, writes out.

It is a state machine without threads or time of its own: ``handle`` takes a watch event,
``step`` runs one cycle, ``tick`` ends waits that are over. Whoever owns the loop (the simulation,
or an asyncio loop on a live cluster) calls them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from bayplan.api import (
    KINDS,
    ApiObject,
    Job,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    ResourceClaim,
)
from bayplan.cluster.manifests import object_key
from bayplan.cluster.protocol import Bind, Cluster, Done, WatchEvent, WatchType, Write
from bayplan.cycle.decision_tables import DecisionTables
from bayplan.cycle.evaluator import Evaluator
from bayplan.cycle.scheduling_cycle import Cycle, Reserved, Result
from bayplan.errors import ClusterError, PluginError
from bayplan.gangs.definitions import GangDefinitions
from bayplan.gangs.directory import GangDirectory, GangMembers
from bayplan.plugin.base import Placement, Placements, Preparation, Unit
from bayplan.plugin.decision import Decision, Outcome
from bayplan.plugin.events import ClusterEvent
from bayplan.plugin.failures import PLUGIN_RAISES, failure
from bayplan.profiles.loading import Profile, ProfileSet
from bayplan.profiles.runtime import Hook, HookCall, Runtime, guard
from bayplan.scheduler.claim_index import Claimants
from bayplan.scheduler.evictor import RoomMaker
from bayplan.scheduler.gang_timeouts import Patience
from bayplan.scheduler.group_status import StatusWriter
from bayplan.scheduler.object_changes import (
    claim_freed,
    node_difference,
    same_definition,
    same_needs,
)
from bayplan.scheduler.observer import Observer
from bayplan.scheduler.permits import Permits, PermitWait
from bayplan.scheduler.pre_bind import Preparations
from bayplan.scheduler.queue import Place, QueuedUnit, UnitQueue
from bayplan.scheduler.recorder import Announcer
from bayplan.scheduler.units import make_unit
from bayplan.snapshot import NodeRow, PodInfo, Snapshot
from bayplan.snapshot.job_annotations import NOTHING, inherited, is_of, passed_on

__all__ = ["ProfileAtWork", "Scheduler"]


class _Handle:
    """What one plugin of one profile sees of the scheduler."""

    def __init__(self, scheduler: Scheduler, plugin: str) -> None:
        self._scheduler = scheduler
        self._plugin = plugin
        self._at_work: ProfileAtWork | None = None

    def complete(self, at_work: ProfileAtWork) -> None:
        """Take in the profile, once all of its plugins are made."""
        self._at_work = at_work

    @property
    def at_work(self) -> ProfileAtWork:
        if self._at_work is None:
            raise RuntimeError("this is for hooks; the plugins of the profile are still being made")
        return self._at_work

    @property
    def snapshot(self) -> Snapshot:
        return self._scheduler.snapshot

    @property
    def now(self) -> float:
        return self._scheduler.now

    def gang(self, key: str) -> GangMembers:
        return self._scheduler.gangs[key]

    def is_waiting(self, unit: str) -> bool:
        return unit in self._scheduler.queue.units

    def is_first(self, unit: Unit) -> bool:
        return self._scheduler.is_first(unit)

    def is_held(self, pod: PodInfo) -> bool:
        return pod.key in self._scheduler.holds

    def is_spared(self, pod: PodInfo) -> bool:
        return self._scheduler.rooms.is_spared(pod.key)

    def offers(self, unit: Unit) -> Placements:
        return self.at_work.cycle.offers(unit)

    def place(self, unit: Unit, placement: Placement) -> Mapping[str, str] | None:
        return self.at_work.cycle.place_here(unit, placement)

    def free_slots(self, pod: PodInfo) -> npt.NDArray[np.int64]:
        return self.at_work.cycle.free_slots(pod)

    def hopeless(self, pod: PodInfo) -> npt.NDArray[np.bool_]:
        return self.at_work.evaluator.evaluate(pod).hopeless()

    def hook(self, name: str) -> Hook:
        return self.at_work.runtime[name]

    def submit(self, write: Write, done: Done | None = None) -> None:
        self._scheduler.submit(write, self._guarded(done) if done is not None else None)

    def _guarded(self, done: Done) -> Done:
        def told(error: ClusterError | None) -> None:
            try:
                done(error)
            except PLUGIN_RAISES as exc:
                # Whoever answers the write has other writes to answer.
                self._scheduler.log_failure(failure(self._plugin, "submit", exc, done))

        return told

    def allow(self, waiting: Unit | PodInfo | str) -> bool:
        return self._scheduler.allow(waiting, self._plugin)

    def reject(self, waiting: Unit | PodInfo | str, reason: str) -> bool:
        return self._scheduler.reject(waiting, reason, self._plugin)

    def fit_message(self, pod: PodInfo) -> str:
        names = self._scheduler.snapshot.nodes.names
        return self.at_work.evaluator.evaluate(pod).describe(names, finalists=False).message


@dataclass
class ProfileAtWork:
    """One profile with its plugins made and its caches."""

    profile: Profile
    runtime: Runtime
    evaluator: Evaluator
    cycle: Cycle


@dataclass
class _Waiting:
    """A placed unit that permit plugins hold back."""

    unit: QueuedUnit
    result: Result
    profile: ProfileAtWork


@dataclass
class _Binding:
    """A pod whose binding was submitted and not yet seen on the watch."""

    reserved: Reserved
    profile: ProfileAtWork
    unit: str
    newer: Pod | None = None


@dataclass(frozen=True)
class _Attempt:
    """Which cycle placed a unit, the how-manieth it was, and when the unit came (seconds)."""

    cycle: int
    number: int
    added: float


@dataclass
class Statistics:
    """Counts since the start."""

    cycles: int = 0
    bound: int = 0


class Scheduler:
    """Schedules the pods of its profiles on a cluster.

    :param cached: whether evaluations are kept between cycles; False is the plain path.
    :param keep_decisions: how many of the latest decisions are kept, by unit.
    :param tables_per_second: how many decisions a second keep what each plugin said of the nodes,
        for explanations; the newest 1,000 of them are kept.
    :param instrument: wraps the hooks of a profile, to measure them.
    """

    def __init__(
        self,
        cluster: Cluster,
        profiles: ProfileSet,
        cached: bool = True,
        keep_decisions: int = 10_000,
        instrument: Callable[[Runtime], Runtime] | None = None,
        tables_per_second: float = 0.0,
    ) -> None:
        self._cluster = cluster
        self._tables: DecisionTables | None = None
        if tables_per_second > 0:
            self._tables = DecisionTables(lambda: cluster.now, tables_per_second)
        self._instrument = instrument
        self._announcer = Announcer(cluster)
        self.snapshot = Snapshot()
        self._statuses = StatusWriter(cluster, self.snapshot)
        self.gangs = GangDirectory(self._statuses.changed)
        self._patience = Patience(self.gangs)
        self._definitions = GangDefinitions(self.gangs, self.snapshot)
        self.rooms = RoomMaker(
            cluster,
            self.snapshot,
            self._announcer,
            self._take_back,
            self._places_freed,
            self._eviction_refused,
        )
        self.holds = self.rooms.holds
        self.statistics = Statistics()
        self.observer = Observer()
        self.decisions: dict[str, Decision] = {}
        self._keep_decisions = keep_decisions
        self._profiles: dict[str, ProfileAtWork] = {}
        for profile in profiles.profiles:
            self._profiles[profile.scheduler_name] = self._put_to_work(profile, cached)
        self._fallback = next(iter(self._profiles.values())) if profiles.any_scheduler else None
        self._first = next(iter(self._profiles.values()))
        self.queue = UnitQueue(
            self._sort_key,
            self._gate,
            self._helps,
            self.gangs.unit_of,
            profiles.initial_backoff,
            profiles.max_backoff,
            self._listens,
        )
        self._known: dict[str, PodInfo] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._permits = Permits(self.snapshot, self._announcer.plugin_failed)
        self._binding: dict[str, _Binding] = {}
        self._subject: PodInfo | None = None
        self._claimants = Claimants()
        self._stale: dict[str, None] = {}
        self._preparing = Preparations(cluster)
        cluster.watch(self.handle)

    @property
    def now(self) -> float:
        """The cluster's time in seconds."""
        return self._cluster.now

    def submit(self, write: Write, done: Done | None = None) -> None:
        """Have the cluster carry out a write."""
        self._cluster.submit(write, done)

    def log_failure(self, error: PluginError) -> None:
        """Log what a plugin raised where there is no pod to tell."""
        self._announcer.log_failure(error)

    @property
    def unconfirmed(self) -> int:
        """How many pods were bound whose binding the watch has not shown yet."""
        return len(self._binding)

    @property
    def profiles(self) -> Mapping[str, ProfileAtWork]:
        """The profiles at work, by scheduler name."""
        return self._profiles

    def profile_of(self, pod: Pod) -> ProfileAtWork | None:
        """Return the profile that schedules a pod, None when no profile does."""
        return self._profiles.get(pod.spec.scheduler_name) or self._fallback

    def _put_to_work(self, profile: Profile, cached: bool) -> ProfileAtWork:
        handles, plugins = {}, {}
        for name, cls in profile.plugins.items():
            handle = handles[name] = _Handle(self, name)
            try:
                plugins[name] = cls(profile.args[name], handle)
            except PLUGIN_RAISES as exc:
                raise failure(name, "__init__", exc, cls.__init__) from exc
        runtime = Runtime(plugins, profile.points)
        if self._instrument is not None:
            runtime = self._instrument(runtime)
        evaluator = Evaluator(runtime, self.snapshot, cached)
        cycle = Cycle(runtime, evaluator, self.snapshot, self._tables)
        cycle.on_plugin_error = self._announcer.plugin_failed
        at_work = ProfileAtWork(profile, runtime, evaluator, cycle)
        for handle in handles.values():
            handle.complete(at_work)
        return at_work

    # Cluster events ----------------------------------------------------------------------

    def handle(self, event: WatchEvent) -> None:
        """Take in one watch event."""
        if event.type is WatchType.RESYNC:
            self._resync(event.objects)
        elif isinstance(event.obj, Pod):
            self._pod_event(event.type, event.obj)
        elif isinstance(event.obj, Node):
            self._node_event(event.type, event.obj)
        elif isinstance(event.obj, ResourceClaim):
            self._claim_event(event.type, event.obj)
        elif isinstance(event.obj, PersistentVolumeClaim | PersistentVolume):
            self._volume_event(event.type, event.obj)
        elif event.obj is not None:
            self._object_event(event.type, event.obj)

    def _pod_event(self, type_: WatchType, pod: Pod) -> None:
        over = pod.status.phase in ("Succeeded", "Failed")
        if type_ is WatchType.DELETED or over:
            if over:
                deleted = type_ is WatchType.DELETED
                self.gangs.set_ended(self._info(pod), None if deleted else pod.status.phase)
            self._pod_gone(pod)
        elif pod.spec.node_name:
            self._pod_assigned(pod)
        else:
            self._pod_pending(pod)

    def _info(self, pod: Pod) -> PodInfo:
        return PodInfo(pod, inherited(pod, self.snapshot))

    def _pod_gone(self, pod: Pod) -> None:
        info = self._known.pop(pod.key, None)
        if info is None:
            return
        unit_key = self.gangs.unit_of(info)
        self.rooms.release(info.key)
        self.holds.ended(pod.key)
        self.queue.remove(pod.key)
        self._claimants.remove(pod.key)
        self._announcer.forget(pod.key)
        self._release_waiting(unit_key)
        binding = self._binding.pop(pod.key, None)
        if binding is not None:
            # Plugins have to hear of its end; its place goes below.
            binding.profile.cycle.unreserve([binding.reserved])
        held = self.snapshot.remove_pod(pod.key)
        self._regroup(self.gangs.remove(info))
        self._recheck(unit_key, info)
        if held is not None:
            self._happened(ClusterEvent.POD_REMOVED, held)

    def _pod_assigned(self, pod: Pod) -> None:
        known = self._known.get(pod.key)
        if known is not None and known.uid != (pod.metadata.uid or pod.key):
            self._pod_gone(known.pod)
            known = None
        if known is not None:
            self.rooms.release(known.key)
            if pod.key in self.queue:
                # Another scheduler was quicker.
                self._release_waiting(self.queue.unit_key(pod.key) or known.key)
                self.queue.remove(pod.key)
        placed = self.snapshot.placed.get(pod.key)
        binding = self._binding.pop(pod.key, None)
        if binding is not None and binding.reserved.node != pod.spec.node_name:
            binding.profile.cycle.unreserve([binding.reserved])
        if known is not None and placed is not None and placed[1] == pod.spec.node_name:
            if same_needs(known.pod, pod):
                known.pod = pod
                if known.gang is not None:
                    self._statuses.changed(known.gang)
                return
            self._known[pod.key] = info = self._info(pod)
            self.snapshot.replace_pod(info)
            self._regroup(self.gangs.set_bound(info, pod.spec.node_name))
            self._happened(ClusterEvent.POD_CHANGED | ClusterEvent.POD_REMOVED, info)
            return
        self.queue.remove(pod.key)
        self.snapshot.remove_pod(pod.key)
        self._known[pod.key] = info = self._info(pod)
        self.snapshot.add_pod(info, pod.spec.node_name)
        self._regroup(self.gangs.set_bound(info, pod.spec.node_name))
        self._recheck(self.gangs.unit_of(info), info)
        self._happened(ClusterEvent.POD_PLACED, info)

    def _pod_pending(self, pod: Pod) -> None:
        if pod.metadata.deletion_timestamp is not None:
            self._pod_gone(pod)
            return
        known = self._known.get(pod.key)
        if known is not None and known.uid != (pod.metadata.uid or pod.key):
            self._pod_gone(known.pod)
            known = None
        if known is not None and same_needs(known.pod, pod):
            before, known.pod = known.pod.status.resource_claim_statuses, pod
            if before != pod.status.resource_claim_statuses:
                self._recheck_pod(pod.key)
            self._preparing.recheck((pod.key,))
            return
        if known is not None:
            self.rooms.release(known.key)
        if known is not None and pod.key in self.queue and pod.key in self.snapshot.placed:
            # It was decided for what the pod is not any more.
            self._release_waiting(self.queue.unit_key(pod.key) or known.key)
        binding = self._binding.get(pod.key)
        if binding is not None:
            binding.newer = pod
        if self.profile_of(pod) is None or pod.key in self.snapshot.placed:
            return
        if known is not None:
            self.queue.remove(pod.key)
            self._regroup(self.gangs.remove(known))
        self._known[pod.key] = info = self._info(pod)
        self._regroup(self.gangs.set_pending(info))
        self._claimants.add(info)
        self.queue.add(info, self.now)
        if info.gang is not None:
            self._patience.watch(info.gang, self.now)
        self._announcer.gate_changed(self.gangs.unit_of(info))

    def _node_event(self, type_: WatchType, node: Node) -> None:
        name = node.metadata.name
        if type_ is WatchType.DELETED:
            self.snapshot.delete_node(name)
            self._happened(ClusterEvent.NODE_OTHER, None)
            return
        event = node_difference(self.snapshot.node(name), node)
        if event:
            self.snapshot.set_node(node)
            self._happened(event, None)

    def _object_event(self, type_: WatchType, obj: ApiObject) -> None:
        key = object_key(obj)
        deleted = type_ is WatchType.DELETED
        old = self.snapshot.objects(type(obj)).get(key)
        if not deleted and same_definition(old, obj):
            # A status, perhaps our own: it can tell that a gang was complete, and nothing else.
            self.snapshot.set_object(key, obj)
            self._definitions.update(obj, deleted)
            return
        if deleted:
            self.snapshot.delete_object(key, obj)
        else:
            self.snapshot.set_object(key, obj)
        changed = self._definitions.update(obj, deleted)
        if isinstance(obj, Job):
            self._job_changed(old if isinstance(old, Job) else None, obj, deleted)
        if changed:
            self._regroup(changed)
            self._happened(ClusterEvent.GANG_CHANGED, None)
        else:
            self._happened(ClusterEvent.OBJECT_CHANGED, None)

    def _job_changed(self, old: Job | None, job: Job, deleted: bool) -> None:
        """Read the pods anew that wait, where what they have from their Job is another now."""
        if passed_on(old) == (NOTHING if deleted else passed_on(job)):
            return
        waiting = [
            info.pod
            for info in self._known.values()
            if info.key not in self.snapshot.placed and is_of(info.pod, job)
        ]
        for pod in waiting:
            self._pod_gone(pod)
            self._pod_pending(pod)

    def _claim_event(self, type_: WatchType, claim: ResourceClaim) -> None:
        """Take over a claim; its pods may have waited for it, others for its devices."""
        old = self.snapshot.objects(ResourceClaim).get(claim.key)
        deleted = type_ is WatchType.DELETED
        if deleted:
            self.snapshot.delete_object(claim.key, claim)
        else:
            self.snapshot.set_object(claim.key, claim)
        going = claim.metadata.deletion_timestamp is not None
        now_allocated = old is not None and old.status.allocation is None
        now_allocated = now_allocated and claim.status.allocation is not None
        other = old is None or old.metadata.uid != claim.metadata.uid
        if deleted or going or other or now_allocated:
            for pod_key in self._claimants.of(claim):
                self._recheck_pod(pod_key)
        if deleted or claim_freed(old, claim):
            self._happened(ClusterEvent.OBJECT_CHANGED, None)
        self._preparing.recheck(self._claimants.of(claim))

    def _volume_event(
        self, type_: WatchType, obj: PersistentVolumeClaim | PersistentVolume
    ) -> None:
        """Take over a claim or a volume, of which the status matters, too: its phase."""
        key = object_key(obj)
        if type_ is WatchType.DELETED:
            self.snapshot.delete_object(key, obj)
        elif self.snapshot.objects(type(obj)).get(key) == obj:
            return
        else:
            self.snapshot.set_object(key, obj)
        self._happened(ClusterEvent.OBJECT_CHANGED, None)
        self._preparing.recheck()

    def _recheck_pod(self, pod_key: str) -> None:
        self.queue.recheck_pod(pod_key, self.now)
        unit_key = self.queue.unit_key(pod_key)
        if unit_key is not None:
            self._announcer.gate_changed(unit_key)

    def _regroup(self, gangs: set[str]) -> None:
        """Let the queue follow gangs whose definition changed."""
        for key in sorted(gangs):
            self._patience.watch(key, self.now)
            members = self.gangs.all().get(key)
            pending = list(members.pending.values()) if members is not None else []
            for pod in pending:
                before = self.queue.unit_key(pod.key)
                if before is not None and before != self.gangs.unit_of(pod):
                    self._release_waiting(before)
                    self.queue.remove(pod.key)
                    self.queue.add(pod, self.now)
            units = {self.gangs.unit_of(pod) for pod in pending} or {key}
            for unit in sorted(units):
                self.queue.recheck(unit, self.now)
                self._announcer.gate_changed(unit)

    def _resync(self, listed: Sequence[ApiObject]) -> None:
        """Take over a whole listing after a lost watch: what is not in it is gone."""
        pods = {obj.key for obj in listed if isinstance(obj, Pod)}
        nodes = {obj.metadata.name for obj in listed if isinstance(obj, Node)}
        for key, info in list(self._known.items()):
            if key not in pods:
                self._pod_gone(info.pod)
        for name in list(self.snapshot.nodes.row_of):
            if name not in nodes:
                self.snapshot.delete_node(name)
        present = {(type(obj), object_key(obj)) for obj in listed}
        for type_ in {kind.type for kind in KINDS.values()} - {Pod, Node}:
            for key, old in list(self.snapshot.objects(type_).items()):
                if (type_, key) not in present:
                    self.handle(WatchEvent(WatchType.DELETED, old))
        for obj in listed:
            self.handle(WatchEvent(WatchType.MODIFIED, obj))

    def _recheck(self, unit_key: str, info: PodInfo) -> None:
        # Asking a gang's gates costs as much as it has members: once for all that happened.
        if info.gang is not None:
            self._stale[unit_key] = None

    def _recheck_stale(self) -> None:
        stale, self._stale = self._stale, {}
        for unit_key in stale:
            self.queue.recheck(unit_key, self.now)

    def _happened(self, event: ClusterEvent, subject: PodInfo | None) -> None:
        self._subject = subject
        self.queue.on_event(event, self.now)
        self._subject = None
        self._permits.happened(event, subject)

    # What the queue asks -----------------------------------------------------------------

    def _sort_key(self, unit: QueuedUnit) -> tuple[float, ...]:
        call = self._first.runtime["queue_sort"][0]
        pods = list(unit.ready.values()) or list(unit.pods.values())
        gang = self.gangs[pods[0].gang].gang if pods[0].gang is not None else None
        # Who comes first follows from the pods; a cycle makes the rest.
        as_unit = Unit(unit.key, pods, gang)
        try:
            key: tuple[float, ...] = call(as_unit, unit.added)
        except PluginError as exc:
            self._announcer.plugin_failed(as_unit.pods[0], exc)
            return (-float(as_unit.priority), unit.added)
        return key

    def _gate(self, pod: PodInfo) -> str | None:
        profile = self.profile_of(pod.pod)
        assert profile is not None, "only pods of a profile are queued"
        for call in profile.runtime["pre_enqueue"]:
            try:
                refusal: str | None = call(pod)
            except PluginError as exc:
                self._announcer.log_failure(exc)
                refusal = str(exc)
            if refusal is not None:
                return refusal
        return None

    def _listens(self, plugins: frozenset[str], event: ClusterEvent) -> bool:
        """Whether an event can undo a refusal by any of these plugins, in any profile."""
        if not plugins:
            return True
        return any(
            event & found.requeue_on
            for at_work in self._profiles.values()
            for name in plugins
            if (found := at_work.runtime.plugins.get(name)) is not None
        )

    def _helps(self, unit: QueuedUnit, event: ClusterEvent) -> bool:
        hold = self.holds.get(unit.key)
        if hold is not None and hold.victims and self._subject is not None:
            return False
        pod = next(iter(unit.pods.values()), None)
        profile = self.profile_of(pod.pod) if pod is not None else None
        if pod is None or profile is None or not unit.refused_by:
            return True
        hints = profile.runtime.by_plugin("requeue_hint")
        for name in unit.refused_by:
            plugin = profile.runtime.plugins.get(name)
            if plugin is None or not (event & plugin.requeue_on):
                continue
            hint = hints.get(name)
            try:
                if hint is None or hint(pod, event, self._subject):
                    return True
            except PluginError as exc:
                self._announcer.plugin_failed(pod, exc)
                return True
        return False

    def _unit(self, queued: QueuedUnit) -> Unit:
        pods = list(queued.ready.values()) or list(queued.pods.values())
        return make_unit(queued.key, pods, self.gangs, self.holds.get(queued.key))

    # Cycles ------------------------------------------------------------------------------

    def step(self) -> bool:
        """End waits at Permit or, without any, run one cycle; return whether there was either."""
        self.snapshot.sync()
        self._recheck_stale()
        if self._settle_permits():
            return True
        queued = self.queue.pop(self.now)
        if queued is None:
            # What a gate said when a pod came may not be what it says now.
            for key in self._announcer.changed_gates():
                self.queue.refresh_gates(key, self.now)
            queued = self.queue.pop(self.now)
        if queued is None:
            self._announcer.gated(self.queue)
            self._statuses.write(self.gangs.all().get, self._why_pending)
            return False
        try:
            self._cycle(queued)
        except BaseException:
            # Whatever it was, the unit is not forgotten.
            self.queue.retry(queued, self.now)
            raise
        return True

    def _cycle(self, queued: QueuedUnit) -> None:
        unit = self._unit(queued)
        names = {pod.pod.spec.scheduler_name for pod in unit.pods}
        profile = self.profile_of(unit.pods[0].pod)
        assert profile is not None, "only pods of a profile are queued"
        self.statistics.cycles += 1
        self.observer.begins()
        started = time.perf_counter()
        if len(names) > 1 and self._fallback is None:
            result = Result(Decision(unit.key, self.statistics.cycles, self.now))
            result.decision.message = (
                f'the members of gang "{unit.key}" name different schedulers: '
                f"{', '.join(sorted(names))}"
            )
        else:
            result = self._run(unit, profile)
        self._conclude(queued, unit, profile, result)
        seconds = time.perf_counter() - started
        self.observer.ended(profile.profile.scheduler_name, unit, result, seconds)

    def stand_by(self) -> None:
        """Keep up with the cluster without deciding anything: another process does."""
        self.snapshot.sync()
        self._recheck_stale()
        self._announcer.forget_gone(self.queue)
        gangs = self.gangs.all()
        self._statuses.forget(lambda key: key not in gangs)

    def _run(self, unit: Unit, profile: ProfileAtWork) -> Result:
        """Run a unit's cycle without the places that are held for it; hold them on if it fails."""
        hold = self.holds.get(unit.key)
        if hold is None:
            return profile.cycle.run(unit, self.statistics.cycles, self.now)
        self.holds.lift(unit.key)
        result = profile.cycle.run(unit, self.statistics.cycles, self.now, preempt=not hold.victims)
        if result.reserved or result.preemption is not None:
            self.holds.forget(unit.key)
        else:
            self.holds.restore(unit.key)
            if hold.victims:
                count = len(hold.victims)
                result.decision.message += (
                    f" Waiting for {count} evicted pod{'s'[: count > 1]} to end on the nodes that "
                    "are held for it."
                )
        return result

    def tick(self) -> None:
        """End the waits whose time is over."""
        self._settle_permits()
        self._preparing.tick()
        for key in self._patience.overdue(self.now):
            self._statuses.changed(key)
            self._regroup({key})
        if self.rooms.tick():
            # Whoever was refused because nobody could be evicted may ask again.
            self._happened(ClusterEvent.POD_REMOVED, None)

    def waiting(self, key: str) -> PermitWait | None:
        """Return what a unit waits for at Permit, by its key or that of a pod of it.

        None where it does not wait there.
        """
        return self._permits.waiting(key)

    def allow(self, waiting: Unit | PodInfo | str, plugin: str | None = None) -> bool:
        """Have a plugin let go of what waits at Permit; return whether it held it.

        When no plugin holds any of its pods any more, the unit goes on to be bound, at the next
        ``step``.

        :param waiting: a unit, one pod of it, or the key of either (of a unit, where it is both).
        :param plugin: None for every plugin.
        """
        return self._permits.allow(waiting, plugin)

    def reject(self, waiting: Unit | PodInfo | str, reason: str, plugin: str | None = None) -> bool:
        """Refuse a unit that waits at Permit; return whether it was waiting.

        At the next ``step`` it gives its nodes back, and its pods are told the reason.

        :param waiting: the unit, a pod of it, or the key of either.
        :param plugin: the plugin whose ``requeue_on`` says what can help it; None for any event.
        """
        return self._permits.reject(waiting, reason, plugin)

    def _settle_permits(self) -> bool:
        """End the waits at Permit that are over; return whether there were any."""
        endings, shorter = self._permits.settle(self.now)
        for wait in shorter:
            self._tell_wait(self._waiting[wait.unit].result, wait)
        for ending in endings:
            waiting = self._waiting.pop(ending.unit)
            queued, profile, result = waiting.unit, waiting.profile, waiting.result
            if ending.error is not None:
                self._failed(queued, profile, result, ending.error)
            elif ending.refusal is not None:
                self._not_bound(queued, profile, result, ending.refusal, ending.plugins)
            else:
                result.decision.outcome, result.decision.message = Outcome.PLACED, ""
                self._bind_all(queued, profile, result)
        return bool(endings)

    def _tell_wait(self, result: Result, wait: PermitWait) -> None:
        result.decision.message = str(wait)
        self._announcer.waits([reserved.pod for reserved in result.reserved], wait)

    def known_pods(self) -> list[Pod]:
        """Return the pods that are not over, of this scheduler's profiles or on nodes."""
        return [info.pod for info in self._known.values()]

    def pending_unit(self, key: str) -> Unit | None:
        """Return a unit that is to be tried, as a cycle would get it.

        None for one that is being decided or bound, or waits at Permit: its pods have nodes.
        """
        queued = self.queue.units.get(key)
        if queued is None or queued.place is Place.IN_FLIGHT:
            return None
        return self._unit(queued)

    def next_time(self) -> float | None:
        """Return when there is something to do without any event; None when never."""
        times = [*self.rooms.next_times(), *self._preparing.next_times()]
        permits = self._permits.next_time(self.now)
        for waiting_at in (permits, self._patience.next_time(), self._announcer.next_time()):
            if waiting_at is not None:
                times.append(waiting_at)
        at = self.queue.next_time()
        if at is not None:
            times.append(at)
        return min(times, default=None)

    def _conclude(
        self, queued: QueuedUnit, unit: Unit, profile: ProfileAtWork, result: Result
    ) -> None:
        decision = result.decision
        before = self.decisions.get(decision.unit)
        if unit.nominated and before is not None and not decision.preemption:
            # What was weighed when the nodes were chosen still explains them.
            decision.preemption = before.preemption
        self._remember(decision)
        if unit.gang is not None:
            for key in self.gangs.gangs_of(queued.key):
                self._statuses.changed(key)
        if decision.outcome is Outcome.PLACED:
            self._bind_all(queued, profile, result)
        elif decision.outcome is Outcome.WAITING:
            self._waiting[queued.key] = _Waiting(queued, result, profile)
            runtime, waits = profile.runtime, result.waits
            wait = self._permits.begin(unit, result.reserved, runtime, waits, self.now)
            self._tell_wait(result, wait)
        elif decision.outcome is Outcome.ERROR:
            if result.error is not None:
                self._announcer.log_failure(result.error)
            self._announcer.refused(unit, decision, "SchedulerError")
            self.queue.retry(queued, self.now)
        else:
            if result.preemption is not None:
                self.rooms.make_room(unit, result.preemption)
            elif result.partial:
                self.rooms.hold_part(unit, result.partial)
            self._refused(queued, decision)
            hold = self.holds.get(queued.key)
            if result.preemption is not None and hold is not None and not hold.victims:
                # The room is there already; no event is to come that would tell so.
                self.queue.retry(queued, self.now)

    def _refused(self, queued: QueuedUnit, decision: Decision) -> None:
        if queued.key in self.queue.units:
            hold = self.holds.get(queued.key)
            nodes = hold.nodes if hold is not None else {}
            self._announcer.refused(self._unit(queued), decision, "Unschedulable", nodes)
        self.queue.refuse(queued, decision.refused_by, self.now)

    def is_first(self, unit: Unit) -> bool:
        """Whether no other unit that waits to be tried would be tried before this one."""
        mine = self.queue.units.get(unit.key)
        if mine is None:
            return False
        key = self._sort_key(mine)
        untried = (Place.GATED, Place.IN_FLIGHT)
        return not any(
            other is not mine and other.place not in untried and self._sort_key(other) < key
            for other in self.queue.units.values()
        )

    def _why_pending(self, gang: str) -> str:
        """Return what keeps a gang pending, as its pods are told."""
        members = self.gangs[gang]
        pod = next(iter(members.pending.values()))
        unit = self.queue.units.get(self.gangs.unit_of(pod))
        if unit is not None and pod.key in unit.gated:
            return unit.gated[pod.key][1]
        decision = self.decisions.get(self.gangs.unit_of(pod))
        if decision is None or decision.outcome is Outcome.WAITING:
            # It has its nodes: whoever sees to it need not make room.
            return ""
        return decision.message

    def _remember(self, decision: Decision) -> None:
        self.decisions.pop(decision.unit, None)
        self.decisions[decision.unit] = decision
        if len(self.decisions) > self._keep_decisions:
            del self.decisions[next(iter(self.decisions))]

    # Making room -------------------------------------------------------------------------

    def _take_back(self, victim: PodInfo) -> bool:
        """Take a pod's place back that is not bound yet; False when it has to be evicted."""
        wait = self._permits.waiting(victim)
        if wait is not None:
            self._stop_waiting(wait.unit)
            return True
        return self._preparing.cancel_pod(victim.key, "its place was taken by a higher priority")

    def _eviction_refused(self, unit_key: str, victim: PodInfo, why: str) -> None:
        """Have the decision say that the room that it found could not be made."""
        decision = self.decisions.get(unit_key)
        if decision is not None:
            text = f"the eviction of {victim.key} was refused: {why}"
            fit, _, _ = decision.message.rpartition("preemption: ")
            decision.message = f"{fit}preemption: {text}."
            decision.preemption = tuple(
                replace(trial, chosen=False, refusal=text) if trial.chosen else trial
                for trial in decision.preemption
            )

    def _places_freed(self, unit_key: str) -> None:
        """A unit has given up the places that were held for it: let others go first."""
        self.queue.postpone(unit_key, self.now)
        self._happened(ClusterEvent.POD_REMOVED, None)

    # Binding -----------------------------------------------------------------------------

    def _bind_all(self, queued: QueuedUnit, profile: ProfileAtWork, result: Result) -> None:
        """Bind all reserved pods, or none if a plugin refuses one of them before the writes."""
        known = self.snapshot.nodes.row_of
        gone = [reserved.node for reserved in result.reserved if reserved.node not in known]
        if gone:
            # A unit that waited at Permit may have lost a node meanwhile.
            self._failed(queued, profile, result, f"node {gone[0]} is gone")
            return
        work: list[Preparation] = []
        refusal = self._pre_bind(profile, result.reserved, work)
        if refusal is not None:
            why, plugin = refusal
            self._not_bound(queued, profile, result, why, {plugin})
        elif work:
            self._preparing.begin(
                queued.key,
                frozenset(reserved.pod.key for reserved in result.reserved),
                work,
                partial(self._prepared, queued, profile, result),
                partial(self._not_prepared, queued, profile, result),
            )
        else:
            self._write_bindings(queued, profile, result)

    def _prepared(self, queued: QueuedUnit, profile: ProfileAtWork, result: Result) -> None:
        known = self.snapshot.nodes.row_of
        gone = [reserved.node for reserved in result.reserved if reserved.node not in known]
        if gone:
            self._failed(queued, profile, result, f"node {gone[0]} is gone")
        else:
            self._write_bindings(queued, profile, result)

    def _not_prepared(
        self,
        queued: QueuedUnit,
        profile: ProfileAtWork,
        result: Result,
        why: str | PluginError,
        error: bool,
    ) -> None:
        if error:
            self._failed(queued, profile, result, why)
        else:
            self._not_bound(queued, profile, result, str(why), {"pre_bind"})
            # What it waited for has failed already, so that no further event would wake it.
            self.queue.retry(queued, self.now)

    def _not_bound(
        self,
        queued: QueuedUnit,
        profile: ProfileAtWork,
        result: Result,
        why: str,
        plugins: Set[str],
    ) -> None:
        """Give a placed unit's nodes back, because plugins refuse it before it is bound."""
        self._give_back(profile, result.reserved)
        result.decision.outcome = Outcome.UNSCHEDULABLE
        result.decision.message = why
        result.decision.refused_by = set(plugins)
        self.observer.given_up(result.decision)
        self._refused(queued, result.decision)

    def _write_bindings(self, queued: QueuedUnit, profile: ProfileAtWork, result: Result) -> None:
        try:
            writes = [self._bind_write(profile, reserved) for reserved in result.reserved]
        except PluginError as exc:
            self._failed(queued, profile, result, exc)
            return
        attempt = _Attempt(result.decision.cycle, queued.attempts, queued.added)
        for reserved in result.reserved:
            self.queue.remove(reserved.pod.key)
            self._claimants.remove(reserved.pod.key)
            self.gangs.set_bound(reserved.pod, reserved.node)
            self._binding[reserved.pod.key] = _Binding(reserved, profile, queued.key)
        if queued.ready and queued.ready.keys() <= result.decision.pods.keys():
            self._refused(queued, result.decision)
        else:
            # Members that came after the decision are worth another cycle.
            self.queue.settle(queued, self.now)
        for reserved, write in zip(result.reserved, writes, strict=True):
            self._cluster.submit(write, partial(self._bound, reserved, profile, attempt))

    def _failed(
        self, queued: QueuedUnit, profile: ProfileAtWork, result: Result, why: str | PluginError
    ) -> None:
        """Give a placed unit's nodes back and try it again after its delay."""
        if isinstance(why, PluginError):
            self._announcer.log_failure(why)
        self._give_back(profile, result.reserved)
        result.decision.outcome, result.decision.message = Outcome.ERROR, str(why)
        self.observer.given_up(result.decision)
        if queued.key in self.queue.units:
            self._announcer.refused(self._unit(queued), result.decision, "SchedulerError")
        self.queue.retry(queued, self.now)

    def _pre_bind(
        self, profile: ProfileAtWork, reserved: list[Reserved], work: list[Preparation]
    ) -> tuple[str, str] | None:
        """Collect what has to be done before the bindings; return a refusal with its plugin."""
        for one in reserved if profile.runtime["pre_bind"] else ():
            for call in profile.runtime["pre_bind"]:
                try:
                    refusal = call(one.pod, self._row(one.node), one.state)
                except PluginError as exc:
                    self._announcer.log_failure(exc)
                    refusal = str(exc)
                if isinstance(refusal, Preparation):
                    work.append(_guarded(refusal, call))
                elif refusal is not None:
                    return refusal, call.name
        return None

    def _bind_write(self, profile: ProfileAtWork, reserved: Reserved) -> Bind:
        annotations: dict[str, str] | None = None
        for call in profile.runtime["bind"]:
            annotations = call(reserved.pod, self._row(reserved.node), reserved.state)
            if annotations is not None:
                break
        pod = reserved.pod
        return Bind(pod.key, pod.pod.metadata.uid, reserved.node, annotations or {})

    def _bound(
        self,
        reserved: Reserved,
        profile: ProfileAtWork,
        attempt: _Attempt,
        error: ClusterError | None,
    ) -> None:
        """The cluster has answered a binding; the watch may have told of it before."""
        key = reserved.pod.key
        if error is None:
            self._was_bound(reserved, profile, attempt)
            return
        binding = self._binding.get(key)
        if binding is None or binding.reserved is not reserved:
            return
        del self._binding[key]
        self._give_back(binding.profile, [reserved])
        self.gangs.set_pending(reserved.pod)
        message = f"binding to {reserved.node} was refused: {error}"
        self._announcer.warn(reserved.pod, "FailedScheduling", message)
        if key not in self._known:
            return
        self._claimants.add(reserved.pod)
        self.queue.add(reserved.pod, self.now)
        queued = self.queue.units.get(self.gangs.unit_of(reserved.pod))
        if queued is not None and queued.place is Place.ACTIVE:
            queued.attempts = max(attempt.number, queued.attempts)
            self.queue.retry(queued, self.now)
        self._announcer.gate_changed(self.gangs.unit_of(reserved.pod))
        if binding.newer is not None:
            self._pod_pending(binding.newer)

    def _was_bound(self, reserved: Reserved, profile: ProfileAtWork, attempt: _Attempt) -> None:
        self.statistics.bound += 1
        seconds = self.now - attempt.added
        self.observer.bound(reserved.pod, reserved.node, attempt.cycle, attempt.number, seconds)
        for call in profile.runtime["post_bind"]:
            try:
                call(reserved.pod, self._row(reserved.node), reserved.state)
            except PluginError as exc:
                self._announcer.plugin_failed(reserved.pod, exc)
        self._announcer.bound(reserved.pod, reserved.node)

    def _give_back(self, profile: ProfileAtWork, reserved: list[Reserved]) -> None:
        """Forget reservations: unreserve hooks first, then the snapshot, last pod first."""
        profile.cycle.unreserve(reserved)
        for one in reversed(reserved):
            placed = self.snapshot.placed.get(one.pod.key)
            if placed is None or placed[0] is not one.pod:
                continue
            held = self.snapshot.remove_pod(one.pod.key)
            if held is not None:
                self._happened(ClusterEvent.POD_REMOVED, held)

    def _release_waiting(self, key: str) -> None:
        """A member of a waiting unit is gone: its unit gives everything back and tries again."""
        if key in self._waiting:
            self._stop_waiting(key)
        self._preparing.cancel(key, "a pod of the unit is gone")

    def _stop_waiting(self, key: str) -> None:
        """Give the places of a unit that waits at Permit back, and try it again."""
        waiting = self._waiting.pop(key)
        self._permits.forget(key)
        self._give_back(waiting.profile, waiting.result.reserved)
        self.queue.retry(waiting.unit, self.now)

    def _row(self, name: str) -> NodeRow:
        return self.snapshot.row(name)


def _guarded(preparation: Preparation, call: HookCall) -> Preparation:
    """Return a preparation whose ``ready`` fails under the name of its plugin."""
    if preparation.ready is None:
        return preparation
    return replace(preparation, ready=partial(guard, call, preparation.ready))
