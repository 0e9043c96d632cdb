"""VolcanoUsage: prefer nodes that use little, and refuse those that use too much.

As volcano-sh/volcano's plugin usage, with its estimates of pods that are not measured yet.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Annotated

import numpy as np
import pydantic
from pydantic import Field

from bayplan import (
    SKIP,
    Args,
    ClusterEvent,
    Handle,
    NodeView,
    Plugin,
    PodInfo,
    Reject,
    Remedy,
    hookimpl,
)
from bayplan.api.quantity import Quantity
from bayplan.api.resources import amount_of
from bayplan.api.times import seconds_of
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn
from bayplan_plugins.loads.columns import LATEST, LoadColumns, View
from bayplan_plugins.loads.estimates import limits_of
from bayplan_plugins.loads.ledger import NodeLoads
from bayplan_plugins.loads.node_load import NodeLoad
from bayplan_plugins.loads.sources import LoadSourceArgs

__all__ = ["VolcanoUsage", "VolcanoUsageArgs"]

_RESOURCES = ("cpu", "memory")
_SHADOW: View = ("shadow", 0.0)
"""What is used, with what pods will use that are not measured yet."""
_OLDEST_SECONDS = 300.0
_ALL = 100.0
_REASONS = {
    "cpu": "the CPU load of the node exceeds the upper limit.",
    "memory": "the memory load of the node exceeds the upper limit.",
}

Weight = Annotated[int, Field(ge=0, le=10_000)]
Percent = Annotated[int, Field(ge=0, le=100)]
Ratio = Annotated[float, Field(ge=0, le=1)]


class UsageThresholds(Args):
    """Up to how much of a node, in percent, may be used."""

    cpu: Percent = 80
    mem: Percent = 80


class UsageEstimator(Args):
    """How pods are estimated until they are measured, in Volcano's names.

    ``request_ratio`` of what they request, and ``burst_ratio`` of what their limits exceed it by;
    times ``risk_factor`` once the use of the node reaches ``risk_threshold``.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    request_ratio: Ratio = 0.7
    burst_ratio: Ratio = 0.0
    risk_threshold: Ratio = 0.6
    risk_factor: float = Field(default=1.2, ge=1, le=100)
    be_cpu: str = "250m"
    be_mem: str = "200Mi"

    @pydantic.field_validator("be_cpu", "be_mem")
    @classmethod
    def _amounts(cls, value: str) -> str:
        Quantity(value)
        return value

    @property
    def unstated(self) -> Sequence[int]:
        """What a pod without requests is taken to use of CPU and memory."""
        texts = zip(_RESOURCES, (self.be_cpu, self.be_mem), strict=True)
        return [amount_of(name, Quantity(text)) for name, text in texts]


class VolcanoUsageArgs(LoadSourceArgs):
    """Arguments of VolcanoUsage; ``usage.weight`` of Volcano's is the plugin's weight.

    Pods that started less than ``metricsIntervalSeconds`` before a report are estimated.
    """

    cpu_weight: Weight = 1
    memory_weight: Weight = 1
    thresholds: UsageThresholds = UsageThresholds()
    estimator: UsageEstimator = UsageEstimator()
    metrics_interval_seconds: float = Field(default=30.0, gt=0, le=3600)


