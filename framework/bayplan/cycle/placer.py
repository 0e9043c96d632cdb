"""Ways to place a unit inside a placement: plans first, then a bounded search.

A *way* gives each member of the unit a node that every Filter and Reserve accepts. Ways are
generated one by one, and each is undone before the next, so that a unit with several parts is
placed by backtracking over the ways of its parts. The search stops after ``STEPS`` tentative
placements. Below that limit a unit is refused only if there is no way to place it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from bayplan.api.gang import Gather
from bayplan.cycle.attempt import Attempt, lacking, node_count
from bayplan.cycle.decision_tables import DecisionTables
from bayplan.cycle.evaluation import Evaluation, Slots
from bayplan.cycle.evaluator import Evaluator
from bayplan.cycle.reservations import Reserved, Unreserve
from bayplan.plugin.base import (
    NOTES,
    CycleState,
    DomainState,
    DomainTrial,
    Placement,
    Placements,
    Reads,
    Unit,
)
from bayplan.plugin.decision import PodDecision
from bayplan.plugin.lazy_sequence import LazySequence
from bayplan.profiles.runtime import HookCall, Runtime, guard
from bayplan.snapshot import NodeRow, NodeView, PodInfo, Snapshot

__all__ = ["EVERYWHERE", "Placer", "as_plan"]

EVERYWHERE = Placement("", None)
_MOST_SEARCHED = 64
"""Members of a unit for which single nodes are searched; plans serve larger ones."""
_REPLANS = 16
_FEW = 8
"""Slots are counted again for the nodes that changed if these are at most this part of all."""


class Placer:
    """Places units of one profile on one snapshot, within a trial of the snapshot.

    :param tables: decides which pods get a table of what plugins said; None for none.
    """

    def __init__(
        self,
        runtime: Runtime,
        evaluator: Evaluator,
        snapshot: Snapshot,
        unreserve: Unreserve,
        tables: DecisionTables | None = None,
    ) -> None:
        self._tables = tables
        self._unreserve = unreserve
        self._alone = [
            call for call in runtime["placement_generate"] if call.plugin.places_single_pods
        ]
        self._runtime = runtime
        self._evaluator = evaluator
        self._snapshot = snapshot

    def offers(
        self, unit: Unit, parent: Placement, state: CycleState, in_queue: bool = True
    ) -> Placements:
        """Return the placements inside ``parent`` that the plugins offer for a unit.

        :param in_queue: whether its queue may refuse it.
        :raises PluginError: when a plugin fails in ``placement_generate``.
        """
        calls = self._runtime["placement_generate"] if unit.gang is not None else self._alone
        if calls:
            view = self._snapshot.view()
            for call in calls:
                answer: Placements | None = call.call(unit, view, parent, state)
                if answer is not None and (in_queue or not answer.of_queue):
                    return replace(answer, candidates=_checked(call, answer, len(view)))
        return Placements((parent,))

    def ways(
        self, unit: Unit, placement: Placement, attempt: Attempt, state: CycleState
    ) -> Iterator[None]:
        """Yield once for each way found, with its pods reserved in the snapshot.

        :raises PluginError: when a plugin fails in a hook up to ``reserve``.
        """
        if not unit.parts:
            unit = _sliced(unit)
        if unit.gang is None:
            yield from self._member_ways(unit, placement, attempt)
            return
        before = len(attempt.reserved)
        if not unit.parts:
            for _ in self._member_ways(unit, placement, attempt):
                attempt.lack = lacking(unit, attempt.reserved[before:])
                if attempt.lack is None:
                    yield
            return
        # Parts left out, by kind; nested sub-groups of one kind are counted apart.
        skipped: dict[str, int] = {}
        steps = [
            partial(self._part_ways, part, unit, placement, attempt, skipped, state)
            for part in unit.parts
        ]
        for _ in _sequence(steps):
            attempt.lack = lacking(unit, attempt.reserved[before:])
            if attempt.lack is None:
                yield

    def _part_ways(
        self,
        part: Unit,
        whole: Unit,
        parent: Placement,
        attempt: Attempt,
        skipped: dict[str, int],
        state: CycleState,
    ) -> Iterator[None]:
        mark = self._mark(attempt)
        if part.pods:
            offered = self.offers(part, parent, state)
            if len(part.pods) < part.min_placed:
                attempt.lack = (
                    f'sub-group "{part.key}" has {len(part.pods) + part.counted} of the '
                    f"{part.min_placed + part.counted} members it needs"
                )
            else:
                for placement in offered.candidates:
                    attempt.domains.append(
                        DomainTrial(
                            f"{part.key}: {placement.name or 'anywhere'}",
                            node_count(placement, self._snapshot),
                            placement.offered,
                            part.min_placed,
                            state=DomainState.CHOSEN,
                        )
                    )
                    yield from self.ways(part, placement, attempt, state)
                    self._undo(mark, attempt)
                    attempt.domains.pop()
                    if attempt.budget.steps <= 0:
                        break
            self._record_closest(attempt, part, offered.reason)
        elif part.min_placed == 0:
            yield
            return
        else:
            attempt.lack = f'sub-group "{part.key}" has none of the members it needs'
        total = sum(1 for other in whole.parts if other.kind == part.kind)
        left_out = skipped.get(part.kind, 0)
        if total - left_out - 1 >= part.needed:
            skipped[part.kind] = left_out + 1
            for pod in part.pods:
                self._fail(pod, attempt)
            yield
            self._undo(mark, attempt)
            skipped[part.kind] = left_out

    # Members of one part -----------------------------------------------------------------

    def _member_ways(self, unit: Unit, placement: Placement, attempt: Attempt) -> Iterator[None]:
        mark = self._mark(attempt)
        if self._fill(unit, placement, attempt):
            yield
        else:
            self._record_closest(attempt, unit)
        self._undo(mark, attempt)
        if unit.gang is None or len(unit.pods) > _MOST_SEARCHED:
            return
        if placement.exact or attempt.budget.steps <= 0:
            return
        if not self._may_fit(unit, placement):
            return
        order = sorted(unit.pods, key=lambda pod: (_waits_for_others(pod), -self._share(pod)))
        spare = len(unit.pods) - unit.min_placed
        yield from self._search(order, 0, spare, {}, placement, attempt)
        self._undo(mark, attempt)

    def _fill(self, unit: Unit, placement: Placement, attempt: Attempt) -> bool:
        """Place the members by plan, or each on its best row; False when too few get one."""
        spare = len(unit.pods) - unit.min_placed
        if placement.plan is None:
            for pod in unit.pods:
                found = self._evaluator.evaluate(pod)
                row = found.best(placement.rows)
                if row is None or not self._reserve(pod, row, found, attempt):
                    self._fail(pod, attempt)
                    spare -= 1
                    if spare < 0:
                        return False
            return True
        kinds: dict[object, list[PodInfo]] = {}
        for pod in unit.pods:
            kinds.setdefault((pod.facts, pod.labels_id[0]), []).append(pod)
        ordered = list(kinds.values())
        if len(ordered) > 1:
            ordered.sort(key=lambda pods: (_waits_for_others(pods[0]), -self._share(pods[0])))
        for pods in ordered:
            left = self._fill_kind(pods, placement, attempt)
            for pod in left:
                self._fail(pod, attempt)
            spare -= len(left)
            if spare < 0:
                return False
        return True

    def _fill_kind(
        self, pods: Sequence[PodInfo], placement: Placement, attempt: Attempt
    ) -> Sequence[PodInfo]:
        """Place equal pods by plan; plan again where a node refused one. Return the rest."""
        assert placement.plan is not None
        limits: dict[int, int] = {}
        mark = self._mark(attempt)
        left = pods
        for _ in range(_REPLANS + (0 if placement.exact else len(pods))):
            rows = placement.plan(left, limits)
            placed: dict[int, int] = {}
            broken = None
            for pod, row in zip(left, rows, strict=False):
                found = self._evaluator.evaluate(pod)
                if not found.feasible[row] or not self._reserve(pod, row, found, attempt):
                    broken = row
                    break
                placed[row] = placed.get(row, 0) + 1
            count = sum(placed.values())
            if broken is None:
                return left[count:]
            limits[broken] = placed.get(broken, 0)
            if placement.exact:
                # An exact plan counts as a whole: undo the part that was placed.
                self._undo(mark, attempt)
                left = pods
            else:
                left = left[count:]
                limits[broken] = 0
        return left

    def _search(
        self,
        order: Sequence[PodInfo],
        index: int,
        spare: int,
        last: dict[object, int],
        placement: Placement,
        attempt: Attempt,
    ) -> Iterator[None]:
        """Try the members one by one on every row that takes them; ``spare`` may be left out."""
        if index == len(order):
            yield
            return
        pod = order[index]
        kind = (pod.facts, pod.labels_id)
        found = self._evaluator.evaluate(pod)
        feasible = found.feasible
        rows = np.arange(len(feasible)) if placement.rows is None else placement.rows
        places = np.flatnonzero(feasible[rows])
        before = last.get(kind, 0)
        # Equal pods are interchangeable, so they take rows in rising order only.
        for place in places[places >= before].tolist():
            if attempt.budget.steps <= 0:
                return
            attempt.budget.steps -= 1
            mark = self._mark(attempt)
            found = self._evaluator.evaluate(pod)
            if self._reserve(pod, int(rows[place]), found, attempt):
                last[kind] = place
                yield from self._search(order, index + 1, spare, last, placement, attempt)
            self._undo(mark, attempt)
        last[kind] = before
        if spare:
            mark = self._mark(attempt)
            self._fail(pod, attempt)
            yield from self._search(order, index + 1, spare - 1, last, placement, attempt)
            self._undo(mark, attempt)

    def _may_fit(self, unit: Unit, placement: Placement) -> bool:
        """Whether enough members would find a slot if no other pod of the unit took one."""
        kinds: dict[object, list[PodInfo]] = {}
        for pod in unit.pods:
            kinds.setdefault(pod.facts, []).append(pod)
        most = 0
        for pods in kinds.values():
            # Pods with other labels may be refused by other nodes: a node counts if any pod fits
            # there.
            labelled = {pod.labels_id: pod for pod in pods}.values()
            slots = np.maximum.reduce([self.free_slots(pod) for pod in labelled])
            if placement.rows is not None:
                slots = slots[placement.rows]
            most += min(len(pods), int(np.minimum(slots, len(pods)).sum()))
        return most >= unit.min_placed

    def _share(self, pod: PodInfo) -> float:
        """Return the pod's dominant share: its largest request over the most that a node offers."""
        table = self._snapshot.nodes
        return max(
            (
                need / max(1, table.allocatable(name).max(initial=0))
                for name, need in pod.requests.items()
            ),
            default=0.0,
        )

    # One pod -----------------------------------------------------------------------------

    def _decision(self, pod: PodInfo, found: Evaluation, names: list[str]) -> PodDecision:
        """Return the record of a pod's evaluation, with its table if it gets one."""
        if self._tables is not None and self._tables.may_make(pod.key):
            decision = found.describe(names, finalists=True)
            self._tables.keep(decision)
            return decision
        return PodDecision(pod.key, len(names), int(np.count_nonzero(found.feasible)))

    def _reserve(self, pod: PodInfo, row: int, found: Evaluation, attempt: Attempt) -> bool:
        snapshot = self._snapshot
        names = snapshot.nodes.names
        name = names[row]
        attempt.budget.placed += 1
        decision = self._decision(pod, found, names)
        decision.total = float(found.total[row])
        state = CycleState(found.state)
        snapshot.add_pod(pod, name)
        reserved = Reserved(pod, name, state)
        calls = self._runtime.of(pod)["reserve"]
        if calls:
            node = NodeRow(snapshot.nodes, row)
            for call in calls:
                if call.name in attempt.without:
                    continue
                refusal = call.call(pod, node, state)
                if refusal is not None:
                    attempt.refusal = (call.name, refusal)
                    self._unreserve([reserved])
                    snapshot.remove_pod(pod.key)
                    return False
        decision.notes = state.get(NOTES) or ()
        decision.node = name
        attempt.pods[pod.key] = decision
        attempt.reserved.append(reserved)
        return True

    def _fail(self, pod: PodInfo, attempt: Attempt) -> None:
        found = self._evaluator.evaluate(pod)
        decision = found.describe(self._snapshot.nodes.names, finalists=False)
        decision.pod = pod.key
        if attempt.refusal is not None:
            decision.message = attempt.refusal[1]
        attempt.pods[pod.key] = decision
        attempt.failed.append(decision)

    def free_slots(self, pod: PodInfo) -> npt.NDArray[np.int64]:
        """Return, per row, an upper bound of how many such pods fit; 0 where it is refused.

        Do not write to it.

        :raises PluginError: when a plugin fails in Filter, Score or ``slots``.
        """
        evaluation = self._evaluator.evaluate(pod)
        if evaluation.slots is None or evaluation.slots.position != evaluation.position:
            evaluation.slots = self._slots(pod, evaluation, evaluation.slots)
        return evaluation.slots.bound

    def _slots(self, pod: PodInfo, evaluation: Evaluation, before: Slots | None) -> Slots:
        table, skipped = self._snapshot.nodes, evaluation.skipped["pre_filter"]
        calls = [call for call in self._runtime.of(pod)["slots"] if call.name not in skipped]
        wide = [call for call in calls if Reads.CLUSTER in call.plugin.reads]
        narrow = [call for call in calls if call not in wide]
        changes = table.changed_since(before.position) if before is not None else None
        if before is None or changes is None or len(changes) > len(table) // _FEW:
            by_row = _least(narrow, pod, NodeView(table), evaluation.state)
        else:
            by_row, rows = before.by_row, np.array(sorted(set(changes)), dtype=np.intp)
            by_row[rows] = _least(narrow, pod, NodeView(table, rows), evaluation.state)
        bound = by_row
        if wide:
            bound = np.minimum(bound, _least(wide, pod, NodeView(table), evaluation.state))
        bound = np.where(evaluation.feasible, np.maximum(bound, 0), 0)
        bound.flags.writeable = False
        return Slots(evaluation.position, by_row, bound)

    # Going back --------------------------------------------------------------------------

    def _mark(self, attempt: Attempt) -> tuple[int, int, int]:
        return self._snapshot.undo_mark(), len(attempt.reserved), len(attempt.failed)

    def _undo(self, mark: tuple[int, int, int], attempt: Attempt) -> None:
        """Undo every reservation since the mark."""
        undo, placed, failed = mark
        gone = attempt.reserved[placed:]
        if gone:
            self._unreserve(gone)
            del attempt.reserved[placed:]
            for reserved in gone:
                del attempt.pods[reserved.pod.key]
        for decision in attempt.failed[failed:]:
            attempt.pods.pop(decision.pod, None)
        del attempt.failed[failed:]
        self._snapshot.undo_to(undo)

    def _record_closest(self, attempt: Attempt, part: Unit, reason: str = "") -> None:
        """Keep the way that came furthest, to explain why the unit was refused."""
        mark = self._mark(attempt)
        if reason:
            self._fail(part.pods[0], attempt)
            attempt.failed[-1].message = reason
        placed = len(attempt.reserved)
        if attempt.failed and (attempt.closest is None or placed > attempt.closest[0]):
            attempt.closest = (placed, dict(attempt.pods), list(attempt.failed))
        if reason:
            self._undo(mark, attempt)


