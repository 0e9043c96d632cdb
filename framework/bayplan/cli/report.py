"""The page of a simulation: written to a file, or served by ``bayplan ui``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayplan.errors import InputError
from bayplan.naming import counted
from bayplan.page.cluster_view import ClusterView
from bayplan.page.content import content
from bayplan.page.details import details_of
from bayplan.page.document import document
from bayplan.simulation import Simulation

__all__ = ["Recording", "write_report"]


class Recording:
    """Records a simulation from its start; call it before anything is created.

    :param name: what is simulated, for the title.
    """

    cluster_view: ClusterView

    def __init__(self, name: str) -> None:
        self.title = f"bayplan: {name}"

    def __call__(self, simulation: Simulation) -> None:
        """Follow a simulation."""
        cluster_view = self.cluster_view = ClusterView(simulation.scheduler)
        simulation.cluster.watch(cluster_view.handle)
        simulation.on_settled(self._look)

    def _look(self, simulation: Simulation) -> None:
        self.cluster_view.look()

    def content(
        self, simulation: Simulation, more: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return all that the page shows of a simulation that has ended.

        :param more: further parts, such as the costs.
        """
        self.cluster_view.look()
        pods = {pod.key: pod for pod in simulation.pods()}
        found = content(
            self.cluster_view,
            self.title,
            details_of(self.cluster_view, pods),
            simulation.problems(),
            simulation.refused(),
        )
        statistics = simulation.queue_statistics()
        if statistics is not None:
            figures = {"queues": statistics.queues_json(), "fairness": statistics.cluster_json()}
            found["statistics"] = figures
        if simulation.autoscaler is not None:
            found["autoscaling"] = simulation.autoscaler.as_json()
        if simulation.fault_play is not None:
            found["goodput"] = simulation.fault_play.report().as_json()
        return {**found, **(more or {})}

    def page(self, simulation: Simulation, more: Mapping[str, Any] | None = None) -> str:
        """Return the page as one HTML document."""
        bound, pending = len(simulation.placements()), len(simulation.pending())
        summary = (
            f"{bound} of {counted(len(simulation.pods()), 'pod')} have a node, {pending} pending, "
            f"after {simulation.cluster.now:g} s of virtual time."
        )
        return document(self.title, self.content(simulation, more), summary)


def write_report(path: Path, page: str) -> None:
    """Write a page to a file.

    :raises InputError: when the file cannot be written.
    """
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), f"--report {path}") from None
