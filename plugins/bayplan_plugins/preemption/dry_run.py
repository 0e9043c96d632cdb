"""Preemption for one pod, node by node, as kube-scheduler 1.36 tries it (DryRunPreemption).

Candidates are the nodes whose refusal evictions may lift. All pods that may go are taken off a
node; if the pod then fits, they are put back one by one, the most important first, as long as it
still fits (:mod:`.search`). Where it does not, the node's refusal is part of the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from bayplan import Handle, NodeRefusals, Placement, PodInfo, PreemptionTrial, Unit
from bayplan.plugin.decision import fit_message
from bayplan.plugin.hookspecs import BoolColumn
from bayplan_plugins.preemption.messages import NO_VICTIMS, UNHELPFUL, trial_of
from bayplan_plugins.preemption.search import VictimSearch, VictimSet, missing_for, until_enough
from bayplan_plugins.shared.victims import Evictable, EvictionCost

__all__ = ["DryRun", "no_victims"]

_ALL_TRIED = 100
"""In a cluster of so many nodes every candidate is tried, as kube-scheduler does by default."""
_COMPARED = 8
"""In a larger one, so many solutions are compared if the next node is not cheaper by estimate."""
_MOST_EMPTIED = 500
"""So many nodes that lack a resource are emptied of their victims, to ask their plugins."""

Victims = Mapping[int, list[PodInfo]]
"""The pods that may go, by row, the least important first."""


@dataclass(frozen=True)
class Candidate:
    """A node, its row, and what its victims may cost."""

    row: int
    placement: Placement
    estimate: EvictionCost


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
        self._settled: set[int] = set()
        self.solutions: list[VictimSet] = []
        self.trials: list[PreemptionTrial] = []
        self.any_victims = False

    def run(self) -> None:
        """Try the nodes."""
        victims = self._victims()
        self.any_victims = bool(victims)
        search = VictimSearch(self._handle, self._unit, self._evictable, victims)
        refusing = self._try(self._ordered(victims), search)
        if not self.solutions:
            # By their numbers these lack something, but their plugins may see it otherwise.
            short = {row: victims[row] for row in victims if row not in self._settled}
            refusing += self._try(self._emptied(short), search)
        if not self.solutions:
            for row in refusing:
                self._count_refusal(row, victims)
            self._count_untried(victims)

    def _try(self, candidates: Iterable[Candidate], search: VictimSearch) -> list[int]:
        """Try nodes until there is enough; return the rows that refuse the pod."""
        refusing = []
        for candidate in candidates:
            if self._is_enough(candidate.estimate):
                break
            found = search.solve(candidate.placement)
            self._settled.add(candidate.row)
            self.trials.append(trial_of(candidate.placement, found))
            if found is not None:
                self.solutions.append(found)
            else:
                refusing.append(candidate.row)
        return refusing

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

    def _ordered(self, victims: Victims) -> list[Candidate]:
        """Return the nodes where the victims leave enough, the least cost by estimate first."""
        found = []
        for row, pods in victims.items():
            needed = until_enough(pods, missing_for(self._handle, self._pod, row))
            if needed is not None:
                found.append(self._candidate(row, needed))
        return sorted(found, key=lambda candidate: (candidate.estimate, candidate.row))

    def _candidate(self, row: int, needed: Iterable[PodInfo]) -> Candidate:
        name = self._handle.snapshot.nodes.names[row]
        placement = Placement(name, np.array([row], dtype=np.intp))
        estimate = self._evictable.cost(self._evictable.closure(needed))
        return Candidate(row, placement, estimate)

    def _emptied(self, victims: Victims) -> list[Candidate]:
        """Return the nodes that may take the pod without their victims; count the others.

        The plugins whose answer depends on that node alone tell, so one trial serves all nodes.
        """
        if not victims or len(victims) > _MOST_EMPTIED:
            return []
        with self._without(pod for pods in victims.values() for pod in pods):
            refusals = [one for one in self._handle.refusals(self._pod) if one.by_row]
        found = []
        for row, pods in victims.items():
            refusal = next((one for one in refusals if one.mask[row]), None)
            if refusal is None:
                found.append(self._candidate(row, pods))
            else:
                self._count(refusal, row)
        return found

    # Why not -----------------------------------------------------------------------------

    def _count_refusal(self, row: int, victims: Victims) -> None:
        """Count why a node refuses the pod even without its victims."""
        with self._without(self._evictable.closure(victims[row])):
            refusals = self._handle.refusals(self._pod)
        self._count(next((one for one in refusals if one.mask[row]), None), row)

    def _count_untried(self, victims: Victims) -> None:
        """Count what refuses the pod now on the nodes that were too many to try."""
        untried = [row for row in victims if row not in self._settled]
        refusals = self._handle.refusals(self._pod) if untried else ()
        for row in untried:
            self._count(next((one for one in refusals if one.mask[row]), None), row)

    def _count(self, refusal: NodeRefusals | None, row: int) -> None:
        self._settled.add(row)
        if refusal is None:
            # Filter would take the pod, but another hook refuses it.
            self._reasons[UNHELPFUL] += 1
        else:
            self._reasons.update(reason for reason, mask in refusal.reasons if mask[row])

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
