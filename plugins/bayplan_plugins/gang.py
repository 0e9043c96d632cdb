"""Gang: members wait until enough of them exist, and are refused unless enough are placed.

The unit cycle places all of a gang or nothing; this plugin says when a gang may be tried, and
that a definition which cannot work never is.
"""

from __future__ import annotations

from collections.abc import Hashable

from pydantic import Field

from bayplan import Args, ClusterEvent, Plugin, PodInfo, Reads, Unit, hookimpl

__all__ = ["Gang", "GangArgs"]


class GangArgs(Args):
    """Arguments of Gang; the names of Koordinator's CoschedulingArgs are taken over.

    ``enablePreemption`` and ``controllerWorkers`` are read and change nothing yet.
    """

    default_timeout: int | str = "600s"
    default_match_policy: str = "once-satisfied"
    enable_preemption: bool = False
    controller_workers: int = Field(default=1, ge=1)
    skip_check_schedule_cycle: bool = False


class Gang(Plugin[GangArgs]):
    """Admit a gang to the queue when it is complete, and to its nodes when enough have one."""

    Args = GangArgs
    reads = Reads.NODE
    requeue_on = ClusterEvent.GANG_CHANGED | ClusterEvent.POD_CHANGED

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        """Hold members back until their PodGroup and enough members exist."""
        if pod.gang is None:
            return None
        members = self.handle.gang(pod.gang)
        if members.gang is None:
            return f'waiting for PodGroup "{pod.gang}", which does not exist'
        have = len({*members.pending, *members.bound, pod.key})
        need = members.gang.min_member
        if have < need:
            return f'gang "{pod.gang}" is waiting for members: {have} of {need} exist'
        return None

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Only what is wrong with the pod or its gang matters."""
        return self._problem(pod)

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> str | None:
        """Refuse a pod whose annotations, or whose gang's, cannot be read."""
        return self._problem(pod)

    @hookimpl
    def permit(self, unit: Unit) -> str | None:
        """Refuse a gang that has fewer members than it needs."""
        if unit.gang is None:
            return None
        have = len(unit.pods) + len(unit.bound)
        if have < unit.gang.min_member:
            return f'gang "{unit.key}" has {have} of the {unit.gang.min_member} members it needs'
        return None

    def _problem(self, pod: PodInfo) -> str | None:
        if pod.problem is not None:
            return f"Pod {pod.key}: {pod.problem}"
        gang = self.handle.gang(pod.gang).gang if pod.gang is not None else None
        if gang is not None and gang.problem is not None:
            return f"PodGroup {gang.key}: {gang.problem}"
        return None
