"""What nodes and their pods use against thresholds, and which nodes are too busy or have room.

Rules: Koordinator v1.8 (pkg/descheduler/framework/plugins/loadaware). Amounts are in milli-CPU, and
in units of any other resource; ``pods`` counts pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bayplan import PodInfo
from bayplan.dialects.koordinator.qos import priority_class
from bayplan.snapshot import Snapshot
from bayplan_plugins.loads.columns import offered
from bayplan_plugins.loads.estimates import Estimates, EstimateSettings
from bayplan_plugins.loads.ledger import NodeLoads
from bayplan_plugins.loads.node_load import NodeLoad
from bayplan_plugins.low_node_load.args import PoolArgs

__all__ = ["Classes", "NodeUsage", "Usages", "classify", "is_prod"]

_ALL = 100.0
_SCALE = 1000
_FACTORS = {"cpu": 85, "memory": 70}
"""Percent of what a pod states that it is taken to use until it is measured."""
Amounts = dict[str, int]


class Level(msgspec.Struct):
    """What is used, by all pods and the system or by ``koord-prod`` alone, and what is too much."""

    used: Amounts
    low: Amounts = msgspec.field(default_factory=dict)
    high: Amounts = msgspec.field(default_factory=dict)

    @property
    def over(self) -> list[str]:
        """The resources of which too much is used."""
        return [name for name, most in self.high.items() if self.used[name] > most]

    @property
    def under(self) -> bool:
        """Whether so little is used of all resources that more may come."""
        return all(self.used[name] <= most for name, most in self.low.items())

    def add(self, amounts: Mapping[str, int], sign: int = 1) -> None:
        """Add what a pod uses, or take it away."""
        for name in self.used:
            self.used[name] += sign * amounts.get(name, 0)

    def takes(self, amounts: Mapping[str, int]) -> bool:
        """Tell whether not too much would be used with so much more."""
        return all(self.used[k] + amounts.get(k, 0) <= most for k, most in self.high.items())


class NodeUsage(msgspec.Struct):
    """A node that reported: what it offers and uses, and what its measured pods use, by key."""

    name: str
    offered: Amounts
    all: Level
    prod: Level
    measured: Mapping[str, Mapping[str, int]]

    def level(self, prod: bool) -> Level:
        """Return the usage by all, or by ``koord-prod``."""
        return self.prod if prod else self.all

    def score(self, prod: bool, weights: Mapping[str, int]) -> int:
        """Return how busy it is: the weighted mean of its resources, in thousandths."""
        total = points = 0
        for name, used in self.level(prod).used.items():
            total += (weight := weights.get(name, 0))
            if self.offered[name]:
                points += weight * (min(used, self.offered[name]) * _SCALE // self.offered[name])
        return points // total if total else 0

    def percent(self, prod: bool, name: str) -> float:
        """Return how many percent of a resource are used."""
        return _ALL * self.level(prod).used[name] / (self.offered[name] or 1)


class Classes(msgspec.Struct):
    """The nodes that are too busy, and those with room; in the order of the cluster's nodes."""

    high: list[NodeUsage] = msgspec.field(default_factory=list)
    prod_high: list[NodeUsage] = msgspec.field(default_factory=list)
    low: list[NodeUsage] = msgspec.field(default_factory=list)
    prod_low: list[NodeUsage] = msgspec.field(default_factory=list)
    both_low: list[NodeUsage] = msgspec.field(default_factory=list)

    @property
    def with_room(self) -> int:
        """How many nodes have room."""
        return len(self.low) + len(self.prod_low) + len(self.both_low)

    def targets(self, prod: bool) -> list[NodeUsage]:
        """Return where pods may go."""
        return [*(self.prod_low if prod else self.low), *self.both_low]


def is_prod(pod: PodInfo) -> bool:
    """Tell whether a pod is of ``koord-prod``."""
    return priority_class(pod.pod) == "koord-prod"