class ShadowUsage:
    """The mean usage of nodes, alone and with what pods will use that are not measured yet."""

    resources = _RESOURCES

    def __init__(self, args: VolcanoUsageArgs, loads: NodeLoads) -> None:
        self._loads = loads
        self._estimator = args.estimator
        self._unstated = args.estimator.unstated
        self._weights = (args.cpu_weight, args.memory_weight)
        self._interval = args.metrics_interval_seconds

    def usage(
        self, load: NodeLoad, pods: Iterable[PodInfo], has: Sequence[int], views: Sequence[View]
    ) -> list[list[int]]:
        """Return what is used by view; pods are estimated in the order in which they came."""
        measured = load.aggregated.get(("avg", 0.0), load.usage)
        real = [measured.get(name, 0) for name in _RESOURCES]
        total = [float(amount) for amount in real]
        late = (pod for pod in pods if self._is_late(pod, load))
        for pod in sorted(late, key=self._loads.since):
            factor = self._risk_factor(total, has)
            total = [
                used + estimate
                for used, estimate in zip(total, self._estimates(pod, factor), strict=True)
            ]
        return [[round(used) for used in total] if view == _SHADOW else real for view in views]

    def _is_late(self, pod: PodInfo, load: NodeLoad) -> bool:
        status = pod.pod.status
        if status.phase != "Running" or not status.start_time:
            return True
        return load.time - seconds_of(status.start_time) < self._interval

    def _risk_factor(self, used: Sequence[float], has: Sequence[int]) -> float:
        shares = [
            min(one / most, 1.0) if most else 0.0 for one, most in zip(used, has, strict=True)
        ]
        weights = sum(self._weights)
        weighed = zip(shares, self._weights, strict=True)
        mean = sum(share * own for share, own in weighed) / weights if weights else 0.0
        own = self._estimator
        return own.risk_factor if mean >= own.risk_threshold else 1.0

    def _estimates(self, pod: PodInfo, factor: float) -> Sequence[float]:
        if not pod.requests:
            return [amount * factor for amount in self._unstated]
        limits, own = limits_of(pod.spec), self._estimator
        found = []
        for name in _RESOURCES:
            request = pod.requests.get(name, 0)
            most = max(limits.get(name, 0), request)
            stated = request * own.request_ratio + (most - request) * own.burst_ratio
            found.append(min(stated * factor, most))
        return found


class VolcanoUsage(Plugin[VolcanoUsageArgs]):
    """Score by what is left of a node's CPU and memory; refuse nodes beyond the thresholds.

    A node without a recent report takes pods, with the score 0.
    """

    Args = VolcanoUsageArgs
    requeue_on = ClusterEvent.LOAD_CHANGED | ClusterEvent.NODE

    def __init__(self, args: VolcanoUsageArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._loads = handle.snapshot.shared(NodeLoads, NodeLoads)
        rule = ShadowUsage(args, self._loads)
        self._columns = LoadColumns(handle.snapshot, self._loads, rule, (LATEST, _SHADOW))
        self._weights = (args.cpu_weight, args.memory_weight)
        self._limits = (args.thresholds.cpu, args.thresholds.mem)

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by what is known of nodes, to the second: reports come and get old."""
        return self._loads.version, int(self.handle.snapshot.unix_time)

    @hookimpl
    def filter(self, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes that use more than a threshold."""
        for name, busy in self._busy():
            mask = nodes.pick(busy)
            if mask.any():
                yield Reject(mask, _REASONS[name], resolvable=False)

    def _busy(self) -> Iterator[tuple[str, BoolColumn]]:
        columns = self._columns
        columns.refresh()
        recent = columns.fresh(_OLDEST_SECONDS)
        for place, name in enumerate(_RESOURCES):
            yield name, recent & (self._percent(LATEST)[:, place] > self._limits[place])

    def _percent(self, view: View) -> FloatColumn:
        has = self._columns.capacity
        percent: FloatColumn = np.where(
            has > 0, self._columns.used(view) / np.maximum(has, 1) * _ALL, 0.0
        )
        return percent

    @hookimpl
    def pre_score(self) -> object:
        """Skip if neither resource has a weight."""
        return None if any(self._weights) else SKIP

    @hookimpl
    def score(self, nodes: NodeView) -> FloatColumn:
        """Rate nodes by the weighted mean of what is left."""
        self._columns.refresh()
        left = _ALL - np.minimum(self._percent(_SHADOW), _ALL)
        points = left @ np.array(self._weights, dtype=np.float64) / sum(self._weights)
        return nodes.pick(np.where(self._columns.fresh(_OLDEST_SECONDS), points, 0.0))

    @hookimpl
    def remedies(self, nodes: NodeView) -> Iterable[Remedy]:
        """Say by how much nodes are too busy."""
        for place, (name, busy) in enumerate(self._busy()):
            percent = self._percent(LATEST)[:, place]
            for node in nodes:
                if busy[node.row]:
                    text = (
                        f"would fit on {node.name} if less of its {name} were used: "
                        f"{percent[node.row]:.0f}% is, and {self._limits[place]}% is the most"
                    )
                    yield Remedy(text, node.row, 1.0)
