"""What the scheduler asks of queues, answered by the policies of their systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from bayplan import Handle, PodInfo, Unit
from bayplan.api.podgroup import UnschedulableReason
from bayplan.api.queue import Order
from bayplan.cluster.protocol import PatchAnnotations, PatchStatus
from bayplan.queues.report import KnownReports, PendingJob, QueuePosition, QueueReport
from bayplan_plugins.queues.isolation import alone
from bayplan_plugins.queues.policies import Policies
from bayplan_plugins.queues.policy import (
    AdmitsGroups,
    AdmitsJobs,
    LendsToElasticJobs,
    Policy,
    ProtectsNewJobs,
    RequeuesJobs,
    TellsReasons,
)
from bayplan_plugins.queues.position import left_to, position_of, reports

__all__ = ["PolicyQueueing"]


class PolicyQueueing:
    """Implements ``bayplan.plugin.queueing.Queueing``, which documents its methods."""

    def __init__(self, handle: Handle, policies: Policies) -> None:
        self._handle = handle
        self._policies = policies
        self._reports = {one.system: KnownReports(one.system, one.name) for one in policies}

    def queue_of(self, unit: Unit) -> str | None:
        found = self._policies.of(unit.pods[0])
        return None if found is None else f"{found[0].system}/{found[1]}"

    def order(self, unit: Unit, added: float) -> tuple[float, ...] | None:
        found = self._policies.of(unit.pods[0])
        return None if found is None else found[0].order(unit, added)

    def next_queue(self, heads: Mapping[str, Unit], action: str) -> str | None:
        """Choose the next queue of each system by its policy, and among systems by priority.

        Of equal priority, a gang that lost members comes first, as in ``PrioritySort``.
        """
        chosen: list[str] = [""] if "" in heads else []
        for policy in self._policies:
            prefix = f"{policy.system}/"
            own = {
                name[len(prefix) :]: unit for name, unit in heads.items() if name.startswith(prefix)
            }
            queue = _next_of(policy, own, action) if own else None
            if queue is not None:
                chosen.append(f"{prefix}{queue}")

        def key(name: str) -> tuple[int, bool]:
            return -heads[name].priority, not heads[name].is_broken

        return min(chosen, key=key, default=None)

    def is_strict(self, unit: Unit) -> bool:
        found = self._policies.of(unit.pods[0])
        if found is None:
            return False
        tree = found[0].ledger.tree
        row = tree.row_of.get(found[1])
        return row is not None and tree.queues[row].order in (Order.STRICT, Order.STRICT_FIFO)

    def pods_to_place(self, unit: Unit) -> Sequence[PodInfo] | None:
        found = self._policies.of(unit.pods[0])
        return None if found is None else found[0].turn(unit)

    def actions(self, unit: Unit) -> Sequence[str] | None:
        found = self._policies.of(unit.pods[0])
        return None if found is None else found[0].actions

    def requeue(self, pods: Sequence[PodInfo], why: str) -> bool:
        found = self._policies.of(pods[0])
        return (
            found is not None
            and isinstance(found[0], RequeuesJobs)
            and found[0].requeue(pods[0], why)
        )

    def reports(self) -> list[QueueReport]:
        found: list[QueueReport] = []
        for policy in self._policies.shown():
            with alone(f"report on {policy.system}'s queues"):
                own = reports(self._handle, policy, self._reports[policy.system])
                note = left_to(policy)
                found += [replace(one, notes=(note, *one.notes)) for one in own] if note else own
        return found

    def statuses(self) -> list[PatchStatus | PatchAnnotations]:
        found: list[PatchStatus | PatchAnnotations] = []
        active = self._policies.active
        for policy in (one for one in self._policies.own if one in active):
            with alone(f"statuses of {policy.system}'s queues"):
                found += policy.statuses()
        return found

    def position(self, unit: Unit) -> QueuePosition | None:
        pod = unit.pods[0]
        found = self._policies.of(pod)
        if found is not None:
            return position_of(self._handle, *found, unit)
        for policy in self._policies.shown():
            queue = policy.queue_of(pod) if left_to(policy) else None
            if queue is not None:
                return position_of(self._handle, policy, queue, unit)
        return None

    def jobs(self, queue: str) -> Sequence[PendingJob] | None:
        system, _, name = queue.partition("/")
        for policy in self._policies.shown():
            if policy.system == system and isinstance(policy, AdmitsJobs):
                return policy.pending_jobs(name)
        return None

    def units_of_job(self, kind: str, key: str) -> Sequence[Unit] | None:
        for policy in self._policies.shown():
            units = policy.units_of_job(kind, key) if isinstance(policy, AdmitsJobs) else ()
            if units:
                return units
        return None

    def unschedulable_reason(self, unit: Unit) -> UnschedulableReason | None:
        """Return why the unit's queue does not take it, in the words of its system."""
        found = self._policies.of(unit.pods[0])
        if found is None or not isinstance(found[0], TellsReasons):
            return None
        return found[0].unschedulable_reason(unit)

    def keep_in_place(self, pod: PodInfo) -> str | None:
        """Keep what queues may not take back, and jobs that their system protects for now."""
        found = self._policies.of(pod)
        if found is None:
            return None
        policy, queue = found
        if policy.ledger.is_fixed(pod):
            return f'its queue "{queue}" does not take back what it has'
        seconds = policy.safe_for(pod, queue) if isinstance(policy, ProtectsNewJobs) else 0.0
        return f'queue "{queue}" protects it for {seconds:g} s more' if seconds > 0 else None

    def is_admitted(self, gang: str) -> bool:
        active = self._policies.active
        return any(isinstance(one, AdmitsGroups) and one.is_admitted(gang) for one in active)

    def admitted_without(self, pods: Sequence[PodInfo], job: str) -> str | None:
        for policy in self._policies.active:
            if isinstance(policy, LendsToElasticJobs):
                found = policy.admitted_without(pods, job)
                if found is not None:
                    return found
        return None


def _next_of(policy: Policy, heads: Mapping[str, Unit], action: str) -> str | None:
    """Choose by the policy; a queue that is gone comes first, so that its jobs learn of it."""
    known = policy.ledger.tree.row_of
    gone = next((name for name in heads if name not in known), None)
    return policy.next_queue(heads, action) if gone is None else gone
