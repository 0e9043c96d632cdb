"""A scheduler beside another one, which binds the pods.

What a pod fits on is kept free for it for a while. That ends when the watch shows the pod on any
node; where the other scheduler does not bind it, it ends by itself, and the pod is tried again.
"""

from __future__ import annotations

from bayplan.api import ComputePool
from bayplan.cluster.protocol import Done, PatchStatus, Write
from bayplan.cluster.wrapped import WrappedCluster
from bayplan.cycle.scheduling_cycle import Result
from bayplan.plugin.base import Preemption
from bayplan.scheduler.active_profiles import ActiveProfile
from bayplan.scheduler.nominator import Nomination
from bayplan.scheduler.queued_unit import QueuedUnit
from bayplan.scheduler.state import SchedulerState

__all__ = ["EXPECTED", "EXPECTED_SECONDS", "ReadOnlyCluster", "ShadowMode"]

EXPECTED = "expected"
"""The action of a nomination for a unit that another scheduler is expected to bind."""
EXPECTED_SECONDS = 10.0
"""Seconds that nodes are kept free for a unit that fits."""


class ReadOnlyCluster(WrappedCluster):
    """The cluster as a scheduler has it that binds nothing: of its writes, the status of pools is
    carried out; no other is, nor answered.
    """

    @property
    def writes(self) -> bool:
        """Whether writes are carried out: those about other things than pools are not."""
        return False

    def submit(self, write: Write, done: Done | None = None) -> None:
        """Carry out a write about a pool."""
        if isinstance(write, PatchStatus) and issubclass(write.type, ComputePool):
            self._cluster.submit(write, done)


class ShadowMode:
    """Where the pods of another scheduler are expected to go."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def leave_to_the_other(self, result: Result) -> None:
        """Drop a preemption that evicts pods: to evict them is the other scheduler's part."""
        found = result.preemption
        if found is not None and self._evicts(found):
            result.preemption = None

    def _evicts(self, preemption: Preemption) -> bool:
        return any(
            not victim.terminating
            and victim.key not in preemption.leaving
            and victim.key not in self._state.nominator
            for victim in preemption.victims
        )

    def expect(self, queued: QueuedUnit, profile: ActiveProfile, result: Result) -> None:
        """Keep the nodes of a placed unit free for it; it goes on waiting."""
        state, reserved = self._state, result.reserved
        profile.cycle.unreserve(reserved)
        for one in reversed(reserved):
            state.snapshot.remove_pod(one.pod.key)
        pods = [one.pod for one in reserved]
        nodes = {one.pod.key: one.node for one in reserved}
        until = state.now + EXPECTED_SECONDS
        state.nominator.add(Nomination(queued.key, pods, nodes, until, set(), action=EXPECTED))
        state.queue.refuse(queued, set(), state.now)
