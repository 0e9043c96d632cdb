"""Preemption for one pod, node by node, as kube-scheduler 1.36 tries it (DryRunPreemption).

Candidates are the nodes whose refusal evictions may lift. All pods that may go are taken off a
node; if the pod then fits, they are put back one by one, the most important first, as long as it
still fits. Where it does not, the node's refusal is part of the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from bayplan import Handle, NodeRefusals, Placement, PodInfo, PreemptionTrial, Unit
from bayplan.plugin.decision import fit_message
from bayplan.plugin.hookspecs import BoolColumn
from bayplan_plugins.preemption.messages import NO_VICTIMS, UNHELPFUL, trial_of
from bayplan_plugins.preemption.search import VictimSearch, VictimSet, missing_for, until_enough
from bayplan_plugins.preemption.victims import Evictable, EvictionCost

__all__ = ["DryRun", "no_victims"]

_ALL_TRIED = 100
"""In a cluster of so many nodes every candidate is tried, as kube-scheduler does by default."""
_COMPARED = 8
"""In a larger one, so many solutions are compared if the next node is not cheaper by estimate."""
_MOST_EMPTIED = 500
"""So many nodes are emptied of their victims to say why that would not help."""

Victims = Mapping[int, list[PodInfo]]
"""The pods that may go, by row, the least important first."""


class DryRun:
    """Tries for one pod what evictions would do on each node.

    ``solutions`` are the nodes where they would help, the cheapest by estimate first. ``trials``
    records the nodes that were tried. ``any_victims`` says whether any pod may go at all.

    :param most: how many solutions are enough.
    """

    def __init__(self, handle: Handle, unit: Unit, evictable: Evictable, most: int) -> None:
        self._handle = handle
        self._pod = unit.pods[0]
        self._unit = unit
        self._evictable = evictable
        self._most = most
        self._reasons: Counter[str] = Counter()
        self.solutions: list[VictimSet] = []
        self.trials: list[PreemptionTrial] = []
        self.any_victims = False

    def run(self) -> None:
        """Try the nodes."""
        victims = self._victims()
        self.any_victims = bool(victims)
        search = VictimSearch(self._handle, self._unit, self._evictable, victims)
        refused = []
        for estimate, placement in self._ordered(victims):
            if self._is_enough(estimate):
                break
            found = search.solve(placement)
            self.trials.append(trial_of(placement, found))
            if found is not None:
                self.solutions.append(found)
            else:
                refused.append(placement)
        if not self.solutions:
            tried = {self._row(placement) for placement in refused}
            self._count_refusals({row: victims[row] for row in victims if row not in tried})
            for placement in refused:
                self._count_refusal(placement, victims)

    def _is_enough(self, estimate: EvictionCost) -> bool:
        """Tell whether to stop before the next node, given the estimate of its cost."""
        count = len(self.solutions)
        if count >= self._most:
            return True
        if len(self._handle.snapshot.nodes) <= _ALL_TRIED:
            return False
        if len(self.trials) >= self._most:
            return True
        costs = [solution.cost for solution in self.solutions]
        return count >= _COMPARED and estimate >= min(costs)

    def message(self) -> str:
        """Return why no node is a solution, in kube-scheduler's words."""
        reasons = [("", reason, count) for reason, count in self._reasons.items()]
        return fit_message(len(self._handle.snapshot.nodes), reasons)

    def _victims(self) -> dict[int, list[PodInfo]]:
        """Return the pods that may go, by row, where evictions may help; count the other rows."""
        table = self._handle.snapshot.nodes
        unresolvable = _unresolvable(self._handle, self._pod)
        victims = {}
        for row in np.flatnonzero(~unresolvable).tolist():
            found = self._evictable.on_row(row) if table.pods[row] else []
            if found:
                victims[row] = found
            else:
                self._reasons[NO_VICTIMS] += 1
        unhelpful = int(np.count_nonzero(unresolvable))
        if unhelpful:
            self._reasons[UNHELPFUL] = unhelpful
        return victims

    def _ordered(self, victims: Victims) -> list[tuple[EvictionCost, Placement]]:
        """Return the nodes where the victims leave enough, the least cost by estimate first."""
        names = self._handle.snapshot.nodes.names
        priced: list[tuple[EvictionCost, int]] = []
        for row, pods in victims.items():
            needed = until_enough(pods, missing_for(self._handle, self._pod, row))
            if needed is not None:
                priced.append((self._evictable.cost(self._evictable.closure(needed)), row))
        priced.sort()
        return [
            (cost, Placement(names[row], np.array([row], dtype=np.intp))) for cost, row in priced
        ]

    # Why not -----------------------------------------------------------------------------

    def _count_refusals(self, victims: Victims) -> None:
        """Count why nodes that lack a resource refuse the pod even without their victims.

        The plugins whose answer depends on that node alone tell, so one trial serves all nodes.
        For very many nodes, or if others refuse it, what refuses the pod now has to do.
        """
        if not victims:
            return
        refusals = self._handle.refusals(self._pod)
        if len(victims) <= _MOST_EMPTIED:
            with self._without(pod for pods in victims.values() for pod in pods):
                found = self._handle.refusals(self._pod)
            refusals = [*(one for one in found if one.by_row), *refusals]
        for row in victims:
            self._count(next((one for one in refusals if one.mask[row]), None), row)

    def _count_refusal(self, placement: Placement, victims: Victims) -> None:
        """Count why one node refuses the pod even without its victims."""
        row = self._row(placement)
        with self._without(self._evictable.closure(victims[row])):
            refusals = self._handle.refusals(self._pod)
        self._count(next((one for one in refusals if one.mask[row]), None), row)

    def _count(self, refusal: NodeRefusals | None, row: int) -> None:
        if refusal is None:
            # Filter would take the pod, but another hook refuses it.
            self._reasons[UNHELPFUL] += 1
        else:
            self._reasons.update(reason for reason, mask in refusal.reasons if mask[row])

    def _row(self, placement: Placement) -> int:
        assert placement.rows is not None, "one node"
        return int(placement.rows[0])

    @contextmanager
    def _without(self, victims: Iterable[PodInfo]) -> Iterator[None]:
        """Take pods off their nodes for the time of a ``with`` block."""
        snapshot = self._handle.snapshot
        with snapshot.trial():
            for victim in victims:
                snapshot.remove_pod(victim.key)
            yield


def no_victims(handle: Handle, pod: PodInfo) -> str:
    """Return kube-scheduler's sentence for a pod for which no pod may go."""
    unhelpful = int(np.count_nonzero(_unresolvable(handle, pod)))
    nodes = len(handle.snapshot.nodes)
    counts = {UNHELPFUL: unhelpful, NO_VICTIMS: nodes - unhelpful}
    return fit_message(nodes, [("", reason, count) for reason, count in counts.items() if count])


def _unresolvable(handle: Handle, pod: PodInfo) -> BoolColumn:
    """Return the rows where no eviction can help the pod."""
    mask = np.zeros(len(handle.snapshot.nodes), dtype=np.bool_)
    for refusal in handle.refusals(pod):
        mask |= refusal.unresolvable
    return mask
