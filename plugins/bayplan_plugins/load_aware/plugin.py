"""LoadAwareScheduling: refuse nodes that are busy, and prefer those that are least so.

What counts is what agents measured, and what pods will use that are not measured yet. Rules and
formulas: Koordinator v1.8 (pkg/scheduler/plugins/loadaware).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

import numpy as np

from bayplan import (
    SKIP,
    ClusterEvent,
    Handle,
    NodeRow,
    NodeView,
    Plugin,
    PodInfo,
    Reads,
    Refusal,
    Reject,
    Remedy,
    hookimpl,
)
from bayplan.inputs.durations import parse_duration
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn, IntColumn
from bayplan_plugins.load_aware.args import LoadAwareArgs
from bayplan_plugins.load_aware.limits import Limit, Limits
from bayplan_plugins.loads.columns import LATEST, PROD, LoadColumns, View, statistic
from bayplan_plugins.loads.estimated_usage import EstimatedUsage
from bayplan_plugins.loads.estimates import EstimateSettings, PodEstimate
from bayplan_plugins.loads.formulas import least_loaded, over
from bayplan_plugins.loads.ledger import NodeLoads

__all__ = ["LoadAwareArgs", "LoadAwareScheduling"]

_EXPIRED = "node(s) nodeMetric expired"
_MOST_KEPT = 1024


class LoadAwareScheduling(Plugin[LoadAwareArgs]):
    """Refuse nodes whose usage is beyond a threshold; score by what is left of them.

    A node without any report takes every pod, with the score 0. One whose report is old is refused,
    unless no node has a recent one: then all agents are away, not the nodes.
    """

    Args = LoadAwareArgs
    reads = Reads.CLUSTER
    requeue_on = ClusterEvent.LOAD_CHANGED | ClusterEvent.NODE | ClusterEvent.POD_REMOVED

    def __init__(self, args: LoadAwareArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._loads = handle.snapshot.shared(NodeLoads, NodeLoads)
        factors = args.factors
        settings = EstimateSettings(
            args.resources,
            tuple(factors.get(name, 0) for name in args.resources),
            args.estimated_seconds_after_pod_scheduled,
            args.estimated_seconds_after_initialized,
            args.allow_customize_estimation,
        )
        rule = EstimatedUsage(self._loads, settings, args.prod_usage_include_sys)
        self._estimates = rule.estimates
        self._columns = LoadColumns(handle.snapshot, self._loads, rule, (LATEST, PROD))
        self._limits = Limits(args, handle.snapshot, self._columns)
        self._weights = [args.weights.get(name, 0) for name in args.resources]
        self._scored = _scored_view(args)
        self._columns.watch(self._scored)
        self._refused: dict[Hashable, tuple[int, BoolColumn]] = {}
        self._helped: dict[Hashable, tuple[int, bool]] = {}

    # Which nodes -----------------------------------------------------------------------------

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by what the pod will use, and by what is known of nodes, to the second.

        Reports come, and get old, without any change of the nodes themselves.
        """
        known = self._loads.version, int(self.handle.snapshot.unix_time)
        return self._estimates.of(pod), _is_of_daemon_set(pod), known

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes by their usage with the pod, resource by resource, then by old reports."""
        if _is_of_daemon_set(pod):
            return
        refused, reasons = self._judge(self._estimates.of(pod))
        self._remember(pod, refused > 0)
        own = nodes.pick(refused)
        for code, (reason, resolvable) in enumerate(reasons, 1):
            mask = own == code
            if mask.any():
                yield Reject(mask, reason, resolvable)

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> Refusal | None:
        """Return why one node is too busy for the pod."""
        if _is_of_daemon_set(pod):
            return None
        refused, reasons = self._judge(self._estimates.of(pod))
        code = int(refused[node.row])
        return Refusal((reasons[code - 1][0],), reasons[code - 1][1]) if code else None

    def _judge(self, estimate: PodEstimate) -> tuple[IntColumn, list[tuple[str, bool]]]:
        """Return, for each row, 0 or the number of the reason that refuses it, and the reasons."""
        columns = self._columns
        # Limits come first: a node may have some by a statistic that was not followed yet.
        limits = self._limits.of(estimate.prod)
        columns.refresh()
        found = np.zeros(len(columns.times), dtype=np.int64)
        reasons: list[tuple[str, bool]] = []
        old = self._is_old()
        known = ~np.isnan(columns.times)
        fresh = known & ~old if self.args.filter_expired_node_metrics else known
        refuses_old = (
            self.args.filter_expired_node_metrics
            and not self.args.enable_schedule_when_node_metrics_expired
            and bool(fresh.any())
        )
        for limit, rows in limits:
            at = slice(None) if rows is None else rows
            used = columns.used(limit.view)[at] + np.array(estimate.amounts, dtype=np.int64)
            own, usable = found[at], fresh[at]
            for place, threshold in enumerate(limit.thresholds):
                if not threshold:
                    continue
                beyond = over(used[:, place], columns.allocatable[at, place], threshold)
                reasons.append((_reason(limit, columns.resources[place]), True))
                own = np.where(usable & beyond & (own == 0), len(reasons), own)
            if refuses_old:
                reasons.append((_EXPIRED, False))
                own = np.where(known[at] & ~usable & (own == 0), len(reasons), own)
            found[at] = own
        return found, reasons

    def _is_old(self) -> BoolColumn:
        """Tell whose report is too old, or says not when it was made."""
        times = self._columns.times
        most = self.args.node_metric_expiration_seconds
        unknown = times == 0
        if most:
            unknown |= self.handle.snapshot.unix_time - times >= most
        return np.asarray(unknown, dtype=np.bool_)

    # After reports ---------------------------------------------------------------------------

    def _remember(self, pod: PodInfo, refused: BoolColumn) -> None:
        """Keep which rows refused such a pod."""
        if len(self._refused) >= _MOST_KEPT:
            self._refused.clear()
        self._refused[self._estimates.of(pod)] = (self._epoch, refused)

    @property
    def _epoch(self) -> int:
        return self.handle.snapshot.nodes.epoch

    @hookimpl
    def requeue_hint(self, pod: PodInfo, event: ClusterEvent, subject: PodInfo | None) -> bool:
        """Try a pod again after reports if a node would take it that refused it before."""
        if event is not ClusterEvent.LOAD_CHANGED:
            return True
        estimate = self._estimates.of(pod)
        known = self._helped.get(estimate)
        if known is None or known[0] != self._loads.version:
            if len(self._helped) >= _MOST_KEPT:
                self._helped.clear()
            known = self._helped[estimate] = (self._loads.version, self._takes_again(estimate))
        return known[1]

    def _takes_again(self, estimate: PodEstimate) -> bool:
        before = self._refused.get(estimate)
        now, _ = self._judge(estimate)
        if before is None or before[0] != self._epoch or len(before[1]) != len(now):
            return True
        return bool((before[1] & (now == 0)).any())

    # Which node is best ----------------------------------------------------------------------

    @hookimpl
    def pre_score(self) -> object:
        """Skip if nothing has a weight."""
        return None if any(self._weights) or self.args.dominant_resource_weight else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Rate nodes by how much would be left of them."""
        return np.asarray(nodes.pick(self._points(pod)), dtype=np.float64)

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        """Rate one node."""
        return float(self._points(pod)[node.row])

    def _points(self, pod: PodInfo) -> IntColumn:
        columns = self._columns
        columns.refresh()
        estimate = self._estimates.of(pod)
        by_prod = self.args.score_according_prod_usage and estimate.prod
        used = columns.used(PROD if by_prod else self._scored)
        points = least_loaded(
            used + np.array(estimate.amounts, dtype=np.int64),
            columns.allocatable,
            self._weights,
            self.args.dominant_resource_weight,
        )
        return np.where(np.isnan(columns.times) | self._is_old(), 0, points)

    # When no node is left --------------------------------------------------------------------

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Say by how much nodes are too busy, and which have not reported."""
        if _is_of_daemon_set(pod):
            return
        estimate = self._estimates.of(pod)
        refused, reasons = self._judge(estimate)
        for node in nodes:
            code = int(refused[node.row])
            if not code:
                continue
            if reasons[code - 1][0] == _EXPIRED:
                age = self.handle.snapshot.unix_time - float(self._columns.times[node.row])
                text = f"would fit on {node.name} if its agent reported again"
                since = f", the last time {age:.0f} s ago" if self._columns.times[node.row] else ""
                yield Remedy(text + since, node.row, 2.0)
                continue
            yield Remedy(self._cooler(estimate, node), node.row, 1.0)

    def _cooler(self, estimate: PodEstimate, node: NodeRow) -> str:
        limit = self._limits.at(node.row, estimate.prod)
        used = self._columns.used(limit.view)[node.row]
        for place, (name, most) in enumerate(
            zip(self._columns.resources, limit.thresholds, strict=True)
        ):
            offered = int(self._columns.allocatable[node.row, place])
            with_pod = int(used[place]) + estimate.amounts[place]
            if most and offered and round(with_pod / offered * 100) > most:
                now, own = int(used[place]) / offered, estimate.amounts[place] / offered
                return (
                    f"would fit on {node.name} if less of its {name} were used: {now:.0%} is, the "
                    f"pod would use {own:.0%} more, and {most}% is the most"
                )
        return f"would fit on {node.name} if less of it were used"


def _reason(limit: Limit, resource: str) -> str:
    return f"node(s) {resource} {'aggregated ' if limit.aggregated else ''}usage exceed threshold"


def _is_of_daemon_set(pod: PodInfo) -> bool:
    return any(owner.kind == "DaemonSet" for owner in pod.pod.metadata.owner_references)


def _scored_view(args: LoadAwareArgs) -> View:
    of_all = args.aggregated
    if of_all is None or not of_all.score_aggregation_type:
        return LATEST
    text = of_all.score_aggregated_duration
    return statistic(of_all.score_aggregation_type, parse_duration(text) if text else 0.0)
