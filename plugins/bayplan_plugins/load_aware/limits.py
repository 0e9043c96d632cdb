"""How busy a node may be: the profile's thresholds, or the node's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from bayplan.api import Node
from bayplan.dialects.koordinator.load_aware import THRESHOLDS, CustomThresholds, custom_thresholds
from bayplan.inputs.durations import parse_duration
from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot import Snapshot
from bayplan_plugins.load_aware.args import LoadAwareArgs
from bayplan_plugins.loads.columns import LATEST, PROD, LoadColumns, View, statistic
from bayplan_plugins.shared.node_codes import NodeCodes

__all__ = ["Limit", "Limits"]


class Limit(msgspec.Struct, frozen=True):
    """Thresholds in percent by resource, and whose usage they limit; empty to limit nothing."""

    thresholds: tuple[int, ...]
    view: View

    @property
    def aggregated(self) -> bool:
        """Whether a statistic is limited."""
        return self.view not in (LATEST, PROD)


class _Limits(msgspec.Struct, frozen=True):
    every: Limit
    prod: Limit | None


class Limits:
    """The limits of all nodes; nodes of equal limits share a number."""

    def __init__(self, args: LoadAwareArgs, snapshot: Snapshot, columns: LoadColumns) -> None:
        self._snapshot = snapshot
        self._columns = columns
        self._resources = columns.resources
        self._default = self._of_profile(args)
        self._known: list[_Limits] = [self._default]
        self._codes = NodeCodes(snapshot, self._code)
        self._watch(self._default)

    def _of_profile(self, args: LoadAwareArgs) -> _Limits:
        of_all = args.aggregated
        every = self._limit(args.thresholds, LATEST)
        if of_all is not None and of_all.usage_thresholds and of_all.usage_aggregation_type:
            text = of_all.usage_aggregated_duration
            view = statistic(of_all.usage_aggregation_type, parse_duration(text) if text else 0.0)
            every = self._limit(of_all.usage_thresholds, view)
        prod = args.prod_usage_thresholds
        return _Limits(every, self._limit(prod, PROD) if any(prod.values()) else None)

    def _limit(self, thresholds: Mapping[str, int], view: View) -> Limit:
        return Limit(tuple(thresholds.get(name, 0) for name in self._resources), view)

    def _watch(self, limits: _Limits) -> None:
        for limit in (limits.every, limits.prod):
            if limit is not None:
                self._columns.watch(limit.view)

    def _code(self, name: str) -> int:
        table = self._snapshot.nodes
        found = self._of_node(table.nodes[table.row_of[name]])
        if found not in self._known:
            self._known.append(found)
            self._watch(found)
        return self._known.index(found)

    def _of_node(self, node: Node) -> _Limits:
        annotations = node.metadata.annotations
        if THRESHOLDS not in annotations:
            return self._default
        own: CustomThresholds | None = None
        problem = ""
        try:
            own = custom_thresholds(annotations)
        except ValueError as exc:
            problem = str(exc)
        self._snapshot.set_problem(node.metadata.name, "load thresholds", problem)
        if own is None:
            return self._default
        every = self._default.every
        if own.aggregated:
            every = self._limit(own.aggregated, statistic(own.statistic, own.duration))
        elif own.usage and not every.aggregated:
            every = self._limit(own.usage, LATEST)
        prod = self._limit(own.prod, PROD) if any(own.prod.values()) else self._default.prod
        return _Limits(every, prod)

    def of(self, prod: bool) -> Sequence[tuple[Limit, IntColumn | None]]:
        """Return the limits for a pod, each with the rows that it concerns; None stands for all.

        :param prod: whether the pod is of ``koord-prod``.
        """
        codes = self._codes.column()
        found = []
        for code, limits in enumerate(self._known):
            rows = np.flatnonzero(codes == code) if len(self._known) > 1 else None
            limit = limits.prod if prod and limits.prod is not None else limits.every
            if any(limit.thresholds) and (rows is None or len(rows)):
                found.append((limit, rows))
        return found

    def at(self, row: int, prod: bool) -> Limit:
        """Return the limit of one node for a pod."""
        limits = self._known[int(self._codes.column()[row])]
        return limits.prod if prod and limits.prod is not None else limits.every