class Usages:
    """What nodes use by the last reports, with what came and went since.

    What a pod used that has gone counts no more. One that came is estimated by what it states.
    """

    def __init__(self, snapshot: Snapshot, loads: NodeLoads) -> None:
        self._snapshot = snapshot
        self._loads = loads

    def of(self, pool: PoolArgs, names: Iterable[str], oldest: float) -> list[NodeUsage]:
        """Return what nodes use, against the thresholds of their pool.

        :param oldest: reports of this time or before, in seconds since 1970, do not count.
        """
        limits = _Limits(pool)
        factors = tuple(_FACTORS.get(name, 0) for name in limits.resources)
        estimates = Estimates(EstimateSettings(limits.resources, factors))
        found = []
        for name in names:
            load = self._loads.of(name)
            if load is not None and load.time > oldest:
                found.append(self._usage(name, load, estimates, limits.resources))
        limits.apply(found)
        return found

    def _usage(
        self, name: str, load: NodeLoad, estimates: Estimates, resources: Sequence[str]
    ) -> NodeUsage:
        table = self._snapshot.nodes
        offers = dict(
            zip(resources, offered(table.nodes[table.row_of[name]], resources), strict=True)
        )
        # Who names no pods says only what the node uses.
        stated = load.system if load.pods else load.usage
        all_pods = Level({own: stated.get(own, 0) for own in resources})
        prod, measured = Level(dict.fromkeys(resources, 0)), {}
        for pod in self._snapshot.pods_on(name):
            usage: Mapping[str, int] | None = load.pods.get((pod.namespace, pod.name))
            # Reports say when they were made to the second.
            is_new = self._loads.since(pod) >= load.time + 1
            if usage is not None and not is_new:
                usage = measured[pod.key] = {**usage, "pods": 1}
            elif is_new:
                amounts = estimates.of(pod).amounts
                usage = {**dict(zip(resources, amounts, strict=True)), "pods": 1}
            else:
                usage = {"pods": 1}
            all_pods.add(usage)
            if is_prod(pod):
                prod.add(usage)
        return NodeUsage(name, offers, all_pods, prod, measured)


class _Limits:
    """The thresholds of a pool.

    A resource without a low threshold has none at all: nobody would know where to put its pods.
    """

    def __init__(self, pool: PoolArgs) -> None:
        self._deviates = pool.use_deviation_thresholds
        named = (
            pool.low_thresholds,
            pool.high_thresholds,
            pool.prod_low_thresholds,
            pool.prod_high_thresholds,
        )
        low, high, prod_low, prod_high = ({**(one or {})} for one in named)
        self.resources = tuple(sorted({*low, *high, *prod_low, *prod_high, "memory"}))
        self._of_all = [(name, low.get(name), high.get(name)) for name in self.resources]
        self._of_prod = [(n, prod_low.get(n), prod_high.get(n)) for n in self.resources]

    def apply(self, nodes: Sequence[NodeUsage]) -> None:
        """Say of each node from where on it is too busy, and up to where it has room."""
        for prod, limits in ((False, self._of_all), (True, self._of_prod)):
            for name, low, high in limits:
                mean = sum(node.percent(prod, name) for node in nodes if node.offered[name])
                mean = mean / len(nodes) if nodes else 0.0
                low_percent, high_percent = self._percent(low, high, mean)
                for node in nodes:
                    level, amount = node.level(prod), node.offered[name]
                    level.low[name] = int(low_percent * 0.01 * amount)
                    level.high[name] = int(high_percent * 0.01 * amount)

    def _percent(self, low: float | None, high: float | None, mean: float) -> tuple[float, float]:
        if low is None or high is None or (self._deviates and low == 0):
            return _ALL, _ALL
        if not self._deviates:
            return low, high
        return max(0.0, min(_ALL, mean - low)), max(0.0, min(_ALL, mean + high))


def classify(nodes: Iterable[NodeUsage], unschedulable: Iterable[str]) -> Classes:
    """Tell which nodes are too busy and which have room.

    :param unschedulable: nodes that take no pods.
    """
    found, closed = Classes(), frozenset(unschedulable)
    for node in nodes:
        is_open = node.name not in closed
        low, prod_low = is_open and node.all.under, is_open and node.prod.under
        prod_high = bool(node.prod.over)
        if not low and node.all.over:
            found.high.append(node)
        elif prod_high:
            found.prod_high.append(node)
        elif low and prod_low:
            found.both_low.append(node)
        elif low:
            found.low.append(node)
        elif prod_low:
            found.prod_low.append(node)
    return found
