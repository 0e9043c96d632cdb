"""The policy ``elastic-quota``: Koordinator's quotas, checked against the real nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bayplan import Handle, Overdue, PodInfo, Unit
from bayplan.api import ElasticQuota, ElasticQuotaProfile
from bayplan.api.queue import Queue
from bayplan.cluster.protocol import PatchAnnotations, PatchStatus
from bayplan.dialects.koordinator.elastic_quota import (
    BUILTIN_QUOTAS,
    KoordinatorQueueArgs,
    is_preemptible,
    queue_of,
)
from bayplan.inputs.durations import parse_duration
from bayplan.queues.definitions import Translations
from bayplan.queues.ledger import Ledger, PodRules
from bayplan.queues.tree import AmountRows
from bayplan.snapshot import Snapshot
from bayplan_plugins.queues.isolation import alone
from bayplan_plugins.queues.koordinator.eviction_candidates import (
    PreemptCandidates,
    ReclaimCandidates,
)
from bayplan_plugins.queues.koordinator.features import QuotaFeatures
from bayplan_plugins.queues.koordinator.following import FollowedQuotas, quota_objects
from bayplan_plugins.queues.koordinator.gate import QuotaGate
from bayplan_plugins.queues.koordinator.manager import QuotaManager
from bayplan_plugins.queues.koordinator.overuse import OveruseMonitor, pods_to_revoke
from bayplan_plugins.queues.koordinator.resource_lists import added, printed
from bayplan_plugins.queues.koordinator.status import QuotaStatus, status_of, writes_for
from bayplan_plugins.queues.policy import BoundByNodes, EvictionCandidates

__all__ = ["KoordinatorPolicy"]


class KoordinatorPolicy(BoundByNodes):
    """Order, limits and victims as Koordinator decides them; what is lent comes back at once.

    Pods that name no quota count in the default quota, which bounds and orders nobody.
    ``followed`` holds the quotas as the snapshot is now.
    """

    name = "elastic-quota"
    system = "koordinator"
    actions: Sequence[str] = ("reclaim", "preempt")

    def __init__(self, args: KoordinatorQueueArgs, handle: Handle) -> None:
        self.args = args
        self._handle = handle
        self.followed = FollowedQuotas(
            handle.snapshot, args, QuotaFeatures.of(args.feature_gates), lambda: handle.unix_time
        )
        rules = PodRules(
            queue_of=self.queue_of,
            amounts=lambda pod: pod.requests,
            is_fixed=lambda pod: not is_preemptible(pod.pod),
            counts=lambda pod: True,
        )
        kinds = (ElasticQuota, ElasticQuotaProfile)
        self._queue_of_quota = Translations(self._queue)
        self.ledger = Ledger(handle.snapshot, self._queues, kinds, (), rules)
        self._monitor = OveruseMonitor(parse_duration(args.delay_evict_time))
        self._shown: dict[str, tuple[ElasticQuota, QuotaStatus]] = {}
        """The quotas that say what they should, of which thousands stay as they are."""
        self._places: dict[str, tuple[Unit, tuple[float, str]]] = {}

    def _queues(self, snapshot: Snapshot) -> list[Queue]:
        objects = quota_objects(snapshot).items()
        quotas = {name: one for name, one in objects if name not in BUILTIN_QUOTAS}
        return self._queue_of_quota.of(quotas)

    def _queue(self, quota: ElasticQuota) -> Queue:
        meta = quota.metadata
        return queue_of(self.followed.definitions.one(meta.name, quota), meta)

    @property
    def active(self) -> bool:
        """Whether the cluster has any ElasticQuota, or a profile that makes one."""
        snapshot = self._handle.snapshot
        return bool(snapshot.objects(ElasticQuota) or snapshot.objects(ElasticQuotaProfile))

    def fair(self) -> AmountRows:
        """Return the runtime of each quota; what its max does not name is unlimited."""
        tree = self.ledger.tree
        for manager in self.followed.quotas.trees.values():
            tree.add_resources(sorted(manager.resources))
        fair = np.array(tree.limit)
        for row, queue in enumerate(tree.queues):
            own = self._tree_of(queue.name)
            runtime = own.runtime(queue.name) if own is not None else None
            for resource, amount in (runtime or {}).items():
                fair[row, tree.column_of[resource]] = amount
        return fair

    def _tree_of(self, quota: str) -> QuotaManager | None:
        trees = self.followed.quotas.trees.values()
        return next((one for one in trees if quota in one.quotas), None)

    # In the queue ------------------------------------------------------------------------

    def queue_of(self, pod: PodInfo) -> str | None:
        """Return the pod's quota, None for pods of the default quota."""
        if not self.active:
            return None
        name = self.followed.quotas.quota_name(pod.pod)
        return name if name not in BUILTIN_QUOTAS and name else None

    def gate(self, pod: PodInfo, queue: str) -> str | None:
        """Hold back no pod: a quota that is broken refuses it, until the quota changes."""
        return None

    def admit(self) -> None:
        """Admit nothing: pods are gated one by one."""

    def order(self, unit: Unit, added: float) -> tuple[float, ...]:
        """Order by priority, then by arrival."""
        return (-float(unit.priority), added)

    def next_queue(self, heads: Mapping[str, Unit], action: str) -> str | None:
        """Return the queue whose first job comes first of all: by priority, then by age."""
        return min(heads, key=lambda name: (*self._place(name, heads[name]), name), default=None)

    def _place(self, queue: str, unit: Unit) -> tuple[float, str]:
        """Return the place of a queue's first unit, made once as long as it stays the first."""
        known = self._places.get(queue)
        if known is None or known[0] is not unit:
            created = min(pod.pod.metadata.creation_timestamp or "~" for pod in unit.pods)
            known = self._places[queue] = unit, (-float(unit.priority), created)
        return known[1]

    def turn(self, unit: Unit) -> Sequence[PodInfo] | None:
        """Place the whole unit."""
        return None

    # Limits ------------------------------------------------------------------------------

    def refusal(self, unit: Unit) -> str | None:
        """Refuse a unit whose minimum would exceed what its quota, or one above, may have."""
        gate = self.followed.quotas.gate_of(unit.pods[0].pod)
        return None if gate is None else _refused(gate, unit)

    def is_within_own_limits(self, unit: Unit) -> bool:
        """Tell whether a unit keeps within the max of its quota, and of those above it."""
        gate = self.followed.quotas.gate_of(unit.pods[0].pod, runtime=False)
        return gate is None or _refused(gate, unit) is None

    def overrun(self, pod: PodInfo) -> str | None:
        """Refuse a pod that took its quota, or one above, beyond what it may have."""
        gate = self.followed.quotas.gate_of(pod.pod)
        if gate is None:
            return None
        gate.remove(pod.pod)
        refused = gate.refusal(pod.pod)
        return refused.message if refused is not None else None

    # Preemption --------------------------------------------------------------------------

    def may_preempt(self, unit: Unit, action: str) -> bool:
        """Tell nothing: the search itself ends early."""
        return True

    def plan(self, unit: Unit, action: str) -> EvictionCandidates | str | None:
        """Reclaim what others use of the quota's own, or preempt lesser pods of the quota."""
        queue = self.queue_of(unit.pods[0])
        manager = self._tree_of(queue) if queue is not None else None
        if queue is None or manager is None or manager.problem(queue):
            return None
        if action not in self.actions:
            return None
        never = any(pod.spec.preemption_policy == "Never" for pod in unit.pods)
        if action == "preempt":
            return None if never else PreemptCandidates(self._handle, manager, unit, queue)
        own = self.followed.quotas.gate_of(unit.pods[0].pod, check_parents=False)
        if own is not None and _refused(own, unit) is not None:
            # The quota has its own already; those above it may be full of what others borrowed.
            return None
        return ReclaimCandidates(self._handle, manager, unit, queue)

    def overdue(self) -> Overdue | None:
        """Return the pods of quotas that have been beyond their runtime for too long.

        What waits is tried again once a pod that is being deleted no longer counts.
        """
        if not self.active:
            return None
        now, unix_time = self._handle.now, self._handle.unix_time
        uncounted = unix_time > self.followed.recount_at
        until = self.followed.recounted_until()
        victims: tuple[tuple[PodInfo, str], ...] = ()
        times = [now + until - unix_time + 1.0]
        if self.args.monitor_all_quotas and self.args.enable_runtime_quota:
            victims = tuple(self._to_revoke())
            times.append(now + parse_duration(self.args.revoke_pod_interval))
        again = None if math.isinf(min(times)) else min(times)
        return Overdue(victims, again, uncounted)

    def _to_revoke(self) -> Iterator[tuple[PodInfo, str]]:
        """Yield the pods to evict from quotas that use too much, each with the reason."""
        living = self._handle.snapshot.living
        for manager in self.followed.quotas.trees.values():
            for name in self._monitor.due(manager, self._handle.now):
                quota = manager.quotas[name]
                runtime = manager.runtime(name) or {}
                reason = f"quota {name} uses {printed(quota.used.every)} of {printed(runtime)}"
                pods = pods_to_revoke(quota.pods.values(), quota.used.every, runtime)
                yield from ((living[pod.key], reason) for pod in pods if pod.key in living)

    def statuses(self) -> Iterator[PatchStatus | PatchAnnotations]:
        """Yield the status and the annotations of each ElasticQuota that are not up to date."""
        before, self._shown = self._shown, {}
        for quota in self._handle.snapshot.objects(ElasticQuota).values():
            name = quota.metadata.name
            with alone(f"status of ElasticQuota {name}"):
                manager = self._tree_of(name)
                if manager is None:
                    continue
                status = status_of(manager, name)
                current = quota, status
                writes = () if before.get(name) == current else tuple(writes_for(*current))
                if not writes:
                    self._shown[name] = current
                yield from writes


def _refused(gate: QuotaGate, unit: Unit) -> str | None:
    """Return why a gate does not let the minimum of a unit through; None if it does."""
    every: Mapping[str, int] = {}
    fixed: Mapping[str, int] = {}
    for pod in unit.pods[: unit.min_placed]:
        every = added(every, pod.requests)
        if not is_preemptible(pod.pod):
            fixed = added(fixed, pod.requests)
    refused = gate.refused(every, fixed)
    return refused.message if refused is not None else None
