"""LowNodeLoad: every few minutes, jobs leave nodes that are too busy for nodes with room.

Thresholds, detectors and limits are those of Koordinator's descheduler (v1.8,
pkg/descheduler/framework/plugins/loadaware). What moves is a whole job, for which the profile has
found a place before anything is evicted.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Sequence
from functools import partial

import numpy as np

from bayplan import (
    NOTES,
    SKIP,
    CycleState,
    Handle,
    NodeRow,
    NodeView,
    Overdue,
    Plugin,
    PodInfo,
    Reads,
    hookimpl,
)
from bayplan.inputs.durations import parse_duration
from bayplan.naming import counted
from bayplan.plugin.hookspecs import FloatColumn
from bayplan_plugins.loads.ledger import NodeLoads
from bayplan_plugins.low_node_load.args import LowNodeLoadArgs, PoolArgs
from bayplan_plugins.low_node_load.balancing import Balancing, Move
from bayplan_plugins.low_node_load.budgets import Budgets, most_away
from bayplan_plugins.low_node_load.detector import Detectors
from bayplan_plugins.low_node_load.evictable import EvictionRules
from bayplan_plugins.low_node_load.eviction_rates import EvictionRates
from bayplan_plugins.low_node_load.usage import Classes, NodeUsage, Usages, classify
from bayplan_plugins.shared.moved_pods import MovedPods
from bayplan_plugins.shared.moving import still_fit

__all__ = ["LowNodeLoad", "LowNodeLoadArgs"]

_ACTION = "rebalance"
_MOVED_HERE = 100.0
_log = logging.getLogger("bayplan.plugins")


class LowNodeLoad(Plugin[LowNodeLoadArgs]):
    """Move jobs off nodes whose usage is beyond a threshold, to nodes whose usage is low."""

    Args = LowNodeLoadArgs
    reads = Reads.NODE

    def __init__(self, args: LowNodeLoadArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._loads = handle.snapshot.shared(NodeLoads, NodeLoads)
        self._usages = Usages(handle.snapshot, self._loads)
        self._rules = EvictionRules(args, handle)
        self._moved = MovedPods(handle)
        keep = parse_duration(args.detector_cache_timeout)
        self._detectors = {prod: Detectors(keep) for prod in (False, True)}
        self._interval = parse_duration(args.descheduling_interval)
        self._rates = EvictionRates(args, most_away)
        self._next = 0.0

    # Rounds ----------------------------------------------------------------------------------

    @hookimpl
    def overdue(self) -> Overdue | None:
        """Return the jobs that leave now, and when the next round is."""
        now = self.handle.now
        if self.args.paused or not self._loads.version:
            return None
        if now < self._next:
            return Overdue(again=self._next)
        self._next = now + self._interval
        busy, moves = self._round()
        if self.args.dry_run:
            for move in moves:
                _log.info("LowNodeLoad, dry run: %s", _described(move))
            moves = []
        for move in moves:
            _log.info("LowNodeLoad: %s", _described(move))
            for pod in move.pods:
                self._moved.expect(pod, move.nodes[pod.key], f"{_ACTION}: moved here, {move.why}")
        again = self._next if busy else None
        if not moves:
            return Overdue(again=again)
        pods = [pod for move in moves for pod in move.pods]
        return Overdue(
            [(pod, f"{_ACTION}: {_reported(move, pod)}") for move in moves for pod in move.pods],
            again,
            moves={key: node for move in moves for key, node in move.nodes.items()},
            action=_ACTION,
            restarts=frozenset(move.gang for move in moves if move.gang),
            is_wanted=partial(still_fit, self.handle, pods),
        )

    def _round(self) -> tuple[bool, list[Move]]:
        """Return whether any node is too busy, and what moves."""
        # Nothing goes in a dry run, so that nothing counts in the next.
        rates = EvictionRates(self.args, most_away) if self.args.dry_run else self._rates
        rates.forget_old(self.handle.now)
        budgets = Budgets(self.args, self.handle, self._moved.under_way(), rates)
        oldest = self.handle.unix_time - self.args.node_metric_expiration_seconds
        seen: set[str] = set()
        found: list[Move] = []
        busy = False
        with self.handle.snapshot.trial() as trial:
            for pool in self.args.pools:
                names = self._in_pool(pool, seen)
                nodes = self._usages.of(pool, names, oldest)
                classes = classify(nodes, self._unschedulable(names))
                busy |= bool(classes.high or classes.prod_high)
                abnormal = self._abnormal(pool, nodes, classes)
                if not any(abnormal.values()) or not self._has_targets(classes, nodes):
                    continue
                run = Balancing(self.handle, pool, nodes, self._rules, budgets, self._calmed)
                for prod, sources in abnormal.items():
                    found += run.moves(trial, classes, sources, prod)
                seen.update(node.name for node in classes.high)
        return busy, found

    def _in_pool(self, pool: PoolArgs, seen: Iterable[str]) -> list[str]:
        """Return the nodes of a pool that no pool before it has emptied."""
        names = (node.metadata for node in self.handle.snapshot.nodes.nodes)
        chosen = [meta.name for meta in names if pool.nodes.matches(meta.labels)]
        return [name for name in chosen if name not in seen]

    def _unschedulable(self, names: Iterable[str]) -> list[str]:
        table = self.handle.snapshot.nodes
        return [name for name in names if table.nodes[table.row_of[name]].spec.unschedulable]

    def _abnormal(
        self, pool: PoolArgs, nodes: Sequence[NodeUsage], classes: Classes
    ) -> dict[bool, list[NodeUsage]]:
        """Return the nodes that have been too busy for long enough, by whose usage that is."""
        condition, now = pool.anomaly_condition, self.handle.now
        assert condition is not None
        found: dict[bool, list[NodeUsage]] = {}
        for prod, over in ((False, classes.high), (True, classes.prod_high)):
            detectors = self._detectors[prod]
            names = {node.name for node in over}
            for node in nodes:
                if node.name not in names:
                    detectors.mark_normal(node.name, condition)
            found[prod] = [one for one in over if detectors.is_abnormal(one.name, condition, now)]
        return found

    def _has_targets(self, classes: Classes, nodes: Sequence[NodeUsage]) -> bool:
        return self.args.number_of_nodes < classes.with_room < len(nodes)

    def _calmed(self, name: str, prod: bool) -> None:
        self._detectors[prod].reset(name)

    # What begins again -----------------------------------------------------------------------

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by the nodes on which the pod was found to fit when it was moved."""
        return tuple(sorted(one.node for one in self._moved.expected(pod)))

    @hookimpl
    def pre_score(self, pod: PodInfo) -> object:
        """Skip pods that were not moved."""
        return None if self._moved.expected(pod) else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Prefer the nodes on which a pod that was moved was found to fit."""
        scores = np.zeros(len(nodes.table))
        for one in self._moved.expected(pod):
            if one.node in nodes.table.row_of:
                scores[nodes.table.row_of[one.node]] = _MOVED_HERE
        return nodes.pick(scores)

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow, state: CycleState) -> str | None:
        """Say of a pod why it begins again here."""
        found = self._moved.take(pod, node.name)
        if found is not None:
            state[NOTES] = (*(state.get(NOTES) or ()), found.reported)
        return None

    @hookimpl
    def unreserve(self, pod: PodInfo, node: NodeRow) -> None:
        """Let another pod begin again in this one's place."""
        self._moved.give_back(pod)

    @hookimpl
    def post_bind(self, pod: PodInfo, node: NodeRow) -> None:
        """Take note that a pod that was moved has arrived."""
        self._moved.arrived(pod, node.name)


def _described(move: Move) -> str:
    nodes = ", ".join(sorted(set(move.nodes.values())))
    who = move.gang or move.pods[0].key
    count = f" with {counted(len(move.pods), 'pod')}" if move.gang else ""
    return f"{who}{count} leaves for {nodes}: {move.why}"


def _reported(move: Move, pod: PodInfo) -> str:
    together = f" with all {len(move.pods)} pods of its job" if len(move.pods) > 1 else ""
    return f"{move.why}; it fits on {move.nodes[pod.key]}{together}"
