"""Where a gang would fit if less important pods were gone, and where that costs least.

The candidates are the network domains that may hold the gang, or the cluster. They are offered by
what evictions would free (:mod:`.columns`), without any trial, and tried in the order of what
their cheapest evictions cost. The victims in each are found by :mod:`.search`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from bayplan import Handle, Placement, PodInfo, PreemptionTrial, Supposed, Unit
from bayplan.plugin.hookspecs import IntColumn
from bayplan_plugins.preemption.columns import needs_of
from bayplan_plugins.preemption.known import KnownEvictions
from bayplan_plugins.preemption.messages import trial_of
from bayplan_plugins.preemption.search import VictimSearch, VictimSet
from bayplan_plugins.preemption.unresolvable import unresolvable
from bayplan_plugins.shared.victims import Evictable, EvictionCost

__all__ = ["GangSearch"]

_UNKNOWN = EvictionCost(0, 0, 0, 0, 0, 0, 0.0)
_MOST_TRIED = 24
"""Domains that are tried for a gang."""
_ALL_TRIED = 8
"""So many domains are all tried; of more, those that may cost less than what was found."""
_MOST_REMOVED_PODS = 5000
"""So many pods are taken off their nodes to ask plugins that do not heed a supposition."""


class GangSearch:
    """The search for one gang; ``trials`` records the candidates that were tried."""

    def __init__(
        self, handle: Handle, unit: Unit, evictable: Evictable, known: KnownEvictions
    ) -> None:
        self._handle = handle
        self._unit = unit
        self._evictable = evictable
        self._known = known
        self._columns = known.columns(evictable.priority)
        kinds = {(pod.facts, pod.labels_id): pod for pod in unit.pods}.values()
        within = ~np.logical_and.reduce([unresolvable(handle, pod) for pod in kinds])
        self._search = VictimSearch(handle, unit, evictable, known, within)
        self.trials: list[PreemptionTrial] = []

    def run(self) -> VictimSet | None:
        """Return the cheapest victims found; None if the gang fits nowhere."""
        offered = self._offered()
        best: VictimSet | None = None
        tried: list[Placement] = []
        for estimate, placement in self._ordered(offered):
            if len(tried) >= _MOST_TRIED:
                break
            if best is not None and len(offered) > _ALL_TRIED and best.cost <= estimate:
                break
            found = self._search.solve(placement)
            tried.append(placement)
            self.trials.append(trial_of(placement, found))
            if found is not None and (best is None or found.cost < best.cost):
                best = found
        if best is None:
            return None
        best = self._in_wider_domains(best, tried)
        self.trials = [
            replace(trial, chosen=placement is best.placement)
            for trial, placement in zip(self.trials, tried, strict=True)
        ]
        return best

    def _in_wider_domains(self, best: VictimSet, tried: list[Placement]) -> VictimSet:
        """Spare victims that are not needed in a wider domain."""
        for index, placement in enumerate(tried):
            if _contains(placement, best.placement):
                wider = self._search.minimised(placement, best)
                if wider.cost < best.cost:
                    best = replace(wider, placement=placement)
                    self.trials[index] = trial_of(placement, best)
        return best

    # Candidates --------------------------------------------------------------------------

    def _offered(self) -> list[Placement]:
        """Return the placements in which the gang might fit if all possible victims were gone."""
        handle, unit = self._handle, self._unit
        supposed = Supposed(self._slots, self._free)
        offered = list(handle.offers(unit, supposed).candidates)
        if not offered and self._columns.victims.sum() <= _MOST_REMOVED_PODS:
            with handle.snapshot.trial():
                for row in np.flatnonzero(self._columns.victims).tolist():
                    for victim in self._evictable.on_row(row):
                        handle.snapshot.remove_pod(victim.key)
                offered = list(handle.offers(unit).candidates)
        return [one for one in offered if one.offered is None or one.offered >= unit.min_placed]

    def _slots(self, pod: PodInfo) -> IntColumn:
        """Return how many such pods each node would take without its possible victims."""
        within, slots = ~unresolvable(self._handle, pod), self._handle.free_slots(pod)
        bounds = self._known.bounds(self._evictable.priority, needs_of(pod), True, False)
        bounds.refresh(slots, within)
        may_help = within & (self._columns.victims > 0)
        freed: IntColumn = np.where(may_help, np.maximum(slots, bounds.most), slots)
        return freed

    def _free(self, resource: str) -> IntColumn:
        table = self._handle.snapshot.nodes
        free: IntColumn = table.allocatable(resource) - table.used(resource)
        return free + self._columns.freed.get(resource, 0)

    def _ordered(self, offered: list[Placement]) -> Iterator[tuple[EvictionCost, Placement]]:
        """Yield the placements with what they may cost, the cheapest first.

        The least costs sort them; what their cheapest evictions cost is found for those alone that
        come first.
        """
        if len(offered) == 1:
            yield _UNKNOWN, offered[0]
            return
        waiting = [
            (self._search.least_cost(placement), index, False)
            for index, placement in enumerate(offered)
        ]
        heapq.heapify(waiting)
        while waiting:
            cost, index, final = heapq.heappop(waiting)
            if final:
                yield cost, offered[index]
                continue
            estimate = self._search.estimate(offered[index])
            if estimate is not None:
                heapq.heappush(waiting, (max(cost, estimate), index, True))


def _contains(outer: Placement, inner: Placement) -> bool:
    """Tell whether a placement holds all rows of another, and more."""
    if inner.rows is None or outer is inner:
        return False
    return outer.rows is None or (
        len(outer.rows) > len(inner.rows) and bool(np.isin(inner.rows, outer.rows).all())
    )
