"""Queues: the cluster belongs to queues, which share it by the rules of their system."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

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
from bayplan.api import KueueWorkload
from bayplan.plugin.base import Skip
from bayplan.plugin.queueing import Queueing
from bayplan_plugins.queues.isolation import alone
from bayplan_plugins.queues.policies import Policies, QueuesArgs
from bayplan_plugins.queues.policy import BoundByNodes, EvictionPlan
from bayplan_plugins.queues.queueing import PolicyQueueing
from bayplan_plugins.queues.victim_search import VictimSearch
from bayplan_plugins.shared.node_selection import matches_labels
from bayplan_plugins.shared.victims import Evictable

__all__ = ["Queues"]

_MOST_NAMED = 5
_NOT_ASSIGNED = "node(s) didn't have the labels of the flavor that their queue assigned"


class _AllButWorkloads:
    """All kinds of objects but Kueue's Workloads: admission itself opens the gates of their pods.

    There is one for each job that waits, and each would have all that wait looked at.
    """

    def __contains__(self, kind: object) -> bool:
        return kind is not KueueWorkload


class Queues(Plugin[QueuesArgs]):
    """Order jobs by queue, keep queues within their limits, and preempt by their rules."""

    Args = QueuesArgs
    cluster_args = ("kueue",)
    reads = Reads.CLUSTER
    requeue_on = ClusterEvent.ANY
    gate_reads = _AllButWorkloads()

    def __init__(self, args: QueuesArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.policies = Policies(args, handle)
        self.actions = self.policies.actions

    def declare_metrics(self) -> None:
        """Create those of Kueue's metrics that only admission itself knows."""
        self.policies.declare_metrics()

    # In the queue ------------------------------------------------------------------------

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods while any system may have queues."""
        return self.policies.are_any

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        """Hold back pods whose queue is missing, closed or broken, or that two systems claim."""
        claims = self.policies.claims(pod)
        if len(claims) > 1:
            both = " and ".join(f'{one.system} (queue "{queue}")' for one, queue in claims)
            return f"two systems claim it for a queue: {both}"
        for policy, queue in claims:
            return policy.gate(pod, queue)
        return None

    @hookimpl
    def admit(self) -> None:
        """Admit what waits for a queue, by the policies of its system."""
        self.policies.look()
        active = self.policies.active
        for policy in self.policies.own if active else ():
            with alone(f"admission to {policy.system}'s queues"):
                if policy in active:
                    policy.admit()

    @hookimpl
    def queueing(self) -> Queueing:
        """Return the queues of all systems."""
        return PolicyQueueing(self.handle, self.policies)

    @hookimpl
    def may_preempt(self, unit: Unit, action: str) -> bool | None:
        """Tell whether the unit's policy may find something in this way."""
        found = self.policies.of(unit.pods[0])
        return None if found is None else found[0].may_preempt(unit, action)

    # Nodes -------------------------------------------------------------------------------

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by whether a pod stays once it runs, and by the nodes that it may use.

        What stays may be bounded by less than the queue's limit.
        """
        if not self.policies.active:
            return None
        found = self.policies.of(pod)
        stays = found is not None and found[0].ledger.is_fixed(pod)
        return stays, frozenset(self._node_labels(pod).items()), self._node_kinds(pod)

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> Skip | None:
        """Skip pods that may use any node."""
        if not self.policies.active:
            return SKIP
        return None if self._node_labels(pod) or self._node_kinds(pod) else SKIP

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes without the labels that the queue assigned, and nodes kept for others."""
        labels = self._node_labels(pod)
        if labels:
            yield Reject(~matches_labels(labels, nodes), _NOT_ASSIGNED, resolvable=False)
        for policy in self.policies.keeping_off_nodes:
            if policy.node_kind(pod) is not None:
                yield from policy.refused_nodes(pod, nodes)

    def _node_kinds(self, pod: PodInfo) -> tuple[Hashable, ...]:
        """Return what tells apart the pods that the policies keep off other nodes."""
        if not self.policies.keeping_off_nodes:
            return ()
        kinds = (policy.node_kind(pod) for policy in self.policies.keeping_off_nodes)
        return tuple(kind for kind in kinds if kind is not None)

    def _node_labels(self, pod: PodInfo) -> Mapping[str, str]:
        if not self.policies.assigning_nodes:
            return {}
        assigned = (policy.node_labels(pod).items() for policy in self.policies.assigning_nodes)
        return {key: value for own in assigned for key, value in own}

    # Limits ------------------------------------------------------------------------------

    @hookimpl
    def placement_generate(self, unit: Unit) -> Placements | None:
        """Refuse a unit that would take its queue, or an ancestor, beyond what it may have."""
        pod = unit.pods[0]
        found = self.policies.of(pod)
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
        found = self.policies.of(pod)
        if found is None:
            return None
        policy, queue = found
        # The queue may have gone since the pod passed the gate.
        refusal = policy.gate(pod, queue) or policy.overrun(pod)
        return None if refusal is None else str(refusal)

    @hookimpl
    def unreserve(self, pod: PodInfo) -> None:
        """Do nothing: the ledger follows the snapshot."""

    # Preemption --------------------------------------------------------------------------

    @hookimpl
    def post_filter(self, unit: Unit, action: str) -> Preemption | str | None:
        """Preempt in one way: reclaim, preempt or move jobs, where the unit then really fits."""
        found = self.policies.of(unit.pods[0])
        if found is None:
            return None
        plan = found[0].plan(unit, action)
        if plan is not None and not isinstance(plan, EvictionPlan | str):
            plan = VictimSearch(self.handle, unit, plan).run()
        return self._preemption(unit, plan, action) if isinstance(plan, EvictionPlan) else plan

    @hookimpl
    def overdue(self) -> Overdue | None:
        """Evict the pods that a system's rules let hold their nodes no longer."""
        changed = self.policies.look()
        found: list[Overdue] = [Overdue(waited=True)] if changed else []
        for policy in self.policies.shown():
            if policy in self.policies.own:
                with alone(f"eviction from {policy.system}'s queues"):
                    overdue = policy.overdue()
                    found += [overdue] if overdue is not None else []
        if not found:
            return None
        victims = [pair for one in found for pair in one.victims]
        again = min((one.again for one in found if one.again is not None), default=None)
        at_once = frozenset[str]().union(*(one.at_once for one in found))
        return Overdue(victims, again, any(one.waited for one in found), at_once=at_once)

    def _preemption(self, unit: Unit, plan: EvictionPlan, action: str) -> Preemption:
        victims = plan.victims
        evicted = [pod for pod in victims if not pod.terminating]
        names = ", ".join(pod.key for pod in evicted[:_MOST_NAMED])
        if len(evicted) > _MOST_NAMED:
            names += f" and {len(evicted) - _MOST_NAMED} more"
        moved = len(plan.moves)
        then = f", of which {moved} fit elsewhere," if moved else ""
        count = len(evicted)
        message = (
            f"{action}: evicting {count} pod{'s'[: count != 1]} ({names}){then} frees capacity."
        )
        if not evicted:
            message = f"{action}: leaving pods free capacity."
        evictable = Evictable.by(unit, self.handle)
        guarded = frozenset(pod.key for pod in victims if evictable.budgets.covering(pod))
        return Preemption(
            victims,
            plan.nodes,
            message,
            guarded=guarded,
            moves=plan.moves,
            reasons=plan.reasons,
        )
