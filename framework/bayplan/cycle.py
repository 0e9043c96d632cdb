"""One scheduling cycle: find nodes for a whole unit, or leave everything as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan.decision import Decision, Outcome, PodDecision
from bayplan.errors import PluginError
from bayplan.evaluation import Evaluation
from bayplan.evaluator import Evaluator
from bayplan.plugin import CycleState, DomainTrial, Placement, Placements, Unit, Wait
from bayplan.runtime import Runtime, guard
from bayplan.snapshot import NodeRow, PodInfo, Snapshot

__all__ = ["NOT_NEEDED", "Cycle", "Reserved", "Result"]

_EVERYWHERE = Placement("", None)
_NO_PREFERENCE = Placements((_EVERYWHERE,))
NOT_NEEDED = "not needed"
_UNBOUNDED = np.iinfo(np.int64).max


class Reserved(msgspec.Struct, frozen=True, eq=False):
    """A pod with the node it was given, held in the snapshot."""

    pod: PodInfo
    node: str
    state: CycleState


@dataclass(slots=True)
class Result:
    """A cycle's decision and, where it placed the unit, what it holds in the snapshot.

    ``wait`` is for how many seconds at most a WAITING unit may hold its place.
    """

    decision: Decision
    reserved: list[Reserved] = field(default_factory=list)
    wait: float = 0.0


@dataclass(slots=True)
class _Attempt:
    """The unit in one placement: who has a node, who has none."""

    placement: Placement
    reserved: list[Reserved] = field(default_factory=list)
    pods: dict[str, PodDecision] = field(default_factory=dict)
    failed: list[PodDecision] = field(default_factory=list)
    wait: float = 0.0
    refusal: tuple[str, str] | None = None
    score: float = 0.0


class Cycle:
    """Runs cycles of one profile on one snapshot."""

    def __init__(self, runtime: Runtime, evaluator: Evaluator, snapshot: Snapshot) -> None:
        self._runtime = runtime
        self._evaluator = evaluator
        self._snapshot = snapshot
        self._score_placements = bool(runtime["placement_score"])
        self.on_plugin_error: Callable[[PodInfo, PluginError], None] = lambda pod, error: None
        """Told of plugins that raise where a cycle has to go on."""
        self.recorded: frozenset[str] = frozenset()
        """Pods, by key, whose finalists are recorded."""

    def run(self, unit: Unit, number: int, now: float) -> Result:
        """Try to place a unit; a plugin that raises makes the outcome ERROR, never an exception."""
        decision = Decision(unit.key, number, now)
        state = CycleState()
        try:
            return self._place(unit, decision, state)
        except PluginError as exc:
            decision.outcome = Outcome.ERROR
            decision.message = str(exc)
            decision.refused_by = {exc.plugin}
            return Result(decision)

    def _place(self, unit: Unit, decision: Decision, state: CycleState) -> Result:
        if len(unit.pods) < unit.min_placed:
            needed = unit.min_placed + len(unit.bound)
            have = len(unit.pods) + len(unit.bound)
            decision.message = f'gang "{unit.key}" has {have} of the {needed} members it needs'
            return Result(decision)
        offered = self._placements(unit, state)
        if not offered.candidates:
            decision.domains = tuple(offered.refused)
            decision.message = offered.reason
            self._explain_members(unit, decision)
            self._post_filter(unit, decision, state)
            return Result(decision)
        best, tried = self._try_all(unit, offered.candidates, state)
        if unit.gang is not None:
            decision.domains = (*tried, *offered.refused)
        decision.pods = best.pods
        if best.reserved:
            self._accept(unit, best, decision)
            return Result(decision, best.reserved, best.wait)
        self._refuse(unit, best, decision)
        self._post_filter(unit, decision, state)
        return Result(decision)

    def _placements(self, unit: Unit, state: CycleState) -> Placements:
        if unit.gang is not None:
            view = self._snapshot.view()
            for call in self._runtime["placement_generate"]:
                answer: Placements | None = call(unit, view, state)
                if answer is not None:
                    guard(call, _check_rows, answer, len(view))
                    return answer
        return _NO_PREFERENCE

    def _try_all(
        self, unit: Unit, offered: Sequence[Placement], state: CycleState
    ) -> tuple[_Attempt, list[DomainTrial]]:
        """Try the placements in order; leave the chosen attempt in the snapshot."""
        tried: list[DomainTrial] = []
        best: _Attempt | None = None
        closest: _Attempt | None = None
        for index, placement in enumerate(offered):
            attempt = self._attempt(unit, placement, state, keep=not self._score_placements)
            if unit.gang is not None:
                tried.append(self._trial_record(unit, attempt))
            if attempt.reserved:
                if not self._score_placements:
                    spared = offered[index + 1 :]
                    tried += [_not_needed(place, unit, self._snapshot) for place in spared]
                    return attempt, tried
                if best is None or attempt.score > best.score:
                    best = attempt
            elif closest is None or len(attempt.failed) < len(closest.failed):
                closest = attempt
        if best is not None:
            return self._attempt(unit, best.placement, state, keep=True), tried
        return closest or _Attempt(_EVERYWHERE), tried

    def _attempt(self, unit: Unit, placement: Placement, state: CycleState, keep: bool) -> _Attempt:
        attempt = _Attempt(placement)
        restore = state.checkpoint()
        done = False
        try:
            with self._snapshot.trial() as trial:
                fits = self._reserve_members(unit, attempt) and self._permit(unit, attempt)
                if fits and self._score_placements:
                    for call in self._runtime["placement_score"]:
                        attempt.score += call.weight * call(unit, placement, state)
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
        return attempt

    def _reserve_members(self, unit: Unit, attempt: _Attempt) -> bool:
        spare = len(unit.pods) - unit.min_placed
        plan = _Plan(attempt.placement)
        for pod in unit.pods:
            evaluation = self._evaluator.evaluate(pod)
            row = plan.choose(evaluation)
            if row is None or not self._reserve(pod, row, evaluation, attempt):
                decision = evaluation.describe(self._snapshot.nodes.names, finalists=False)
                if attempt.refusal is not None:
                    decision.message = attempt.refusal[1]
                attempt.pods[pod.key] = decision
                attempt.failed.append(decision)
                if len(attempt.failed) > spare:
                    return False
        return True

    def _reserve(self, pod: PodInfo, row: int, found: Evaluation, attempt: _Attempt) -> bool:
        snapshot = self._snapshot
        name = snapshot.nodes.names[row]
        names = snapshot.nodes.names
        if pod.key in self.recorded:
            decision = found.describe(names, finalists=True)
        else:
            decision = PodDecision(pod.key, len(names), int(np.count_nonzero(found.feasible)))
        decision.total = float(found.total[row])
        state = CycleState(found.state)
        snapshot.add_pod(pod, name)
        reserved = Reserved(pod, name, state)
        node = NodeRow(snapshot.nodes, row)
        for call in self._runtime["reserve"]:
            refusal = call(pod, node, state)
            if refusal is not None:
                attempt.refusal = (call.name, refusal)
                self._unreserve_pod(reserved)
                snapshot.remove_pod(pod.key)
                return False
        decision.node = name
        attempt.pods[pod.key] = decision
        attempt.reserved.append(reserved)
        return True

    def _permit(self, unit: Unit, attempt: _Attempt) -> bool:
        calls = self._runtime["permit"]
        if not calls:
            return True
        for reserved in attempt.reserved:
            node = self._row(reserved.node)
            for call in calls:
                answer = call(reserved.pod, node, unit, reserved.state)
                if isinstance(answer, Wait):
                    attempt.wait = max(attempt.wait, answer.seconds)
                elif answer is not None:
                    attempt.refusal = (call.name, answer)
                    return False
        return True

    def _trial_record(self, unit: Unit, attempt: _Attempt) -> DomainTrial:
        placement = attempt.placement
        nodes = _size(placement, self._snapshot)
        refusal = None
        if not attempt.reserved:
            refusal = attempt.refusal[1] if attempt.refusal else ""
            if attempt.failed:
                refusal = f"{attempt.failed[-1].pod}: {attempt.failed[-1].message}"
        return DomainTrial(placement.name, nodes, placement.offered, unit.min_placed, refusal)

    def _accept(self, unit: Unit, attempt: _Attempt, decision: Decision) -> None:
        decision.outcome = Outcome.WAITING if attempt.wait else Outcome.PLACED
        decision.domain = attempt.placement.name or None
        for failed in attempt.failed:
            decision.refused_by |= failed.refused_by
            failed.message = (
                f'{failed.message} The gang "{unit.key}" runs without this member, which is '
                f"beyond the {unit.min_placed + len(unit.bound)} it needs."
            )

    def _refuse(self, unit: Unit, attempt: _Attempt, decision: Decision) -> None:
        message = ""
        if attempt.failed:
            worst = attempt.failed[-1]
            decision.refused_by |= worst.refused_by
            message = worst.message
        if attempt.refusal is not None:
            decision.refused_by.add(attempt.refusal[0])
            message = attempt.refusal[1]
        if unit.gang is not None and attempt.failed:
            fit = sum(1 for d in attempt.pods.values() if d.node is not None)
            message = (
                f'{message} Gang "{unit.key}": {fit + len(unit.bound)} of the '
                f"{unit.min_placed + len(unit.bound)} members it needs have a node; "
                f"{attempt.failed[-1].pod} has none."
            )
            for pod_decision in attempt.pods.values():
                pod_decision.node = None
        decision.message = message

    def _explain_members(self, unit: Unit, decision: Decision) -> None:
        """Record, for a unit that no domain can hold, what each kind of member meets now."""
        names = self._snapshot.nodes.names
        for pod in unit.pods:
            found = self._evaluator.evaluate(pod).describe(names, finalists=False)
            decision.pods[pod.key] = found
            decision.refused_by |= found.refused_by
        decision.refused_by |= {call.name for call in self._runtime["placement_generate"]}

    def _post_filter(self, unit: Unit, decision: Decision, state: CycleState) -> None:
        for call in self._runtime["post_filter"]:
            message = call(unit, decision, state)
            if message:
                decision.message = f"{decision.message} {message}"

    # Giving back -------------------------------------------------------------------------

    def unreserve(self, reserved: Iterable[Reserved]) -> None:
        """Run the unreserve hooks of all plugins, last pod and last plugin first."""
        if self._runtime["unreserve"]:
            for one in reversed(list(reserved)):
                self._unreserve_pod(one)

    def _unreserve_pod(self, reserved: Reserved) -> None:
        row = self._snapshot.nodes.row_of.get(reserved.node)
        if row is None:
            return
        node = NodeRow(self._snapshot.nodes, row)
        for call in reversed(self._runtime["unreserve"]):
            try:
                call(reserved.pod, node, reserved.state)
            except PluginError as exc:
                # The others still have to give back what they took.
                self.on_plugin_error(reserved.pod, exc)

    def _row(self, name: str) -> NodeRow:
        return NodeRow(self._snapshot.nodes, self._snapshot.nodes.row_of[name])

    # Planning ----------------------------------------------------------------------------

    def free_slots(self, pod: PodInfo) -> npt.NDArray[np.int64]:
        """Return, per row, how many pods like this one fit at most; 0 where it is refused."""
        evaluation = self._evaluator.evaluate(pod)
        view = self._snapshot.view()
        bound = np.where(evaluation.feasible, _UNBOUNDED, 0).astype(np.int64)
        for call in self._runtime["slots"]:
            if call.name not in evaluation.skipped["pre_filter"]:
                limit = call(pod, view, evaluation.state)
                bound = guard(call, _lower, bound, limit)
        return np.maximum(bound, 0)


def _check_rows(placements: Placements, nodes: int) -> None:
    for placement in placements.candidates:
        rows = placement.rows
        if rows is not None and len(rows) and not (rows.min() >= 0 and rows.max() < nodes):
            raise ValueError(f'placement "{placement.name}" has rows outside of the {nodes} nodes')
        if placement.slots is not None and (rows is None or len(rows) != len(placement.slots)):
            raise ValueError(f'placement "{placement.name}" needs as many slots as rows')


def _lower(bound: npt.NDArray[np.int64], limit: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    lowered: npt.NDArray[np.int64] = np.minimum(bound, limit)
    if lowered.shape != bound.shape:
        raise ValueError(f"expected {len(bound)} numbers, got shape {np.shape(limit)}")
    return lowered


def _size(placement: Placement, snapshot: Snapshot) -> int:
    return len(snapshot.nodes) if placement.rows is None else len(placement.rows)


def _not_needed(placement: Placement, unit: Unit, snapshot: Snapshot) -> DomainTrial:
    size = _size(placement, snapshot)
    return DomainTrial(placement.name, size, placement.offered, unit.min_placed, NOT_NEEDED)


class _Plan:
    """Walks a placement's rows: planned slots first, in order, then the best of the rows."""

    def __init__(self, placement: Placement) -> None:
        self._rows = placement.rows
        self._left = list(placement.slots) if placement.slots is not None else []
        self._at = 0

    def choose(self, found: Evaluation) -> int | None:
        """Return the row for the next member, None when the placement has none for it."""
        if self._rows is not None:
            while self._at < len(self._left) and self._left[self._at] <= 0:
                self._at += 1
            for place in range(self._at, len(self._left)):
                row = int(self._rows[place])
                if self._left[place] > 0 and found.feasible[row]:
                    self._left[place] -= 1
                    return row
        return found.best(self._rows)
