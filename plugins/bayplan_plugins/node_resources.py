"""NodeResourcesFit and NodeResourcesBalancedAllocation: room on the node, and how it is used.

Formulas: kube-scheduler 1.36, pkg/scheduler/framework/plugins/noderesources. Each is written
twice, over columns and for one row; integer steps keep both equal to the last bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import pydantic
from pydantic import Field

from bayplan import (
    SKIP,
    Args,
    ClusterEvent,
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
from bayplan.errors import did_you_mean
from bayplan.plugin.hookspecs import FloatColumn, IntColumn
from bayplan_plugins.shared.extended_resources import served_by_classes

__all__ = [
    "NodeResourcesBalancedAllocation",
    "NodeResourcesBalancedAllocationArgs",
    "NodeResourcesFit",
    "NodeResourcesFitArgs",
]

_NONE: frozenset[str] = frozenset()
_NATIVE = ("cpu", "memory", "ephemeral-storage")
_TOO_MANY = "Too many pods"


class ResourceSpec(Args):
    """A resource and its weight in a score, 1 to 100."""

    name: str = Field(min_length=1)
    weight: int = Field(default=1, ge=1, le=100)


class ShapePoint(Args):
    """A point of the RequestedToCapacityRatio curve: utilization 0..100 to score 0..10."""

    utilization: int = Field(ge=0, le=100)
    score: int = Field(ge=0, le=10)


class Ratio(Args):
    """The curve of RequestedToCapacityRatio."""

    shape: tuple[ShapePoint, ...] = Field(min_length=1)

    @pydantic.field_validator("shape")
    @classmethod
    def _rising(cls, shape: tuple[ShapePoint, ...]) -> tuple[ShapePoint, ...]:
        steps = [point.utilization for point in shape]
        if any(b <= a for a, b in itertools.pairwise(steps)):
            raise ValueError("utilization has to rise from point to point")
        return shape


class ScoringStrategy(Args):
    """How NodeResourcesFit scores."""

    type: Literal["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"] = "LeastAllocated"
    resources: tuple[ResourceSpec, ...] = (ResourceSpec(name="cpu"), ResourceSpec(name="memory"))
    requested_to_capacity_ratio: Ratio | None = None

    @pydantic.model_validator(mode="after")
    def _has_shape(self) -> ScoringStrategy:
        if self.type == "RequestedToCapacityRatio" and self.requested_to_capacity_ratio is None:
            raise ValueError("RequestedToCapacityRatio needs requestedToCapacityRatio.shape")
        return self


class NodeResourcesFitArgs(Args):
    """Arguments of NodeResourcesFit."""

    ignored_resources: tuple[str, ...] = ()
    ignored_resource_groups: tuple[str, ...] = ()
    scoring_strategy: ScoringStrategy = ScoringStrategy()

    @pydantic.field_validator("ignored_resource_groups")
    @classmethod
    def _groups(cls, groups: tuple[str, ...]) -> tuple[str, ...]:
        for group in groups:
            if "/" in group:
                raise ValueError(f'"{group}" is a resource; expected a group such as "example.com"')
        return groups


class NodeResourcesFit(Plugin[NodeResourcesFitArgs]):
    """Refuse nodes without room for the pod's requests; score by how full they would be."""

    Args = NodeResourcesFitArgs
    reads = Reads.NODE | Reads.PODS
    requeue_on = ClusterEvent.NODE_ADDED | ClusterEvent.NODE_ALLOCATABLE | ClusterEvent.POD_REMOVED

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Requests are part of the spec; device classes may serve some of them."""
        served = self._served(pod)
        return (pod.facts, served) if served else pod.facts

    def _served(self, pod: PodInfo) -> frozenset[str]:
        """Return the resources that DynamicResources serves where the node offers none."""
        if not pod.facts.wants_devices:
            return _NONE
        calls = self.handle.hook("pre_bind")
        if not any(getattr(call, "name", "") == "DynamicResources" for call in calls):
            return frozenset()
        return served_by_classes(pod.requests, self.handle.snapshot)

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse by the number of pods, then by each resource that is short."""
        yield Reject(nodes.free("pods") < 1, _TOO_MANY)
        served = self._served(pod)
        for resource, need in self._needs(pod):
            offered = nodes.allocatable(resource)
            short = offered - nodes.used(resource) < need
            hopeless = offered < need
            if resource in served:
                short, hopeless = short & (offered > 0), hopeless & (offered > 0)
            yield Reject(short & ~hopeless, f"Insufficient {resource}")
            yield Reject(hopeless, f"Insufficient {resource}", resolvable=False)

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> Refusal | None:
        """Say everything that is short on one node."""
        reasons = [_TOO_MANY] if node.free("pods") < 1 else []
        resolvable = True
        served = self._served(pod)
        for resource, need in self._needs(pod):
            offered = node.allocatable(resource)
            if not offered and resource in served:
                continue
            if offered - node.used(resource) < need:
                reasons.append(f"Insufficient {resource}")
                resolvable = resolvable and offered >= need
        return Refusal(tuple(reasons), resolvable) if reasons else None

    @hookimpl
    def slots(self, pod: PodInfo, nodes: NodeView) -> IntColumn:
        """Divide what is free by what one pod needs."""
        bound = nodes.free("pods")
        served = self._served(pod)
        for resource, need in self._needs(pod):
            most = nodes.free(resource) // need
            if resource in served:
                most = np.where(nodes.allocatable(resource) > 0, most, bound)
            bound = np.minimum(bound, most)
        return bound

    def _needs(self, pod: PodInfo) -> Iterable[tuple[str, int]]:
        ignored, groups = self.args.ignored_resources, self.args.ignored_resource_groups
        if not ignored and not groups:
            return pod.requests.items()
        return [
            (name, need)
            for name, need in pod.requests.items()
            if name in _NATIVE or (name not in ignored and name.split("/")[0] not in groups)
        ]

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Score every node by the strategy."""
        strategy = self.args.scoring_strategy
        total = np.zeros(len(nodes))
        weights = np.zeros(len(nodes))
        for resource in strategy.resources:
            asked = _scoring_request(pod, resource.name)
            if asked is None:
                continue
            offered = nodes.allocatable(resource.name)
            after = nodes.scoring_used(resource.name) + asked
            points = self._points(after, offered)
            counts = offered > 0
            if strategy.type == "RequestedToCapacityRatio":
                counts = counts & (points > 0)
            total += np.where(counts, points * resource.weight, 0)
            weights += np.where(counts, resource.weight, 0)
        average = total / np.maximum(weights, 1)
        if strategy.type == "RequestedToCapacityRatio":
            return np.floor(average + 0.5)
        return np.floor(average)

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        """Score one node by the strategy."""
        strategy = self.args.scoring_strategy
        ratio = strategy.type == "RequestedToCapacityRatio"
        total = weights = 0
        for resource in strategy.resources:
            asked = _scoring_request(pod, resource.name)
            offered = node.allocatable(resource.name)
            if asked is None or offered == 0:
                continue
            points = self._points_of_one(node.scoring_used(resource.name) + asked, offered)
            if points > 0 or not ratio:
                total += points * resource.weight
                weights += resource.weight
        average = total / max(weights, 1)
        return float(math.floor(average + 0.5) if ratio else math.floor(average))

    def _points(self, after: IntColumn, offered: IntColumn) -> IntColumn:
        kind = self.args.scoring_strategy.type
        divisor = np.maximum(offered, 1)
        if kind == "LeastAllocated":
            return np.where(after > offered, 0, (offered - after) * 100 // divisor)
        if kind == "MostAllocated":
            return np.minimum(after, offered) * 100 // divisor
        percent = np.where(after > offered, 100, after * 100 // divisor)
        return self._curve_table()[percent]

    def _points_of_one(self, after: int, offered: int) -> int:
        kind = self.args.scoring_strategy.type
        if kind == "LeastAllocated":
            return 0 if after > offered else (offered - after) * 100 // offered
        if kind == "MostAllocated":
            return min(after, offered) * 100 // offered
        percent = 100 if after > offered else after * 100 // offered
        return int(self._curve_table()[percent])

    def _curve_table(self) -> IntColumn:
        """Return the score of each utilization from 0 to 100, linear between the points."""
        ratio = self.args.scoring_strategy.requested_to_capacity_ratio
        assert ratio is not None, "validated with the strategy"
        return np.array([_on_curve(ratio.shape, p) for p in range(101)], dtype=np.int64)

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Suggest freeing what is short on a node, where the node is large enough at all."""
        served = self._served(pod)
        for resource, need in self._needs(pod):
            if resource in served:
                continue
            most = int(nodes.allocatable(resource).max(initial=0))
            if most < need:
                what = f"offers {resource}" if not most else f"offers {_amount(resource, need)}"
                limit = f"; the largest offers {_amount(resource, most)}" if most else ""
                if not most:
                    limit = did_you_mean(resource, nodes.table.allocatable_columns)
                yield Remedy(f"cannot fit: no node {what}{limit}", None, 100.0)
        for node in nodes:
            short, cost, possible = [], 0.0, True
            for resource, need in self._needs(pod):
                offered = node.allocatable(resource)
                missing = need - (offered - node.used(resource))
                possible = possible and offered >= need
                if missing > 0:
                    short.append(_amount(resource, missing))
                    cost += missing / max(offered, 1)
            if node.free("pods") < 1:
                short.append("1 pod slot")
                cost += 1 / max(node.allocatable("pods"), 1)
            if short and possible:
                verb = "was" if len(short) == 1 and short[0].startswith("1 ") else "were"
                text = f"would fit if {' and '.join(short)} {verb} freed on {node.name}"
                yield Remedy(text, node.row, cost, frees=True)


