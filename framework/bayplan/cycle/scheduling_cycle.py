"""One scheduling cycle: find nodes for a whole unit, or leave everything as it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from bayplan.cycle.attempt import WORK, Attempt, SearchBudget, lacking, node_count
from bayplan.cycle.decision_tables import DecisionTables
from bayplan.cycle.evaluator import Evaluator
from bayplan.cycle.placer import EVERYWHERE, Placer, as_plan
from bayplan.cycle.reservations import PluginFailed, Reserved, Unreserve
from bayplan.errors import PluginError
from bayplan.gangs.completeness import has_minimum
from bayplan.plugin.base import (
    LATER,
    SUPPOSED,
    CycleState,
    DomainState,
    DomainTrial,
    Placement,
    Placements,
    Preemption,
    Supposed,
    Unit,
    Wait,
)
from bayplan.plugin.decision import Decision, Outcome
from bayplan.profiles.runtime import Runtime
from bayplan.snapshot import NodeRow, PodInfo, Snapshot

__all__ = ["Cycle", "Reserved", "Result", "Waits"]

_MOST_RECORDED = 8
"""Domains that are recorded which would have come next."""

Waits = Mapping[str, Mapping[str, float]]
"""For each plugin that asked to wait at Permit, how long for each pod, by key (seconds)."""


class Result(msgspec.Struct):
    """A cycle's decision and, where it placed the unit, what it holds in the snapshot.

    ``waits`` says which plugins hold a WAITING unit back, and for how long. ``preemption`` is what
    a plugin wants to evict for a unit that does not fit. ``partial`` gives, for a gang that is not
    strict and did not fit, the node of each member that found one, by pod key. ``error`` is what
    a plugin raised, None for an ERROR that is a filter's answer. ``later`` says that a plugin had
    to read more before it can preempt, so that nothing is decided.
    """

    decision: Decision
    reserved: list[Reserved] = msgspec.field(default_factory=list)
    waits: Waits = msgspec.field(default_factory=dict)
    preemption: Preemption | None = None
    partial: Mapping[str, str] = msgspec.field(default_factory=dict)
    error: PluginError | None = None
    later: bool = False


class Cycle:
    """Runs cycles of one profile on one snapshot.

    :param failed: called when a plugin raises in ``unreserve``, where the cycle has to go on.
    :param tables: decides which pods get a table of what plugins said; None for none.
    """

    def __init__(
        self,
        runtime: Runtime,
        evaluator: Evaluator,
        snapshot: Snapshot,
        failed: PluginFailed,
        tables: DecisionTables | None = None,
    ) -> None:
        self._runtime = runtime
        self._evaluator = evaluator
        self._snapshot = snapshot
        self.unreserve = Unreserve(runtime, snapshot, failed)
        self._placer = Placer(runtime, evaluator, snapshot, self.unreserve, tables)
        self._score_placements = bool(runtime["placement_score"])
        self._queueing = runtime.queueing_plugins

    def run(self, unit: Unit, number: int, now: float, preempt: bool = True) -> Result:
        """Try to place a unit; a plugin that raises makes the outcome ERROR, never an exception.

        :param number: the cycle's number, for the decision.
        :param now: the time in seconds.
        :param preempt: whether plugins may preempt pods for a unit that does not fit.
        """
        decision = Decision(unit.key, number, now)
        state = CycleState()
        try:
            return self._place(unit, decision, state, preempt)
        except PluginError as exc:
            decision.outcome = Outcome.ERROR
            decision.message = str(exc)
            decision.refused_by = {exc.plugin}
            return Result(decision, error=exc)

    def _place(self, unit: Unit, decision: Decision, state: CycleState, preempt: bool) -> Result:
        if len(unit.pods) < unit.min_placed:
            needed = unit.min_placed + unit.counted
            have = len(unit.pods) + unit.counted
            decision.message = f'gang "{unit.key}" has {have} of the {needed} members it needs'
            decision.of_members = True
            return Result(decision)
        offered = self._placements(unit, state)
        if not offered.candidates:
            decision.domains = tuple(offered.refused)
            decision.message = offered.reason
            decision.of_queue, decision.more_nodes = offered.of_queue, offered.more_nodes
            if offered.of_queue:
                # No node refuses it.
                decision.refused_by |= self._queueing
            else:
                self._explain_members(unit, decision)
            # No eviction helps a unit for which there is no domain at all.
            return self._refused(unit, decision, state, preempt and bool(offered.refused))
        best, tried = self._try_all(unit, offered.candidates, state)
        if unit.gang is not None:
            decision.domains = (*tried, *offered.refused)
        decision.pods = best.pods
        if best.reserved:
            self._accept(unit, best, decision)
            return Result(decision, best.reserved, best.waits)
        part: dict[str, str] = {}
        if unit.gang is not None and not unit.gang.strict:
            part = {key: own.node for key, own in best.pods.items() if own.node is not None}
        self._refuse(unit, best, decision)
        # No eviction helps a unit that a plugin refused at Permit.
        result = self._refused(unit, decision, state, preempt and best.refusal is None)
        result.partial = part
        return result

    def _placements(self, unit: Unit, state: CycleState) -> Placements:
        """Return the placements to try, the unit's nominated nodes first."""
        refused = self.queue_refusal(unit) if unit.gang is None else None
        if refused is not None:
            return refused
        offered = self._placer.offers(unit, EVERYWHERE, state)
        if offered.of_queue:
            return offered
        rows = self._snapshot.nodes.row_of
        held = {key: rows[node] for key, node in unit.nominated.items() if node in rows}
        if len(held) >= unit.min_placed and held.keys() == unit.nominated.keys():
            promised = as_plan(held, unit.nominated_domain)
            return Placements((promised, *offered.candidates), offered.refused, offered.reason)
        return offered

    def _try_all(
        self, unit: Unit, offered: Sequence[Placement], state: CycleState
    ) -> tuple[Attempt, list[DomainTrial]]:
        """Try the placements in order; leave the chosen attempt in the snapshot."""
        tried: list[DomainTrial] = []
        budget = SearchBudget()
        best: Attempt | None = None
        closest: Attempt | None = None
        for index, placement in enumerate(offered):
            attempt = Attempt(placement, budget)
            self._try(unit, attempt, state, keep=not self._score_placements)
            if unit.gang is not None and (not placement.exact or attempt.reserved):
                tried.append(self._trial_record(unit, attempt))
            if attempt.reserved:
                if not self._score_placements:
                    others = (
                        offered[place]
                        for place in range(index + 1, min(len(offered), index + 1 + _MOST_RECORDED))
                    )
                    tried += [
                        self._untried(place, unit, DomainState.NOT_USED)
                        for place in others
                        if not placement.exact or place.name != placement.name
                    ]
                    return attempt, tried
                if best is None or attempt.score > best.score:
                    best = attempt
            elif not placement.exact and (closest is None or _placed(attempt) > _placed(closest)):
                closest = attempt
            if budget.placed > WORK:
                tried += [
                    self._untried(place, unit, DomainState.NOT_TRIED)
                    for place in offered[index + 1 :]
                ]
                break
        if best is not None:
            chosen = Attempt(best.placement, budget)
            self._try(unit, chosen, state, keep=True)
            return chosen, tried
        return closest or Attempt(EVERYWHERE, budget), tried

    def _try(self, unit: Unit, attempt: Attempt, state: CycleState, keep: bool) -> None:
        """Place a unit in the attempt's placement; what is not kept is undone."""
        restore = state.checkpoint()
        done = False
        try:
            with self._snapshot.trial() as trial:
                fits = self._find_way(unit, attempt, state)
                if fits and self._score_placements:
                    for call in self._runtime["placement_score"]:
                        attempt.score += call.weight * call(unit, attempt.placement, state)
                done = fits and keep
                if done:
                    trial.keep()
                else:
                    self.unreserve(attempt.reserved)
                    if not fits:
                        attempt.reserved = []
        except PluginError:
            self.unreserve(attempt.reserved)
            raise
        finally:
            if not done:
                restore()
        if not attempt.reserved and attempt.closest is not None:
            _, attempt.pods, attempt.failed = attempt.closest

    def _find_way(self, unit: Unit, attempt: Attempt, state: CycleState) -> bool:
        for _ in self._placer.ways(unit, attempt.placement, attempt, state):
            attempt.lack = lacking(unit, attempt.reserved)
            if attempt.reserved and attempt.lack is None:
                return self._permit(unit, attempt)
        return False

    def _permit(self, unit: Unit, attempt: Attempt) -> bool:
        if not self._runtime["permit"]:
            return True
        waits = attempt.waits = {}
        for reserved in attempt.reserved:
            node = self._row(reserved.node)
            for call in self._runtime.of(reserved.pod)["permit"]:
                if call.name in attempt.without:
                    continue
                answer = call.call(reserved.pod, node, unit, reserved.state)
                if isinstance(answer, Wait):
                    waits.setdefault(call.name, {})[reserved.pod.key] = answer.seconds
                elif answer is not None:
                    attempt.refusal = (call.name, answer)
                    return False
        return True

    def _trial_record(self, unit: Unit, attempt: Attempt) -> DomainTrial:
        placement = attempt.placement
        nodes = node_count(placement, self._snapshot)
        name = placement.name or ("its nominated nodes" if placement.exact else "cluster")
        trial = DomainTrial(name, nodes, placement.offered, unit.min_placed)
        if attempt.reserved:
            return dataclasses.replace(trial, state=DomainState.CHOSEN)
        refusal = attempt.refusal[1] if attempt.refusal else ""
        if attempt.failed:
            refusal = f"{attempt.failed[-1].pod}: {attempt.failed[-1].message}"
        return dataclasses.replace(trial, refusal=refusal)

    def _untried(self, placement: Placement, unit: Unit, state: DomainState) -> DomainTrial:
        nodes = node_count(placement, self._snapshot)
        why = ""
        if state is DomainState.NOT_TRIED:
            why = f"the search ended after {WORK} tentative placements"
        needed = unit.min_placed
        return DomainTrial(placement.name, nodes, placement.offered, needed, why, state=state)

    def _accept(self, unit: Unit, attempt: Attempt, decision: Decision) -> None:
        decision.outcome = Outcome.WAITING if attempt.waits else Outcome.PLACED
        decision.domain = attempt.placement.name or None
        decision.parts = tuple(attempt.domains)
        for failed in attempt.failed:
            decision.refused_by |= failed.refused_by
            failed.message = (
                f'{failed.message} The gang "{unit.key}" runs without this member, which is '
                f"beyond the {unit.min_placed + len(unit.bound)} it needs."
            )

    def _refuse(self, unit: Unit, attempt: Attempt, decision: Decision) -> None:
        message = ""
        if attempt.failed:
            worst = attempt.failed[-1]
            decision.refused_by |= worst.refused_by | self._offering(unit)
            message = worst.message
        if attempt.refusal is not None:
            decision.refused_by.add(attempt.refusal[0])
            decision.at_permit = True
            decision.of_queue = attempt.refusal[0] in self._queueing
            message = attempt.refusal[1]
        if unit.gang is not None and attempt.failed:
            message = f"{message} {_shortfall(unit, attempt)}"
            if any(trial.state is DomainState.NOT_TRIED for trial in decision.domains):
                message += f" The search ended after {WORK} tentative placements."
            for pod_decision in attempt.pods.values():
                pod_decision.node = None
        elif attempt.lack is not None and not message:
            message = f'gang "{unit.key}": {attempt.lack}.'
            decision.refused_by |= {call.name for call in self._runtime["placement_generate"]}
        decision.message = message

    def _offering(self, unit: Unit) -> set[str]:
        """Return the plugins that may offer single pods other placements after an event."""
        calls = self._runtime.of(unit.pods[0])["placement_generate"]
        return {call.name for call in calls if call.plugin.places_single_pods}

    def _explain_members(self, unit: Unit, decision: Decision) -> None:
        """Record why nodes refuse each member of a unit that no domain can hold."""
        names = self._snapshot.nodes.names
        for pod in unit.pods:
            found = self._evaluator.evaluate(pod).describe(names, finalists=False)
            decision.pods[pod.key] = found
            decision.refused_by |= found.refused_by
        decision.refused_by |= {call.name for call in self._runtime["placement_generate"]}

    def make_room(
        self, unit: Unit, before: Decision, number: int, now: float, action: str
    ) -> Result:
        """Let plugins preempt pods for a unit that did not fit, in one of their ways.

        :param before: the decision that refused it, or an empty one for a unit that was not tried
            because it is no easier to place than one that was refused.
        :param number: the cycle's number, for the decision.
        :param now: the time in seconds.
        :param action: one of the plugins' ``actions``.
        """
        decision = replace(before, cycle=number, at=now, refused_by=set(before.refused_by))
        try:
            return self._refused(unit, decision, CycleState(), preempt=True, action=action)
        except PluginError as exc:
            decision.outcome = Outcome.ERROR
            decision.message = str(exc)
            decision.refused_by = {exc.plugin}
            return Result(decision, error=exc)

    def _refused(
        self, unit: Unit, decision: Decision, state: CycleState, preempt: bool, action: str = ""
    ) -> Result:
        """Let plugins preempt pods for a unit that does not fit, unless a filter failed."""
        result = Result(decision)
        if any(own.error for own in decision.pods.values()):
            decision.outcome = Outcome.ERROR
            return result
        # Without any node there is no pod to evict.
        preempt = preempt and bool(len(self._snapshot.nodes))
        answers: list[str] = []
        for call in self._runtime["post_filter"] if preempt else ():
            actions = call.plugin.actions
            if action not in actions if actions else action:
                continue
            answer = call(unit, decision, state, action)
            if answer is LATER:
                result.later = True
                return result
            if isinstance(answer, Preemption):
                result.preemption = answer
                answers = [answer.message]
                break
            if answer and answer not in decision.message:
                answers.append(answer)
        decision.message = f"{decision.message} {', '.join(answers)}".strip()
        return result

    # For plugins -------------------------------------------------------------------------

    def offers(
        self, unit: Unit, in_queue: bool = True, supposed: Supposed | None = None
    ) -> Placements:
        """Return the parts of the cluster that may hold a unit now.

        :param in_queue: whether its queue may refuse it.
        :param supposed: what is free instead, by supposition.
        :raises PluginError: when a plugin fails in ``placement_generate``.
        """
        state = CycleState()
        if supposed is not None:
            state[SUPPOSED] = supposed
        return self._placer.offers(unit, EVERYWHERE, state, in_queue)

    def queue_refusal(self, unit: Unit) -> Placements | None:
        """Return why the unit's queue does not take it now; None if it does.

        :raises PluginError: when a plugin fails in ``placement_generate``.
        """
        view = self._snapshot.view()
        for call in self._runtime["placement_generate"] if self._queueing else ():
            if call.name in self._queueing:
                answer: Placements | None = call.call(unit, view, EVERYWHERE, CycleState())
                if answer is not None and answer.of_queue:
                    return answer
        return None

    def place_here(
        self, unit: Unit, placement: Placement, in_queue: bool = True
    ) -> dict[str, str] | None:
        """Place a unit within the running trial; return each pod's node, or None.

        :param in_queue: whether its queue may refuse it.
        :raises PluginError: when a plugin raises.
        """
        without = frozenset() if in_queue else self._queueing
        attempt = Attempt(placement, SearchBudget(), without=without)
        if not self._find_way(unit, attempt, CycleState()):
            self.unreserve(attempt.reserved)
            return None
        reserved = list(attempt.reserved)
        self._snapshot.on_rollback(partial(self.unreserve, reserved))
        return {one.pod.key: one.node for one in reserved}

    def _row(self, name: str) -> NodeRow:
        return NodeRow(self._snapshot.nodes, self._snapshot.nodes.row_of[name])

    # Planning ----------------------------------------------------------------------------

    def free_slots(self, pod: PodInfo) -> npt.NDArray[np.int64]:
        """Return, per row, an upper bound of how many such pods fit; 0 where it is refused.

        :raises PluginError: when a plugin fails in Filter, Score or ``slots``.
        """
        return self._placer.free_slots(pod)


def _shortfall(unit: Unit, attempt: Attempt) -> str:
    """Say how many members of a gang found a node, and which one did not."""
    fit, last = _placed(attempt), attempt.failed[-1].pod
    have, need = fit + unit.counted, unit.min_placed + unit.counted
    if unit.satisfied and unit.gang is not None and has_minimum(unit.gang, have):
        return f'Gang "{unit.key}" runs with {have} members; {last} is beyond those it needs.'
    if have >= need:
        return (
            f'Gang "{unit.key}": {have} of its members found a node, but {last} belongs to a '
            "sub-group that it needs and has none."
        )
    return f'Gang "{unit.key}": {have} of the {need} members it needs have a node; {last} has none.'


def _placed(attempt: Attempt) -> int:
    return sum(1 for decision in attempt.pods.values() if decision.node is not None)
