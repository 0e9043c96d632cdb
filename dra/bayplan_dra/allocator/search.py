"""The search for the best complete allocation.

A *demand* is one request of one claim with its candidates. The search takes the demand with the
least to spare, and one of its candidates, and asks two questions: what if the demand has a device
like this one, and what if it has none like it? :mod:`.symmetry` finds which devices are alike;
:mod:`.propagation`, what a choice means for the other demands. States without a solution are
remembered, and branches that cannot become cheaper than the best solution are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bayplan_dra.allocator.cost import WORST, group_cost, large_rests, room_cost
from bayplan_dra.allocator.problem import (
    AllocationProblem,
    DeviceDemand,
    DeviceSolution,
    PartialSolution,
    StepBudget,
)
from bayplan_dra.allocator.propagation import Propagation
from bayplan_dra.allocator.symmetry import Symmetry
from bayplan_dra.allocator.table import bits

__all__ = ["DeviceSearch"]

_EXACT_DEVICES = 16
_EXACT_STEPS = 20_000
_MORE_STEPS = 200
"""Further steps for a better solution, with up to 16 candidates, and with more."""
_MOST_SCORED = 512
_BREAKS = 1_000_000
"""Dividing another piece of hardware comes after any loss of room."""


class DeviceSearch:
    """One search, to be run once.

    With up to 16 candidates the solution is the best; with more, a good one.

    :param budget: what may be spent until there is a solution.
    :param score: rates complete solutions instead of their cost; larger is better.
    :param only_first: take the first solution.
    :ivar steps: the number of states that were expanded.
    """

    def __init__(
        self,
        problem: AllocationProblem,
        demands: Sequence[DeviceDemand],
        budget: StepBudget,
        score: Callable[[Sequence[int]], float] | None = None,
        only_first: bool = False,
    ) -> None:
        self.steps = 0
        self._problem = problem
        self._budget = budget
        self._score = score
        self._only_first = only_first
        self._limit = 0
        self._late = False
        self._best: DeviceSolution | None = None
        self._best_score = float("-inf")
        self._scored = 0
        self._failed: set[object] = set()
        self._propagation = Propagation(problem, demands)
        self._symmetry = Symmetry(problem, demands)
        self._costs = [
            [group_cost(group, n) for n in range(group.mask.bit_count() + 1)]
            for group in problem.groups
        ]
        self._by_size = sorted(
            problem.groups, key=lambda group: (not group.partition, -group.mask.bit_count())
        )
        candidates = 0
        for demand in demands:
            candidates |= demand.candidates
        self._exact = candidates.bit_count() <= _EXACT_DEVICES

    def run(self) -> DeviceSolution | None:
        """Return the solution, None when there is none.

        :raises TimedOut: when the budget or the time is spent before there is any.
        """
        state = self._propagation.start()
        if state is not None:
            self._visit(state)
        return self._best

    def _visit(self, state: PartialSolution) -> bool:
        """Search below a state; return whether there was any solution."""
        open_demands = [number for number, left in enumerate(state.left) if left]
        if not open_demands:
            self._found(state)
            return True
        if self._done() or (self._best is not None and self._bound(state) >= self._best.cost):
            return True
        key = (state.masks, state.left, state.counters, state.shares, state.allowed, state.counted)
        if key in self._failed:
            return False
        self.steps += 1
        if self._best is None:
            self._budget.spend()
        else:
            # Time is up for a better solution: the best so far is taken.
            self._late = self._late or self._budget.is_interrupted()
        found = self._branch(state, open_demands)
        if not found:
            self._failed.add(key)
        return found

    def _done(self) -> bool:
        if self._best is None:
            return False
        if self._late:
            return True
        if self._score is not None:
            return self._only_first or self._scored >= _MOST_SCORED
        return self._only_first or self.steps > self._limit

    def _branch(self, state: PartialSolution, open_demands: Sequence[int]) -> bool:
        """Try one device of each kind for the demand that has the least to spare."""
        spare = {n: state.masks[n].bit_count() - state.left[n] for n in open_demands}
        # Demands that failed before come first.
        weights = self._propagation.weights
        number = min(open_demands, key=lambda n: (spare[n] / (1 + weights[n]), n))
        if spare[number] == 0:
            return self._take_all(state, number)
        colours = self._colours(state)
        found = False
        mask = state.masks[number]
        order = self._order(state, number)
        for device in order:
            if not mask >> device & 1:
                continue
            if mask.bit_count() < state.left[number]:
                break
            if self._best is None:
                self._budget.check()
            with_it = self._propagation.include(state.with_mask(number, mask), number, device)
            if with_it is not None and self._visit(with_it):
                found = True
                if self._done():
                    return True
            for other in order:
                if colours[other] == colours[device]:
                    mask &= ~(1 << other)
        if not found:
            weights[number] += 1
        return found

    def _take_all(self, state: PartialSolution, number: int) -> bool:
        """Give a demand all of its candidates, as it needs them all."""
        forced: PartialSolution | None = state
        for device in bits(state.masks[number]):
            if forced is None or not forced.masks[number] >> device & 1:
                return False
            forced = self._propagation.include(forced, number, device)
        return forced is not None and self._visit(forced)

    def _colours(self, state: PartialSolution) -> Mapping[int, object]:
        """Return a colour for each candidate: of devices of one colour, one is tried."""
        if self._score is None:
            return self._symmetry.colours(state)
        # To a plugin that scores, no two devices are alike.
        relevant = 0
        for mask in state.masks:
            relevant |= mask
        return {device: device for device in bits(relevant)}

    def _found(self, state: PartialSolution) -> None:
        """Keep a complete solution if it is the best so far."""
        if self._score is not None:
            self._scored += 1
            score = self._score(state.chosen)
            if self._best is None or score > self._best_score:
                self._best_score = score
                # Bounds are those of the built-in cost; they must not cut this search.
                self._best = DeviceSolution(state.chosen, WORST)
            return
        used = state.used(self._problem.used)
        cost = room_cost(self._room(state, used)) + sum(
            costs[(used & group.mask).bit_count()]
            for group, costs in zip(self._problem.groups, self._costs, strict=True)
        )
        cost -= self._rests(state)
        if self._best is None:
            self._limit = self.steps + (_EXACT_STEPS if self._exact else _MORE_STEPS)
        if self._best is None or cost < self._best.cost:
            self._best = DeviceSolution(state.chosen, cost)

    def _bound(self, state: PartialSolution) -> int:
        """Return what any solution below a state costs at least."""
        used = state.used(self._problem.used)
        may = 0
        for mask, left in zip(state.masks, state.left, strict=True):
            if left:
                may |= mask
        may &= ~used
        total = sum(state.left)
        # The more is used, the less room is left, and the smaller are the rests.
        bound = room_cost(self._room(state, used)) - self._rests(state)
        for group, costs in zip(self._problem.groups, self._costs, strict=True):
            now = (used & group.mask).bit_count()
            most = now + min(total, (may & group.mask).bit_count())
            bound += costs[now] if most == now else min(costs[now : most + 1])
        return bound

    def _rests(self, state: PartialSolution) -> int:
        """Return what the rests of shared devices are worth."""
        return large_rests(state.shares, self._problem.most) if state.shares else 0

    def _room(self, state: PartialSolution, used: int) -> int:
        """Return what is left of all divided hardware."""
        divided = self._problem.table.divided
        if not divided:
            return 0
        left = dict(state.counters)
        return sum(one.value(left, used) for one in divided)

    def _order(self, state: PartialSolution, number: int) -> list[int]:
        """Order candidates: the nearest come first, then those that failed the least.

        Of these, those that divide nothing new and leave the most room; then groups that can hold
        all that is missing, the fullest first; then shared devices with the least left.
        """
        mask, left = state.masks[number], state.left[number]
        used = state.used(self._problem.used)
        keys = {device: [lost] for device, lost in self._losses(state, mask, used).items()}
        if len(keys) < mask.bit_count():
            keys = {device: keys.get(device, [0]) for device in bits(mask)}
        for group in self._by_size:
            here = mask & group.mask
            if not here:
                continue
            free = (group.mask & ~used).bit_count()
            for device in bits(here):
                keys[device] += [int(here.bit_count() < left), free]
        if state.shares:
            rests = dict.fromkeys(keys, 0)
            for (device, name), amount in state.shares:
                if device in rests:
                    rests[device] += large_rests((((device, name), amount),), self._problem.most)
            for device, rest in rests.items():
                keys[device] += [rest]
        turns = self._problem.turns
        if not turns:
            return sorted(keys, key=lambda device: (keys[device], device))
        return sorted(
            keys,
            key=lambda device: (turns[device][:2], keys[device], turns[device].freed, device),
        )

    def _losses(self, state: PartialSolution, mask: int, used: int) -> dict[int, int]:
        """Return the room that each candidate would take from the hardware that it divides."""
        losses: dict[int, int] = {}
        table = self._problem.table
        if not any(mask & divided.mask for divided in table.divided):
            return losses
        left = dict(state.counters)
        for divided in table.divided:
            here = mask & divided.mask
            if not here:
                continue
            whole = not used & divided.mask
            before = divided.value(left, used)
            for device in bits(here):
                need = table.needs[device]
                after = {key: left[key] - need.get(key, 0) for key in divided.counters}
                lost = before - divided.value(after, used | 1 << device)
                losses[device] = losses.get(device, 0) + lost + whole * _BREAKS
        return losses
