"""VolcanoResourceStrategyFit: each resource is packed or spread, and scarce ones are kept free.

As volcano-sh/volcano's plugin resource-strategy-fit, with ``sra`` (pods go to nodes without scarce
resources) and ``proportional`` (scarce resources keep CPU and memory for their pods).
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
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
    Reads,
    Reject,
    Remedy,
    hookimpl,
)
from bayplan.plugin.hookspecs import FloatColumn
from bayplan_plugins.queues.volcano.filling import Strategy, filling, requested

__all__ = ["VolcanoResourceStrategyFit", "VolcanoResourceStrategyFitArgs"]

_TYPE = "volcano.sh/resource-strategy-scoring-type"
_WEIGHTS = "volcano.sh/resource-strategy-weight"
_MOST = 100.0
_GIGA = 1000**3
_MILLI = 1000
_MOST_WEIGHT = 10_000
_MOST_KEPT = 256

Weight = Annotated[int, Field(ge=0, le=_MOST_WEIGHT)]


class ResourceStrategy(Args):
    """How one resource is used: full nodes first, or empty ones; and its weight."""

    type: Literal["LeastAllocated", "MostAllocated"] = "LeastAllocated"
    weight: int = Field(default=1, ge=1, le=_MOST_WEIGHT)


class ScarceResources(Args):
    """Nodes without these resources (names joined by commas) are preferred.

    ``weight`` counts beside ``resourceStrategyFitWeight``; a resource without ``resourceWeight``
    has the weight 1.
    """

    enable: bool = False
    resources: str = ""
    weight: Weight = 0
    resource_weight: Mapping[str, Weight] = {}

    @property
    def weights(self) -> Mapping[str, int]:
        """The weight of each resource; none unless it is on."""
        names = _names(self.resources) if self.enable and self.weight else ()
        return {name: self.resource_weight.get(name, 1) for name in names}


class Proportions(Args):
    """What each free unit of a resource keeps of its node, from pods that do not request any.

    ``resourceProportion`` has CPUs by ``NAME.cpu`` and gigabytes (10^9) by ``NAME.memory``, 1 each
    where nothing is said.
    """

    enable: bool = False
    resources: str = ""
    resource_proportion: Mapping[str, Annotated[float, Field(ge=0, le=1e6)]] = {}

    @property
    def kept(self) -> Mapping[str, tuple[float, float]]:
        """CPUs and gigabytes by resource; none unless it is on."""
        stated = self.resource_proportion
        return {
            name: (stated.get(f"{name}.cpu", 1.0), stated.get(f"{name}.memory", 1.0))
            for name in (_names(self.resources) if self.enable else ())
        }


class VolcanoResourceStrategyFitArgs(Args):
    """Arguments of VolcanoResourceStrategyFit, as of Volcano's plugin.

    A name of ``resources`` may end with ``*``; the longest that matches counts. The plugin's score
    is the mean of both parts by their weights, so that its weight in a profile is the sum of
    ``resourceStrategyFitWeight`` and ``sra.weight``.
    """

    resource_strategy_fit_weight: Weight = 10
    resources: Mapping[str, ResourceStrategy] = {
        "cpu": ResourceStrategy(),
        "memory": ResourceStrategy(),
    }
    sra: ScarceResources = ScarceResources()
    proportional: Proportions = Proportions()

    @pydantic.field_validator("resources")
    @classmethod
    def _patterns(cls, value: Mapping[str, ResourceStrategy]) -> Mapping[str, ResourceStrategy]:
        for name in value:
            if "*" in name[:-1] or name == "*":
                raise ValueError(
                    f'"{name}": expected a resource, or the start of its name with "*" at the end'
                )
        return value


class VolcanoResourceStrategyFit(Plugin[VolcanoResourceStrategyFitArgs]):
    """Score by a strategy for each resource; keep scarce resources, and what they need, free.

    The annotations ``volcano.sh/resource-strategy-scoring-type`` and ``...-weight`` (JSON) of a pod
    go before ``resources``.
    """

    Args = VolcanoResourceStrategyFitArgs
    reads = Reads.NODE | Reads.PODS
    requeue_on = ClusterEvent.NODE | ClusterEvent.POD_REMOVED

    def __init__(self, args: VolcanoResourceStrategyFitArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._strategy_of = functools.lru_cache(maxsize=_MOST_KEPT)(self._find)
        self._scarce = args.sra.weights
        self._kept = args.proportional.kept

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by the pod's own strategy."""
        annotations = pod.annotations
        kind = annotations.get(_TYPE)
        return (kind, annotations.get(_WEIGHTS)) if kind else None

    # Scores ------------------------------------------------------------------------------

    @hookimpl
    def pre_score(self) -> object:
        """Skip if neither part has a weight."""
        return None if self.args.resource_strategy_fit_weight or self._scarce else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Return the mean of both parts by their weights."""
        fit_weight = self.args.resource_strategy_fit_weight
        sra_weight = self.args.sra.weight if self._scarce else 0
        total = np.zeros(len(nodes))
        if fit_weight:
            total += filling(nodes, self._wanted(pod)) * fit_weight
        if sra_weight:
            total += self._without_scarce(pod, nodes) * sra_weight
        return total / (fit_weight + sra_weight)

    def _wanted(self, pod: PodInfo) -> Sequence[tuple[str, int, Strategy]]:
        """Return the requested resources that count, each with its strategy."""
        kind = pod.annotations.get(_TYPE)
        if not kind:
            found = ((n, a, self._strategy_of(n)) for n, a in requested(pod).items())
            return [(name, amount, one) for name, amount, one in found if one is not None]
        weights = _weights_of(pod.annotations.get(_WEIGHTS, ""))
        packs, spreads = kind == "MostAllocated", kind == "LeastAllocated"
        return [
            (name, amount, Strategy(weights[name], packs, spreads))
            for name, amount in requested(pod).items()
            if name in weights
        ]

    def _find(self, name: str) -> Strategy | None:
        """Return a resource's strategy: by its name, or by the longest start of it."""
        stated = self.args.resources
        starts = [one for one in stated if one.endswith("*") and name.startswith(one[:-1])]
        key = name if name in stated else max(starts, key=len, default=None)
        if key is None:
            return None
        packs = stated[key].type == "MostAllocated"
        return Strategy(stated[key].weight, packs, not packs)

    def _without_scarce(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Return scores 0 to 100: the part, by weight, of the scarce resources that nodes lack."""
        sum_of_weights = sum(self._scarce.values())
        if not sum_of_weights:
            return np.zeros(len(nodes))
        there = np.zeros(len(nodes))
        for name, weight in self._scarce.items():
            there += np.where(nodes.allocatable(name) > 0, weight, 0)
        lacks = np.zeros(len(nodes), dtype=np.bool_)
        for name in requested(pod):
            lacks |= nodes.allocatable(name) == 0
        scores: FloatColumn = np.where(lacks, 0.0, (1.0 - there / sum_of_weights) * _MOST)
        return scores

    # Kept resources ----------------------------------------------------------------------

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes of which the pod would leave too little for a free scarce resource."""
        for name, kept in self._kept_from(pod):
            lacking = [nodes.free(n) - pod.requests.get(n, 0) for n in kept]
            units = nodes.free(name)
            taken = np.zeros(len(nodes), dtype=np.bool_)
            for left, amount in zip(lacking, kept.values(), strict=True):
                taken |= left < units * amount
            yield Reject(
                taken & (units > 0), f"proportional of resource {name} check failed", False
            )

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterator[Remedy]:
        """Say how much more a node would have to have left."""
        for node in nodes:
            for name, kept in self._kept_from(pod):
                units = node.free(name)
                for own, amount in kept.items():
                    missing = units * amount - (node.free(own) - pod.requests.get(own, 0))
                    if units > 0 and missing > 0:
                        what = (
                            f"{missing / _MILLI:g} CPUs" if own == "cpu" else f"{missing:.0f} bytes"
                        )
                        text = (
                            f"would fit on {node.name} if {what} more were left of it for its "
                            f"{units} free {name}"
                        )
                        yield Remedy(text, node.row, 2.0)

    def _kept_from(self, pod: PodInfo) -> Iterable[tuple[str, Mapping[str, float]]]:
        """Return what a free unit of each scarce resource keeps from a pod."""
        if any(pod.requests.get(name) for name in self._kept):
            return
        for name, (cpus, gigabytes) in self._kept.items():
            yield name, {"cpu": cpus * _MILLI, "memory": gigabytes * _GIGA}


def _names(text: str) -> Sequence[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@functools.lru_cache(maxsize=_MOST_KEPT)
def _weights_of(text: str) -> Mapping[str, int]:
    """Return the weights of a pod's annotation; none for a text that cannot be read."""
    try:
        stated = msgspec.json.decode(text or "{}", type=dict[str, int])
    except msgspec.DecodeError:
        return {}
    weighed = all(0 <= weight <= _MOST_WEIGHT for weight in stated.values())
    return stated if weighed else {}