def _sliced(unit: Unit) -> Unit:
    """Return a unit of differing pods whose slices are parts: consecutive ranks together.

    Equal pods are counted instead, node by node (:mod:`bayplan.topology.network.packing`).
    """
    gang = unit.gang
    if gang is None or not gang.slices or unit.bound:
        return unit
    if len({pod.facts for pod in unit.pods}) == 1:
        return unit
    outer, *inner = sorted(gang.slices, key=lambda one: -one.size)
    parts = []
    for start in range(0, len(unit.pods), outer.size):
        own = replace(
            gang,
            key=f"{unit.key}/slice-{start // outer.size}",
            min_member=outer.size,
            gather=(Gather(outer.layer, required=True),),
            slices=tuple(inner),
            roles=(),
        )
        pods = unit.pods[start : start + outer.size]
        needed = -(-unit.min_placed // outer.size)
        parts.append(Unit(own.key, pods, own, kind="slice", needed=needed))
    return replace(unit, parts=parts)


def _sequence(steps: Sequence[Callable[[], Iterator[None]]]) -> Iterator[None]:
    """Yield for every combination of the ways of all steps, as a backtracking search."""
    if not steps:
        yield
        return
    stack = [steps[0]()]
    while stack:
        if next(stack[-1], False) is False:
            stack.pop()
        elif len(stack) == len(steps):
            yield
        else:
            stack.append(steps[len(stack)]())


def _waits_for_others(pod: PodInfo) -> bool:
    return bool(pod.terms.required_affinity)


def _checked(call: HookCall, offered: Placements, nodes: int) -> Sequence[Placement]:
    """Return the candidates of a plugin; each is checked when it is looked at."""

    def look(place: int) -> Placement:
        placement = guard(call, offered.candidates.__getitem__, place)
        guard(call, _check_rows, placement, nodes)
        return placement

    return LazySequence(len(offered.candidates), look)


def _check_rows(placement: Placement, nodes: int) -> None:
    rows = placement.rows
    if rows is not None and len(rows) and not (rows.min() >= 0 and rows.max() < nodes):
        raise ValueError(f'placement "{placement.name}" has rows outside of the {nodes} nodes')


def _least(
    calls: Sequence[HookCall], pod: PodInfo, nodes: NodeView, state: CycleState
) -> npt.NDArray[np.int64]:
    """Return the least of what plugins answer in ``slots`` for some nodes."""
    bound = np.full(len(nodes), np.iinfo(np.int64).max, dtype=np.int64)
    for call in calls:
        bound = guard(call, _lower, bound, call(pod, nodes, state))
    return bound


def _lower(
    bound: npt.NDArray[np.int64],
    limit: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    lowered: npt.NDArray[np.int64] = np.minimum(bound, limit)
    if lowered.shape != bound.shape:
        raise ValueError(f"expected {len(bound)} numbers, got shape {np.shape(limit)}")
    return lowered


def as_plan(places: Mapping[str, int], name: str) -> Placement:
    """Return an exact placement that gives each pod, by key, its nominated row."""

    def plan(pods: Sequence[PodInfo], limits: Mapping[int, int]) -> Sequence[int]:
        rows = []
        for pod in pods:
            row = places.get(pod.key)
            if row is None or limits:
                break
            rows.append(row)
        return rows

    rows = np.array(list(dict.fromkeys(places.values())), dtype=np.intp)
    return Placement(name, rows, len(places), plan, exact=True)
