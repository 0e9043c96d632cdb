"""SchedulingGates: a pod waits while it has scheduling gates."""

from __future__ import annotations

from bayplan import Args, ClusterEvent, Plugin, PodInfo, hookimpl

__all__ = ["SchedulingGates"]


class SchedulingGates(Plugin[Args]):
    """Keep pods with spec.schedulingGates out of the queue."""

    requeue_on = ClusterEvent.POD_CHANGED
    gate_reads = ()

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods with gates."""
        return bool(pod.spec.scheduling_gates)

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        """Refuse while any gate is left, and name the gates."""
        gates = [gate.name for gate in pod.spec.scheduling_gates]
        return f"waiting for scheduling gates: [{' '.join(gates)}]" if gates else None
