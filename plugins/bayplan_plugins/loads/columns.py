"""Columns of loads: what each node uses, with the pods that are not measured yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bayplan.api import Node
from bayplan.api.resources import amount_of
from bayplan.dialects.koordinator.load_aware import raw_allocatable
from bayplan.plugin.hookspecs import FloatColumn
from bayplan.snapshot import Snapshot
from bayplan.snapshot.row_changes import moved
from bayplan_plugins.loads.estimates import Estimates, EstimateSettings
from bayplan_plugins.loads.ledger import NodeLoads
from bayplan_plugins.loads.node_load import NodeLoad, Usage
from bayplan_plugins.shared.stale_nodes import StaleNodes

__all__ = ["LATEST", "PROD", "LoadColumns", "View", "offered", "statistic"]

View: TypeAlias = tuple[str, float]
"""Whose usage: of the node now, of ``koord-prod`` alone, or of the node by a statistic."""
LATEST: View = ("", 0.0)
PROD: View = ("prod", 0.0)
Matrix = npt.NDArray[np.int64]


def statistic(name: str, duration: float) -> View:
    """Return the view by a statistic such as p95 over a duration in seconds, 0 for the longest."""
    return (f"statistic {name}", duration)


class LoadColumns:
    """Loads by node row, brought up to date for nodes that changed only.

    :param views: whose usage to keep.
    :param with_system: whether what no pod uses counts as used by ``koord-prod``.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        loads: NodeLoads,
        settings: EstimateSettings,
        views: Sequence[View],
        with_system: bool = False,
    ) -> None:
        self._snapshot = snapshot
        self._loads = loads
        self.resources = settings.resources
        self.estimates = Estimates(settings)
        self._views = tuple(dict.fromkeys(views))
        self._with_system = with_system
        self._stale = StaleNodes(snapshot)
        width = len(self.resources)
        self._times: FloatColumn = np.zeros(0)
        self._used: Matrix = np.zeros((0, len(self._views), width), dtype=np.int64)
        self._allocatable: Matrix = np.zeros((0, width), dtype=np.int64)
        loads.on_change(self._on_report)

    def _on_report(self, name: str) -> None:
        self._stale.touch(name)

    def refresh(self) -> None:
        """Read again what changed."""
        if self._stale.up_to_date:
            return
        stale = self._stale.take()
        table = self._snapshot.nodes
        if stale.all:
            size, width = len(table), len(self.resources)
            self._times = np.full(size, np.nan)
            self._used = np.zeros((size, len(self._views), width), dtype=np.int64)
            self._allocatable = np.zeros((size, width), dtype=np.int64)
        elif stale.origin is not None:
            self._times = moved(self._times, stale.origin)
            self._used = moved(self._used, stale.origin)
            self._allocatable = moved(self._allocatable, stale.origin)
        for name in stale.names:
            row = table.row_of.get(name)
            if row is None:
                continue
            load = self._loads.of(name)
            self._allocatable[row] = offered(table.nodes[row], self.resources)
            self._times[row] = np.nan if load is None else load.time
            if load is not None:
                self._used[row] = self._usage(load, row)

    @property
    def times(self) -> FloatColumn:
        """When each node was measured, in seconds since 1970; not a number for never."""
        return self._times

    @property
    def allocatable(self) -> Matrix:
        """What pods may use: nodes by resources."""
        return self._allocatable

    def used(self, view: View) -> Matrix:
        """Return what is used, or will be: nodes by resources."""
        return self._used[:, self._views.index(view)]

    def watch(self, view: View) -> None:
        """Keep one view more from now on."""
        if view not in self._views:
            self._views = (*self._views, view)
            self._stale = StaleNodes(self._snapshot)

    def _usage(self, load: NodeLoad, row: int) -> list[list[int]]:
        """Return what a node uses by view, with what its unmeasured pods will use."""
        width = range(len(self.resources))
        delta, full = [0] * len(width), [0] * len(width)
        prod = self._vector(load.system) if self._with_system else [0] * len(width)
        for pod in self._snapshot.nodes.pods[row].values():
            key = (pod.namespace, pod.name)
            own = self.estimates.of(pod)
            usage = load.pods.get(key)
            measured = self._vector(usage) if usage is not None else None
            since = self._loads.since(pod)
            counts = (
                measured is None
                or load.time - load.interval < since
                or (own.may_count and own.until(pod, since) > load.time)
            )
            for i in width:
                full[i] += own.amounts[i]
            if counts:
                _add_excess(delta, own.amounts, measured)
            if not own.prod:
                continue
            if key in load.prod and measured is not None:
                for i in width:
                    prod[i] += measured[i]
                if counts:
                    _add_excess(prod, own.amounts, measured)
            else:
                _add_excess(prod, own.amounts, None)
        return [self._of_view(view, load, delta, full, prod) for view in self._views]

    def _of_view(
        self,
        view: View,
        load: NodeLoad,
        delta: Sequence[int],
        full: list[int],
        prod: list[int],
    ) -> list[int]:
        if view == PROD:
            return prod
        name, duration = view
        usage = load.usage
        if view != LATEST:
            found = load.statistic(name.removeprefix("statistic "), duration)
            if found is None:
                # Of this duration nothing was reported.
                return full
            usage = found
        return [a + b for a, b in zip(self._vector(usage), delta, strict=True)]

    def _vector(self, usage: Usage) -> list[int]:
        return [usage.get(name, 0) for name in self.resources]


def offered(node: Node, resources: Sequence[str]) -> list[int]:
    """Return what a node has of resources, before its agent amplified it."""
    try:
        raw = raw_allocatable(node.metadata.annotations)
    except ValueError:
        raw = {}
    stated = node.status.allocatable
    return [
        raw[name] if name in raw else amount_of(name, stated[name]) if name in stated else 0
        for name in resources
    ]


def _add_excess(into: list[int], estimated: Sequence[int], measured: Sequence[int] | None) -> None:
    """Add what pods will use beyond what they were measured to use."""
    for i, amount in enumerate(estimated):
        more = amount - (measured[i] if measured is not None else 0)
        if more > 0:
            into[i] += more
