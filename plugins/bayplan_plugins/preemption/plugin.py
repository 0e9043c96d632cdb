"""DefaultPreemption: make room for a pod or a whole gang by evicting what is less important.

For a pod the candidates are nodes and the rules those of kube-scheduler 1.36; for a gang they are
the network domains that it may have, or the cluster. In each candidate the fewest and least
important pods are taken out that let the whole unit be placed, tried in the snapshot; candidates
are compared by what they cost (:class:`~bayplan_plugins.preemption.victims.Cost`), then by waste. A
gang is never taken below its minimum, unless all of it goes and nothing else is cheaper.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pydantic import Field

from bayplan import (
    Args,
    ClusterEvent,
    Placement,
    Plugin,
    PodInfo,
    Preemption,
    PreemptionTrial,
    Remedy,
    Unit,
    hookimpl,
)
from bayplan.naming import short_key
from bayplan.plugin.decision import Decision
from bayplan_plugins.preemption.victims import Cost, Evictable

__all__ = ["DefaultPreemption", "DefaultPreemptionArgs"]

_MOST_NODES = 8
"""Nodes, of those that are estimated to be cheapest, whose victims are compared for one pod."""
_MOST_DOMAINS = 24
_FEW = 8
"""So many possible victims that every subset of them can be tried."""
_MINIMISED = 16
"""So many victims that each is questioned once more in the end."""
_MOST_NAMED = 5


class DefaultPreemptionArgs(Args):
    """Arguments of DefaultPreemption, those of kube-scheduler and whether gangs may preempt.

    At least ``minCandidateNodesPercentage`` of the nodes, and ``minCandidateNodesAbsolute``, are
    looked at for one pod, in the order of their names.
    """

    min_candidate_nodes_percentage: int = Field(default=10, ge=0, le=100)
    min_candidate_nodes_absolute: int = Field(default=100, ge=0)
    gangs: bool = True


@dataclass(frozen=True)
class _Solution:
    """Victims that make room in a placement, and the nodes that the unit then has."""

    placement: Placement
    victims: tuple[PodInfo, ...]
    nodes: Mapping[str, str]
    cost: Cost


@dataclass(frozen=True)
class _Step:
    """Pods of one row that go together: with them, one more member fits."""

    row: int
    victims: tuple[PodInfo, ...]
    cost: Cost


class DefaultPreemption(Plugin[DefaultPreemptionArgs]):
    """Evict pods of lower priority where that lets a pod or a gang run."""

    Args = DefaultPreemptionArgs
    requeue_on = ClusterEvent.POD_REMOVED

    @hookimpl
    def post_filter(self, unit: Unit, decision: Decision) -> Preemption | str | None:
        """Find the cheapest room for the unit."""
        if unit.gang is not None and not self.args.gangs:
            return None
        if any(pod.spec.preemption_policy == "Never" for pod in unit.pods):
            return "preemption: not eligible due to preemptionPolicy=Never."
        if any(own.pre_filter is not None for own in decision.pods.values()):
            return None
        evictable = Evictable(unit, self.handle)
        by_row = self._evictable_by_row(unit, evictable)
        if not by_row:
            return f"preemption: {self._nobody(unit, decision)}{_refused(evictable)}"
        decision.refused_by.add("DefaultPreemption")
        candidates = self._candidates(unit, by_row, evictable)
        trials: list[PreemptionTrial] = []
        solutions: list[_Solution] = []
        for placement in candidates:
            if unit.gang is None and len(solutions) >= _MOST_NODES:
                break
            solution = self._solve(unit, placement, by_row, evictable)
            if solution is not None and solution.cost.gangs:
                # Perhaps it can be had without ending a gang, and cheaper.
                careful = Evictable(unit, self.handle, protect=True)
                spared = {row: found for row in by_row if (found := careful.on_row(row))}
                other = self._solve(unit, placement, spared, careful)
                if other is not None and other.cost <= solution.cost:
                    solution = other
            trials.append(_trial(placement, solution))
            if solution is not None:
                solutions.append(solution)
        decision.preemption = tuple(trials)
        if not solutions:
            return f"preemption: {self._unhelpful(unit, decision)}{_refused(evictable)}"
        # Candidates come with the least waste first, so the first of equal costs wins.
        best = min(solutions, key=lambda solution: solution.cost)
        for index, placement in enumerate(candidates[: len(trials)]):
            if unit.gang is not None and _contains(placement, best.placement):
                # In wider surroundings some of the victims may not be needed.
                wider = self._minimised(unit, placement, evictable, best)
                if wider.cost < best.cost:
                    best = replace(wider, placement=placement)
                    trials[index] = _trial(placement, best)
        decision.preemption = tuple(
            replace(trial, chosen=placement is best.placement)
            for trial, placement in zip(trials, candidates, strict=False)
        )
        return _preemption(best, evictable)

    @hookimpl
    def remedies(self, pod: PodInfo) -> Iterator[Remedy]:
        """Name the budgets that keep pods from making room."""
        placed = self.handle.snapshot.placed.values()
        rows = {
            self.handle.snapshot.nodes.row_of[node]
            for info, node in placed
            if self.handle.in_eviction_cooldown(info) and node in self.handle.snapshot.nodes.row_of
        }
        evictable = Evictable(Unit(pod.key, (pod,)), self.handle)
        for row in sorted(rows):
            evictable.on_row(row)
        for spared in evictable.spared.values():
            budgets = ", ".join(evictable.budgets_of(spared))
            if budgets:
                text = f"would fit if PodDisruptionBudget {budgets} let {short_key(spared.key)} go"
                yield Remedy(text, None, 1.0)

    def _evictable_by_row(self, unit: Unit, evictable: Evictable) -> dict[int, list[PodInfo]]:
        """Return who may go on each node; for one pod on as many nodes as are looked at."""
        snapshot = self.handle.snapshot
        most = len(snapshot.nodes)
        if unit.gang is None:
            share = most * self.args.min_candidate_nodes_percentage // 100
            most = max(1, share, self.args.min_candidate_nodes_absolute)
        by_row: dict[int, list[PodInfo]] = {}
        hopeless = self.handle.unresolvable(unit.pods[0]) if unit.gang is None else None
        for row, on_node in enumerate(snapshot.nodes.pods):
            if hopeless is not None and hopeless[row]:
                continue
            found = evictable.on_row(row) if on_node else []
            if not found:
                continue
            if unit.gang is None and _until_enough(found, self._missing(unit.pods[0], row)) is None:
                continue
            by_row[row] = found
            if len(by_row) >= most:
                break
        return by_row

    # Candidates --------------------------------------------------------------------------

    def _candidates(
        self, unit: Unit, by_row: Mapping[int, list[PodInfo]], evictable: Evictable
    ) -> list[Placement]:
        """Return the placements in which the unit might fit without its possible victims."""
        if unit.gang is None:
            return self._nodes(unit.pods[0], by_row, evictable)
        snapshot = self.handle.snapshot
        with snapshot.trial():
            for victims in by_row.values():
                for victim in victims:
                    snapshot.remove_pod(victim.key)
            offered = [p for p in self.handle.offers(unit).candidates if not _hopeless(p, unit)]
        if len(offered) <= _MOST_DOMAINS:
            return offered
        priced = []
        for index, placement in enumerate(offered):
            steps = self._steps(unit, placement, by_row, evictable)
            missing = unit.min_placed - self._free(unit, placement)
            needed = [pod for step in steps[: max(0, missing)] for pod in step.victims]
            priced.append((evictable.cost(needed), index, placement))
        priced.sort(key=lambda item: item[:2])
        return [placement for _, _, placement in priced[:_MOST_DOMAINS]]

    def _nodes(
        self, pod: PodInfo, by_row: Mapping[int, list[PodInfo]], evictable: Evictable
    ) -> list[Placement]:
        """Return the nodes where evictions could help one pod, the cheapest first."""
        names = self.handle.snapshot.nodes.names
        priced: list[tuple[Cost, int]] = []
        for row in by_row:
            need = self._missing(pod, row)
            victims = _until_enough(by_row[row], need)
            if victims is not None:
                priced.append((evictable.cost(evictable.closure(victims)), row))
        priced.sort()
        return [Placement(names[row], np.array([row], dtype=np.intp)) for _, row in priced]

    def _missing(self, pod: PodInfo, row: int) -> dict[str, int]:
        """Return what a node lacks for a pod, by resource."""
        table = self.handle.snapshot.nodes
        lacking = {
            name: need - int(table.allocatable(name)[row] - table.used(name)[row])
            for name, need in (*pod.requests.items(), ("pods", 1))
        }
        return {name: amount for name, amount in lacking.items() if amount > 0}

    def _free(self, unit: Unit, placement: Placement) -> int:
        slots = np.minimum(self.handle.free_slots(unit.pods[0]), len(unit.pods))
        return int(slots.sum() if placement.rows is None else slots[placement.rows].sum())

    # One candidate -----------------------------------------------------------------------

    def _solve(
        self,
        unit: Unit,
        placement: Placement,
        by_row: Mapping[int, list[PodInfo]],
        evictable: Evictable,
    ) -> _Solution | None:
        """Return the cheapest victims found that let the unit be placed in a placement."""
        if unit.gang is None:
            assert placement.rows is not None, "one node"
            here = by_row.get(int(placement.rows[0]), [])
            return self._reprieved(unit, placement, here, evictable)
        steps = self._steps(unit, placement, by_row, evictable)
        if not steps or self._place(unit, placement, steps) is None:
            return None
        # The smallest prefix of the cheapest steps that is enough.
        low, high = 0, len(steps)
        while high - low > 1:
            middle = (low + high) // 2
            if self._place(unit, placement, steps[:middle]) is None:
                low = middle
            else:
                high = middle
        removed = [victim for step in steps[:high] for victim in step.victims]
        solution = self._reprieved(unit, placement, removed, evictable)
        assert solution is not None, "it was placed with the same pods gone"
        everybody = [victim for step in steps for victim in step.victims]
        if len(everybody) <= _FEW:
            return self._best_subset(unit, placement, everybody, evictable, solution)
        return self._minimised(unit, placement, evictable, solution)

    def _steps(
        self,
        unit: Unit,
        placement: Placement,
        by_row: Mapping[int, list[PodInfo]],
        evictable: Evictable,
    ) -> list[_Step]:
        """Return what can be taken from the placement's nodes, member by member, cheapest first."""
        pod = max(unit.pods, key=lambda p: sorted(p.requests.values(), reverse=True))
        rows = by_row if placement.rows is None else placement.rows.tolist()
        steps: list[tuple[tuple[object, ...], _Step]] = []
        for order, row in enumerate(rows):
            left = list(by_row.get(row, ()))
            highest: tuple[object, ...] = ()
            slot = 0
            while left:
                slot += 1
                need = self._missing(pod, row) if slot == 1 else dict(pod.requests)
                taken = _until_enough(left, need) or left
                taken = taken or left[:1]
                left = left[len(taken) :]
                cost = evictable.cost(evictable.closure(taken))
                key = (cost.violations, cost.highest, cost.total, cost.pods, order, slot)
                # A later step of the same node never comes before an earlier one.
                highest = max(highest, key)
                steps.append((highest, _Step(row, tuple(taken), cost)))
        steps.sort(key=lambda item: item[0])
        return [step for _, step in steps]

    def _place(
        self, unit: Unit, placement: Placement, steps: Sequence[_Step]
    ) -> Mapping[str, str] | None:
        return self._place_without(unit, placement, [v for step in steps for v in step.victims])

    def _place_without(
        self, unit: Unit, placement: Placement, victims: Sequence[PodInfo]
    ) -> Mapping[str, str] | None:
        """Return the unit's nodes if these pods were gone."""
        snapshot = self.handle.snapshot
        with snapshot.trial():
            for victim in victims:
                snapshot.remove_pod(victim.key)
            return self.handle.place(unit, placement)

    def _reprieved(
        self,
        unit: Unit,
        placement: Placement,
        removed: Sequence[PodInfo],
        evictable: Evictable,
    ) -> _Solution | None:
        """Put back, the most important first, whoever does not stand in the unit's way.

        None where the unit has no place even without all of them.
        """
        snapshot = self.handle.snapshot
        everybody = evictable.closure(removed)
        where = {pod.key: snapshot.placed[pod.key][1] for pod in everybody}
        victims = []
        with snapshot.trial():
            for victim in everybody:
                snapshot.remove_pod(victim.key)
            nodes = self.handle.place(unit, placement)
            if nodes is None:
                return None
            members: dict[str, list[PodInfo]] = {}
            by_key = {pod.key: pod for pod in unit.pods}
            for key, node in nodes.items():
                members.setdefault(node, []).append(by_key[key])
            for victim in reversed(evictable.by_importance(everybody)):
                node = where[victim.key]
                if not self._stays(victim, node, members.get(node, ())):
                    victims.append(victim)
        victims = evictable.closure(victims)
        # What was put back in one place may matter in another, so the whole is tried again.
        found = self._place_without(unit, placement, victims)
        if found is not None:
            nodes = found
        else:
            victims = everybody
        return _Solution(placement, tuple(victims), nodes, evictable.cost(victims))

    def _stays(self, victim: PodInfo, node: str, members: Sequence[PodInfo]) -> bool:
        """Put a pod back on its node unless a member then has no place there any more."""
        snapshot = self.handle.snapshot
        row = snapshot.nodes.row_of[node]
        if not members:
            snapshot.add_pod(victim, node)
            return True
        with snapshot.trial() as trial:
            for member in members:
                snapshot.remove_pod(member.key)
            snapshot.add_pod(victim, node)
            for member in members:
                if self.handle.free_slots(member)[row] < 1:
                    return False
                snapshot.add_pod(member, node)
            trial.keep()
        return True

    def _best_subset(
        self,
        unit: Unit,
        placement: Placement,
        everybody: Sequence[PodInfo],
        evictable: Evictable,
        found: _Solution,
    ) -> _Solution:
        """Try all subsets of few possible victims that cost less than what was found."""
        subsets: dict[frozenset[str], list[PodInfo]] = {}
        for size in range(len(everybody)):
            for chosen in itertools.combinations(everybody, size):
                victims = evictable.closure(chosen)
                subsets.setdefault(frozenset(pod.key for pod in victims), victims)
        priced = [(evictable.cost(victims), victims) for victims in subsets.values()]
        cheaper = [item for item in priced if item[0] < found.cost]
        for cost, victims in sorted(cheaper, key=lambda item: item[0]):
            nodes = self._place_without(unit, placement, victims)
            if nodes is not None:
                return _Solution(placement, tuple(victims), nodes, cost)
        return found

    def _minimised(
        self, unit: Unit, placement: Placement, evictable: Evictable, found: _Solution
    ) -> _Solution:
        """Leave out every victim without whom the unit can be placed just as well."""
        victims = list(found.victims)
        if len(victims) > _MINIMISED:
            return found
        for victim in reversed(evictable.by_importance(found.victims)):
            fewer = [other for other in victims if other is not victim]
            if len(evictable.closure(fewer)) > len(fewer):
                continue
            if self._place_without(unit, placement, fewer) is not None:
                victims = fewer
        nodes = self._place_without(unit, placement, victims)
        if len(victims) == len(found.victims) or nodes is None:
            return found
        return _Solution(placement, tuple(victims), nodes, evictable.cost(victims))

    # Words -------------------------------------------------------------------------------

    def _nobody(self, unit: Unit, decision: Decision) -> str:
        nodes = len(self.handle.snapshot.nodes)
        own = decision.pods.get(unit.pods[0].key)
        hopeless = own.unresolvable if own is not None else 0
        parts = []
        if nodes - hopeless:
            parts.append(f"{nodes - hopeless} No preemption victims found for incoming pod")
        if hopeless:
            parts.append(f"{hopeless} Preemption is not helpful for scheduling")
        return f"0/{nodes} nodes are available: {', '.join(parts)}."

    def _unhelpful(self, unit: Unit, decision: Decision) -> str:
        if unit.gang is None:
            nodes = len(self.handle.snapshot.nodes)
            unhelpful = f"{nodes} Preemption is not helpful for scheduling"
            return f"0/{nodes} nodes are available: {unhelpful}."
        return (
            "no domain would hold the job even without all pods of lower priority that may be "
            "evicted."
        )


