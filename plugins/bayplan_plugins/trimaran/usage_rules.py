"""What counts as used of a node beside the report: nothing, pods that just came, or limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from bayplan import PodInfo
from bayplan.api.pod import Container
from bayplan.api.resources import amount_of
from bayplan.snapshot import SpecFacts
from bayplan_plugins.loads.columns import View
from bayplan_plugins.loads.estimates import limits_of
from bayplan_plugins.loads.ledger import NodeLoads
from bayplan_plugins.loads.node_load import NodeLoad

__all__ = ["LIMITS", "LatestUsage", "PredictedCpus", "limits_with_requests"]

LIMITS: View = ("limits", 0.0)
"""What the pods of a node may use at most, by their limits."""
_REPORTING_SECONDS = 60.0
_MOST_KEPT = 20_000


class LatestUsage:
    """The usage of a node as it was reported, and the limits of its pods."""

    resources = ("cpu", "memory")

    def usage(
        self, load: NodeLoad, pods: Iterable[PodInfo], has: Sequence[int], views: Sequence[View]
    ) -> list[list[int]]:
        """Return what is used by view; limits are those of the pods' on the node."""
        return [self._limits(pods) if view == LIMITS else _average(load) for view in views]

    def _limits(self, pods: Iterable[PodInfo]) -> list[int]:
        total = [0] * len(self.resources)
        for pod in pods:
            for place, amount in enumerate(limits_with_requests(pod)):
                total[place] += amount
        return total


class PredictedCpus:
    """The CPUs that a node uses, with those that pods will use which came too late to be measured.

    :param multiplier: by how much containers without a limit exceed their request.
    :param unstated: what one that states nothing uses, in milli-CPU.
    """

    resources = ("cpu",)

    def __init__(self, loads: NodeLoads, multiplier: float, unstated: int) -> None:
        self._loads = loads
        self._multiplier = multiplier
        self._unstated = unstated
        self._known: dict[SpecFacts, int] = {}

    def usage(
        self, load: NodeLoad, pods: Iterable[PodInfo], has: Sequence[int], views: Sequence[View]
    ) -> list[list[int]]:
        """Return the CPUs that a node uses, with those of pods of the last minute."""
        late = (pod for pod in pods if load.time - self._loads.since(pod) < _REPORTING_SECONDS)
        return [[_average(load)[0] + sum(map(self.of, late))]]

    def of(self, pod: PodInfo) -> int:
        """Return how much a pod will use, in milli-CPU."""
        found = self._known.get(pod.facts)
        if found is None:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            overhead = pod.spec.overhead.get("cpu")
            found = sum(map(self._of_container, pod.spec.containers))
            found += amount_of("cpu", overhead) if overhead is not None else 0
            self._known[pod.facts] = found
        return found

    def _of_container(self, container: Container) -> int:
        stated = container.resources
        if "cpu" in stated.limits:
            return amount_of("cpu", stated.limits["cpu"])
        if "cpu" in stated.requests:
            request = amount_of("cpu", stated.requests["cpu"])
            return math.floor(request * self._multiplier + 0.5)
        return self._unstated


def _average(load: NodeLoad) -> list[int]:
    """Return the mean of the last minutes where it was measured, else the latest usage."""
    usage = load.aggregated.get(("avg", 0.0), load.usage)
    return [usage.get(name, 0) for name in LatestUsage.resources]


def limits_with_requests(pod: PodInfo) -> list[int]:
    """Return what a pod may use at most of CPU and memory; at least what it requests."""
    limits, overhead = limits_of(pod.spec), pod.spec.overhead
    return [
        max(
            limits.get(name, 0) + (amount_of(name, overhead[name]) if name in overhead else 0),
            pod.requests.get(name, 0),
        )
        for name in LatestUsage.resources
    ]
