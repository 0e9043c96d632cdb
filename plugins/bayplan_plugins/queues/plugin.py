"""Queues: the cluster belongs to queues, which share it by the rules of their system."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from bayplan import (
    SKIP,
    ClusterEvent,
    Handle,
    NodeView,
    Overdue,
    Placements,
    Plugin,
    PodInfo,
    Preemption,
    Reads,
    Reject,
    Unit,
    hookimpl,
)
from bayplan.api.podgroup import UnschedulableReason
from bayplan.api.queue import Order
from bayplan.cluster.protocol import PatchAnnotations, PatchStatus
from bayplan.plugin.base import Skip
from bayplan.queues.report import JobInLine, KnownReports, LineReport, QueueReport
from bayplan_plugins.queues.isolation import alone
from bayplan_plugins.queues.line import left_to, line_of, reports
from bayplan_plugins.queues.policies import QueuesArgs, make_policies
from bayplan_plugins.queues.policy import (
    AdmitsJobs,
    AssignsNodes,
    BoundByNodes,
    KeepsOffNodes,
    LendsToElasticJobs,
    MayLeaveAdmission,
    Policy,
    ProtectsNewJobs,
    Room,
    TellsReasons,
)
from bayplan_plugins.queues.room import RoomSearch
from bayplan_plugins.shared.node_selection import matches_labels
from bayplan_plugins.shared.victims import Evictable

__all__ = ["Queues"]

_MOST_NAMED = 5
_NOT_ASSIGNED = "node(s) didn't have the labels of the flavor that their queue assigned"


class Queues(Plugin[QueuesArgs]):
    """Order jobs by queue, keep queues within their limits, and make room by their rules."""

    Args = QueuesArgs
    reads = Reads.CLUSTER
    requeue_on = ClusterEvent.ANY

    def __init__(self, args: QueuesArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.policies: Sequence[Policy] = make_policies(args, handle)
        self._assigning = [one for one in self.policies if isinstance(one, AssignsNodes)]
        self._keeping = [one for one in self.policies if isinstance(one, KeepsOffNodes)]
        self._reports = {one.system: KnownReports(one.system, one.name) for one in self.policies}
        self._leaving = [one for one in self.policies if isinstance(one, MayLeaveAdmission)]
        self._seen = -1
        self._with_queues: Sequence[Policy] = ()
        self._keeping_now: Sequence[KeepsOffNodes] = ()
        self._assigning_now: Sequence[AssignsNodes] = ()
        self.actions = tuple(dict.fromkeys(a for one in self.policies for a in one.actions))

    # In the queue ------------------------------------------------------------------------

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        """Hold back pods whose queue is missing, closed or broken, or that two systems claim."""
        claims = self._claims(pod)
        if len(claims) > 1:
            both = " and ".join(f'{one.system} (queue "{queue}")' for one, queue in claims)
            return f"two systems claim it for a queue: {both}"
        for policy, queue in claims:
            return policy.gate(pod, queue)
        return None

    @hookimpl
    def admit(self) -> None:
        """Admit what waits for a queue, by the policies of its system."""
        self._look()
        for policy in self.policies:
            with alone(f"admission to {policy.system}'s queues"):
                if policy.active:
                    policy.admit()

    def _look(self) -> bool:
        """Look who decides on queues of systems with own controllers; tell whether that changed."""
        changed = False
        for policy in self._leaving:
            with alone("a look at who admits"):
                changed |= policy.look()
        if changed:
            self._seen = -1
        return changed

    @hookimpl
    def queue_of(self, unit: Unit) -> str | None:
        """Return the unit's queue, with its system."""
        found = self._of(unit.pods[0])
        return None if found is None else f"{found[0].system}/{found[1]}"

    @hookimpl
    def order_in_queue(self, unit: Unit, added: float) -> tuple[float, ...] | None:
        """Order the jobs of a queue by its policy."""
        found = self._of(unit.pods[0])
        return None if found is None else found[0].order(unit, added)

    @hookimpl
    def next_queue(self, heads: Mapping[str, Unit], action: str) -> str | None:
        """Choose the next queue of each system by its policy, and among systems by priority."""
        chosen: list[str] = [""] if "" in heads else []
        for policy in self.policies:
            prefix = f"{policy.system}/"
            own = {
                name[len(prefix) :]: unit for name, unit in heads.items() if name.startswith(prefix)
            }
            queue = _next_of(policy, own, action) if own else None
            if queue is not None:
                chosen.append(f"{prefix}{queue}")
        return min(chosen, key=lambda name: -heads[name].priority, default=None)

    @hookimpl
    def actions_of(self, unit: Unit) -> Sequence[str] | None:
        """Return the actions of the unit's policy."""
        found = self._of(unit.pods[0])
        return None if found is None else found[0].actions

    @hookimpl
    def may_make_room(self, unit: Unit, action: str) -> bool | None:
        """Tell whether the unit's policy may find something in this way."""
        found = self._of(unit.pods[0])
        return None if found is None else found[0].may_make_room(unit, action)

    @hookimpl
    def is_strict(self, unit: Unit) -> bool | None:
        """Tell whether the unit's queue waits for its first job."""
        found = self._of(unit.pods[0])
        if found is None:
            return None
        tree = found[0].ledger.tree
        row = tree.row_of.get(found[1])
        return row is not None and tree.queues[row].order in (Order.STRICT, Order.STRICT_FIFO)

    @hookimpl
    def kind_in_queue(self, unit: Unit) -> Hashable:
        """Tell apart what stays once it runs, and what may use other nodes.

        What stays may be bounded by less than the queue's limit.
        """
        pod = unit.pods[0]
        found = self._of(pod)
        return None if found is None else (found[0].ledger.is_fixed(pod), self._node_kinds(pod))

    @hookimpl
    def turn(self, unit: Unit) -> Sequence[PodInfo] | None:
        """Return the pods of an elastic job that are placed now, by its policy."""
        found = self._of(unit.pods[0])
        return None if found is None else found[0].turn(unit)

    # Nodes -------------------------------------------------------------------------------

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by the nodes that a pod is assigned to, or kept off."""
        if not self._active:
            return None
        return frozenset(self._node_labels(pod).items()), self._node_kinds(pod)

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> Skip | None:
        """Skip pods that may use any node."""
        if not self._active:
            return SKIP
        return None if self._node_labels(pod) or self._node_kinds(pod) else SKIP

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes without the labels that the queue assigned, and nodes kept for others."""
        labels = self._node_labels(pod)
        if labels:
            yield Reject(~matches_labels(labels, nodes), _NOT_ASSIGNED, resolvable=False)
        for policy in self._keeping_now:
            if policy.node_kind(pod) is not None:
                yield from policy.refused_nodes(pod, nodes)

    def _node_kinds(self, pod: PodInfo) -> tuple[Hashable, ...]:
        """Return what tells apart the pods that the policies keep off other nodes."""
        if not self._keeping_now:
            return ()
        kinds = (policy.node_kind(pod) for policy in self._keeping_now)
        return tuple(kind for kind in kinds if kind is not None)

    def _node_labels(self, pod: PodInfo) -> Mapping[str, str]:
        if not self._assigning_now:
            return {}
        assigned = (policy.node_labels(pod).items() for policy in self._assigning_now)
        return {key: value for own in assigned for key, value in own}

    # Limits ------------------------------------------------------------------------------

    @hookimpl
    def placement_generate(self, unit: Unit) -> Placements | None:
        """Refuse a unit that would take its queue, or an ancestor, beyond what it may have."""
        pod = unit.pods[0]
        found = self._of(pod)
        if found is None:
            return None
        policy, queue = found
        # The queue may have gone since the unit passed the gate.
        closed = policy.gate(pod, queue)
        refusal = closed or policy.refusal(unit)
        if refusal is None:
            return None
        more_nodes = (
            closed is None
            and isinstance(policy, BoundByNodes)
            and policy.is_within_own_limits(unit)
        )
        return Placements(reason=f"{refusal}.", of_queue=True, more_nodes=more_nodes)

    @hookimpl
    def reserve(self, pod: PodInfo) -> str | None:
        """Refuse a pod beyond what its queue may have, once the ledger counts it."""
        found = self._of(pod)
        if found is None:
            return None
        policy, queue = found
        # The queue may have gone since the pod passed the gate.
        refusal = policy.gate(pod, queue) or policy.overrun(pod)
        return None if refusal is None else str(refusal)

    @hookimpl
    def unreserve(self, pod: PodInfo) -> None:
        """Do nothing: the ledger follows the snapshot."""

    # Making room -------------------------------------------------------------------------

    @hookimpl
    def post_filter(self, unit: Unit, action: str) -> Preemption | str | None:
        """Make room in one way: reclaim, preempt or move jobs, where the unit then really fits."""
        found = self._of(unit.pods[0])
        if found is None:
            return None
        plan = found[0].plan(unit, action)
        if plan is None or isinstance(plan, str):
            return plan
        room = plan if isinstance(plan, Room) else RoomSearch(self.handle, unit, plan).run()
        return None if room is None else self._preemption(unit, room, action)

    @hookimpl
    def overdue(self) -> Overdue | None:
        """Evict the pods that a system's rules let hold their nodes no longer."""
        changed = self._look()
        found: list[Overdue] = [Overdue(waited=True)] if changed else []
        for policy in self._shown():
            with alone(f"eviction from {policy.system}'s queues"):
                overdue = policy.overdue()
                found += [overdue] if overdue is not None else []
        if not found:
            return None
        victims = [pair for one in found for pair in one.victims]
        again = min((one.again for one in found if one.again is not None), default=None)
        return Overdue(victims, again, any(one.waited for one in found))

    @hookimpl
    def keep_in_place(self, pod: PodInfo) -> str | None:
        """Keep what queues may not take back, and jobs that their system protects for now."""
        found = self._of(pod)
        if found is None:
            return None
        policy, queue = found
        if policy.ledger.is_fixed(pod):
            return f'its queue "{queue}" does not take back what it has'
        seconds = policy.safe_for(pod, queue) if isinstance(policy, ProtectsNewJobs) else 0.0
        return f'queue "{queue}" protects it for {seconds:g} s more' if seconds > 0 else None

    @property
    def _active(self) -> Sequence[Policy]:
        """The policies of the systems that have any queue; found again when objects change."""
        version = self.handle.snapshot.objects_version
        if version != self._seen:
            self._seen = version
            self._with_queues = [policy for policy in self.policies if policy.active]
            self._keeping_now = [one for one in self._keeping if one.active]
            self._assigning_now = [one for one in self._assigning if one.active]
        return self._with_queues

    def _preemption(self, unit: Unit, room: Room, action: str) -> Preemption:
        victims = room.victims
        evicted = [pod for pod in victims if not pod.terminating]
        names = ", ".join(pod.key for pod in evicted[:_MOST_NAMED])
        if len(evicted) > _MOST_NAMED:
            names += f" and {len(evicted) - _MOST_NAMED} more"
        moved = len(room.moves)
        then = f", of which {moved} fit elsewhere," if moved else ""
        count = len(evicted)
        message = f"{action}: evicting {count} pod{'s'[: count != 1]} ({names}){then} makes room."
        if not evicted:
            message = f"{action}: pods that are leaving make room."
        evictable = Evictable(unit, self.handle)
        guarded = frozenset(pod.key for pod in victims if evictable.budgets_of(pod))
        return Preemption(
            victims,
            room.nodes,
            message,
            guarded=guarded,
            moves=room.moves,
            reasons=room.reasons,
        )

    # What is known -----------------------------------------------------------------------

    @hookimpl
    def queue_reports(self) -> list[QueueReport]:
        """Return the queues of all systems that have any."""
        found: list[QueueReport] = []
        for policy in self._shown():
            with alone(f"report on {policy.system}'s queues"):
                own = reports(self.handle, policy, self._reports[policy.system])
                note = left_to(policy)
                found += [replace(one, notes=(note, *one.notes)) for one in own] if note else own
        return found

    def _shown(self) -> Iterator[Policy]:
        """Yield the policies of the systems that have any queue, whoever decides on them."""
        yield from self._active
        for policy in self.policies:
            if isinstance(policy, MayLeaveAdmission) and policy.has_queues and policy.left_to:
                yield policy

    @hookimpl
    def queue_statuses(self) -> list[PatchStatus | PatchAnnotations]:
        """Return the statuses of the queues of all systems that have any."""
        found: list[PatchStatus | PatchAnnotations] = []
        for policy in self._active:
            with alone(f"statuses of {policy.system}'s queues"):
                found += policy.statuses()
        return found

    @hookimpl
    def unschedulable_reason(self, unit: Unit) -> UnschedulableReason | None:
        """Return why the unit's queue does not take it, in the words of its system."""
        found = self._of(unit.pods[0])
        if found is None or not isinstance(found[0], TellsReasons):
            return None
        return found[0].unschedulable_reason(unit)

    @hookimpl
    def queue_line(self, unit: Unit) -> LineReport | None:
        """Return the unit's place in its queue, and what would admit it."""
        pod = unit.pods[0]
        found = self._of(pod)
        if found is not None:
            return line_of(self.handle, *found, unit)
        for policy in self._shown():
            queue = policy.queue_of(pod) if left_to(policy) else None
            if queue is not None:
                return line_of(self.handle, policy, queue, unit)
        return None

    @hookimpl
    def units_of_job(self, kind: str, key: str) -> Sequence[Unit] | None:
        """Return the pods to come of a job that waits for admission."""
        for policy in self._shown():
            units = policy.units_of_job(kind, key) if isinstance(policy, AdmitsJobs) else ()
            if units:
                return units
        return None

    @hookimpl
    def queue_jobs(self, queue: str) -> Sequence[JobInLine] | None:
        """Return the jobs that wait for admission by policies that keep their line themselves."""
        system, _, name = queue.partition("/")
        for policy in self._shown():
            if policy.system == system and isinstance(policy, AdmitsJobs):
                return policy.jobs_in_line(name)
        return None

    @hookimpl
    def admitted_without(self, pods: Sequence[PodInfo], job: str) -> str | None:
        """Return the first job that waits for quota and would be admitted without some pods."""
        for policy in self._active:
            if isinstance(policy, LendsToElasticJobs):
                found = policy.admitted_without(pods, job)
                if found is not None:
                    return found
        return None

    # Which queue -------------------------------------------------------------------------

    def _claims(self, pod: PodInfo) -> list[tuple[Policy, str]]:
        """Return the policies whose system gives the pod a queue, with the queue."""
        found = []
        for policy in self._active:
            queue = policy.queue_of(pod)
            if queue is not None:
                found.append((policy, queue))
        return found

    def _of(self, pod: PodInfo) -> tuple[Policy, str] | None:
        """Return the pod's policy and queue, None without a queue or with two."""
        if not self._active:
            return None
        claims = self._claims(pod)
        return claims[0] if len(claims) == 1 else None


def _next_of(policy: Policy, heads: Mapping[str, Unit], action: str) -> str | None:
    """Choose by the policy; a queue that is gone comes first, so that its jobs learn of it."""
    known = policy.ledger.tree.row_of
    gone = next((name for name in heads if name not in known), None)
    return policy.next_queue(heads, action) if gone is None else gone
