"""From claims and a table of devices to choices, or to the reason why there are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bayplan.api.dra import CLAIM_LIMIT
from bayplan_dra.allocator.cost import broken_groups, large_rests
from bayplan_dra.allocator.model import (
    AllocatedState,
    AllocationError,
    Amount,
    Interrupt,
    NodeError,
    TimedOut,
)
from bayplan_dra.allocator.problem import (
    AllocationProblem,
    DeviceDemand,
    DeviceSolution,
    StepBudget,
)
from bayplan_dra.allocator.reasons import (
    constraint_failure,
    counters_exceeded,
    too_few_for_all_requests,
    too_few_for_request,
    too_few_in_all,
)
from bayplan_dra.allocator.reference import Reference
from bayplan_dra.allocator.requests import (
    AttributeConstraint,
    ClaimRequest,
    ClaimToAllocate,
    Wanted,
)
from bayplan_dra.allocator.results import Choice
from bayplan_dra.allocator.search import DeviceSearch
from bayplan_dra.allocator.table import DeviceTable, FilteredDevices, bits
from bayplan_dra.allocator.usage import CounterKey, Usage

__all__ = ["PLAIN_STEPS", "Failure", "Score", "Solved", "Task", "solve"]

PLAIN_STEPS = 20_000
"""Steps of the plain search where it stands in for the better one, or checks selectors."""
_UNLIMITED = 2**62
Score = Callable[[Sequence[Choice]], float]
"""Rates a complete choice of devices; larger is better, minus infinity forbids it."""


class Task(msgspec.Struct, frozen=True):
    """A claim to be allocated, and the devices of the table that its node can use, one bit each."""

    claim: ClaimToAllocate
    visible: int


class Failure(msgspec.Struct, frozen=True):
    """Why claims cannot be allocated, and the steps that it took to find out."""

    reason: str
    steps: int = 0
    timed_out: bool = False


class Solved(msgspec.Struct, frozen=True):
    """The choices for each claim, in the order in which the claims were given.

    :ivar cost: of all devices that are then in use, see :mod:`.cost`.
    :ivar preferences: the index of the alternative that each request with ``firstAvailable`` got.
    :ivar broken: the number of groups of devices that were whole and are now used in part.
    :ivar lost: the room that divided hardware lost, see ``Division.value``, and what the rests of
        shared devices did, see ``large_rests``.
    """

    choices: Sequence[Sequence[Choice]]
    cost: int
    steps: int
    preferences: Sequence[int] = ()
    broken: int = 0
    lost: int = 0


def solve(
    table: DeviceTable,
    tasks: Sequence[Task],
    state: AllocatedState,
    levels: Sequence[str],
    interrupt: Interrupt | None = None,
    score: Score | None = None,
) -> Solved | Failure:
    """Allocate all claims, or none. ``state`` is not changed.

    :param levels: the attributes that say which devices belong together, the most precious first.
    :param score: rates complete choices; without it, the one that breaks the fewest groups wins.
    :raises AllocationError: for an expression that does not compile.
    """
    camps = list(table.host.camps()) if table.host is not None else [0]
    found: Solved | Failure | None = None
    for without in camps:
        one = _Solver(table, tasks, state, levels, interrupt, score, without).run()
        if found is None or _is_better(one, found):
            found = one
    assert found is not None, "there is always a camp"
    return found


def _is_better(one: Solved | Failure, other: Solved | Failure) -> bool:
    if isinstance(one, Failure) or isinstance(other, Failure):
        return isinstance(one, Solved)
    return (one.preferences, one.cost) < (other.preferences, other.cost)


class _Way(msgspec.Struct):
    """One way to meet a request, as a demand; or the reason why this way is impossible."""

    demand: DeviceDemand | None
    wanted: Wanted
    filtered: FilteredDevices
    reason: str = ""


class _RequestWays(NamedTuple):
    """A request of a claim, and the ways to meet it, in the order of preference."""

    claim: int
    request: ClaimRequest
    ways: list[_Way]


class _Solver:
    def __init__(
        self,
        table: DeviceTable,
        tasks: Sequence[Task],
        state: AllocatedState,
        levels: Sequence[str],
        interrupt: Interrupt | None,
        score: Score | None,
        without: int = 0,
    ) -> None:
        self._blocked = table.blocked(state) | without
        self._table = table
        self._tasks = tasks
        self._budget = StepBudget(interrupt)
        self._score = score
        self._state = state
        usage = table.usage(state)
        self._in_use = table.in_use(state)
        shared = table.shared_in_use(state)
        self._shares = self._shares_left(usage)
        self._most = self._largest()
        self._counters: Mapping[CounterKey, Amount] = usage.counters
        self._groups = (*table.groups(tuple(levels)), *table.doubtful(state))
        self._used = self._in_use | shared
        self._shared = shared
        self._constraints = [
            (number, constraint)
            for number, task in enumerate(tasks)
            for constraint in task.claim.constraints
        ]

    def _shares_left(self, usage: Usage) -> dict[tuple[int, str], Amount]:
        return {
            (number, name): usage.share_left(self._table.devices[number], name)
            for number in bits(self._table.shareable)
            for name in self._table.devices[number].spec.capacity
        }

    def _largest(self) -> dict[str, Amount]:
        """Return the largest amount of each capacity that a shared device has."""
        most: dict[str, Amount] = {}
        for number, name in self._shares:
            offered = self._table.devices[number].spec.capacity[name].value.number
            most[name] = max(most.get(name, 0), offered)
        return most

    # All requests ----------------------------------------------------------------------------

    def run(self) -> Solved | Failure:
        try:
            requests = [
                _RequestWays(number, request, [self._way(number, way) for way in request.ways])
                for number, task in enumerate(self._tasks)
                for request in task.claim.requests
            ]
        except TimedOut as exc:
            return Failure(str(exc), timed_out=True)
        for number, _, ways in requests:
            if all(way.demand is None for way in ways):
                return Failure(self._titled(number, "; ".join(way.reason for way in ways)))
        chosen: list[_Way] = []
        try:
            if not self._choose(requests, chosen):
                return Failure(self._why(requests), self._budget.steps)
            solution = self._search(chosen).run()
        except TimedOut as exc:
            return self._plainly(requests) or Failure(str(exc), self._budget.steps, timed_out=True)
        assert solution is not None, "the choice of ways has a solution"
        return self._solved(requests, chosen, solution)

    def _plainly(self, requests: Sequence[_RequestWays]) -> Solved | None:
        """Try the reference's order for a while: it may succeed where the search gave up."""
        if self._table.host is not None:
            # The reference knows no limits of hosts.
            return None
        if self._score is not None or any(t.visible != self._table.all for t in self._tasks):
            return None
        claims = [task.claim for task in self._tasks]
        plain = Reference(
            claims,
            self._table.pools,
            self._state,
            self._table.features,
            self._budget.interrupt,
            PLAIN_STEPS,
            ignore_selector_errors=True,
        )
        try:
            found = plain.run()
        except (AllocationError, NodeError):
            return None
        if found is None:
            return None
        used = {choice.wanted for own in found for choice in own}
        preferences = tuple(
            next(index for index, way in enumerate(one.ways) if way.wanted in used)
            for one in requests
            if one.request.prioritized
        )
        return Solved(found, 0, self._budget.steps + plain.calls, preferences)

    def _choose(self, requests: Sequence[_RequestWays], chosen: list[_Way]) -> bool:
        """Choose a way for each request: the first that leaves a way for all others."""
        if len(chosen) == len(requests):
            simple = not any(one.request.prioritized for one in requests)
            return (not simple) or self._feasible(chosen)
        number, _, ways = requests[len(chosen)]
        early = any(one.request.prioritized for one in requests)
        tried: list[_Way] = []
        for way in ways:
            if way.demand is None or any(self._are_alike(way, other) for other in tried):
                continue
            tried.append(way)
            chosen.append(way)
            self._budget.check()
            taken = sum(o.demand.count for o in chosen if o.demand and o.demand.claim == number)
            taken += sum(_least(one) for one in requests[len(chosen) :] if one.claim == number)
            # A partial choice without a solution has none with more demands either.
            if (
                taken <= CLAIM_LIMIT
                and (not early or self._feasible(chosen, requests[len(chosen) :]))
                and self._choose(requests, chosen)
            ):
                return True
            chosen.pop()
        return False

    def _are_alike(self, one: _Way, other: _Way) -> bool:
        """Tell whether two ways to meet a request differ only in their names."""
        a, b = one.demand, other.demand
        assert a is not None
        assert b is not None
        return (
            (a.count, a.candidates, a.every, a.admin) == (b.count, b.candidates, b.every, b.admin)
            and a.consumed == b.consumed
            and all(
                constraint.covers(a.name) == constraint.covers(b.name)
                for claim, constraint in self._constraints
                if claim == a.claim
            )
        )

    def _feasible(self, chosen: Sequence[_Way], rest: Sequence[_RequestWays] = ()) -> bool:
        """Tell whether the chosen ways have a solution that may leave enough for the others."""
        loose = [_loosest(one) for one in rest]
        shareable = self._table.shareable
        more = [one for one in loose if one is not None and not one.candidates & shareable]
        return self._search(chosen, more=more, only_first=True).run() is not None

    def _search(
        self,
        chosen: Sequence[_Way],
        constraints: Sequence[tuple[int, AttributeConstraint]] | None = None,
        counters: bool = True,
        more: Sequence[DeviceDemand] = (),
        only_first: bool = False,
    ) -> DeviceSearch:
        """Return the search for devices for the chosen ways.

        :param constraints: the constraints that count; None for all.
        :param counters: whether the shared counters count.
        :param more: further demands.
        """
        problem = AllocationProblem(
            self._table,
            self._constraints if constraints is None else constraints,
            self._counters if counters else dict.fromkeys(self._counters, _UNLIMITED),
            self._shares,
            self._shared,
            self._used,
            self._groups,
            self._table.turns(self._state),
            self._most,
        )
        demands = [way.demand for way in chosen if way.demand is not None]
        demands += more
        score = None
        if self._score is not None:
            rate = self._score

            def score(masks: Sequence[int]) -> float:
                return rate([c for per_claim in self._choices(chosen, masks) for c in per_claim])

        return DeviceSearch(problem, demands, self._budget, score, only_first)

    def _choices(self, chosen: Sequence[_Way], masks: Sequence[int]) -> list[list[Choice]]:
        per_claim: list[list[Choice]] = [[] for _ in self._tasks]
        for way, mask in zip(chosen, masks, strict=True):
            demand = way.demand
            assert demand is not None
            per_claim[demand.claim] += [
                Choice(way.wanted, self._table.devices[device], demand.consumed.get(device))
                for device in bits(mask)
            ]
        return per_claim

    def _solved(
        self, requests: Sequence[_RequestWays], chosen: Sequence[_Way], solution: DeviceSolution
    ) -> Solved:
        preferences = tuple(
            one.ways.index(way)
            for one, way in zip(requests, chosen, strict=True)
            if one.request.prioritized
        )
        choices = self._choices(chosen, solution.chosen)
        used = self._used
        for mask in solution.chosen:
            used |= mask
        broken = broken_groups(self._groups, used) - broken_groups(self._groups, self._used)
        lost = self._room(self._used) - self._room(used) + self._rests_lost(chosen, solution)
        steps = self._budget.steps
        return Solved(choices, solution.cost, steps, preferences, max(0, broken), lost)

    def _rests_lost(self, chosen: Sequence[_Way], solution: DeviceSolution) -> int:
        """Return how much less the rests of shared devices are worth with a solution."""
        if not self._shares:
            return 0
        left = dict(self._shares)
        for way, mask in zip(chosen, solution.chosen, strict=True):
            assert way.demand is not None
            for device in bits(mask):
                for name, amount in way.demand.consumed.get(device, {}).items():
                    left[device, name] -= amount
        return large_rests(self._shares.items(), self._most) - large_rests(left.items(), self._most)

    def _room(self, used: int) -> int:
        """Return what divided hardware still has, once these devices are in use."""
        left = dict(self._counters)
        for device in bits(used & ~self._used):
            for key, need in self._table.needs[device].items():
                left[key] -= need
        return sum(divided.value(left, used) for divided in self._table.divided)

    # One request -----------------------------------------------------------------------------

    def _way(self, number: int, wanted: Wanted) -> _Way:
        """Return the candidates for one way to meet a request, or why they are too few."""
        task = self._tasks[number]
        filtered = self._table.filtered(wanted, task.claim.label, self._budget.interrupt)
        if wanted.count is None:
            return self._all(number, wanted, filtered)
        free = filtered.tolerated & filtered.capable & task.visible
        if not wanted.admin:
            free &= ~self._in_use & ~self._blocked
        free = self._affordable(free, filtered)
        if free.bit_count() < wanted.count:
            reason = too_few_for_request(
                self._table, wanted, filtered, task.visible, self._in_use, free, self._blocked
            )
            return _Way(None, wanted, filtered, reason)
        demand = DeviceDemand(
            number, wanted.name, wanted.count, free, False, wanted.admin, filtered.consumed
        )
        return _Way(demand, wanted, filtered)

    def _affordable(self, mask: int, filtered: FilteredDevices) -> int:
        """Drop devices with too little left of their shared capacity or of a counter."""
        mask = self._with_capacity(mask, filtered)
        for device in bits(mask & ~self._shared):
            needs = self._table.needs[device]
            if any(self._counters[key] < need for key, need in needs.items()):
                mask &= ~(1 << device)
        return mask

    def _with_capacity(self, mask: int, filtered: FilteredDevices) -> int:
        """Drop devices with too little left of their shared capacity."""
        for device, takes in filtered.consumed.items():
            if any(self._shares[device, name] < amount for name, amount in takes.items()):
                mask &= ~(1 << device)
        return mask

    def _all(self, number: int, wanted: Wanted, filtered: FilteredDevices) -> _Way:
        """Return the demand of a request for all devices that match, or why it cannot be met."""
        required = filtered.matching & filtered.capable & self._tasks[number].visible
        required = self._with_capacity(required, filtered)
        affordable = self._affordable(required, filtered) & ~self._blocked
        reason = too_few_for_all_requests(
            self._table, wanted, filtered, required, self._in_use, affordable
        )
        if reason:
            return _Way(None, wanted, filtered, reason)
        count = required.bit_count()
        demand = DeviceDemand(
            number, wanted.name, count, required, True, wanted.admin, filtered.consumed
        )
        return _Way(demand, wanted, filtered)

    # Why not ---------------------------------------------------------------------------------

    def _titled(self, number: int, reason: str) -> str:
        return f"claim {self._tasks[number].claim.label}: {reason}"

    def _why(self, requests: Sequence[_RequestWays]) -> str:
        """Say what stands in the way when every request alone could be met."""
        chosen = [next(way for way in one.ways if way.demand is not None) for one in requests]
        for number, constraint in self._constraints:
            own = [way for way in chosen if way.demand is not None and way.demand.claim == number]
            if self._search(own, [(number, constraint)], only_first=True).run() is None:
                demands = [way.demand for way in own if way.demand is not None]
                return self._titled(number, constraint_failure(self._table, constraint, demands))
        demands = [way.demand for way in chosen if way.demand is not None]
        if self._search(chosen, counters=False, only_first=True).run() is not None:
            first = demands[0].claim if demands else 0
            return self._titled(first, counters_exceeded(self._counters))
        return too_few_in_all(demands, [constraint for _, constraint in self._constraints])


def _least(one: _RequestWays) -> int:
    """Return the fewest devices that any way to meet a request takes."""
    return min(way.demand.count for way in one.ways if way.demand is not None)


def _loosest(one: _RequestWays) -> DeviceDemand | None:
    """Return the least that a request takes, over all ways to meet it."""
    demands = [way.demand for way in one.ways if way.demand is not None]
    if not demands or any(demand.admin for demand in demands):
        return None
    candidates = 0
    for demand in demands:
        candidates |= demand.candidates
    return DeviceDemand(one.claim, "", min(demand.count for demand in demands), candidates)
