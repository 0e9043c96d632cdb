"""The binding cycle of a placed unit: Permit, PreBind, Bind, PostBind, and what happens on failure.

All pods of a unit are bound, or none: until the first binding is written, any refusal gives back
the nodes of the whole unit. What may succeed at once when it is repeated, the cluster's writer has
repeated before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial

import msgspec
from msgspec.structs import replace

from bayplan.api import Pod
from bayplan.cluster.protocol import Bind, BindLock
from bayplan.cycle.reservations import Reserved
from bayplan.cycle.scheduling_cycle import Result
from bayplan.errors import ClusterError, PluginError
from bayplan.plugin.base import Preparation, Unit
from bayplan.plugin.decision import Outcome
from bayplan.profiles.runtime import HookCall, guard
from bayplan.scheduler.active_profiles import ActiveProfile
from bayplan.scheduler.node_demand import NodeDemand
from bayplan.scheduler.permits import PermitWait
from bayplan.scheduler.pre_bind import AwaitedPreparation
from bayplan.scheduler.queued_unit import Place, QueuedUnit
from bayplan.scheduler.state import AssumedPod, SchedulerState
from bayplan.snapshot import PodInfo

__all__ = ["BindingCycle"]


class _Placed(msgspec.Struct, frozen=True, eq=False):
    """A unit from its cycle until its bindings are written; its pods are assumed on their nodes."""

    queued: QueuedUnit
    profile: ActiveProfile
    result: Result
    locks: dict[str, BindLock] = msgspec.field(default_factory=dict)
    """The locks that pods' bindings take, by the pod's key."""
    labels: dict[str, dict[str, str | None]] = msgspec.field(default_factory=dict)
    """What is set with the bindings, by the pod's key."""

    @property
    def key(self) -> str:
        return self.queued.key


class _Origin(msgspec.Struct, frozen=True):
    """The cycle that placed a unit, how many cycles that took, and when it was queued (seconds)."""

    cycle: int
    attempts: int
    added: float