class NodeResourcesBalancedAllocationArgs(Args):
    """Arguments of NodeResourcesBalancedAllocation."""

    resources: tuple[ResourceSpec, ...] = (ResourceSpec(name="cpu"), ResourceSpec(name="memory"))


class NodeResourcesBalancedAllocation(Plugin[NodeResourcesBalancedAllocationArgs]):
    """Prefer nodes whose resources would be used in equal shares.

    Score = 100 * (1 - standard deviation of the used shares), rounded down.
    """

    Args = NodeResourcesBalancedAllocationArgs
    reads = Reads.NODE | Reads.PODS

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Requests are part of the spec."""
        return pod.facts

    @hookimpl
    def pre_score(self, pod: PodInfo) -> object:
        """Skip pods that request none of the resources."""
        return None if any(pod.requests.get(r.name) for r in self.args.resources) else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Score every node."""
        shares: list[FloatColumn] = []
        present: list[IntColumn] = []
        for name, asked in self._asked(pod):
            offered = nodes.allocatable(name)
            used = (nodes.used(name) + asked) / np.maximum(offered, 1)
            shares.append(np.where(offered > 0, np.minimum(used, 1.0), 0.0))
            present.append((offered > 0).astype(np.int64))
        return np.trunc((1 - _deviation(shares, present, len(nodes))) * 100)

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        """Score one node."""
        shares = []
        for name, asked in self._asked(pod):
            offered = node.allocatable(name)
            if offered:
                shares.append(min((node.used(name) + asked) / offered, 1.0))
        if len(shares) == 2:
            deviation = abs((shares[0] - shares[1]) / 2)
        elif len(shares) > 2:
            mean = _sum(shares) / len(shares)
            squares = _sum([(share - mean) * (share - mean) for share in shares])
            deviation = math.sqrt(squares / len(shares))
        else:
            deviation = 0.0
        return float(math.trunc((1 - deviation) * 100))

    def _asked(self, pod: PodInfo) -> Iterator[tuple[str, int]]:
        for resource in self.args.resources:
            asked = pod.requests.get(resource.name, 0)
            if asked or resource.name in _NATIVE:
                yield resource.name, asked


