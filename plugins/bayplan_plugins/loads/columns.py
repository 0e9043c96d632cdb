"""Columns of loads: what each node uses, with the pods that are not measured yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from bayplan import PodInfo
from bayplan.api import Node
from bayplan.api.resources import amount_of
from bayplan.dialects.koordinator.load_aware import raw_allocatable
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn
from bayplan.snapshot import Snapshot
from bayplan.snapshot.row_changes import moved
from bayplan_plugins.loads.ledger import NodeLoads
from bayplan_plugins.loads.node_load import NodeLoad
from bayplan_plugins.shared.stale_nodes import StaleNodes

__all__ = ["LATEST", "PROD", "LoadColumns", "UsageRule", "View", "offered", "statistic"]

View: TypeAlias = tuple[str, float]
"""Whose usage: of the node now, of ``koord-prod`` alone, or of the node by a statistic."""
LATEST: View = ("", 0.0)
PROD: View = ("prod", 0.0)
Matrix = npt.NDArray[np.int64]
_AMOUNTS = 3


def statistic(name: str, duration: float) -> View:
    """Return the view by a statistic such as p95 over a duration in seconds, 0 for the longest."""
    return (f"statistic {name}", duration)


class UsageRule(Protocol):
    """How the usage of a node is reckoned from its report and from the pods that it has."""

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources of usages, in order."""

    def usage(
        self, load: NodeLoad, pods: Iterable[PodInfo], has: Sequence[int], views: Sequence[View]
    ) -> Sequence[Sequence[int]]:
        """Return what a node uses, views by resources.

        :param has: what the node has of each resource, with what is kept from pods.
        """


class LoadColumns:
    """Loads by node row, brought up to date for nodes that changed only.

    :param views: whose usage to keep.
    """

    def __init__(
        self, snapshot: Snapshot, loads: NodeLoads, rule: UsageRule, views: Sequence[View]
    ) -> None:
        self._snapshot = snapshot
        self._loads = loads
        self.resources = rule.resources
        self._rule = rule
        self._views = tuple(dict.fromkeys(views))
        self._stale = StaleNodes(snapshot)
        width = len(self.resources)
        self._times: FloatColumn = np.zeros(0)
        self._used: Matrix = np.zeros((0, len(self._views), width), dtype=np.int64)
        # What pods may use, what the node has, and the deviation of what it uses.
        self._amounts: Matrix = np.zeros((0, _AMOUNTS, width), dtype=np.int64)
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
            self._amounts = np.zeros((size, _AMOUNTS, width), dtype=np.int64)
        elif stale.origin is not None:
            self._times = moved(self._times, stale.origin)
            self._used = moved(self._used, stale.origin)
            self._amounts = moved(self._amounts, stale.origin)
        for name in stale.names:
            row = table.row_of.get(name)
            if row is not None:
                self._read(name, row)

    def _read(self, name: str, row: int) -> None:
        load = self._loads.of(name)
        table = self._snapshot.nodes
        node = table.nodes[row]
        offers, stated = offered(node, self.resources), node.status.capacity
        has = [
            amount_of(one, stated[one]) if one in stated else offer
            for one, offer in zip(self.resources, offers, strict=True)
        ]
        self._times[row] = np.nan if load is None else load.time
        spread = [0] * len(has)
        if load is not None:
            spread = load.deviation_of(self.resources)
            pods = table.pods[row].values()
            self._used[row] = self._rule.usage(load, pods, has, self._views)
        self._amounts[row] = [offers, has, spread]

    @property
    def times(self) -> FloatColumn:
        """When each node was measured, in seconds since 1970; not a number for never."""
        return self._times

    def fresh(self, seconds: float) -> BoolColumn:
        """Tell which nodes were measured in the last so many seconds."""
        with np.errstate(invalid="ignore"):
            found: BoolColumn = self._snapshot.unix_time - self._times <= seconds
        return found

    @property
    def allocatable(self) -> Matrix:
        """What pods may use: nodes by resources."""
        return self._amounts[:, 0]

    @property
    def capacity(self) -> Matrix:
        """What the nodes have, with what is kept from pods: nodes by resources."""
        return self._amounts[:, 1]

    @property
    def deviation(self) -> Matrix:
        """The standard deviation of what nodes use: nodes by resources."""
        return self._amounts[:, 2]

    def used(self, view: View) -> Matrix:
        """Return what is used, or will be: nodes by resources."""
        return self._used[:, self._views.index(view)]

    def watch(self, view: View) -> None:
        """Keep one view more from now on."""
        if view not in self._views:
            self._views = (*self._views, view)
            self._stale = StaleNodes(self._snapshot)


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
