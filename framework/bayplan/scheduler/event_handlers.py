"""Watch events: what a change of a pod, a node or another object means for the scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence, Set
from functools import partial

from msgspec.structs import replace

from bayplan.api import (
    KINDS,
    ApiObject,
    Job,
    Node,
    NodeMetric,
    NodeMetrics,
    OwnerReference,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    Reservation,
    ResourceClaim,
    ResourceSlice,
    WatchedLoad,
)
from bayplan.api.definition import same_definition
from bayplan.api.gang import Gang, Membership
from bayplan.api.lease import Lease
from bayplan.api.object_key import object_key
from bayplan.api.objects import is_known
from bayplan.api.pod import failed_devices
from bayplan.cluster.protocol import WatchEvent, WatchType
from bayplan.dialects.autoscaling import is_stand_in
from bayplan.dialects.progress import checkpointed_at
from bayplan.errors import PluginError
from bayplan.gangs.definitions import GangDefinitions
from bayplan.gangs.owned import asked_of, settings_for_pods
from bayplan.plugin.events import ClusterEvent
from bayplan.scheduler.binding import BindingCycle
from bayplan.scheduler.evictor import Evictor
from bayplan.scheduler.gang_timeouts import GangTimeouts
from bayplan.scheduler.object_changes import (
    claim_freed,
    is_as_bound,
    node_difference,
    same_needs,
)
from bayplan.scheduler.other_schedulers import OtherSchedulers
from bayplan.scheduler.owner_waits import OwnerWaits
from bayplan.scheduler.queued_unit import Place
from bayplan.scheduler.state import AssumedPod, SchedulerState
from bayplan.snapshot import PodInfo
from bayplan.snapshot.job_annotations import NOTHING, inherited, is_of, passed_on

__all__ = ["EventHandlers"]

_CHANGED_THERE = ClusterEvent.POD_CHANGED | ClusterEvent.POD_REMOVED
"""A pod on a node is another one now: it may need less, or attract others."""
_LOADS_APART = 1.0
"""Seconds between two times that the load of nodes is reported to pods."""


class EventHandlers:
    """Applies watch events to the snapshot, the gangs and the queue."""

    def __init__(
        self,
        state: SchedulerState,
        binding: BindingCycle,
        evictor: Evictor,
        gang_timeouts: GangTimeouts,
    ) -> None:
        self._state = state
        self._binding = binding
        self._evictor = evictor
        self._gang_timeouts = gang_timeouts
        self._definitions = GangDefinitions(state.gangs, state.snapshot)
        self._other_schedulers = OtherSchedulers(state.profiles)
        self._owner_waits = OwnerWaits()
        self._stale_gates: dict[str, None] = {}
        """Units of gangs whose gates have to be checked again, once for all events."""
        self._kinds_changed: set[type] = set()
        """Kinds of objects that changed, and that a gate may read."""
        self._loads_changed = False
        """Whether nodes reported their load since pods were woken the last time."""
        self._loads_at = -math.inf
        self._renominated: dict[str, None] = {}
        """Pods, by key, whose status names another nominated node than before."""

    def handle(self, event: WatchEvent) -> None:
        """Apply one watch event."""
        if event.type is WatchType.RESYNC:
            self._resync(event.objects)
        elif isinstance(event.obj, Pod):
            self._pod(event.type, event.obj)
        elif isinstance(event.obj, Node):
            self._node(event.type, event.obj)
        elif isinstance(event.obj, ResourceClaim):
            self._claim(event.type, event.obj)
        elif isinstance(event.obj, PersistentVolumeClaim | PersistentVolume):
            self._volume(event.type, event.obj)
        elif event.obj is not None and is_known(event.obj):
            # An embedded cluster that is served tells of leases, secrets and more.
            self._object(event.type, event.obj)

    def _resync(self, listed: Sequence[ApiObject]) -> None:
        """Apply a full listing after a broken watch; objects missing from it were deleted."""
        state = self._state
        pods = {obj.key for obj in listed if isinstance(obj, Pod)}
        nodes = {obj.metadata.name for obj in listed if isinstance(obj, Node)}
        for key, info in list(state.pods.items()):
            if key not in pods:
                self._owner_waits.forget(info.uid)
                self._pod_gone(info.pod)
        for name in list(state.snapshot.nodes.row_of):
            if name not in nodes:
                state.snapshot.delete_node(name)
        present = {(type(obj), object_key(obj)) for obj in listed if is_known(obj)}
        for type_ in {kind.type for kind in KINDS.values()} - {Node}:
            for key, old in list(state.snapshot.objects(type_).items()):
                if (type_, key) not in present:
                    self.handle(WatchEvent(WatchType.DELETED, old))
        for obj in listed:
            self.handle(WatchEvent(WatchType.MODIFIED, obj))

    # Pods --------------------------------------------------------------------------------

    @property
    def other_schedulers(self) -> Set[str]:
        """The other schedulers whose pods ask for what this one gives out under locks, by name."""
        return self._other_schedulers.names

    def _stand_in(self, type_: WatchType, pod: Pod) -> None:
        """Keep a stand-in as an object: it asks autoscalers for nodes, and counts for nobody."""
        gone = type_ is WatchType.DELETED
        (self._state.snapshot.delete_object if gone else self._state.snapshot.set_object)(
            pod.key, pod
        )
        self._state.events += 1

    def _pod(self, type_: WatchType, pod: Pod) -> None:
        if is_stand_in(pod):
            self._stand_in(type_, pod)
            return
        ended = pod.status.phase in ("Succeeded", "Failed")
        if pod.key not in self._state.pods and self._state.profiles.of(pod) is None:
            self._see_other_scheduler(pod)
        deleted = type_ is WatchType.DELETED
        if deleted or ended:
            info = self._info(pod) if ended else None
            if info is not None:
                phase = None if deleted else pod.status.phase
                self._state.gangs.set_ended(info, phase)
            self._owner_waits.forget(pod.metadata.uid)
            known = self._pod_gone(pod)
            self._state.snapshot.note_ended(info or known or self._info(pod), there=not deleted)
            if known is None and not deleted and pod.metadata.finalizers:
                # Whoever keeps it may let it go now.
                self._state.events += 1
            return
        if pod.spec.node_name:
            self._pod_on_node(pod)
        else:
            self.pod_pending(pod)
        # The leader of a group may own what owns its workers.
        self._owner_came(pod.metadata.uid)

    def _see_other_scheduler(self, pod: Pod) -> None:
        try:
            self._other_schedulers.see(pod)
        except PluginError as exc:
            self._state.recorder.log_failure(exc)

    def _info(self, pod: Pod) -> PodInfo:
        info = PodInfo(pod, inherited(pod, self._state.snapshot), self._of_owner)
        self._requeue_gangs(self._definitions.take_changed())
        return info

    def _of_owner(self, pod: Pod) -> Membership:
        return self._definitions.of_owner(pod, partial(self._waits_for, pod))

    def gang_advice(self, pod: Pod) -> str:
        """Return what to do where a pod may belong to a gang that no rule knows; "" if not."""
        info = self._state.snapshot.living.get(pod.key)
        return self._definitions.advice(pod) if info is not None and info.gang is None else ""

    def ungrouped_kinds(self) -> tuple[str, ...]:
        """Return what to do about kinds several of whose pods no rule groups, one text a kind."""
        return self._definitions.ungrouped()

    def _waits_for(self, pod: Pod, owner: OwnerReference) -> bool:
        """Tell whether a pod without a node waits for an owner, which its pods may follow."""
        state = self._state
        if state.cluster.in_order or pod.spec.node_name:
            return False
        return self._owner_waits.may_wait(pod.metadata.uid, owner.uid, state.now)

    def _owner_came(self, uid: str) -> None:
        """Read the pods again that have waited for an owner."""
        pods = self._owner_waits.arrived(uid) if self._owner_waits else ()
        if pods:
            self._read_again(lambda one: one.uid in pods)

    def _known(self, pod: Pod) -> PodInfo | None:
        """Return the known version of a pod; drop a known pod of that name with another uid."""
        known = self._state.pods.get(pod.key)
        if known is not None and known.uid != (pod.metadata.uid or pod.key):
            self._owner_waits.forget(known.uid)
            self._pod_gone(known.pod)
            return None
        return known

    def _pod_gone(self, pod: Pod) -> PodInfo | None:
        """Forget a pod that is gone, or has ended; return it as it was known, if it was."""
        state = self._state
        info = state.snapshot.end_living(pod.key)
        if info is None:
            return None
        unit_key = state.gangs.unit_of(info)
        self._evictor.release(info.key)
        state.nominator.victim_ended(pod.key)
        state.queue.remove(pod.key)
        state.claims.remove(pod.key)
        state.recorder.forget(pod.key)
        self._binding.cancel_unit(unit_key)
        assumed = state.assumed.pop(pod.key, None)
        if assumed is not None:
            # Unreserve it first; it is removed from the snapshot below.
            assumed.profile.cycle.unreserve([assumed.reserved])
        placed = state.snapshot.placed.get(pod.key)
        removed = state.snapshot.remove_pod(pod.key)
        self._requeue_gangs(state.gangs.remove(info))
        self._recheck_gates(unit_key, info)
        if removed is not None:
            self._touch_gang(info)
            state.broadcast(ClusterEvent.POD_REMOVED, removed)
            if placed is not None and len(state.preparations):
                self._recheck_neighbours(placed[1])
        else:
            # It helps nobody, but its queue asks for less.
            state.events += 1
        return info

    def _recheck_neighbours(self, node: str) -> None:
        """Ask pods that are being prepared on a node again: one that went may have held a GPU."""
        state = self._state
        row = state.snapshot.nodes.row_of.get(node)
        if row is not None:
            state.preparations.recheck(list(state.snapshot.nodes.pods[row]))

    def _pod_on_node(self, pod: Pod) -> None:
        """A pod is on a node: bound by this scheduler or another one, or changed there."""
        state, key, node = self._state, pod.key, pod.spec.node_name
        known = self._known(pod)
        if known is not None:
            self._evictor.release(known.key)
            if key in state.queue:
                # Another scheduler bound it first.
                self._binding.cancel_unit(state.queue.unit_key(key) or known.key)
                state.queue.remove(key)
        assumed = state.assumed.pop(key, None)
        if assumed is not None and assumed.reserved.node != node:
            assumed.profile.cycle.unreserve([assumed.reserved])
        placed = state.snapshot.placed.get(key)
        if known is not None and placed is not None and placed[1] == node:
            self._pod_stays(known, pod, assumed)
            return
        state.queue.remove(key)
        state.snapshot.remove_pod(key)
        info = self._info(pod)
        state.snapshot.set_living(info)
        state.snapshot.add_pod(info, node)
        self._evictor.started(info)
        self._requeue_gangs(state.gangs.set_bound(info, node))
        self._touch_gang(info)
        self._recheck_gates(state.gangs.unit_of(info), info)
        state.broadcast(ClusterEvent.POD_PLACED, info)

    def _pod_stays(self, known: PodInfo, pod: Pod, assumed: AssumedPod | None) -> None:
        """Update a pod that is where the snapshot has it."""
        state = self._state
        if same_needs(known.pod, pod) or (
            assumed is not None and is_as_bound(known.pod, pod, assumed.write)
        ):
            self._needs_stay(known, pod)
            return
        info = self._info(pod)
        self._evictor.started(info)
        state.snapshot.set_living(info)
        state.snapshot.replace_pod(info)
        self._requeue_gangs(state.gangs.set_bound(info, pod.spec.node_name))
        self._touch_gang(info)
        state.broadcast(_CHANGED_THERE, info)
        state.preparations.recheck()

    def _needs_stay(self, known: PodInfo, pod: Pod) -> None:
        """Update a pod on its node that needs what it did: tell only who follows what changed."""
        state = self._state
        ending = not known.terminating and pod.metadata.deletion_timestamp is not None
        claimed = _claims_made(known.pod) != _claims_made(pod)
        before, now = known.pod.status, pod.status
        failed = before.container_statuses != now.container_statuses and failed_devices(
            known.pod
        ) != failed_devices(pod)
        started = before.start_time != now.start_time
        over = _is_over(pod) and not _is_over(known.pod)
        progress = known.pod.metadata.annotations != pod.metadata.annotations or (
            before.conditions != now.conditions
            and checkpointed_at(known.pod) != checkpointed_at(pod)
        )
        known.pod = pod
        if started:
            self._evictor.started(known)
        if started or progress:
            # What its eviction costs has changed, and perhaps that of its gang.
            state.snapshot.touch([self._known_node(known)])
        if ending:
            # Whoever follows the pods on nodes may count those that end differently.
            state.snapshot.replace_pod(known)
            self._touch_gang(known)
        if ending or claimed or failed or over or (progress and known.terminating):
            state.snapshot.set_living(known)
        if failed or over:
            state.events += 1
        if known.gang is not None:
            state.changed_gangs.add(known.gang)

    def _touch_gang(self, pod: PodInfo) -> None:
        """Mark a node of a gang one of whose members changed on a node that is gone."""
        if pod.gang is not None and pod.spec.node_name not in self._state.snapshot.nodes.row_of:
            self._state.snapshot.touch([self._known_node(pod)])

    def _known_node(self, pod: PodInfo) -> str:
        """Return a pod's node; if that is gone, the node of another member of its gang."""
        node, known = pod.spec.node_name, self._state.snapshot.nodes.row_of
        members = self._state.gangs.all().get(pod.gang or "") if node not in known else None
        others = members.bound.values() if members is not None else ()
        return next((other for _, other in others if other in known), node)

    def pod_pending(self, pod: Pod) -> None:
        """A pod without a node is new, or changed."""
        state = self._state
        if pod.metadata.deletion_timestamp is not None:
            gone = self._pod_gone(pod)
            state.snapshot.note_ended(gone or self._info(pod), there=True)
            return
        known = self._known(pod)
        stated = known.pod.status.nominated_node_name if known is not None else ""
        if pod.status.nominated_node_name != stated:
            self._renominated[pod.key] = None
        if known is not None and same_needs(known.pod, pod):
            before, known.pod = known.pod, pod
            if _claims_made(before) != _claims_made(pod):
                state.snapshot.set_living(known)
                self._recheck_pod(pod.key)
            state.preparations.recheck((pod.key,))
            return
        if known is not None:
            self._evictor.release(known.key)
            if pod.key in state.queue and pod.key in state.snapshot.placed:
                # Its unit was placed for the old version of the pod.
                self._binding.cancel_unit(state.queue.unit_key(pod.key) or known.key)
        assumed = state.assumed.get(pod.key)
        if assumed is not None:
            assumed.newer = pod
        if state.profiles.of(pod) is None or pod.key in state.snapshot.placed:
            return
        if known is not None:
            state.queue.remove(pod.key)
            self._requeue_gangs(state.gangs.remove(known))
        self._queue_pod(pod)

    def _queue_pod(self, pod: Pod) -> None:
        state = self._state
        info = self._info(pod)
        state.snapshot.set_living(info)
        self._requeue_gangs(state.gangs.set_pending(info))
        state.claims.add(info)
        state.queue.add(info, state.now)
        if info.gang is not None:
            self._gang_timeouts.watch(info.gang, state.now)
        state.recorder.gate_changed(state.gangs.unit_of(info))
        state.events += 1

    def read_nominations(self) -> None:
        """Keep the nodes that the status of pending pods names, as a leader that has just begun.

        What this process nominated itself is known better than the status says, which follows.
        """
        if not self._renominated:
            return
        state = self._state
        changed, self._renominated = self._renominated, {}
        units = [state.queue.unit_key(key) for key in changed]
        for unit in dict.fromkeys(key for key in units if key is not None):
            queued, current = state.queue.units[unit], state.nominator.get(unit)
            if queued.place is Place.IN_FLIGHT or (current is not None and not current.stated):
                continue
            gates = any(pod.spec.scheduling_gates for pod in queued.pods.values())
            if queued.place is Place.GATED and current is None and not gates:
                # A gang may be complete in a moment; until then it keeps no node from others.
                self._renominated |= dict.fromkeys(k for k in changed if k in queued.pods)
                continue
            pods = list(queued.pods.values())
            stated = {pod.key: pod.pod.status.nominated_node_name for pod in pods}
            promised = all(state.recorder.nominated_node(k) == node for k, node in stated.items())
            if promised and current is None:
                # It is a plugin that keeps these nodes, until all that the unit needs are there.
                continue
            state.nominator.drop(unit)
            if any(stated.values()) and not promised:
                self._evictor.read_back(state.unit_of(unit, pods))
            elif current is not None:
                state.broadcast(ClusterEvent.POD_REMOVED)

    # Nodes and other objects -------------------------------------------------------------

    def _node(self, type_: WatchType, node: Node) -> None:
        state, name = self._state, node.metadata.name
        if type_ is WatchType.DELETED:
            state.snapshot.delete_node(name)
            state.broadcast(ClusterEvent.NODE_OTHER)
            return
        event = node_difference(state.snapshot.node(name), node)
        if event:
            state.snapshot.set_node(node)
            state.broadcast(event)

    def _object(self, type_: WatchType, obj: ApiObject) -> None:
        state, key = self._state, object_key(obj)
        deleted = type_ is WatchType.DELETED
        if isinstance(obj, NodeMetric | NodeMetrics | WatchedLoad):
            # Thousands come in a minute: pods that wait for one of them are woken once for many.
            self._store(key, obj, deleted)
            self._loads_changed = True
            return
        if isinstance(obj, Reservation):
            self._reservation(key, obj, deleted)
            return
        if isinstance(obj, Lease):
            # It is renewed every few seconds, which helps nobody.
            self._store(key, obj, deleted)
            return
        old = state.snapshot.objects(type(obj)).get(key)
        if not deleted and same_definition(old, obj):
            # Only its status changed, which matters if it says that a gang is admitted or complete.
            state.snapshot.set_object(key, obj)
            state.events += 1
            members = state.gangs.all().get(key)
            before = members.gang if members is not None else None
            changed = self._definitions.update(obj, deleted)
            if changed == {key} and self._opens(key, before):
                self._recheck_opened(key)
            else:
                self._requeue_gangs(changed | self._owner_changed(old, obj, deleted))
            return
        self._store(key, obj, deleted)
        changed = self._definitions.update(obj, deleted) | self._owner_changed(old, obj, deleted)
        if old is None or old.metadata.uid != obj.metadata.uid:
            self._owner_came(obj.metadata.uid)
        if isinstance(obj, Job):
            self._job_changed(old if isinstance(old, Job) else None, obj, deleted)
        if changed:
            self._requeue_gangs(changed)
            state.broadcast(ClusterEvent.GANG_CHANGED)
        else:
            self._kinds_changed.add(type(obj))
            state.broadcast(ClusterEvent.OBJECT_CHANGED)
        if isinstance(obj, ResourceSlice):
            # A device may have been attached that a pod waits for.
            state.preparations.recheck()

    def _reservation(self, key: str, obj: Reservation, deleted: bool) -> None:
        """Store a reservation; what it holds is a pod of its own."""
        state = self._state
        old = state.snapshot.objects(Reservation).get(key)
        self._store(key, obj, deleted)
        state.events += 1
        phases = {obj.status.phase, old.status.phase if old is not None else ""}
        other = len(phases) > 1 or (old is not None and old.spec != obj.spec)
        if "Available" in phases and other:
            # Its owners may use it now, or need not wait for it any more.
            state.broadcast(ClusterEvent.OBJECT_CHANGED)

    def _opens(self, key: str, before: Gang | None) -> bool:
        """Tell whether a gang's status changed only so that its members are held back less."""
        after = self._state.gangs[key].gang
        if before is None or after is None:
            return False
        known = replace(before, satisfied=after.satisfied, admitted=after.admitted)
        return (
            known == after
            and before.satisfied <= after.satisfied
            and before.admitted <= after.admitted
        )

    def _store(self, key: str, obj: ApiObject, deleted: bool) -> None:
        if deleted:
            self._state.snapshot.delete_object(key, obj)
        else:
            self._state.snapshot.set_object(key, obj)

    def _owner_changed(self, old: ApiObject | None, owner: ApiObject, deleted: bool) -> set[str]:
        """Read the gangs of an owner's pods again; return the keys of those that changed."""
        changed, moved = self._definitions.owner_changed(owner, deleted)
        asks = old is not None and not deleted and _said(old) != _said(owner)
        if moved or asks:
            self._read_again(
                lambda one: (
                    one.gang in moved or (asks and self._definitions.is_above(owner, one.pod))
                )
            )
        return changed

    def _read_again(self, may_differ: Callable[[PodInfo], bool]) -> None:
        """Read pending pods again whose gang may be another one; no others are looked at."""
        placed = self._state.snapshot.placed
        queued = (pod for unit in self._state.queue.units.values() for pod in unit.pods.values())
        pending = [one.pod for one in queued if one.key not in placed and may_differ(one)]
        for pod in pending:
            self._pod_gone(pod)
            self.pod_pending(pod)

    def _job_changed(self, old: Job | None, job: Job, deleted: bool) -> None:
        """Read a Job's pending pods again when the annotations they inherit changed."""
        if passed_on(old) == (NOTHING if deleted else passed_on(job)):
            return
        self._read_again(lambda one: is_of(one.pod, job))

    def _claim(self, type_: WatchType, claim: ResourceClaim) -> None:
        """A ResourceClaim changed: its pods may wait for it, other pods for its devices."""
        state = self._state
        old = state.snapshot.objects(ResourceClaim).get(claim.key)
        deleted = type_ is WatchType.DELETED
        self._store(claim.key, claim, deleted)
        terminating = claim.metadata.deletion_timestamp is not None
        replaced = old is None or old.metadata.uid != claim.metadata.uid
        allocated = (
            old is not None
            and old.status.allocation is None
            and claim.status.allocation is not None
        )
        another = deleted or terminating or replaced
        if another or allocated:
            for pod_key in state.claims.of(claim):
                # An allocation opens no gate to a pod that has its node already.
                if another or pod_key not in state.snapshot.placed:
                    self._recheck_pod(pod_key)
        if deleted or claim_freed(old, claim):
            state.broadcast(ClusterEvent.OBJECT_CHANGED)
        state.preparations.recheck(state.claims.of(claim))

    def _volume(self, type_: WatchType, obj: PersistentVolumeClaim | PersistentVolume) -> None:
        """A claim or a volume changed; its status matters too, because it holds the phase."""
        state, key = self._state, object_key(obj)
        deleted = type_ is WatchType.DELETED
        old = state.snapshot.objects(type(obj)).get(key)
        if not deleted and old == obj:
            return
        self._store(key, obj, deleted)
        state.broadcast(ClusterEvent.OBJECT_CHANGED)
        subjects: list[tuple[type, str]] = [(type(obj), key)]
        for one in (old, obj):
            if isinstance(one, PersistentVolume) and one.spec.claim_ref is not None:
                subjects.append((PersistentVolumeClaim, one.spec.claim_ref.key))
        state.preparations.recheck_followers(subjects)

    # Gates and gangs ---------------------------------------------------------------------

    def _recheck_pod(self, pod_key: str) -> None:
        state = self._state
        state.queue.recheck_pod(pod_key, state.now)
        unit_key = state.queue.unit_key(pod_key)
        if unit_key is not None:
            state.recorder.gate_changed(unit_key)

    def _recheck_gates(self, unit_key: str, info: PodInfo) -> None:
        # Checking a gang's gates takes time in proportion to its members: do it once for all
        # events.
        if info.gang is not None:
            self._stale_gates[unit_key] = None

    def recheck_stale_gates(self) -> None:
        """Check gates after changes since the last call: of gangs' members, or of other objects."""
        if not (self._stale_gates or self._kinds_changed):
            return
        queue, now = self._state.queue, self._state.now
        stale, self._stale_gates = self._stale_gates, {}
        for unit_key in stale:
            queue.recheck(unit_key, now)
            # Those that were refused because nodes lacked would ask autoscalers for some on and on.
            self._state.recorder.gate_changed(unit_key)
        if self._kinds_changed:
            kinds, self._kinds_changed = self._kinds_changed, set()
            for unit_key in queue.gated_by_readers_of(kinds):
                if queue.refresh_gates(unit_key, now):
                    self._state.recorder.gate_changed(unit_key)

    def wake_for_loads(self) -> None:
        """Wake pods that wait for the load of nodes to change, once a second at most."""
        state = self._state
        if self._loads_changed and state.now >= self._loads_at + _LOADS_APART:
            self._loads_changed, self._loads_at = False, state.now
            state.broadcast(ClusterEvent.LOAD_CHANGED)

    def requeue_overdue(self) -> None:
        """Report the gangs whose members have been missing for too long."""
        for key in self._gang_timeouts.overdue(self._state.now):
            self._state.changed_gangs.add(key)
            self._requeue_gangs((key,))
        over = self._owner_waits.overdue(self._state.now)
        if over:
            self._read_again(lambda one: one.uid in over)

    def next_time(self) -> float | None:
        """Return when a pod has waited long enough for its owner, or for loads; None: never."""
        loads = self._loads_at + _LOADS_APART if self._loads_changed else None
        times = [at for at in (self._owner_waits.next_time(), loads) if at is not None]
        return min(times, default=None)

    def _recheck_opened(self, gang: str) -> None:
        """Bring the queue in step with a gang whose members are held back less than before."""
        state = self._state
        self._gang_timeouts.watch(gang, state.now)
        pod = next(iter(state.gangs[gang].pending.values()), None)
        unit = state.gangs.unit_of(pod) if pod is not None else gang
        state.queue.recheck(unit, state.now, opens=True)
        state.recorder.gate_changed(unit)

    def _requeue_gangs(self, gangs: Collection[str]) -> None:
        """Bring the queue in step with gangs, by key, whose definition changed."""
        if not gangs:
            return
        state = self._state
        for key in sorted(gangs):
            self._gang_timeouts.watch(key, state.now)
            members = state.gangs.all().get(key)
            pending = list(members.pending.values()) if members is not None else []
            for pod in pending:
                before = state.queue.unit_key(pod.key)
                if before is not None and before != state.gangs.unit_of(pod):
                    self._binding.cancel_unit(before)
                    state.queue.remove(pod.key)
                    state.queue.add(pod, state.now)
            units = {state.gangs.unit_of(pod) for pod in pending} or {key}
            for unit in sorted(units):
                state.queue.recheck(unit, state.now)
                state.recorder.gate_changed(unit)


def _said(owner: ApiObject) -> tuple[object, object]:
    """Return what an object says of its pods, which are read again if it changes."""
    return asked_of(owner), settings_for_pods(owner)


def _is_over(pod: Pod) -> bool:
    """Tell whether nothing but finalizers keeps a pod."""
    return pod.metadata.deletion_grace_period_seconds == 0


def _claims_made(pod: Pod) -> tuple[object, object]:
    """Return which claims were made for a pod."""
    return pod.status.resource_claim_statuses, pod.status.extended_resource_claim_status
