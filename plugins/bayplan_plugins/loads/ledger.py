"""The load of every node, whoever reports it, and since when each pod is on its node."""

from __future__ import annotations

from collections.abc import Callable

from bayplan import PodInfo
from bayplan.api import NodeMetric, NodeMetrics
from bayplan.api.times import seconds_of
from bayplan.snapshot import Snapshot
from bayplan_plugins.loads.node_load import NodeLoad, load_of_metric, load_of_metrics

__all__ = ["NodeLoads"]


class NodeLoads:
    """The loads of a cluster. All profiles of a scheduler share one.

    Koordinator's NodeMetric counts where a node has one, else what metrics-server answers.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[str, NodeLoad | None] = {}
        self._since: dict[str, float] = {}
        self._listeners: list[Callable[[str], None]] = []
        self.version = 0
        """Changes with every report."""
        snapshot.on_object(NodeMetric, self._on_report)
        snapshot.on_object(NodeMetrics, self._on_report)
        snapshot.on_pod(self._on_pod)
        for pod, node in snapshot.placed.values():
            self._on_pod(pod, node, True)

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call ``listener(node)`` when a node's load was reported."""
        self._listeners.append(listener)

    def _on_report(
        self, old: NodeMetric | NodeMetrics | None, new: NodeMetric | NodeMetrics | None
    ) -> None:
        obj = new or old
        assert obj is not None
        name = obj.metadata.name
        self._known.pop(name, None)
        self.version += 1
        for listener in self._listeners:
            listener(name)

    def of(self, name: str) -> NodeLoad | None:
        """Return a node's load; None where nobody reported any."""
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def _read(self, name: str) -> NodeLoad | None:
        objects = self._snapshot.objects
        metric, metrics = objects(NodeMetric).get(name), objects(NodeMetrics).get(name)
        found, problem = None, ""
        try:
            found = load_of_metric(metric) if metric is not None else None
        except ValueError as exc:
            problem = f"NodeMetric {name}: {exc}"
        if found is None and metrics is not None:
            try:
                found = load_of_metrics(metrics)
            except ValueError as exc:
                problem = f"NodeMetrics {name}: {exc}"
        self._snapshot.set_problem(name, "load", problem)
        return found

    # Pods ------------------------------------------------------------------------------------

    def _on_pod(self, pod: PodInfo, name: str, placed: bool) -> None:
        if placed:
            if pod.uid not in self._since:
                self._since[pod.uid] = _stated(pod) or self._snapshot.unix_time
        elif not self._snapshot.in_trial:
            self._since.pop(pod.uid, None)

    def since(self, pod: PodInfo) -> float:
        """Return when a pod on a node was placed there, in seconds since 1970."""
        return self._since.get(pod.uid, 0.0)


def _stated(pod: PodInfo) -> float:
    """Return when a pod got its node, as its conditions say; 0 where they do not."""
    for condition in pod.pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "True":
            return seconds_of(condition.last_transition_time)
    return 0.0