def _refused(evictable: Evictable) -> str:
    """Say whose eviction the cluster refused, and which budgets were the reason."""
    pods = list(evictable.spared.values())
    if not pods:
        return ""
    names = ", ".join(pod.key for pod in pods[:_MOST_NAMED])
    if len(pods) > _MOST_NAMED:
        names += f" and {len(pods) - _MOST_NAMED} more"
    budgets = dict.fromkeys(name for pod in pods for name in evictable.budgets_of(pod))
    why = f" by PodDisruptionBudget {', '.join(budgets)}" if budgets else ""
    return f" The eviction of {names} was refused{why}."


def _until_enough(victims: Sequence[PodInfo], need: Mapping[str, int]) -> list[PodInfo] | None:
    """Return the first of the pods that together free what is needed, None if all do not."""
    missing = dict(need)
    taken: list[PodInfo] = []
    for victim in victims:
        if not missing:
            break
        taken.append(victim)
        for name in list(missing):
            freed = 1 if name == "pods" else victim.requests.get(name, 0)
            missing[name] -= freed
            if missing[name] <= 0:
                del missing[name]
    return None if missing else taken


def _contains(outer: Placement, inner: Placement) -> bool:
    """Whether a placement holds all rows of another, and more."""
    if inner.rows is None or outer is inner:
        return False
    return outer.rows is None or (
        len(outer.rows) > len(inner.rows) and bool(np.isin(inner.rows, outer.rows).all())
    )


def _hopeless(placement: Placement, unit: Unit) -> bool:
    return placement.offered is not None and placement.offered < unit.min_placed


def _trial(placement: Placement, solution: _Solution | None) -> PreemptionTrial:
    name = placement.name or "cluster"
    if solution is None:
        return PreemptionTrial(name, refusal="would not hold it even without them")
    keys = [pod.key for pod in solution.victims]
    return PreemptionTrial(name, keys, solution.cost.describe())


def _preemption(solution: _Solution, evictable: Evictable) -> Preemption:
    victims = solution.victims
    names = ", ".join(pod.key for pod in victims[:_MOST_NAMED])
    if len(victims) > _MOST_NAMED:
        names += f" and {len(victims) - _MOST_NAMED} more"
    where = solution.placement.name or "the cluster"
    real = [pod for pod in victims if not evictable.is_free(pod)]
    verb = "evicting" if real else "waiting for the end of"
    text = f"preemption: {verb} {len(victims)} pod{'s'[: len(victims) != 1]} ({names}) "
    return Preemption(
        victims,
        solution.nodes,
        f"{text}makes room in {where}.",
        solution.placement.name,
        frozenset(pod.key for pod in real if evictable.budgets_of(pod)),
    )
