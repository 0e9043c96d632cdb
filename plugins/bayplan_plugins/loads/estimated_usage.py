"""What a node uses, with what its pods will use that are not measured yet: Koordinator's rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bayplan import PodInfo
from bayplan_plugins.loads.columns import LATEST, PROD, View
from bayplan_plugins.loads.estimates import Estimates, EstimateSettings
from bayplan_plugins.loads.ledger import NodeLoads
from bayplan_plugins.loads.node_load import NodeLoad, Usage

__all__ = ["EstimatedUsage"]


class EstimatedUsage:
    """The usage of nodes as LoadAwareScheduling reckons it.

    :param with_system: whether what no pod uses counts as used by ``koord-prod``.
    """

    def __init__(
        self, loads: NodeLoads, settings: EstimateSettings, with_system: bool = False
    ) -> None:
        self._loads = loads
        self.resources = settings.resources
        self.estimates = Estimates(settings)
        self._with_system = with_system

    def usage(
        self, load: NodeLoad, pods: Iterable[PodInfo], has: Sequence[int], views: Sequence[View]
    ) -> list[list[int]]:
        """Return what a node uses by view, with what its unmeasured pods will use."""
        width = range(len(self.resources))
        delta, full = [0] * len(width), [0] * len(width)
        prod = self._vector(load.system) if self._with_system else [0] * len(width)
        for pod in pods:
            key = (pod.namespace, pod.name)
            own = self.estimates.of(pod)
            usage = load.pods.get(key)
            measured = self._vector(usage) if usage is not None else None
            since = self._loads.since(pod)
            counts = (
                measured is None
                or load.time - load.interval < since
                or (own.may_count and own.until(pod, since) > load.time)
            )
            for i in width:
                full[i] += own.amounts[i]
            if counts:
                _add_excess(delta, own.amounts, measured)
            if not own.prod:
                continue
            if key in load.prod and measured is not None:
                for i in width:
                    prod[i] += measured[i]
                if counts:
                    _add_excess(prod, own.amounts, measured)
            else:
                _add_excess(prod, own.amounts, None)
        return [self._of_view(view, load, delta, full, prod) for view in views]

    def _of_view(
        self,
        view: View,
        load: NodeLoad,
        delta: Sequence[int],
        full: list[int],
        prod: list[int],
    ) -> list[int]:
        if view == PROD:
            return prod
        name, duration = view
        usage = load.usage
        if view != LATEST:
            found = load.statistic(name.removeprefix("statistic "), duration)
            if found is None:
                # Of this duration nothing was reported.
                return full
            usage = found
        return [a + b for a, b in zip(self._vector(usage), delta, strict=True)]

    def _vector(self, usage: Usage) -> list[int]:
        return [usage.get(name, 0) for name in self.resources]


def _add_excess(into: list[int], estimated: Sequence[int], measured: Sequence[int] | None) -> None:
    """Add what pods will use beyond what they were measured to use."""
    for i, amount in enumerate(estimated):
        more = amount - (measured[i] if measured is not None else 0)
        if more > 0:
            into[i] += more
