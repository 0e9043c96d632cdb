"""The load of a node, read from what its agent reported."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from bayplan.api import NodeMetric, NodeMetrics, WatchedLoad
from bayplan.api.load import Amount
from bayplan.api.quantity import Quantity
from bayplan.api.resources import amount_of
from bayplan.api.times import seconds_of
from bayplan.inputs.durations import parse_duration

__all__ = ["NodeLoad", "load_of_metric", "load_of_metrics", "load_of_watcher"]

_USUAL_INTERVAL = 60.0
_PROD = "koord-prod"
_PERCENTILES = ("p50", "p90")
_DISTANCE = 1.2815515655446004
"""In standard deviations: half of all values are below one percentile, 90 % below the other."""

Usage = Mapping[str, int]
"""Amounts by resource: milli-CPU, and units of any other."""


class NodeLoad(msgspec.Struct, frozen=True):
    """What a node used at a time, in seconds since 1970.

    :param interval: seconds between two reports.
    :param system: what no pod used.
    :param pods: by namespace and name.
    :param prod: those pods that the agent counts as ``koord-prod``.
    :param aggregated: usage by statistic and duration in seconds; 0 stands for the longest.
    :param deviation: the standard deviation of usage, where it was measured.
    """

    time: float
    interval: float
    usage: Usage
    system: Usage = msgspec.field(default_factory=dict)
    pods: Mapping[tuple[str, str], Usage] = msgspec.field(default_factory=dict)
    prod: frozenset[tuple[str, str]] = frozenset()
    aggregated: Mapping[tuple[str, float], Usage] = msgspec.field(default_factory=dict)
    deviation: Usage | None = None

    def statistic(self, name: str, duration: float) -> Usage | None:
        """Return usage by a statistic; without a duration that of the longest, else the latest.

        None where nothing was reported for this duration.
        """
        found = self.aggregated.get((name, duration))
        return self.usage if found is None and not duration else found

    def deviation_of(self, resources: Sequence[str]) -> list[int]:
        """Return the standard deviation of usage by resource, 0 where nothing is known of it.

        Where only percentiles were measured, it is that of the normal distribution with their
        distance.
        """
        if self.deviation is not None:
            return [self.deviation.get(name, 0) for name in resources]
        low, high = (self.aggregated.get((name, 0.0), {}) for name in _PERCENTILES)
        spread = {name: (high[name] - low[name]) / _DISTANCE for name in high if name in low}
        return [max(0, round(spread.get(name, 0.0))) for name in resources]


def load_of_metric(found: NodeMetric) -> NodeLoad | None:
    """Return the load in Koordinator's words; None where nothing was measured yet.

    :raises ValueError: for an amount or a duration that cannot be read, naming its path.
    """
    status = found.status
    if status.node_metric is None:
        return None
    stated = found.spec.metric_collect_policy.report_interval_seconds
    pods: dict[tuple[str, str], Usage] = {}
    prod = set()
    for place, pod in enumerate(status.pods_metric):
        if pod is None or not pod.pod_usage.resources:
            continue
        key = (pod.namespace, pod.name)
        try:
            pods[key] = _usage(pod.pod_usage.resources, ".podUsage.resources")
        except ValueError as exc:
            raise ValueError(f"$.status.podsMetric[{place}]{exc}") from None
        if pod.priority == _PROD:
            prod.add(key)
    info = status.node_metric
    return NodeLoad(
        seconds_of(status.update_time),
        _USUAL_INTERVAL if stated is None else float(stated),
        _usage(info.node_usage.resources, "$.status.nodeMetric.nodeUsage.resources"),
        _usage(info.system_usage.resources, "$.status.nodeMetric.systemUsage.resources"),
        pods,
        frozenset(prod),
        _aggregated(found) if info.aggregated_node_usages else {},
    )


def _aggregated(found: NodeMetric) -> dict[tuple[str, float], Usage]:
    assert found.status.node_metric is not None
    by_duration: dict[tuple[str, float], Usage] = {}
    for place, part in enumerate(found.status.node_metric.aggregated_node_usages):
        where = f"$.status.nodeMetric.aggregatedNodeUsages[{place}]"
        duration = _seconds(part.duration, f"{where}.duration")
        for name, usage in part.usage.items():
            if usage.resources:
                own = _usage(usage.resources, f"{where}.usage.{name}.resources")
                by_duration[name, duration] = own
    longest: dict[str, float] = {}
    for name, duration in by_duration:
        longest[name] = max(duration, longest.get(name, 0.0))
    return by_duration | {(name, 0.0): by_duration[name, at] for name, at in longest.items()}


def load_of_metrics(found: NodeMetrics) -> NodeLoad:
    """Return the load in metrics-server's words, which name no pods.

    :raises ValueError: for an amount that cannot be read, naming its path.
    """
    window = _seconds(found.window, "$.window")
    usage = _usage(found.usage, "$.usage")
    return NodeLoad(seconds_of(found.timestamp), window or _USUAL_INTERVAL, usage)


_TYPES = {"CPU": "cpu", "Memory": "memory"}
_MEANS = ("AVG", "Latest", "")
"""The first that a node has counts; older load-watchers name no operator."""


def load_of_watcher(found: WatchedLoad, capacity: Mapping[str, Quantity]) -> NodeLoad | None:
    """Return the load in load-watcher's words: percent of what the node has, and no pods.

    None where it says nothing of CPU and memory.

    :param capacity: of the node.
    """
    stated: dict[tuple[str, str], int] = {}
    for metric in found.metrics:
        name = _TYPES.get(metric.type)
        if name is not None and name in capacity and math.isfinite(metric.value):
            has = amount_of(name, capacity[name])
            stated[name, metric.operator] = round(has * min(max(metric.value, 0.0), 1e4) / 100)
    usage, deviation = {}, {}
    for name in _TYPES.values():
        means = [stated[name, one] for one in _MEANS if (name, one) in stated]
        if means:
            usage[name] = means[0]
            deviation[name] = stated.get((name, "STD"), 0)
    if not usage:
        return None
    return NodeLoad(found.end, _USUAL_INTERVAL, usage, deviation=deviation)


def _seconds(text: str, where: str) -> float:
    try:
        return parse_duration(text) if text else 0.0
    except ValueError as exc:
        raise ValueError(f"{where}: {exc}") from None


def _usage(amounts: Mapping[str, Amount], where: str) -> Usage:
    found = {}
    for name, amount in amounts.items():
        # Most are whole numbers, with a suffix or without; a Quantity for each costs more.
        fast = _fast(name, amount) if type(amount) is str else None
        if fast is None:
            try:
                fast = amount_of(name, Quantity(amount))
            except ValueError as exc:
                raise ValueError(f"{where}.{name}: {exc}") from None
        found[name] = fast
    return found


_STEPS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_LONGEST = 15


def _fast(resource: str, text: str) -> int | None:
    """Return the amount of the usual spellings: 1500m, 3 or 4096 and 12Ki; None for others."""
    if len(text) > _LONGEST or not text.isascii():
        return None
    if text.isdigit():
        return int(text) * (1000 if resource == "cpu" else 1)
    if resource == "cpu":
        return int(text[:-1]) if text[-1:] == "m" and text[:-1].isdigit() else None
    step = _STEPS.get(text[-2:])
    return int(text[:-2]) * step if step is not None and text[:-2].isdigit() else None
