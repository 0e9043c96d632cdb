"""Volcano's policy: which plugins of Volcano decide, and what they decide together."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec.structs import replace

from bayplan import Handle, NodeView, Overdue, PodInfo, Reject, Unit
from bayplan.api import Namespace, VolcanoPodGroup, VolcanoQueue
from bayplan.api.queue import Amounts
from bayplan.cluster.protocol import PatchStatus
from bayplan.dialects import volcano
from bayplan.queues.gate import gate
from bayplan.queues.ledger import Ledger, PodRules
from bayplan.queues.tree import AmountRows
from bayplan_plugins.queues.class_devices import devices_of, devices_of_templates
from bayplan_plugins.queues.policy import (
    AdmitsGroups,
    BoundByNodes,
    EvictionCandidates,
    KeepsOffNodes,
    QuotaRefusal,
)
from bayplan_plugins.queues.volcano.admission import Admission
from bayplan_plugins.queues.volcano.awaited_groups import AwaitedGroups
from bayplan_plugins.queues.volcano.configuration import VolcanoArgs
from bayplan_plugins.queues.volcano.definitions import QueueDefinitions
from bayplan_plugins.queues.volcano.gates import QueueGates
from bayplan_plugins.queues.volcano.jobs import Jobs
from bayplan_plugins.queues.volcano.limits import first_over
from bayplan_plugins.queues.volcano.queue_status import QueueStatuses
from bayplan_plugins.queues.volcano.session import Claimant, Session
from bayplan_plugins.queues.volcano.tiers import Tiers
from bayplan_plugins.queues.volcano.turns import pods_of_turn
from bayplan_plugins.queues.volcano.victims import plan_for

__all__ = ["VolcanoArgs", "VolcanoPolicy"]


class VolcanoPolicy(AdmitsGroups, BoundByNodes, KeepsOffNodes):
    """Order, limits and victims as Volcano's plugins decide them.

    ``session`` is what the plugins decide on, ``tiers`` counts their votes.
    """

    system = "volcano"

    def __init__(self, args: VolcanoArgs, handle: Handle) -> None:
        self.args = args
        self._handle = handle
        tiers = args.all_tiers
        named = {one.name: one for tier in tiers for one in tier}
        divides: Literal["", "capacity", "proportion"] = (
            "capacity" if "capacity" in named else "proportion" if "proportion" in named else ""
        )
        self.name: str = divides or "drf"
        self.actions: Sequence[str] = tuple(args.preempting_actions)
        hierarchical = divides == "capacity" and named["capacity"].enable_hierarchy
        self.ledger = self._ledger(hierarchical)
        jobs = Jobs(handle, self.ledger)
        self.session = Session(handle, self.ledger, jobs, hierarchical, divides)
        self.tiers = Tiers(self.session, tiers)
        self._admission = Admission(self.session, self.tiers, "enqueue" in args.action_names)
        self._groups = AwaitedGroups(handle)
        self._statuses = QueueStatuses(handle.snapshot, self.ledger)
        self._gates = QueueGates(handle, self.session, self.tiers, self.gate)

    def _ledger(self, hierarchical: bool) -> Ledger:
        definitions = QueueDefinitions(hierarchical)
        rules = PodRules(
            queue_of=self.queue_of,
            amounts=self._amounts,
            is_fixed=lambda pod: False,
            counts=lambda pod: not pod.terminating,
            claim=lambda claim, _: devices_of(claim),
        )
        return Ledger(
            self._handle.snapshot,
            lambda snapshot: definitions.of(snapshot.objects(VolcanoQueue)),
            (VolcanoQueue,),
            (VolcanoPodGroup,),
            rules,
            states=lambda queue: isinstance(queue, VolcanoQueue) and volcano.state_of(queue),
        )

    def _amounts(self, pod: PodInfo) -> Amounts:
        """Return what a pod takes of its queue: itself, its requests, the devices made for it."""
        if not pod.spec.resource_claims:
            return {**pod.requests, "pods": 1}
        devices = devices_of_templates(pod, self._handle.snapshot)
        return {**pod.requests, "pods": 1, **devices}

    # Queues ------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether the cluster has any Volcano Queue."""
        return bool(self._handle.snapshot.objects(VolcanoQueue))

    def queue_of(self, pod: PodInfo) -> str | None:
        """Return the queue of the pod's group, or the one that its annotation names.

        Pods of Volcano's scheduler have a queue before its controller has made their group.
        """
        if pod.gang is not None:
            group = self._handle.snapshot.objects(VolcanoPodGroup).get(pod.gang)
            if group is not None:
                return group.spec.queue
        named = pod.annotations.get(volcano.QUEUE_ANNOTATION)
        if named is not None or pod.pod.spec.scheduler_name != volcano.SCHEDULER:
            return named
        objects = self._handle.snapshot.objects
        namespace = objects(Namespace).get(pod.namespace)
        named = volcano.queue_of_new_groups(namespace)
        return named if named in objects(VolcanoQueue) else None

    def gate(self, pod: PodInfo, queue: str) -> str | None:
        """Hold back pods of queues that do not exist or are not open, and of waiting groups."""
        closed = gate(self.ledger.tree, "Queue", queue, self.session.hierarchical)
        if closed is not None:
            return closed
        awaited = self._groups.refusal(pod)
        if awaited is not None:
            return awaited
        if pod.gang is not None:
            why = self._admission.rejection(pod.gang)
            return None if why is None else f"its PodGroup is Pending: {why}"
        return None

    def admit(self) -> None:
        """Admit pod groups that wait in phase Pending.

        Pods that wait for their queue at a gate lose it where the queue has room.
        """
        self._admission.run()
        self._gates.open()

    def is_admitted(self, group: str) -> bool:
        """Tell whether a group's phase is being written, by key."""
        return self._admission.is_admitting(group)

    def order(self, unit: Unit, added: float) -> tuple[float, ...]:
        """Order as the plugins say, then by age."""
        jobs = self.session.jobs
        key = self.tiers.job_order(jobs.of(unit.pods[0]), unit.pods)
        return (*key, jobs.created(jobs.key_of(unit)), added)

    def next_queue(self, heads: Mapping[str, Unit], action: str) -> str | None:
        """Return the first queue as the plugins order them; those that are overused come last."""
        rows = self.ledger.tree.row_of
        tiers = self.tiers
        known = [name for name in heads if name in rows]
        if not known:
            return min(heads, default=None)
        return min(known, key=lambda n: (tiers.overused(rows[n]), tiers.queue_order(rows[n])))

    def turn(self, unit: Unit) -> Sequence[PodInfo] | None:
        """Place the minimum of a job first, then one pod at a time, so that jobs take turns."""
        return pods_of_turn(self._handle, self.tiers, unit)

    # Limits ------------------------------------------------------------------------------

    def refusal(self, unit: Unit) -> QuotaRefusal | str | None:
        """Refuse a unit whose minimum exceeds what its queue or an ancestor may have."""
        row = self.ledger.row_of(unit.pods[0])
        if row is None:
            return None
        return self.tiers.refusal(row, self._least(unit))

    def is_within_own_limits(self, unit: Unit) -> bool:
        """Tell whether a unit keeps within the capability of its queue, and of those above it."""
        row, tree = self.ledger.row_of(unit.pods[0]), self.ledger.tree
        if row is None or (self.session.hierarchical and not tree.is_leaf(row)):
            return False
        return first_over(self.session, row, self._least(unit), tree.limit, "capability") is None

    def _least(self, unit: Unit) -> AmountRows:
        """Return what the minimum of a unit takes of its queue."""
        least = sorted(unit.pods, key=self._size)[: max(1, unit.min_placed)]
        return self.ledger.sum_of(least)

    def _size(self, pod: PodInfo) -> float:
        """Return how large a pod is of what its queue may have: small ones fit the longest."""
        return float(self.ledger.amounts_of(pod).sum())

    def overrun(self, pod: PodInfo) -> QuotaRefusal | str | None:
        """Refuse a pod that took its queue beyond what it may have; the ledger counts it."""
        row = self.ledger.row_of(pod)
        if row is None:
            return None
        tree, request = self.ledger.tree, self.session.wide(self.ledger.amounts_of(pod))
        tree.use(row, request, -1)
        try:
            return self.tiers.beyond(row, request)
        finally:
            tree.use(row, request)

    def fair(self) -> AmountRows:
        """Return what each queue deserves by the plugin that divides."""
        deserved = self.session.deserved()
        bound = self.session.capacity().real
        found: AmountRows = deserved if self.name == "proportion" else np.minimum(bound, math.inf)
        return found

    # Nodes -------------------------------------------------------------------------------

    def node_kind(self, pod: PodInfo) -> Hashable:
        """Tell apart the pods that plugins keep off different nodes; None where they do not."""
        return self.tiers.node_kind(pod)

    def refused_nodes(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes as the plugins do, such as nodes that are lent at certain hours."""
        return self.tiers.refused_nodes(pod, nodes)

    # Preemption --------------------------------------------------------------------------

    def may_preempt(self, unit: Unit, action: str) -> bool:
        """Tell whether the action is one of Volcano's that are on; the search ends early."""
        return action in self.actions

    def plan(self, unit: Unit, action: str) -> EvictionCandidates | str | None:
        """Return how to preempt for a unit by one of Volcano's actions."""
        row = self.ledger.row_of(unit.pods[0])
        if row is None or action not in self.actions:
            return None
        jobs = self.session.jobs
        job = jobs.of(unit.pods[0])
        pods = list(unit.pods)[: max(1, unit.min_placed)]
        request = self.ledger.sum_of(pods)
        claimant = Claimant(job, pods, row, request, jobs.priority(job, unit.pods))
        found = plan_for(self.session, self.tiers, claimant, action)
        return f"{action}: {found}." if isinstance(found, str) else found

    def overdue(self) -> Overdue | None:
        """Evict what plugins want to leave, such as from nodes whose hours are over."""
        found = self.tiers.overdue() or Overdue()
        times = (self._groups.end(), self._gates.retry(), found.again)
        again = min((at for at in times if at is not None), default=None)
        if again is None and not found.victims and not found.waited:
            return None
        return replace(found, again=again)

    def statuses(self) -> Iterable[PatchStatus]:
        """Return the status of each Queue."""
        return self._statuses.now()
