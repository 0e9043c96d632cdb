"""SchedulingGates: a pod waits while it carries gates."""

from __future__ import annotations

from bayplan import Args, ClusterEvent, Plugin, PodInfo, hookimpl

__all__ = ["SchedulingGates"]


class SchedulingGates(Plugin[Args]):
    """Hold back pods with spec.schedulingGates."""

    requeue_on = ClusterEvent.POD_CHANGED

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        """Refuse while any gate is left, naming them."""
        gates = [gate.name for gate in pod.spec.scheduling_gates]
        return f"waiting for scheduling gates: [{' '.join(gates)}]" if gates else None
