"""The scheduler: watch events in, one cycle a step, writes out.

It is a state machine without threads or time of its own: ``handle`` takes a watch event, ``step``
runs one cycle, ``tick`` ends waits whose time is over. The owner of the loop (a simulation, or an
asyncio loop on a live cluster) calls them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set

from bayplan.api import Pod
from bayplan.cluster.protocol import (
    Cluster,
    PatchAnnotations,
    PatchStatus,
    WatchEvent,
    WatchType,
)
from bayplan.cycle.decision_tables import DecisionTables
from bayplan.cycle.evaluator import Evaluator, Trace
from bayplan.cycle.scheduling_cycle import Cycle, Result
from bayplan.errors import PluginError
from bayplan.gangs.directory import GangMembers
from bayplan.plugin.base import Overdue, Unit
from bayplan.plugin.decision import Decision, Outcome
from bayplan.plugin.events import ClusterEvent
from bayplan.plugin.failures import PLUGIN_RAISES, failure
from bayplan.plugin.plugin import Handle
from bayplan.profiles.loading import Profile, ProfileSet
from bayplan.profiles.runtime import Runtime
from bayplan.scheduler.active_profiles import ActiveProfile, actions_of
from bayplan.scheduler.binding import BindingCycle
from bayplan.scheduler.event_handlers import EventHandlers
from bayplan.scheduler.evictor import Evictor
from bayplan.scheduler.gang_timeouts import GangTimeouts
from bayplan.scheduler.handle import PluginHandle
from bayplan.scheduler.node_demand import AskedNodes, NodeDemand
from bayplan.scheduler.nominator import Nomination
from bayplan.scheduler.observer import Observer
from bayplan.scheduler.permits import PermitWait
from bayplan.scheduler.pre_bind import AwaitedPreparation
from bayplan.scheduler.queue_questions import QueueQuestions
from bayplan.scheduler.queued_unit import Place, QueuedUnit
from bayplan.scheduler.reserve_pods import WithReservePods
from bayplan.scheduler.shadow_mode import EXPECTED, ReadOnlyCluster, ShadowMode
from bayplan.scheduler.state import SchedulerState
from bayplan.snapshot import PodInfo

__all__ = ["Scheduler"]

_NODES_A_STEP = 8192


class Scheduler:
    """Schedules the pods of its profiles on a cluster.

    :param cached: whether evaluations are kept between cycles; False is the plain path.
    :param keep_decisions: how many of the latest decisions are kept, by unit.
    :param tables: decides which decisions keep what each plugin said of the nodes; None for none.
    :param instrument: wraps the hooks of a profile, to measure them.
    :param observer: called at every cycle and binding.
    :param trace: a pod whose evaluations are logged hook by hook.
    :param binds: whether it binds pods and evicts others for them. Otherwise another scheduler
        does, and this one keeps free for a while what that one is expected to use.
    :raises PluginError: when a plugin raises in ``__init__``.
    """

    def __init__(
        self,
        cluster: Cluster,
        profiles: ProfileSet,
        cached: bool = True,
        keep_decisions: int = 10_000,
        tables: DecisionTables | None = None,
        instrument: Callable[[Runtime], Runtime] | None = None,
        observer: Observer | None = None,
        trace: Trace | None = None,
        binds: bool = True,
    ) -> None:
        # A scheduler beside another one leaves reservations to that one.
        cluster = WithReservePods(cluster) if binds else cluster
        self._cluster = cluster
        self._state = state = SchedulerState(
            cluster if binds else ReadOnlyCluster(cluster),
            profiles,
            keep_decisions,
            observer or Observer(),
        )
        self.snapshot = state.snapshot
        self.gangs = state.gangs
        self.queue = state.queue
        self.nominator = state.nominator
        self.decisions = state.decisions
        self.statistics = state.statistics
        self.queues = QueueQuestions(state)
        self._demand = NodeDemand(state)
        self._binding = BindingCycle(state, self._demand, self._redeliver)
        self.evictor = Evictor(state, self._binding.cancel_placement)
        self._shadow_mode = None if binds else ShadowMode(state)
        self._gang_timeouts = GangTimeouts(state.gangs)
        self._events = EventHandlers(state, self._binding, self.evictor, self._gang_timeouts)
        for profile in profiles.profiles:
            runtime = self._runtime(profile)
            if instrument is not None:
                runtime = instrument(runtime)
            evaluator = Evaluator(runtime, state.snapshot, cached, trace)
            failed = state.recorder.plugin_failed
            cycle = Cycle(runtime, evaluator, state.snapshot, failed, tables)
            active = ActiveProfile(profile, runtime, evaluator, cycle, actions_of(runtime))
            state.profiles.by_name[profile.scheduler_name] = active
        self._overdue_seen = 0
        self._reported_at = (0, 0)
        self._admitted_at = -1
        self._prepared_at = -1
        self._reading = False
        """Whether nodes, or what plugins prepare, are read in parts, and some are left."""
        self._overdue_at: float | None = None
        cluster.watch(self.handle)

    def _runtime(self, profile: Profile) -> Runtime:
        """Make the plugins of a profile."""
        plugins = {}
        for name, cls in profile.plugins.items():
            handle = self._handle(name, profile.scheduler_name, cls.writes_beside)
            try:
                plugins[name] = cls(profile.args[name], handle)
            except PLUGIN_RAISES as exc:
                raise failure(name, "__init__", exc, cls.__init__) from exc
        return Runtime.compiled(plugins, profile.points)

    def handle_for(self, plugin: str, profile: str) -> Handle:
        """Return what a plugin sees of the scheduler.

        :param profile: the scheduler name of the plugin's profile.
        """
        return self._handle(plugin, profile)

    def _handle(self, plugin: str, profile: str, writes_beside: bool = False) -> Handle:
        cluster = self._cluster if writes_beside else self._state.cluster
        return PluginHandle(self._state, self.evictor, profile, plugin, cluster)

    # What others ask ---------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The cluster's time in seconds."""
        return self._state.now

    @property
    def unix_time(self) -> float:
        """The cluster's time in seconds since 1970."""
        return self._state.cluster.unix_time

    @property
    def unconfirmed(self) -> int:
        """How many pods are assumed: their binding was submitted and the watch has not shown it."""
        return len(self._state.assumed)

    @property
    def other_schedulers(self) -> Set[str]:
        """The other schedulers whose pods ask for what this one gives out under locks, by name."""
        return self._events.other_schedulers

    @property
    def profiles(self) -> Mapping[str, ActiveProfile]:
        """The active profiles, by scheduler name."""
        return self._state.profiles.by_name

    def profile_of(self, pod: Pod) -> ActiveProfile | None:
        """Return the profile that schedules a pod, None when no profile does."""
        return self._state.profiles.of(pod)

    def backlog(self) -> Mapping[str, int]:
        """Return how many entries each part holds; all are 0 when no work is left."""
        state = self._state
        return {
            "at Permit": len(state.permits),
            "being prepared": len(state.preparations),
            "assumed": len(state.assumed),
            "gang timeouts": len(self._gang_timeouts),
            "group statuses to write": len(state.changed_gangs),
            "gates to record": len(state.recorder.changed_gates()),
            "pending reasons": state.recorder.pending_reasons,
        }

    def pending_unit(self, key: str) -> Unit | None:
        """Return a pending unit as a cycle would get it.

        None for a unit that is in its cycle, waits at Permit or is being bound: it has its nodes.
        """
        queued = self.queue.units.get(key)
        if queued is None or queued.place is Place.IN_FLIGHT:
            return None
        return self._state.unit(queued)

    def waiting(self, key: str) -> PermitWait | None:
        """Return what a unit waits for at Permit, by its key or that of a pod of it.

        None where it does not wait there.
        """
        return self._state.permits.waiting(key)

    def awaited(self, unit: str) -> Sequence[AwaitedPreparation]:
        """Return what has to be ready before a placed unit is bound, as far as plugins say it.

        :raises PluginError: when a plugin raises.
        """
        return self._state.preparations.awaited(unit)

    def allow(self, waiting: Unit | PodInfo | str, plugin: str | None = None) -> bool:
        """Let a unit or a pod that waits at Permit go on; return whether the plugin held it.

        The unit is bound at the next ``step``, once no plugin holds any of its pods.

        :param waiting: a unit, one pod of it, or the key of either (that of both means the unit).
        :param plugin: the plugin that lets go; None for every plugin.
        """
        return self._state.permits.allow(waiting, plugin)

    def reject(self, waiting: Unit | PodInfo | str, reason: str, plugin: str | None = None) -> bool:
        """Refuse a unit that waits at Permit; return whether it was waiting.

        At the next ``step`` it gives its nodes back, and its pods get the reason.

        :param waiting: the unit, a pod of it, or the key of either.
        :param plugin: the plugin whose ``requeue_on`` says what can help it; None for any event.
        """
        return self._state.permits.reject(waiting, reason, plugin)

    def gang_advice(self, pod: Pod) -> str:
        """Return what to do where a pod may belong to a gang that no rule knows; "" if not."""
        return self._events.gang_advice(pod)

    def ungrouped_kinds(self) -> tuple[str, ...]:
        """Return what to do about kinds several of whose pods no rule groups, one text a kind."""
        return self._events.ungrouped_kinds()

    # Events ------------------------------------------------------------------------------

    def handle(self, event: WatchEvent) -> None:
        """Apply one watch event."""
        self._events.handle(event)

    def _redeliver(self, pod: Pod) -> None:
        self._events.handle(WatchEvent(WatchType.MODIFIED, pod))

    # Cycles ------------------------------------------------------------------------------

    def step(self) -> bool:
        """End waits at Permit or, without any, run one cycle; return whether there was either.

        What may take long has steps of its own: the statuses of thousands of queues, and the
        nodes of a large cluster, thousands in each step.
        """
        state = self._state
        if self.read_nodes():
            return True
        self._events.read_nominations()
        self._admit()
        self._events.recheck_stale_gates()
        self._events.wake_for_loads()
        if self._binding.settle_permits():
            return True
        queued = state.queue.pop(state.now)
        if queued is None:
            # A gate may answer differently now than when its pod came.
            for key in state.recorder.changed_gates():
                state.queue.refresh_gates(key, state.now)
            queued = state.queue.pop(state.now)
        if queued is None:
            waited = self._evict_overdue()
            if self._report_queues():
                return True
            state.recorder.gated(state.queue)
            self._write_group_statuses()
            state.network_status.write()
            if self._demand.tell() or waited or self._demand.ask_again():
                return True
            return self._prepare()
        try:
            self._cycle(queued)
        except BaseException:
            # Whatever was raised, the unit is not lost.
            state.queue.retry(queued, state.now)
            raise
        return True

    def read_nodes(self) -> bool:
        """Read some of the nodes that are new or changed; return whether there are more.

        Nothing may be decided before all of them are read.
        """
        if not self._state.snapshot.sync(_NODES_A_STEP):
            self._reading = True
        elif not self._reading:
            return False
        more = self._call("prepare")
        self._reading = more or self._state.snapshot.has_unread_nodes
        return True

    @property
    def has_read(self) -> bool:
        """Whether all nodes that are known have been read."""
        return not self._reading and not self._state.snapshot.has_unread_nodes

    def tick(self) -> None:
        """End the waits whose time is over."""
        self._binding.settle_permits()
        self._state.preparations.tick()
        self._events.requeue_overdue()
        self._events.wake_for_loads()
        self.evictor.tick()

    def next_time(self) -> float | None:
        """Return when there is something to do without any event, in seconds; None when never."""
        state = self._state
        times = [
            *self.evictor.next_times(),
            *state.preparations.next_times(),
            state.permits.next_time(state.now),
            self._gang_timeouts.next_time(),
            self._events.next_time(),
            state.recorder.next_time(),
            state.queue.next_time(),
            self._demand.next_time(),
            self._overdue_at,
        ]
        return min((at for at in times if at is not None), default=None)

    def asked_nodes(self, most: int) -> list[AskedNodes]:
        """Return the units that ask autoscalers for nodes, no more than so many."""
        return self._demand.asked(most)

    def _admit(self) -> None:
        """Let plugins admit what waits for a queue, after changes."""
        state = self._state
        if state.events == self._admitted_at:
            return
        self._admitted_at = state.events
        self._call("admit")

    def _prepare(self) -> bool:
        """Let plugins read what is new, after changes; return whether there is more to read."""
        state = self._state
        if state.events == self._prepared_at:
            return False
        more = self._call("prepare")
        if not more:
            self._prepared_at = state.events
        return more

    def _call(self, hook: str) -> bool:
        """Call a hook without arguments of all plugins; return whether any says yes."""
        yes = False
        for profile in self._state.profiles.by_name.values():
            for call in profile.runtime[hook]:
                try:
                    yes |= bool(call())
                except PluginError as exc:
                    self._state.recorder.log_failure(exc)
        return yes

    def _report_queues(self) -> bool:
        """Write the statuses of queues, after changes and after what was placed.

        :returns: whether there was any.
        """
        state = self._state
        # A unit may be placed long after the event that helped it.
        at = state.events, state.statistics.cycles
        if at == self._reported_at:
            return False
        self._reported_at = at
        wanted: list[PatchStatus | PatchAnnotations] = []
        for queueing in state.profiles.queueing():
            try:
                wanted += queueing.statuses()
            except PluginError as exc:
                state.recorder.log_failure(exc)
        state.queue_status.write(wanted)
        return bool(wanted)

    def _evict_overdue(self) -> bool:
        """Evict what plugins find overdue, after changes and when they asked to be asked again.

        :returns: whether the time of any that waited is over, so that there is more to try.
        """
        state = self._state
        due = self._overdue_at is not None and self._overdue_at <= state.now
        if state.events == self._overdue_seen and not due:
            return False
        waited = False
        self._overdue_seen, self._overdue_at = state.events, None
        times = []
        for profile in state.profiles.by_name.values():
            for call in profile.runtime["overdue"]:
                try:
                    found: Overdue | None = call()
                except PluginError as exc:
                    state.recorder.log_failure(exc)
                    continue
                if found is not None:
                    times.append(found.again)
                    if self._shadow_mode is None:
                        self.evictor.evict(found)
                    waited |= found.waited
        self._overdue_at = min((at for at in times if at is not None), default=None)
        if waited:
            state.broadcast(ClusterEvent.OBJECT_CHANGED)
        return waited

    def stand_by(self) -> None:
        """Follow the cluster without deciding anything, while another process leads."""
        state = self._state
        state.snapshot.sync()
        self._events.recheck_stale_gates()
        state.recorder.forget_gone(state.queue)
        gangs = state.gangs.all()
        state.changed_gangs.forget(lambda key: key not in gangs)

    def _cycle(self, queued: QueuedUnit) -> None:
        state = self._state
        unit = self._turn(state.unit(queued))
        names = {pod.pod.spec.scheduler_name for pod in unit.pods}
        profile = state.profiles.of(unit.pods[0].pod)
        assert profile is not None, "only pods of a profile are queued"
        state.statistics.cycles += 1
        state.observer.begins()
        started = time.perf_counter()
        if len(names) > 1 and not state.profiles.take_any_pod:
            result = Result(Decision(unit.key, state.statistics.cycles, state.now))
            result.decision.message = (
                f'the members of gang "{unit.key}" name different schedulers: '
                f"{', '.join(sorted(names))}"
            )
            result.decision.of_members = True
        else:
            result = self._run(queued, unit, profile)
        if result.later:
            state.queue.try_again(queued)
            return
        if self._shadow_mode is not None:
            self._shadow_mode.leave_to_the_other(result)
        self._conclude(queued, unit, profile, result)
        seconds = time.perf_counter() - started
        state.observer.ended(profile.profile.scheduler_name, unit, result, seconds)

    def _turn(self, unit: Unit) -> Unit:
        """Return the part of a unit that is placed in this cycle, by its queue."""
        queueing = self._state.profiles.queueing_of(unit.pods[0].pod)
        if queueing is None:
            return unit
        try:
            chosen = queueing.pods_to_place(unit)
        except PluginError as exc:
            # It is placed as a whole, which is what happens without the plugin.
            self._state.recorder.plugin_failed(unit.pods[0], exc)
            return unit
        if not chosen:
            return unit
        part = self._state.unit_of(unit.key, chosen)
        if not part.parts:
            part.pods = chosen
        return part

    def _run(self, queued: QueuedUnit, unit: Unit, profile: ActiveProfile) -> Result:
        """Run a unit's cycle with its nominated nodes free; keep the nomination if it fails."""
        state = self._state
        run, number = profile.cycle.run, state.statistics.cycles
        action = profile.action(queued.action)
        nomination = state.nominator.get(unit.key)
        if action and nomination is None:
            before = state.decisions.get(unit.key)
            if before is None or before.outcome is not Outcome.UNSCHEDULABLE:
                # It was not tried since; what is known of it is from before it lost its nodes.
                before = Decision(unit.key, number, state.now)
            # What is read in trials is forgotten with them, and read again in the next.
            self._prepare()
            result = profile.cycle.make_room(unit, before, number, state.now, action)
            if queued.refused_like and not result.decision.message:
                why = f"skipped: equivalent to {queued.refused_like}, which did not fit."
                result.decision.message, result.decision.of_queue = why, queued.held_by_queue
            return result
        if nomination is None:
            # Room for a unit of a queue is made once nothing else can be placed.
            return run(unit, number, state.now, preempt=not queued.queue)
        state.nominator.suspend(unit.key)
        result = run(unit, number, state.now, preempt=not nomination.victims and not queued.queue)
        if result.reserved or result.preemption is not None:
            state.nominator.forget(unit.key)
        elif result.later:
            state.nominator.resume(unit.key)
        elif _is_useless(nomination, unit, result.decision):
            self.evictor.give_up(nomination)
        else:
            state.nominator.resume(unit.key)
            if nomination.victims:
                count = len(nomination.victims)
                result.decision.message += (
                    f" Waiting for {count} evicted pod{'s'[: count > 1]} to end on its nominated "
                    "nodes."
                )
        return result

    def _conclude(
        self, queued: QueuedUnit, unit: Unit, profile: ActiveProfile, result: Result
    ) -> None:
        """Do what a cycle decided: bind, wait at Permit, preempt, or put the unit back."""
        state, decision = self._state, result.decision
        before = state.decisions.get(decision.unit)
        if unit.nominated and before is not None and not decision.preemption:
            # The candidates compared at the nomination still explain it.
            decision.preemption = before.preemption
        state.remember(decision)
        if unit.gang is not None:
            for key in state.gangs.gangs_of(queued.key):
                state.changed_gangs.add(key)
        placed = decision.outcome in (Outcome.PLACED, Outcome.WAITING)
        if placed:
            state.queue.has_nodes(queued)
        if placed and self._shadow_mode is not None:
            self._shadow_mode.expect(queued, profile, result)
        elif decision.outcome is Outcome.PLACED:
            self._binding.bind(queued, profile, result)
        elif decision.outcome is Outcome.WAITING:
            self._binding.wait(queued, unit, profile, result)
        elif decision.outcome is Outcome.ERROR:
            state.recorder.refused(unit, decision, "SchedulerError")
            if result.error is not None:
                state.recorder.log_failure(result.error)
                state.queue.retry(queued, state.now)
            else:
                # A filter that could not tell answers the same until something changes.
                state.queue.refuse(queued, decision.refused_by, state.now)
        else:
            self._not_placed(queued, unit, profile, result)

    def _not_placed(
        self, queued: QueuedUnit, unit: Unit, profile: ActiveProfile, result: Result
    ) -> None:
        state = self._state
        if result.preemption is not None:
            action = profile.action(queued.action) or "preempt"
            self.evictor.preempt(unit, result.preemption, action)
        elif result.partial:
            self.evictor.nominate_part(unit, result.partial)
        elif queued.queue and state.nominator.get(queued.key) is None:
            self._park(queued, profile, result)
            return
        self._binding.report_refused(queued, result)
        nomination = state.nominator.get(queued.key)
        if result.preemption is not None and nomination is not None and not nomination.victims:
            # The nodes are free already; no event would wake the unit.
            state.queue.retry(queued, state.now)

    def _park(self, queued: QueuedUnit, profile: ActiveProfile, result: Result) -> None:
        """Let a unit of a queue go on to its next action, or wait after the last one."""
        state, decision = self._state, result.decision
        everywhere = queued.action == 0 and not decision.of_queue
        state.queue.not_placed(queued, everywhere, state.now, decision.held_by_queue)
        if state.queue.next_action(queued):
            # What refuses it is recorded once every way to preempt was tried.
            return
        self._demand.tell_later(queued.key, decision)
        state.queue.park(queued, state.now)

    def _write_group_statuses(self) -> None:
        """Write what the objects of the gangs that changed should say, as plugins provide it."""
        state = self._state
        for key in state.changed_gangs.take():
            members = state.gangs.all().get(key)
            profile = self._profile_of_gang(members) if members is not None else None
            if members is None or profile is None:
                continue
            why = self._why_pending(key) if members.gang is not None and members.pending else ""
            for call in profile.runtime["group_status"]:
                try:
                    for write in call(members, why):
                        state.cluster.submit(write)
                except PluginError as exc:
                    state.recorder.log_failure(exc)

    def _profile_of_gang(self, members: GangMembers) -> ActiveProfile | None:
        """Return the profile of a gang; None if another scheduler has all of its pods."""
        profiles = self._state.profiles
        pods = [*members.pending.values(), *(info for info, _ in members.bound.values())]
        found = (profiles.of(info.pod) for info in pods)
        return next((one for one in found if one is not None), None if pods else profiles.first)

    def _why_pending(self, gang: str) -> str:
        """Return what keeps a gang pending, as recorded on its pods."""
        state = self._state
        pod = next(iter(state.gangs[gang].pending.values()))
        key = state.gangs.unit_of(pod)
        queued = state.queue.units.get(key)
        if queued is not None and pod.key in queued.gated:
            return queued.gated[pod.key][1]
        decision = state.decisions.get(key)
        if decision is None or decision.outcome is Outcome.WAITING:
            # It has its nodes; an autoscaler need not add any.
            return ""
        return decision.message


def _is_useless(nomination: Nomination, unit: Unit, decision: Decision) -> bool:
    """Tell whether freed nodes cannot serve the unit any more.

    Its queue does not take it now, or its gang has lost members since and needs more nodes than
    were freed. What refuses it on its nodes may pass, such as devices that are still given back.
    Nodes of which only the status tells, and that nobody has to leave, serve it at once or not at
    all, as in kube-scheduler.
    """
    if nomination.victims:
        return False
    if nomination.action in ("", EXPECTED):
        return nomination.stated or nomination.action == EXPECTED
    return decision.of_queue or len(nomination.pods) < unit.min_placed