class BindingCycle:
    """Takes placed units from their cycle to their bindings.

    :param demand: tells units that were refused why, and asks for their nodes.
    :param redeliver: called after a refused binding with the newer version of the pod, still
    without a node, that arrived during the write.
    """

    def __init__(
        self, state: SchedulerState, demand: NodeDemand, redeliver: Callable[[Pod], None]
    ) -> None:
        self._state = state
        self._demand = demand
        self._redeliver = redeliver
        self._permitting: dict[str, _Placed] = {}
        """Units that wait at Permit, by key."""

    # Permit ------------------------------------------------------------------------------

    def wait(self, queued: QueuedUnit, unit: Unit, profile: ActiveProfile, result: Result) -> None:
        """Hold a placed unit at Permit, for as long as its plugins asked."""
        placed = self._permitting[queued.key] = _Placed(queued, profile, result)
        permits, now = self._state.permits, self._state.now
        wait = permits.begin(unit, result.reserved, profile.runtime, result.waits, now)
        self._report_wait(placed, wait)

    def settle_permits(self) -> bool:
        """End the waits at Permit that are over; return whether there were any."""
        if self._state.permits.idle:
            return False
        endings, shorter = self._state.permits.settle(self._state.now)
        for wait in shorter:
            self._report_wait(self._permitting[wait.unit], wait)
        for ending in endings:
            placed = self._permitting.pop(ending.unit)
            if ending.error is not None:
                self._fail(placed, ending.error)
            elif ending.refusal is not None:
                self._refuse(placed, ending.refusal, ending.plugins)
            else:
                decision = placed.result.decision
                decision.outcome, decision.message = Outcome.PLACED, ""
                self._prepare(placed)
        return bool(endings)

    def _report_wait(self, placed: _Placed, wait: PermitWait) -> None:
        placed.result.decision.message = str(wait)
        pods = [reserved.pod for reserved in placed.result.reserved]
        self._state.recorder.waiting_on_permit(pods, wait)

    def cancel_unit(self, key: str) -> None:
        """Give a unit's nodes back, because one of its pods changed or is gone; try it again."""
        self._cancel_wait(key)
        self._state.preparations.cancel(key, "a pod of the unit is gone")

    def cancel_placement(self, pod: PodInfo) -> bool:
        """Give back the nodes of a pod's unit before its bindings are written, for a preemptor.

        :returns: False when the pod is in no such unit.
        """
        wait = self._state.permits.waiting(pod)
        if wait is not None:
            self._cancel_wait(wait.unit)
            return True
        return self._state.preparations.cancel_pod(
            pod.key, "its node was taken by a pod of higher priority"
        )

    def _cancel_wait(self, key: str) -> None:
        placed = self._permitting.pop(key, None)
        if placed is not None:
            self._state.permits.forget(key)
            self._state.give_back(placed.profile, placed.result.reserved)
            self._state.queue.retry(placed.queued, self._state.now)

    # PreBind -----------------------------------------------------------------------------

    def bind(self, queued: QueuedUnit, profile: ActiveProfile, result: Result) -> None:
        """Bind all reserved pods, or none if a plugin refuses one of them before the writes."""
        self._prepare(_Placed(queued, profile, result))

    def _prepare(self, placed: _Placed) -> None:
        """Run PreBind; the bindings follow once everything that plugins prepare is ready."""
        if self._lost_node(placed):
            return
        work: list[Preparation] = []
        refusal = self._pre_bind(placed, work)
        if refusal is not None:
            why, plugin = refusal
            self._refuse(placed, why, {plugin})
        elif work:
            self._state.preparations.begin(
                placed.key,
                frozenset(reserved.pod.key for reserved in placed.result.reserved),
                work,
                partial(self._prepared, placed),
                partial(self._not_prepared, placed),
                partial(self._report_missing, placed),
            )
        else:
            self._write(placed)

    def _report_missing(self, placed: _Placed, awaited: Sequence[AwaitedPreparation]) -> None:
        """Record what a unit waits for, and where it is assumed meanwhile."""
        if awaited:
            nodes = {one.pod.key: one.node for one in placed.result.reserved}
            pods = [one.pod for one in placed.result.reserved]
            self._state.recorder.waiting_on_preparation(pods, nodes, awaited)

    def _pre_bind(self, placed: _Placed, work: list[Preparation]) -> tuple[str, str] | None:
        """Collect what has to be done before the bindings; return a refusal with its plugin."""
        runtime = placed.profile.runtime
        for one in placed.result.reserved:
            node = self._state.snapshot.row(one.node)
            for call in runtime.of(one.pod)["pre_bind"]:
                try:
                    refusal = call.call(one.pod, node, one.state)
                except PluginError as exc:
                    self._state.recorder.log_failure(exc)
                    refusal = str(exc)
                if isinstance(refusal, Preparation):
                    if refusal.lock is not None:
                        placed.locks[one.pod.key] = refusal.lock
                    placed.labels.setdefault(one.pod.key, {}).update(refusal.labels)
                    if refusal.writes or refusal.ready is not None:
                        work.append(_guarded(refusal, call))
                elif refusal is not None:
                    return refusal, call.name
        return None

    def _prepared(self, placed: _Placed) -> None:
        if not self._lost_node(placed):
            self._write(placed)

    def _not_prepared(self, placed: _Placed, why: str | PluginError, error: bool) -> None:
        if error:
            self._fail(placed, why)
        else:
            self._refuse(placed, str(why), {"pre_bind"})
            # The preparation has failed already, so no further event would wake the unit.
            self._state.queue.retry(placed.queued, self._state.now)

    def _lost_node(self, placed: _Placed) -> bool:
        """Fail a unit that lost one of its nodes while it waited; return whether it did."""
        known = self._state.snapshot.nodes.row_of
        gone = [one.node for one in placed.result.reserved if one.node not in known]
        if gone:
            self._fail(placed, f"node {gone[0]} is gone")
        return bool(gone)

    # Bind --------------------------------------------------------------------------------

    def _write(self, placed: _Placed) -> None:
        """Write a Binding for every pod of the unit; from now on they are assumed bound."""
        state, queued, profile, result = self._state, placed.queued, placed.profile, placed.result
        try:
            writes = [self._binding(placed, reserved) for reserved in result.reserved]
        except PluginError as exc:
            self._fail(placed, exc)
            return
        origin = _Origin(result.decision.cycle, queued.attempts, queued.added)
        for reserved, write in zip(result.reserved, writes, strict=True):
            state.queue.remove(reserved.pod.key)
            state.claims.remove(reserved.pod.key)
            state.gangs.set_bound(reserved.pod, reserved.node)
            state.assumed[reserved.pod.key] = AssumedPod(reserved, profile, write)
        if queued.ready and queued.ready.keys() <= result.decision.pods.keys():
            # Members beyond the gang's minimum that found no node.
            self.report_refused(queued, result)
        else:
            # Members that came after the decision are worth another cycle.
            state.queue.settle(queued, state.now)
        for reserved, write in zip(result.reserved, writes, strict=True):
            state.cluster.submit(write, partial(self._answered, reserved, profile, origin))

    def _binding(self, placed: _Placed, reserved: Reserved) -> Bind:
        annotations: dict[str, str] = {}
        node = self._state.snapshot.row(reserved.node)
        for call in placed.profile.runtime.of(reserved.pod)["bind"]:
            for name, value in (call.call(reserved.pod, node, reserved.state) or {}).items():
                annotations.setdefault(name, value)
        pod = reserved.pod
        lock, labels = placed.locks.get(pod.key), placed.labels.get(pod.key, {})
        return Bind(pod.key, pod.pod.metadata.uid, reserved.node, annotations, lock, labels)

    def _answered(
        self,
        reserved: Reserved,
        profile: ActiveProfile,
        origin: _Origin,
        error: ClusterError | None,
    ) -> None:
        """Handle the cluster's answer to a binding; the watch may have shown the pod before."""
        if error is None:
            self._confirm(reserved, profile, origin)
            return
        assumed = self._state.assumed.get(reserved.pod.key)
        if assumed is not None and assumed.reserved is reserved:
            self._undo(assumed, origin, error)

    def _confirm(self, reserved: Reserved, profile: ActiveProfile, origin: _Origin) -> None:
        """Run PostBind for a pod that was bound, and report it."""
        state = self._state
        state.statistics.bound += 1
        seconds = state.now - origin.added
        state.observer.bound(reserved.pod, reserved.node, origin.cycle, origin.attempts, seconds)
        node = state.snapshot.row(reserved.node)
        for call in profile.runtime.of(reserved.pod)["post_bind"]:
            try:
                call.call(reserved.pod, node, reserved.state)
            except PluginError as exc:
                state.recorder.plugin_failed(reserved.pod, exc)
        state.recorder.bound(reserved.pod, reserved.node)

    def _undo(self, assumed: AssumedPod, origin: _Origin, error: ClusterError) -> None:
        """Give back the node of a pod whose binding was refused, and queue the pod again."""
        state, reserved = self._state, assumed.reserved
        key = reserved.pod.key
        del state.assumed[key]
        state.give_back(assumed.profile, [reserved])
        state.gangs.set_pending(reserved.pod)
        message = f"binding to {reserved.node} was refused: {error}"
        state.recorder.warn(reserved.pod, "FailedScheduling", message)
        if key not in state.pods:
            return
        state.claims.add(reserved.pod)
        state.queue.add(reserved.pod, state.now)
        unit = state.gangs.unit_of(reserved.pod)
        queued = state.queue.units.get(unit)
        if queued is not None and queued.place is Place.ACTIVE:
            queued.attempts = max(origin.attempts, queued.attempts)
            state.queue.retry(queued, state.now)
        state.recorder.gate_changed(unit)
        if assumed.newer is not None:
            self._redeliver(assumed.newer)

    # When a placed unit is not bound -----------------------------------------------------

    def _refuse(self, placed: _Placed, why: str, plugins: Set[str]) -> None:
        """Give a unit's nodes back because plugins refuse it; it waits for an event."""
        decision = placed.result.decision
        self._state.give_back(placed.profile, placed.result.reserved)
        decision.outcome, decision.message = Outcome.UNSCHEDULABLE, why
        decision.refused_by = set(plugins)
        self._state.observer.given_up(decision)
        # Each of its pods had a node.
        decision.at_permit = True
        self.report_refused(placed.queued, placed.result)

    def _fail(self, placed: _Placed, why: str | PluginError) -> None:
        """Give a unit's nodes back after an error, and try it again after its backoff."""
        state, decision = self._state, placed.result.decision
        if isinstance(why, PluginError):
            state.recorder.log_failure(why)
        state.give_back(placed.profile, placed.result.reserved)
        decision.outcome, decision.message = Outcome.ERROR, str(why)
        state.observer.given_up(decision)
        if placed.key in state.queue.units:
            state.recorder.refused(state.unit(placed.queued), decision, "SchedulerError")
        state.queue.retry(placed.queued, state.now)

    def report_refused(self, queued: QueuedUnit, result: Result) -> None:
        """Record why the pods of a unit have no node, and put the unit back into the queue."""
        state, decision = self._state, result.decision
        if queued.key in state.queue.units:
            self._demand.report(queued, state.unit(queued), decision)
        state.queue.refuse(queued, decision.refused_by, state.now)


def _guarded(preparation: Preparation, call: HookCall) -> Preparation:
    """Return a preparation whose functions fail under the name of its plugin."""
    ready, then, missing = preparation.ready, preparation.then, preparation.missing
    return replace(
        preparation,
        ready=ready and partial(guard, call, ready),
        then=then and partial(guard, call, then),
        missing=missing and partial(guard, call, missing),
    )
