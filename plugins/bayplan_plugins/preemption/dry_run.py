"""Preemption for one pod, node by node, as kube-scheduler 1.36 tries it (DryRunPreemption).

Candidates are the nodes whose refusal evictions may lift. All pods that may go are taken off a
node; if the pod then fits, they are put back one by one, the most important first, as long as it
still fits (:mod:`.search`). Where it does not, the node's refusal is part of the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property

import msgspec
import numpy as np

from bayplan import Handle, NodeRefusals, Placement, PodInfo, PreemptionTrial, Unit
from bayplan.plugin.decision import fit_message
from bayplan.plugin.hookspecs import BoolColumn
from bayplan_plugins.preemption.known import KnownEvictions
from bayplan_plugins.preemption.messages import NO_VICTIMS, UNHELPFUL, trial_of
from bayplan_plugins.preemption.search import MOST_EMPTIED_NODES, VictimSearch, VictimSet
from bayplan_plugins.preemption.unresolvable import unresolvable
from bayplan_plugins.shared.victims import Evictable, EvictionCost

__all__ = ["DryRun", "no_victims"]

_ALL_TRIED = 100
"""In a cluster of so many nodes every candidate is tried, as kube-scheduler does by default."""
_COMPARED = 8
"""In a larger one, so many solutions are compared if the next node is not cheaper by estimate."""


class Candidate(msgspec.Struct, frozen=True):
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

    def __init__(
        self, handle: Handle, unit: Unit, evictable: Evictable, known: KnownEvictions, most: int
    ) -> None:
        self._handle = handle
        self._pod = unit.pods[0]
        self._evictable = evictable
        self._most = most
        self._reasons: Counter[str] = Counter()
        self._settled: set[int] = set()
        refused = unresolvable(handle, self._pod)
        has_victims = known.columns(evictable.priority).victims > 0
        self._rows = np.flatnonzero(~refused & has_victims)
        """The rows of the nodes whose refusal evictions may lift, and that have victims."""
        self._count_hopeless(refused, has_victims)
        self._unit, self._known, self._within = unit, known, ~refused
        self.solutions: list[VictimSet] = []
        self.trials: list[PreemptionTrial] = []

    @cached_property
    def _search(self) -> VictimSearch:
        return VictimSearch(self._handle, self._unit, self._evictable, self._known, self._within)

    @property
    def any_victims(self) -> bool:
        """Whether any pod may go at all where that may help."""
        return bool(len(self._rows))

    def run(self) -> None:
        """Try the nodes."""
        if not self.any_victims:
            return
        refusing = self._try(self._ordered())
        if not self.solutions:
            # By their numbers these lack something, but their plugins may see it otherwise.
            refusing += self._try(self._emptied())
        if not self.solutions:
            for row in refusing:
                self._count_refusal(row)
            self._count_untried()

    def _count_hopeless(self, refused: BoolColumn, has_victims: BoolColumn) -> None:
        """Count the nodes where no eviction helps, and those without victims."""
        unhelpful, nobody = np.count_nonzero(refused), np.count_nonzero(~refused & ~has_victims)
        for reason, count in ((UNHELPFUL, unhelpful), (NO_VICTIMS, nobody)):
            if count:
                self._reasons[reason] = int(count)

    def _try(self, candidates: Iterable[Candidate]) -> list[int]:
        """Try nodes until there is enough; return the rows that refuse the pod."""
        refusing = []
        for candidate in candidates:
            if self._is_enough(candidate.estimate):
                break
            found = self._search.solve(candidate.placement)
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
        if not count:
            return False
        cheapest = min(solution.cost for solution in self.solutions)
        return cheapest <= self._search.steps.least or (count >= _COMPARED and estimate >= cheapest)

    def message(self) -> str:
        """Return why no node is a solution, in kube-scheduler's words."""
        reasons = [("", reason, count) for reason, count in self._reasons.items()]
        return fit_message(len(self._handle.snapshot.nodes), reasons)

    def _ordered(self) -> Iterator[Candidate]:
        """Yield the nodes where the victims leave enough, the least cost by estimate first."""
        seen: set[int] = set()
        for step in self._search.steps.in_order():
            if step.row not in seen:
                seen.add(step.row)
                yield self._candidate(step.row, step.cost)

    def _candidate(self, row: int, estimate: EvictionCost) -> Candidate:
        name = self._handle.snapshot.nodes.names[row]
        return Candidate(row, Placement(name, np.array([row], dtype=np.intp)), estimate)

    def _untried(self) -> list[int]:
        """Return the rows that have victims and were not tried."""
        return [row for row in self._rows.tolist() if row not in self._settled]

    def _emptied(self) -> list[Candidate]:
        """Return the nodes that may take the pod without their victims; count the others.

        The plugins whose answer depends on that node alone tell, so one trial serves all nodes.
        """
        if not len(self._rows) or len(self._rows) - len(self._settled) > MOST_EMPTIED_NODES:
            return []
        victims = {row: self._evictable.on_row(row) for row in self._untried()}
        with self._without(pod for pods in victims.values() for pod in pods):
            refusals = [one for one in self._handle.refusals(self._pod) if one.by_row]
        found = []
        for row, pods in victims.items():
            refusal = next((one for one in refusals if one.mask[row]), None)
            if refusal is None:
                found.append(self._candidate(row, self._evictable.cost_with_all(pods)))
            else:
                self._count(refusal, row)
        return found

    # Why not -----------------------------------------------------------------------------

    def _count_refusal(self, row: int) -> None:
        """Count why a node refuses the pod even without its victims."""
        with self._without(self._evictable.closure(self._evictable.on_row(row))):
            refusals = self._handle.refusals(self._pod)
        self._count(next((one for one in refusals if one.mask[row]), None), row)

    def _count_untried(self) -> None:
        """Count what refuses the pod now on the nodes that were too many to try."""
        left = np.zeros(len(self._handle.snapshot.nodes), dtype=np.bool_)
        left[self._untried()] = True
        for refusal in self._handle.refusals(self._pod) if left.any() else ():
            for reason, mask in refusal.reasons:
                self._reasons[reason] += int(np.count_nonzero(mask & left))
            left &= ~refusal.mask
        self._reasons[UNHELPFUL] += int(np.count_nonzero(left))
        self._reasons = +self._reasons

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
    unhelpful = int(np.count_nonzero(unresolvable(handle, pod)))
    nodes = len(handle.snapshot.nodes)
    counts = {UNHELPFUL: unhelpful, NO_VICTIMS: nodes - unhelpful}
    return fit_message(nodes, [("", reason, count) for reason, count in counts.items() if count])
