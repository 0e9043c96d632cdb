"""NodeResourcesFit: whether the pod's requests fit on a node, and how full it would get.

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
    Args,
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
from bayplan.errors import did_you_mean
from bayplan.plugin.hookspecs import FloatColumn, IntColumn
from bayplan.snapshot import SpecFacts
from bayplan_plugins.node_resources.resources import NATIVE, ResourceSpec

__all__ = ["NodeResourcesFit", "NodeResourcesFitArgs"]

_MOST_KEPT = 4096
_RATIO = "RequestedToCapacityRatio"
_NO_RESOURCES: frozenset[str] = frozenset()
_TOO_MANY = "Too many pods"


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
            raise ValueError("utilization must rise from point to point")
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
    """Refuse nodes where the pod's requests do not fit; score by how full they would get."""

    Args = NodeResourcesFitArgs
    reads = Reads.NODE | Reads.PODS
    requeue_on = ClusterEvent.NODE_ADDED | ClusterEvent.NODE_ALLOCATABLE | ClusterEvent.POD_REMOVED

    def __init__(self, args: NodeResourcesFitArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._served_at = -1
        self._served_of: dict[SpecFacts, frozenset[str]] = {}
        self._counted_of: dict[SpecFacts, tuple[tuple[str, int, int], ...]] = {}
        self._strategy = args.scoring_strategy.type

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by the requests that others serve than device plugins."""
        return self._served(pod)

    def _served(self, pod: PodInfo) -> frozenset[str]:
        """Return the requests that other plugins serve on nodes that offer none of them."""
        if not pod.facts.wants_devices:
            return _NO_RESOURCES
        version = self.handle.snapshot.objects_version
        if version != self._served_at or len(self._served_of) >= _MOST_KEPT:
            self._served_at = version
            self._served_of.clear()
        served = self._served_of.get(pod.facts)
        if served is None:
            served = self._served_of[pod.facts] = self.handle.serves(pod)
        return served

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes that are full of pods, then nodes short of each resource."""
        full = nodes.free("pods") < 1
        if np.count_nonzero(full):
            yield Reject(full, _TOO_MANY)
        served = self._served(pod)
        for resource, need in self._needs(pod):
            offered = nodes.allocatable(resource)
            short = offered - nodes.used(resource) < need
            if resource in served:
                short &= offered > 0
            if not np.count_nonzero(short):
                continue
            too_small = short & (offered < need)
            if not np.count_nonzero(too_small):
                yield Reject(short, f"Insufficient {resource}")
                continue
            yield Reject(short & ~too_small, f"Insufficient {resource}")
            yield Reject(too_small, f"Insufficient {resource}", resolvable=False)

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> Refusal | None:
        """Return every resource that one node is short of."""
        reasons = [_TOO_MANY] if node.free("pods") < 1 else []
        resolvable = True
        for resource, need in self._needs(pod):
            offered, used = node.amounts(resource)
            if offered - used < need:
                if not offered and resource in self._served(pod):
                    continue
                reasons.append(f"Insufficient {resource}")
                resolvable = resolvable and offered >= need
        return Refusal(tuple(reasons), resolvable) if reasons else None

    @hookimpl
    def slots(self, pod: PodInfo, nodes: NodeView) -> IntColumn:
        """Divide what is free by what one pod requests."""
        bound = nodes.free("pods")
        served = self._served(pod)
        for resource, need in self._needs(pod):
            most = nodes.free(resource) // need
            if resource in served:
                most = np.where(nodes.allocatable(resource) > 0, most, bound)
            bound = np.minimum(bound, most)
        return bound

    def _needs(self, pod: PodInfo) -> Iterable[tuple[str, int]]:
        """Return the requests that Filter checks: all but the ignored ones."""
        ignored, groups = self.args.ignored_resources, self.args.ignored_resource_groups
        if not ignored and not groups:
            return pod.requests.items()
        return [
            (name, need)
            for name, need in pod.requests.items()
            if name in NATIVE or (name not in ignored and name.split("/")[0] not in groups)
        ]

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Score every node by the strategy."""
        total = np.zeros(len(nodes))
        weights = np.zeros(len(nodes))
        for resource, asked, weight in self._counted(pod):
            offered = nodes.allocatable(resource)
            after = nodes.scoring_used(resource) + asked
            points = self._points(after, offered) * weight
            counts = offered > 0
            if self._strategy == _RATIO:
                counts = counts & (points > 0)
            if np.count_nonzero(counts) == len(counts):
                total += points
                weights += weight
            else:
                total += np.where(counts, points, 0)
                weights += np.where(counts, weight, 0)
        average = total / np.maximum(weights, 1)
        if self._strategy == _RATIO:
            return np.floor(average + 0.5)
        return np.floor(average)

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        """Score one node by the strategy."""
        total = weights = 0
        for resource, asked, weight in self._counted(pod):
            offered = node.allocatable(resource)
            if offered == 0:
                continue
            points = self._points_of_one(node.scoring_used(resource) + asked, offered)
            if points > 0 or self._strategy != _RATIO:
                total += points * weight
                weights += weight
        average = total / max(weights, 1)
        return float(math.floor(average + 0.5 if self._strategy == _RATIO else average))

    def _counted(self, pod: PodInfo) -> Sequence[tuple[str, int, int]]:
        """Return the resources that count for a pod: name, request, and weight."""
        found = self._counted_of.get(pod.facts)
        if found is None:
            if len(self._counted_of) >= _MOST_KEPT:
                self._counted_of.clear()
            # kube-scheduler's strategies do not count what the pod requests as a whole.
            asked = pod.facts.requests_by_containers
            found = self._counted_of[pod.facts] = tuple(
                (one.name, asked.get(one.name, 0), one.weight)
                for one in self.args.scoring_strategy.resources
                if asked.get(one.name) or one.name in NATIVE
            )
        return found

    def _points(self, after: IntColumn, offered: IntColumn) -> IntColumn:
        kind = self._strategy
        divisor = np.maximum(offered, 1)
        if kind == "LeastAllocated":
            points: IntColumn = np.maximum(offered - after, 0) * 100 // divisor
            return points
        if kind == "MostAllocated":
            return np.minimum(after, offered) * 100 // divisor
        percent = np.where(after > offered, 100, after * 100 // divisor)
        return self._curve_table()[percent]

    def _points_of_one(self, after: int, offered: int) -> int:
        kind = self._strategy
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
        """Suggest freeing what is short on a node that is large enough."""
        served = self._served(pod)
        for resource, need in self._needs(pod):
            if resource in served:
                continue
            most = int(nodes.all().allocatable(resource).max(initial=0))
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
