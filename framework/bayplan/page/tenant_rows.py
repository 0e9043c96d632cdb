"""What a tenant sees of the page: rows of his namespaces, and nothing that others have a part in.

A row says what objects of his namespaces say: the pods, their nodes, the condition that tells why
one waits. What is computed from the whole cluster is left out: how full nodes and queues are,
explanations, who was evicted for whom. Of nodes those are shown on which his pods are or were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from bayplan.api import Pod
from bayplan.page.cluster_view import ClusterView
from bayplan.page.content import FORMAT

__all__ = ["TenantRows", "namespace_of", "namespaces_in", "tenant_detail"]

_HELD = "suspended: not admitted by its queue yet"
_OF_NODE = ("domain", "machine", "cards", "models", "state", "nvlink")
"""What a node says that does not depend on who uses it."""


def namespace_of(key: str) -> str:
    """Return the namespace of a pod or unit."""
    return key.partition("/")[0]


def namespaces_in(rows: Mapping[str, Any]) -> set[str]:
    """Return the namespaces of the pods and units in rows."""
    return {namespace_of(key) for name in ("pods", "units") for key in rows.get(name) or ()}


def tenant_detail(cluster_view: ClusterView, unit: str) -> dict[str, Any] | None:
    """Return why a job waits, as its pod says it; None where there is no such job."""
    pod = cluster_view.pod_of(unit)
    if pod is None:
        held = cluster_view.held_job(unit)
        return None if held is None else {"pod": unit, "state": "Pending", "message": _HELD}
    state = "Scheduled" if pod.spec.node_name else "Pending"
    found = {"pod": pod.key, "state": state, "message": _message(pod)}
    return found | ({"node": pod.spec.node_name} if pod.spec.node_name else {})


def _message(pod: Pod | None) -> str:
    """Return why a pod has no node, as the object says it that its owner reads."""
    if pod is None or pod.spec.node_name:
        return ""
    reported = (one for one in pod.status.conditions if one.type == "PodScheduled")
    return next((one.message for one in reported if one.status == "False"), "")


class TenantRows:
    """The rows of some namespaces, as they were shown last: what others do makes no row again.

    :param namespaces: those whose pods may be read; None for all.
    """

    def __init__(self, cluster_view: ClusterView, namespaces: frozenset[str] | None) -> None:
        self._view = cluster_view
        self.namespaces = namespaces
        self._shown: dict[str, dict[str, Any]] = {"nodes": {}, "pods": {}, "units": {}}
        self._machines: list[Any] = []

    def sees(self, key: str) -> bool:
        """Return whether a pod or a unit is in these namespaces."""
        return self.namespaces is None or namespace_of(key) in self.namespaces

    def everything(self) -> dict[str, Any]:
        """Return all rows."""
        view = self._view
        scheduler = view.scheduler
        for shown in self._shown.values():
            shown.clear()
        self._machines = []
        fresh = self._fresh(view.pods, view.units, ())
        return {
            "format": FORMAT,
            "now": round(scheduler.now, 3),
            "unixTime": round(scheduler.unix_time, 3),
            "wall": True,
            "tenant": True,
            **{kind: fresh.get(kind, {}) for kind in self._shown},
            "floor": view.floor.as_json(),
            "machines": self._machines,
            "events": self._events(view.history.events),
            "samples": [],
            "details": None,
        }

    def of(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Return what of the changed rows is new to the tenant, empty for nothing."""
        found = self._fresh(*(rows.get(kind, ()) for kind in ("pods", "units", "nodes")))
        if events := self._events(rows.get("events", ())):
            found["events"] = events
        if "floor" in rows:
            found["floor"] = rows["floor"]
        return found | ({"now": rows["now"]} if found else {})

    def _fresh(
        self, pods: Iterable[str], units: Iterable[str], nodes: Iterable[str]
    ) -> dict[str, Any]:
        """Return the rows of these that are not as they were shown, null where one is gone."""
        view = self._view
        own = [key for key in pods if self.sees(key)]
        rows = [row for key in own if (row := view.pods.get(key)) is not None]
        # The condition of a pod changes what is said of its unit.
        jobs = {*(row.unit for row in rows), *filter(self.sees, units)}
        on = {stint.node: None for row in rows for stint in row.stints}
        on |= {name: None for name in nodes if name in self._shown["nodes"]}
        found = {
            "pods": self._changed("pods", {key: self._pod(key) for key in own}),
            "units": self._changed("units", {key: self._unit(key) for key in sorted(jobs)}),
            "nodes": self._changed("nodes", {name: self._node(name) for name in on}),
        }
        fresh: dict[str, Any] = {kind: changed for kind, changed in found.items() if changed}
        if "nodes" in fresh and (machines := self._used_machines()) != self._machines:
            self._machines = fresh["machines"] = machines
        return fresh

    def _changed(
        self, kind: str, rows: Mapping[str, dict[str, Any] | None]
    ) -> dict[str, dict[str, Any] | None]:
        shown = self._shown[kind]
        fresh = {key: row for key, row in rows.items() if shown.get(key) != row}
        for key, row in fresh.items():
            if row is None:
                del shown[key]
            else:
                shown[key] = row
        return fresh

    def _pod(self, key: str) -> dict[str, Any] | None:
        """Return a pod without the GPUs on which it is only drawn: those that others left free."""
        row = self._view.pods.get(key)
        if row is None:
            return None
        known = [
            replace(one, gpus=[gpu for gpu in one.gpus if not gpu.guessed]) for one in row.stints
        ]
        return replace(row, stints=known).as_json()

    def _unit(self, key: str) -> dict[str, Any] | None:
        """Return a job as its own objects describe it."""
        row = self._view.units.get(key)
        if row is None:
            return None
        message = _HELD if row.held is not None else _message(self._view.pod_of(key))
        return replace(row, message=message, why="", outcome="", decided=None).as_json()

    def _node(self, name: str) -> dict[str, Any] | None:
        tile = self._view.nodes.get(name)
        if tile is None:
            return None
        plain = tile.as_json()
        return {field: plain[field] for field in _OF_NODE if field in plain}

    def _used_machines(self) -> list[Any]:
        """Return the machines that the nodes shown are, at their places among all."""
        used = {one["machine"] for one in self._shown["nodes"].values() if "machine" in one}
        rows = self._view.machines.rows[: max(used, default=-1) + 1]
        return [row if index in used else None for index, row in enumerate(rows)]

    def _events(self, events: Iterable[Sequence[Any]]) -> list[list[Any]]:
        """Return when what happened, without the words: they may name others."""
        return [list(one[:4]) for one in events if self.sees(one[2])]
