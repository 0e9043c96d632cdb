"""The load of every node, whoever reports it, and since when each pod is on its node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bayplan import PodInfo
from bayplan.api import NodeMetric, NodeMetrics, WatchedLoad
from bayplan.api.times import seconds_of
from bayplan.snapshot import Snapshot
from bayplan_plugins.loads.node_load import (
    NodeLoad,
    load_of_metric,
    load_of_metrics,
    load_of_watcher,
)

__all__ = ["NodeLoads"]

Report = NodeMetric | NodeMetrics | WatchedLoad


class NodeLoads:
    """The loads of a cluster. All profiles of a scheduler share one.

    Koordinator's NodeMetric counts where a node has one, else what load-watcher or Prometheus
    knows, else what metrics-server answers.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[str, NodeLoad | None] = {}
        self._since: dict[str, float] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._readers: Mapping[type[Report], Callable[[Any], NodeLoad | None]] = {
            NodeMetric: load_of_metric,
            WatchedLoad: self._of_watcher,
            NodeMetrics: load_of_metrics,
        }
        self.version = 0
        """Changes with every report."""
        snapshot.on_object(NodeMetric, self._on_report)
        snapshot.on_object(NodeMetrics, self._on_report)
        snapshot.on_object(WatchedLoad, self._on_report)
        snapshot.on_pod(self._on_pod)
        for pod, node in snapshot.placed.values():
            self._on_pod(pod, node, True)

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call ``listener(node)`` when a node's load was reported."""
        self._listeners.append(listener)

    def _on_report(self, old: Report | None, new: Report | None) -> None:
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
        problem = ""
        for kind, read in self._readers.items():
            report = self._snapshot.objects(kind).get(name)
            try:
                found = read(report) if report is not None else None
            except ValueError as exc:
                problem = problem or f"{kind.__name__} {name}: {exc}"
                continue
            if found is not None:
                self._snapshot.set_problem(name, "load", problem)
                return found
        self._snapshot.set_problem(name, "load", problem)
        return None

    def _of_watcher(self, report: WatchedLoad) -> NodeLoad | None:
        node = self._snapshot.node(report.metadata.name)
        return load_of_watcher(report, node.status.capacity) if node is not None else None

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
