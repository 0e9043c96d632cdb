"""Which jobs leave nodes that are too busy, and where each of them has a place.

Every job is tried first: in a trial it is taken off its nodes and placed again by the whole
profile, on nodes that have room and do not become too busy by what it was measured to use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
import numpy as np

from bayplan import Handle, PodInfo
from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot.snapshot import Trial
from bayplan_plugins.low_node_load.args import PoolArgs
from bayplan_plugins.low_node_load.budgets import Budgets
from bayplan_plugins.low_node_load.evictable import EvictionRules, order
from bayplan_plugins.low_node_load.usage import Classes, NodeUsage, is_prod
from bayplan_plugins.shared.moving import placed_again

__all__ = ["Balancing", "Move"]

_log = logging.getLogger("bayplan.plugins")
_TRIES = 8
"""So often a job is tried on ever fewer nodes, until it makes none of them too busy."""
_MOST_TRIED = 64
"""Jobs of one node that are tried in a round."""


class Move(msgspec.Struct, frozen=True):
    """A job that leaves a node: its pods, their new nodes by key, and why.

    ``gang`` is its key, "" for a pod without one.
    """

    pods: Sequence[PodInfo]
    nodes: Mapping[str, str]
    why: str
    gang: str = ""


class Balancing:
    """One round over the nodes of one pool, within a trial that it shares with other pools.

    :param nodes: what the nodes use; it follows what moves.
    :param calmed: called with the name of a node that is not too busy any more, and whether that
        was by usage of ``koord-prod``.
    """

    def __init__(
        self,
        handle: Handle,
        pool: PoolArgs,
        nodes: Sequence[NodeUsage],
        rules: EvictionRules,
        budgets: Budgets,
        calmed: Callable[[str, bool], None],
    ) -> None:
        self._handle = handle
        self._weights: Mapping[str, int] = pool.resource_weights or {}
        self._by_name = {node.name: node for node in nodes}
        self._rules = rules
        self._budgets = budgets
        self._calmed = calmed
        self._tried: set[str] = set()

    def moves(
        self,
        trial: Trial,
        classes: Classes,
        sources: Sequence[NodeUsage],
        prod: bool,
    ) -> list[Move]:
        """Return what leaves nodes; it is at its new nodes for the rest of the trial.

        :param sources: the nodes that are too busy.
        :param prod: whether usage of ``koord-prod`` is too much.
        """
        found: list[Move] = []
        targets = classes.targets(prod)
        for node in sorted(sources, key=lambda one: (-one.score(prod, self._weights), one.name)):
            self._tried.clear()
            moved, kept = self._leave(trial, node, targets, prod)
            found += moved
            if not moved:
                _log.info(
                    "LowNodeLoad: %s stays as it is: %s", _why(node, prod), kept or "nothing fits"
                )
        return found

    def _leave(
        self, trial: Trial, node: NodeUsage, targets: Sequence[NodeUsage], prod: bool
    ) -> tuple[list[Move], str]:
        """Return what leaves a node until it is not too busy, and what kept the last job."""
        found: list[Move] = []
        kept = "no pod on it may be evicted"
        own = [
            pod
            for pod in self._handle.snapshot.pods_on(node.name)
            if pod.key in node.measured and (not prod or is_prod(pod)) and self._rules.allow(pod)
        ]
        for pod in order(own, node.measured, node.level(prod), self._weights)[:_MOST_TRIED]:
            if not node.level(prod).over or not _has_room(targets, prod):
                break
            job = self._job(pod)
            if not job or (pod.gang or pod.key) in self._tried:
                continue
            self._tried.add(pod.gang or pod.key)
            limit = self._budgets.refuses(job)
            if limit:
                kept = f"{limit} keeps {pod.key}"
                continue
            placed = self._handle.snapshot.placed
            before = {one.key: placed[one.key][1] for one in job}
            nodes = self._placed(trial, job, before, [one.name for one in targets])
            if nodes is None:
                kept = f"{pod.key} has no place elsewhere"
                continue
            found.append(Move(job, nodes, _why(node, prod), pod.gang or ""))
            self._take(job, before, nodes)
        if not node.level(prod).over:
            self._calmed(node.name, prod)
        return found, kept

    def _job(self, pod: PodInfo) -> list[PodInfo]:
        """Return the pods that have to go with a pod; none if one of them may not."""
        if pod.gang is None:
            return [pod]
        members = self._handle.gang(pod.gang)
        own = [one for one, _ in members.bound.values()]
        whole = not members.pending and all(map(self._rules.allow, own))
        return own if whole else []

    def _placed(
        self,
        trial: Trial,
        job: Sequence[PodInfo],
        before: Mapping[str, str],
        targets: Collection[str],
    ) -> Mapping[str, str] | None:
        """Return the new nodes of a job, which keeps them for the rest of the trial; or None.

        Members of a gang on other nodes than those that are too busy may stay where they are.
        """
        allowed = {name for name in (*targets, *before.values()) if not self._is_over(name)}
        mark = trial.mark()
        for pod in job:
            self._handle.snapshot.remove_pod(pod.key)
        inner = trial.mark()
        for _ in range(_TRIES):
            nodes = placed_again(self._handle, job, self._rows(allowed)) if allowed else {}
            if len(nodes) < len(job):
                break
            crowded = self._crowded(job, before, nodes)
            if not crowded:
                return nodes
            allowed -= crowded
            trial.back_to(inner)
        trial.back_to(mark)
        return None

    def _is_over(self, name: str) -> bool:
        node = self._by_name.get(name)
        return node is None or bool(node.all.over or node.prod.over)

    def _rows(self, names: Collection[str]) -> IntColumn:
        row_of = self._handle.snapshot.nodes.row_of
        return np.array(sorted(row_of[name] for name in names), dtype=np.int64)

    def _crowded(
        self, job: Sequence[PodInfo], before: Mapping[str, str], nodes: Mapping[str, str]
    ) -> set[str]:
        """Return the nodes that a job would make too busy."""
        change: dict[str, dict[str, int]] = {}
        prod: dict[str, dict[str, int]] = {}
        for pod in job:
            usage = self._usage_of(pod, before[pod.key])
            for name, sign in ((before[pod.key], -1), (nodes[pod.key], 1)):
                for of in (change, prod) if is_prod(pod) else (change,):
                    own = of.setdefault(name, {})
                    for resource, amount in usage.items():
                        own[resource] = own.get(resource, 0) + sign * amount
        return {
            name
            for name in set(nodes.values())
            if not self._by_name[name].all.takes(change.get(name, {}))
            or not self._by_name[name].prod.takes(prod.get(name, {}))
        }

    def _usage_of(self, pod: PodInfo, node: str) -> Mapping[str, int]:
        """Return what a pod uses on its node; nothing where nobody measured it."""
        known = self._by_name.get(node)
        return known.measured.get(pod.key, {}) if known is not None else {}

    def _take(
        self, job: Sequence[PodInfo], before: Mapping[str, str], nodes: Mapping[str, str]
    ) -> None:
        """Count what a job uses for its new nodes from now on."""
        for pod in job:
            usage = self._usage_of(pod, before[pod.key])
            for name, sign in ((before[pod.key], -1), (nodes[pod.key], 1)):
                node = self._by_name.get(name)
                if node is not None:
                    node.all.add(usage, sign)
                    if is_prod(pod):
                        node.prod.add(usage, sign)
        self._budgets.take(job, before)


def _has_room(targets: Sequence[NodeUsage], prod: bool) -> bool:
    """Tell whether nodes with room together take more of every resource."""
    levels = [node.level(prod) for node in targets]
    names = levels[0].high if levels else {}
    return bool(levels) and all(
        sum(level.high[name] - level.used[name] for level in levels) > 0 for name in names
    )


def _why(node: NodeUsage, prod: bool) -> str:
    level, whose = node.level(prod), "prod " if prod else ""
    parts = [
        f"{whose}{name} usage {node.percent(prod, name):.0f}% > "
        f"{100 * level.high[name] / (node.offered[name] or 1):.0f}%"
        for name in level.over
    ]
    return f"{node.name} is overutilized, {', '.join(parts)}"
