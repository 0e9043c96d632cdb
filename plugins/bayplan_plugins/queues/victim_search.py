"""The search for victims whose eviction lets a unit really be placed.

Reclaim, preemption and consolidation differ in who may go and in what order, which an
:class:`~bayplan_plugins.queues.policy.EvictionCandidates` says. The search is one: victims are
taken off the snapshot in a trial until the unit is placed there, by all plugins of the profile, in
its network domain, with its devices; then those that are not in its way stay, so that nobody is
evicted without need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from bayplan import Handle, Placement, PodInfo, Unit
from bayplan_plugins.queues.leaving import LeavingPods, free_now, give_back, leaving_pods
from bayplan_plugins.queues.policy import EvictionCandidates, EvictionPlan, Moves, Step
from bayplan_plugins.shared.moving import placed_again
from bayplan_plugins.shared.victims import Evictable

__all__ = ["VictimSearch"]

_EVERYWHERE = Placement("", None)
_REPRIEVED_ONE_BY_ONE = 16
"""Up to this many steps, each is tried once more to be reprieved."""
_MOST_PLACEMENTS = 200
"""Tentative placements of the unit in one search."""


class VictimSearch:
    """The search for one unit."""

    def __init__(self, handle: Handle, unit: Unit, plan: EvictionCandidates) -> None:
        self._handle = handle
        self._unit = unit
        self._plan = plan
        self._evictable = Evictable.by(unit, handle)
        self._placements = 0
        self._leaving = LeavingPods(handle, (), {})

    def run(self) -> EvictionPlan | None:
        """Return the first eviction plan found in the candidates's order, None for none.

        Pods that are leaving count as gone; those on the unit's nodes are the first step of the
        room, for which it waits.
        """
        leaving = leaving_pods(self._handle)
        gone = [pod for pod, _ in leaving]
        if leaving:
            table = self._handle.snapshot.nodes
            later = free_now(table)
            give_back(later, table.row_of, leaving)
            self._leaving = LeavingPods(self._handle, leaving, later)
            if self._plan.moves is Moves.NONE and not self._plan.leaving_count:
                gone = self._leaving.helping(self._unit.pods)
        with self._handle.snapshot.trial():
            self._take_off(gone)
            plan = self._found()
        if plan is None:
            return None
        used = set(plan.nodes.values())
        waited_for = [pod for pod, node in leaving if node in used]
        return replace(plan, steps=(waited_for, *plan.steps)) if waited_for else plan

    def _found(self) -> EvictionPlan | None:
        taken = self._first_enough()
        if taken is None:
            return None
        for steps in (self._reprieved(taken), taken):
            plan = self._plan_of(steps)
            if plan is not None:
                return plan
        return None

    def _first_enough(self) -> list[Step] | None:
        """Return the shortest prefix of the plan's steps without which the unit is placed."""
        snapshot = self._handle.snapshot
        taken: list[Step] = []
        if self._may_fit() and self._place() is not None:
            # What it needs has become free since it was refused.
            return taken
        with snapshot.trial():
            for step in self._plan.steps():
                if not self._may_go(step, taken):
                    continue
                self._remove(step)
                taken.append(step)
                if self._may_fit() and self._place() is not None:
                    return taken
                if self._placements >= _MOST_PLACEMENTS:
                    break
        return None

    def _may_go(self, step: Step, taken: Sequence[Step]) -> bool:
        """Whether no budget and no refused eviction keeps these pods."""
        if any(self._handle.in_eviction_cooldown(pod) for pod in step):
            return False
        return not self._evictable.violations(pod for one in (*taken, step) for pod in one)

    def _may_fit(self) -> bool:
        """Whether enough members would find a slot if no other one took it."""
        kinds: dict[object, list[PodInfo]] = {}
        for pod in self._unit.pods:
            kinds.setdefault((pod.facts, pod.labels_id), []).append(pod)
        most = 0
        for pods in kinds.values():
            slots = self._handle.free_slots(pods[0])
            most += min(len(pods), int(slots.clip(max=len(pods)).sum()))
        return most >= self._unit.min_placed

    def _place(self, placement: Placement = _EVERYWHERE) -> Mapping[str, str] | None:
        """Return the unit's nodes in the running trial; the unit is not left there."""
        self._placements += 1
        snapshot = self._handle.snapshot
        for candidate in self._handle.offers(self._unit).candidates:
            with snapshot.trial():
                nodes = self._handle.place(self._unit, candidate)
            if nodes is not None:
                return nodes
        return None

    def _remove(self, step: Step) -> None:
        """Take victims off their nodes, and with them the pods that are leaving these nodes."""
        placed = self._handle.snapshot.placed
        nodes = [placed[pod.key][1] for pod in step if pod.key in placed]
        self._take_off((*step, *self._leaving.on(nodes)))

    def _take_off(self, pods: Iterable[PodInfo]) -> None:
        for pod in pods:
            self._handle.snapshot.remove_pod(pod.key)

    # Reprieve ------------------------------------------------------------------------------

    def _reprieved(self, taken: Sequence[Step]) -> list[Step]:
        """Leave out the steps, the last first, without which the unit is placed as well."""
        needed = self._on_its_nodes(taken)
        if len(needed) > _REPRIEVED_ONE_BY_ONE:
            return needed
        for step in reversed(list(needed)):
            fewer = [other for other in needed if other is not step]
            if self._fits_without(fewer):
                needed = fewer
        return needed

    def _on_its_nodes(self, taken: Sequence[Step]) -> list[Step]:
        """Leave out all steps on nodes that the unit does not use, if it is placed nonetheless."""
        where = self._handle.snapshot.placed
        nodes = {pod.key: where[pod.key][1] for step in taken for pod in step}
        with self._handle.snapshot.trial():
            for step in taken:
                self._remove(step)
            chosen = self._place()
        used = set((chosen or {}).values())
        here = [step for step in taken if any(nodes[pod.key] in used for pod in step)]
        if len(here) == len(taken) or not self._fits_without(here):
            return list(taken)
        return here

    def _fits_without(self, steps: Iterable[Step]) -> bool:
        with self._handle.snapshot.trial():
            for step in steps:
                self._remove(step)
            return self._may_fit() and self._place() is not None

    # The answer --------------------------------------------------------------------------

    def _plan_of(self, steps: Sequence[Step]) -> EvictionPlan | None:
        """Place the unit without these steps, then those again that may move; None if refused."""
        snapshot, handle = self._handle.snapshot, self._handle
        where = {pod.key: snapshot.placed[pod.key][1] for step in steps for pod in step}
        with snapshot.trial():
            for step in steps:
                self._remove(step)
            nodes = None
            for candidate in handle.offers(self._unit).candidates:
                nodes = handle.place(self._unit, candidate)
                if nodes is not None:
                    break
            if nodes is None:
                return None
            moves = self._moved(steps)
            stays = {key for key, node in moves.items() if where[key] == node}
            gone = [[pod for pod in step if pod.key not in stays] for step in steps]
            left = tuple(step for step in gone if step)
            if self._plan.moves is Moves.REQUIRED and len(moves) < len(where):
                return None
            lost = [[pod for pod in step if pod.key not in moves] for step in steps]
            if not self._plan.accepts([step for step in lost if step]):
                return None
        return EvictionPlan(left, nodes, {k: node for k, node in moves.items() if k not in stays})

    def _moved(self, steps: Sequence[Step]) -> dict[str, str]:
        """Place the victims again, job by job, the last victim first; return their nodes."""
        if self._plan.moves is Moves.NONE:
            return {}
        return placed_again(self._handle, (pod for step in reversed(steps) for pod in step))
