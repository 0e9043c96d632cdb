"""Preemption for one pod, node by node, as kube-scheduler 1.36 tries it (DryRunPreemption).

Candidates are the nodes whose refusal evictions may lift. All pods that may go are taken off a
node; if the pod then fits, they are put back one by one, the most important first, as long as it
still fits. Where it does not, the node's refusal is part of the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from bayplan import Handle, NodeRefusals, Placement, PodInfo, PreemptionTrial, Unit
from bayplan.plugin.decision import fit_message
from bayplan.plugin.hookspecs import BoolColumn
from bayplan_plugins.preemption.messages import NO_VICTIMS, UNHELPFUL, trial_of
from bayplan_plugins.preemption.search import VictimSearch, VictimSet, missing_for, until_enough
from bayplan_plugins.preemption.victims import Evictable, EvictionCost

__all__ = ["DryRun", "no_victims"]

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
        for placement in self._ordered(self._may_take(victims), victims):
            if len(self.solutions) >= self._most:
                return
            found = search.solve(placement)
            if found is not None:
                self.solutions.append(found)
            else:
                self._count_refusal(placement, victims)
            self.trials.append(trial_of(placement, found))

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

    def _may_take(self, victims: Victims) -> list[int]:
        """Return the rows that may take the pod without their victims; count the other rows.

        Only the plugins whose answer for a row depends on that row are asked, so that one trial
        serves all rows.
        """
        if not victims:
            return []
        with self._without(pod for pods in victims.values() for pod in pods):
            refusals = [one for one in self._handle.refusals(self._pod) if one.by_row]
        left = []
        for row in victims:
            refused = next((one for one in refusals if one.mask[row]), None)
            if refused is None:
                left.append(row)
            else:
                self._count(refused, row)
        return left

    def _count_refusal(self, placement: Placement, victims: Victims) -> None:
        """Count why a node refuses the pod even without its victims."""
        assert placement.rows is not None, "one node"
        row = int(placement.rows[0])
        with self._without(self._evictable.closure(victims[row])):
            refusals = self._handle.refusals(self._pod)
        refused = next((one for one in refusals if one.mask[row]), None)
        if refused is None:
            # Filter would take the pod, but Reserve refuses it.
            self._reasons[UNHELPFUL] += 1
        else:
            self._count(refused, row)

    def _count(self, refusal: NodeRefusals, row: int) -> None:
        self._reasons.update(reason for reason, mask in refusal.reasons if mask[row])

    def _ordered(self, rows: Sequence[int], victims: Victims) -> list[Placement]:
        """Return the rows as placements, those first whose victims cost least by estimate."""
        names = self._handle.snapshot.nodes.names
        priced: list[tuple[EvictionCost, int]] = []
        for row in rows:
            needed = until_enough(victims[row], missing_for(self._handle, self._pod, row))
            gone = needed if needed is not None else victims[row]
            priced.append((self._evictable.cost(self._evictable.closure(gone)), row))
        priced.sort()
        return [Placement(names[row], np.array([row], dtype=np.intp)) for _, row in priced]

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