def _deviation(
    shares: Sequence[FloatColumn], present: Sequence[IntColumn], size: int
) -> FloatColumn:
    """Return the deviation per node over the resources that the node has."""
    if not shares:
        return np.zeros(size)
    count = sum(present[1:], start=present[0])
    total = np.zeros(size)
    for share in shares:
        total = total + share
    mean = total / np.maximum(count, 1)
    squares = np.zeros(size)
    for share, here in zip(shares, present, strict=True):
        squares = squares + np.where(here > 0, (share - mean) * (share - mean), 0.0)
    result = np.sqrt(squares / np.maximum(count, 1))
    result[count < 2] = 0.0
    for i in range(len(shares)):
        for j in range(i + 1, len(shares)):
            # With exactly two resources half of their difference is the deviation.
            pair = (count == 2) & (present[i] > 0) & (present[j] > 0)
            result = np.where(pair, np.abs((shares[i] - shares[j]) / 2), result)
    return result


def _sum(values: Sequence[float]) -> float:
    # Added in the same order as the columns are, so that both spellings agree to the last bit.
    total = 0.0
    for value in values:
        total += value
    return total


def _scoring_request(pod: PodInfo, resource: str) -> int | None:
    """Return what scoring takes the pod to ask for; None leaves the resource out."""
    asked = pod.facts.scoring_requests.get(resource, 0)
    if asked == 0 and resource not in _NATIVE:
        return None
    return asked


def _on_curve(shape: Sequence[ShapePoint], percent: int) -> int:
    points = [(point.utilization, point.score * 10) for point in shape]
    for index, (x, y) in enumerate(points):
        if percent <= x:
            if index == 0:
                return y
            x0, y0 = points[index - 1]
            return y0 + int((y - y0) * (percent - x0) / (x - x0))
    return points[-1][1]


_READABLE: dict[str, Callable[[int], str]] = {
    "cpu": lambda n: f"{n / 1000:g} CPU{'' if n == 1000 else 's'}",
    "memory": lambda n: f"{_bytes(n)} of memory",
    "ephemeral-storage": lambda n: f"{_bytes(n)} of ephemeral storage",
}


def _amount(resource: str, amount: int) -> str:
    readable = _READABLE.get(resource)
    return readable(amount) if readable is not None else f"{amount} {resource}"


def _bytes(amount: int) -> str:
    for unit, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if amount >= size:
            return f"{amount / size:.4g}{unit}"
    return f"{amount} bytes"
