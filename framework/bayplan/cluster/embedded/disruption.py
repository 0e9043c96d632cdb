"""The disruption controller, as k8s.io/kubernetes pkg/controller/disruption."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import Pod, PodDisruptionBudget
from bayplan.cluster.embedded.disruption_budgets import disruptions_allowed
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import WatchEvent

__all__ = ["DisruptionController"]


class DisruptionController:
    """Keeps ``status.disruptionsAllowed`` of all budgets current."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._waiting = False
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Recount after all events of this instant."""
        interesting = isinstance(event.obj, Pod | PodDisruptionBudget)
        if interesting and not self._waiting and self._cluster.list(PodDisruptionBudget):
            self._waiting = True
            self._cluster.clock.call_later(0, self._count_all)

    def _count_all(self) -> None:
        self._waiting = False
        for budget in self._cluster.list(PodDisruptionBudget):
            allowed = disruptions_allowed(budget, self._cluster.list(Pod))
            if allowed != budget.status.disruptions_allowed:
                status = replace(budget.status, disruptions_allowed=allowed)
                self._cluster.update(replace(budget, status=status))
