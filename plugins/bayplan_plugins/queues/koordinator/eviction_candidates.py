"""Who may go for a unit, in what order: borrowers of what is its quota's, and lesser pods of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bayplan import Handle, PodInfo, Unit
from bayplan.dialects.koordinator.elastic_quota import ResourceList, is_preemptible
from bayplan_plugins.queues.koordinator.importance import by_importance
from bayplan_plugins.queues.koordinator.manager import QuotaManager
from bayplan_plugins.queues.koordinator.overuse import borrowers
from bayplan_plugins.queues.koordinator.quota import Quota
from bayplan_plugins.queues.koordinator.resource_lists import exceeding, subtracted
from bayplan_plugins.queues.policy import Moves, Step

__all__ = ["PreemptCandidates", "ReclaimCandidates"]


class _QuotaCandidates:
    """The pods of quotas that may be evicted, with the rest of their gangs."""

    moves = Moves.NONE
    leaving_count = True

    def __init__(self, handle: Handle, manager: QuotaManager, unit: Unit, name: str) -> None:
        self._handle = handle
        self._manager = manager
        self._unit = unit
        self._name = name
        self._taken: set[str] = set()

    def accepts(self, victims: Sequence[Step]) -> bool:
        """Accept any victims: each of them was chosen because it has to give way."""
        return True

    def _evictable(self, quota: Quota) -> list[PodInfo]:
        """Return the pods of a quota that may be evicted, the least important first."""
        living = self._handle.snapshot.living
        pods = [
            living[key].pod
            for key, counted in quota.pods.items()
            if counted.assigned and counted.preemptible and key in living
        ]
        found = [living[pod.key] for pod in reversed(by_importance(pods))]
        return [pod for pod in found if not pod.terminating]

    def _leaving(self, quota: Quota) -> ResourceList:
        """Return what a quota's pods use that are being deleted: it comes back anyway."""
        left: ResourceList = {}
        for counted in quota.pods.values():
            if counted.assigned and counted.pod.metadata.deletion_timestamp is not None:
                left = subtracted(left, counted.requests)
        return subtracted({}, left)

    def _step(self, pod: PodInfo, below: float = math.inf) -> Step:
        """Return a pod, or all of its gang that is left, if it needs each of its members.

        Nothing if one of them may not be evicted.

        :param below: the priority that all of them have to be below.
        """
        self._taken.add(pod.key)
        step = [pod]
        members = self._handle.gang(pod.gang) if pod.gang is not None else None
        if members is not None and members.gang is not None:
            left = [one for one, _ in members.bound.values() if one.key not in self._taken]
            if len(left) < members.gang.min_member:
                self._taken.update(one.key for one in left)
                step += left
        may_go = all(is_preemptible(one.pod) and one.priority < below for one in step)
        return step if may_go else ()


class ReclaimCandidates(_QuotaCandidates):
    """Pods of quotas that use more than they may have now, which is the unit's quota's.

    A quota gives no more than what it uses beyond its runtime; the quotas nearest in the tree give
    first. Pods that use nothing of what is overused stay.
    """

    def steps(self) -> Iterator[Step]:
        """Yield the pods to evict, until no quota is beyond what it may have."""
        for name in borrowers(self._manager, self._name):
            quota = self._manager.quotas[name]
            runtime = self._manager.runtime(name) or {}
            leaving = self._leaving(quota)
            for pod in self._evictable(quota):
                over = exceeding(subtracted(quota.used.every, leaving), runtime)
                if not over:
                    break
                if pod.key in self._taken:
                    continue
                if any(quota.pods[pod.key].requests.get(resource) for resource in over):
                    if step := self._step(pod):
                        yield step


class PreemptCandidates(_QuotaCandidates):
    """Pods of the unit's own quota with a lower priority than all of the unit's."""

    def steps(self) -> Iterator[Step]:
        """Yield the pods to evict, the least important first."""
        priority = min(pod.priority for pod in self._unit.pods)
        for pod in self._evictable(self._manager.quotas[self._name]):
            if pod.priority >= priority:
                break
            if pod.key not in self._taken and (step := self._step(pod, priority)):
                yield step
