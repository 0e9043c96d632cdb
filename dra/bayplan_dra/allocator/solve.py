"""From claims and a table of devices to choices, or to the reason why there are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bayplan.api.dra import CLAIM_LIMIT
from bayplan_dra.allocator.attributes import Value
from bayplan_dra.allocator.model import (
    AllocatedState,
    AllocationError,
    Amount,
    NodeError,
    PoolDevice,
    TimedOut,
)
from bayplan_dra.allocator.reference import Reference
from bayplan_dra.allocator.requests import ClaimToAllocate, Constraint, Request, Wanted
from bayplan_dra.allocator.results import Choice
from bayplan_dra.allocator.search import Budget, Demand, Problem, Search, Solution, broken_groups
from bayplan_dra.allocator.table import TOPOLOGY, DeviceTable, Filtered, bits
from bayplan_dra.allocator.usage import CounterKey, Usage

__all__ = ["Failure", "Solved", "Task", "solve"]

_PLAIN_STEPS = 20_000
"""Steps of the plain search after the better one was given up."""
Score = Callable[[Sequence[Choice]], float]


@dataclass(frozen=True, slots=True)
class Task:
    """A claim to be allocated, and the devices of the table that its node can use."""

    claim: ClaimToAllocate
    visible: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why claims cannot be allocated. ``steps`` were taken to find that out."""

    reason: str
    steps: int = 0
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Solved:
    """The choices for each claim, in the order of the tasks; and what they cost.

    ``preferences`` says which alternative each request with ``firstAvailable`` got, from 0;
    ``broken`` how many groups are broken that were whole.
    """

    choices: Sequence[Sequence[Choice]]
    cost: int
    steps: int
    preferences: Sequence[int] = ()
    broken: int = 0


@dataclass(slots=True)
class _Option:
    """One way to meet a request, as a demand; or the reason why it cannot be met."""

    demand: Demand | None
    wanted: Wanted
    filtered: Filtered
    reason: str = ""


def solve(
    table: DeviceTable,
    tasks: Sequence[Task],
    state: AllocatedState,
    levels: Sequence[str] = TOPOLOGY,
    interrupt: Callable[[], bool] | None = None,
    score: Score | None = None,
) -> Solved | Failure:
    """Allocate all claims, or none. ``state`` is not changed.

    :param levels: the attributes that say which devices belong together.
    :param interrupt: asked now and then whether to stop.
    :param score: rates complete solutions; larger is better. Without it the one is taken that
        breaks the fewest groups.
    :raises AllocationError: for an expression that is no CEL.
    """
    return _Solver(table, tasks, state, levels, interrupt, score).run()


class _Solver:
    def __init__(
        self,
        table: DeviceTable,
        tasks: Sequence[Task],
        state: AllocatedState,
        levels: Sequence[str],
        interrupt: Callable[[], bool] | None,
        score: Score | None,
    ) -> None:
        self._table = table
        self._tasks = tasks
        self._budget = Budget(interrupt)
        self._score = score
        self._state = state
        usage = Usage.of(state, table.pools)
        self._in_use = table.in_use(state)
        shared = table.shared_in_use(state)
        self._shares = self._shares_left(usage)
        self._counters: Mapping[CounterKey, Amount] = usage.counters
        self._groups = table.groups(tuple(levels))
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

    # The whole -------------------------------------------------------------------------------

    def run(self) -> Solved | Failure:
        options = [
            (number, request, [self._option(number, way) for way in request.ways])
            for number, task in enumerate(self._tasks)
            for request in task.claim.requests
        ]
        for number, _, ways in options:
            if all(way.demand is None for way in ways):
                return Failure(self._titled(number, "; ".join(way.reason for way in ways)))
        chosen: list[_Option] = []
        try:
            if not self._choose(options, chosen):
                return Failure(self._why(options), self._budget.steps)
            solution = self._search(chosen).best()
        except TimedOut as exc:
            return self._plainly(options) or Failure(str(exc), self._budget.steps, timed_out=True)
        assert solution is not None, "the choice of ways has a solution"
        return self._solved(options, chosen, solution)

    def _plainly(self, options: Sequence[tuple[int, Request, list[_Option]]]) -> Solved | None:
        """Try the plain order for a while: it may be lucky where the search was not."""
        if self._score is not None or any(t.visible != self._table.all for t in self._tasks):
            return None
        claims = [task.claim for task in self._tasks]
        features = self._table.features
        plain = Reference(claims, self._table.pools, self._state, features, most=_PLAIN_STEPS)
        try:
            found = plain.run()
        except (AllocationError, NodeError):
            return None
        if found is None:
            return None
        used = {choice.wanted for own in found for choice in own}
        preferences = tuple(
            next(index for index, way in enumerate(ways) if way.wanted in used)
            for _, request, ways in options
            if request.prioritized
        )
        return Solved(found, 0, self._budget.steps + plain.calls, preferences)

    def _choose(
        self,
        options: Sequence[tuple[int, Request, list[_Option]]],
        chosen: list[_Option],
    ) -> bool:
        """Choose a way for each request: the first that leaves a way for all others."""
        if len(chosen) == len(options):
            simple = not any(request.prioritized for _, request, _ in options)
            return (not simple) or self._feasible(chosen)
        number, _, ways = options[len(chosen)]
        early = any(request.prioritized for _, request, _ in options)
        tried: list[_Option] = []
        for way in ways:
            if way.demand is None or any(self._are_alike(way, other) for other in tried):
                continue
            tried.append(way)
            chosen.append(way)
            taken = sum(o.demand.count for o in chosen if o.demand and o.demand.claim == number)
            # A partial choice without a solution has none with more demands either.
            if (
                taken <= CLAIM_LIMIT
                and (not early or self._feasible(chosen, options[len(chosen) :]))
                and self._choose(options, chosen)
            ):
                return True
            chosen.pop()
        return False

    def _are_alike(self, one: _Option, other: _Option) -> bool:
        """Tell whether two ways to meet a request differ in nothing but their names."""
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

    def _feasible(
        self,
        chosen: Sequence[_Option],
        rest: Sequence[tuple[int, Request, list[_Option]]] = (),
    ) -> bool:
        """Tell whether the chosen ways have a solution that may leave enough for the others."""
        loose = [_loosest(number, ways) for number, _, ways in rest]
        shareable = self._table.shareable
        more = [one for one in loose if one is not None and not one.candidates & shareable]
        return self._search(chosen, more=more).first() is not None

    def _search(
        self,
        chosen: Sequence[_Option],
        constraints: Sequence[tuple[int, Constraint]] | None = None,
        counters: bool = True,
        more: Sequence[Demand] = (),
    ) -> Search:
        problem = Problem(
            self._table,
            self._constraints if constraints is None else constraints,
            self._counters if counters else dict.fromkeys(self._counters, 2**62),
            self._shares,
            self._shared,
            self._used,
            self._groups,
        )
        demands = [option.demand for option in chosen if option.demand is not None]
        demands += more
        score = None
        if self._score is not None:
            rate = self._score

            def score(masks: Sequence[int]) -> float:
                return rate([c for per_claim in self._choices(chosen, masks) for c in per_claim])

        return Search(problem, demands, self._budget, score)

    def _choices(self, chosen: Sequence[_Option], masks: Sequence[int]) -> list[list[Choice]]:
        per_claim: list[list[Choice]] = [[] for _ in self._tasks]
        for option, mask in zip(chosen, masks, strict=True):
            demand = option.demand
            assert demand is not None
            per_claim[demand.claim] += [
                Choice(option.wanted, self._table.devices[device], demand.consumed.get(device))
                for device in bits(mask)
            ]
        return per_claim

    def _solved(
        self,
        options: Sequence[tuple[int, Request, list[_Option]]],
        chosen: Sequence[_Option],
        solution: Solution,
    ) -> Solved:
        preferences = tuple(
            ways.index(option)
            for (_, request, ways), option in zip(options, chosen, strict=True)
            if request.prioritized
        )
        choices = self._choices(chosen, solution.chosen)
        used = self._used
        for mask in solution.chosen:
            used |= mask
        broken = broken_groups(self._groups, used) - broken_groups(self._groups, self._used)
        return Solved(choices, solution.cost, self._budget.steps, preferences, max(0, broken))

    # One request -----------------------------------------------------------------------------

    def _option(self, number: int, wanted: Wanted) -> _Option:
        task = self._tasks[number]
        filtered = self._table.filtered(wanted, task.claim.title)
        if wanted.count is None:
            return self._all(number, wanted, filtered)
        free = filtered.tolerated & filtered.capable & task.visible
        if not wanted.admin:
            free &= ~self._in_use
        free = self._affordable(free, filtered)
        if free.bit_count() < wanted.count:
            reason = self._funnel(number, wanted, filtered, free)
            return _Option(None, wanted, filtered, reason)
        demand = Demand(
            number, wanted.name, wanted.count, free, False, wanted.admin, filtered.consumed
        )
        return _Option(demand, wanted, filtered)

    def _affordable(self, mask: int, filtered: Filtered) -> int:
        """Leave out what has too little left of its shared capacity or of a counter."""
        for device, takes in filtered.consumed.items():
            if any(self._shares[device, name] < amount for name, amount in takes.items()):
                mask &= ~(1 << device)
        for device in bits(mask & ~self._shared):
            needs = self._table.needs[device]
            if any(self._counters[key] < need for key, need in needs.items()):
                mask &= ~(1 << device)
        return mask

    def _all(self, number: int, wanted: Wanted, filtered: Filtered) -> _Option:
        required = filtered.matching & filtered.capable & self._tasks[number].visible
        for device, takes in filtered.consumed.items():
            if any(self._shares[device, name] < amount for name, amount in takes.items()):
                required &= ~(1 << device)
        reason = self._why_not_all(wanted, filtered, required)
        if reason:
            return _Option(None, wanted, filtered, reason)
        count = required.bit_count()
        demand = Demand(number, wanted.name, count, required, True, wanted.admin, filtered.consumed)
        return _Option(demand, wanted, filtered)

    def _why_not_all(self, wanted: Wanted, filtered: Filtered, required: int) -> str:
        where = f"request {wanted.name} asks for all devices, but"
        for pool in self._table.pools:
            if pool.incomplete:
                return f"{where} resource pool {pool.key} is currently being updated"
            if pool.invalid:
                return f"{where} resource pool {pool.key} is invalid: {pool.invalid}"
        if filtered.errors:
            return f"{where} {filtered.errors[0]}"
        if not required:
            return f"{where} none matches"
        tainted = required & ~filtered.tolerated
        if tainted:
            return f"{where} {_named(self._table, tainted)} tainted"
        busy = required & self._in_use
        if busy and not wanted.admin:
            return f"{where} {_named(self._table, busy)} in use"
        short = required & ~self._affordable(required, filtered)
        if short:
            return f"{where} {_named(self._table, short)} short of shared counters"
        if required.bit_count() > CLAIM_LIMIT:
            return f"{where} these are {required.bit_count()}, and a claim may have {CLAIM_LIMIT}"
        return ""

    # Why not ---------------------------------------------------------------------------------

    def _funnel(self, number: int, wanted: Wanted, filtered: Filtered, free: int) -> str:
        """Say how many devices each step took out, and what would be enough."""
        visible = self._tasks[number].visible
        lost: list[str] = []
        unusable = visible & ~filtered.usable
        if unusable:
            pools = [pool for pool in self._table.pools if pool.incomplete or pool.invalid]
            why = f"is invalid: {pools[0].invalid}" if pools[0].invalid else "is being updated"
            lost.append(f"{unusable.bit_count()} in pool {pools[0].key}, which {why}")
        left = visible & filtered.of_class
        total = (left | unusable).bit_count()
        lost += _lost(left & ~filtered.matching, "not selected")
        left &= filtered.matching
        lost += _lost(left & ~filtered.tolerated, "tainted")
        left &= filtered.tolerated
        asked = ", ".join(f"{name} {amount.text}" for name, amount in wanted.capacity.items())
        lost += _lost(left & ~filtered.capable, f"too small for {asked or 'the capacity'}")
        left &= filtered.capable
        if not wanted.admin:
            lost += _lost(left & self._in_use, "in use")
            left &= ~self._in_use
        lost += _lost(left & ~free, "short of shared counters or capacity")
        count, have = wanted.count or 0, free.bit_count()
        kind = f"{_devices(count)} of class {wanted.device_class.metadata.name}"
        error = f" ({filtered.errors[0]})" if filtered.errors else ""
        if not total:
            there = "and the node has no devices"
            if visible:
                there = f"none of the node's {_devices(visible.bit_count())} is of it"
            return f"request {wanted.name} needs {kind}, {there}{error}"
        why = f": {', '.join(lost)}" if lost else ""
        # More devices like those that the expression fails on would be of no use.
        more = "" if filtered.errors else f"; {count - have} more would be enough"
        return (
            f"request {wanted.name} needs {kind}, {have or 'none'} of {total} can be had{why}"
            f"{error}{more}"
        )

    def _titled(self, number: int, reason: str) -> str:
        return f"claim {self._tasks[number].claim.label}: {reason}"

    def _why(self, options: Sequence[tuple[int, Request, list[_Option]]]) -> str:
        """Say what stands in the way when every request alone could be met."""
        chosen = [next(way for way in ways if way.demand is not None) for _, _, ways in options]
        for number, constraint in self._constraints:
            own = [way for way in chosen if way.demand is not None and way.demand.claim == number]
            if self._search(own, [(number, constraint)]).first() is None:
                return self._titled(number, self._why_constraint(constraint, own))
        if self._search(chosen, counters=False).first() is not None:
            keys = sorted({f"{key[1]}/{key[2]}" for key in self._counters})
            return self._titled(
                chosen[0].demand.claim if chosen[0].demand else 0,
                f"the shared counters ({', '.join(keys[:4])}) do not suffice for all requests "
                "together",
            )
        if not self._constraints:
            need = sum(way.demand.count for way in chosen if way.demand is not None)
            union = 0
            for way in chosen:
                union |= way.demand.candidates if way.demand is not None else 0
            return (
                f"the requests together need {_devices(need)}, and {union.bit_count()} can be had"
            )
        names = ", ".join(dict.fromkeys(c.attribute for _, c in self._constraints))
        return f"no choice of devices meets the constraints on {names} of all requests together"

    def _why_constraint(self, constraint: Constraint, own: Sequence[_Option]) -> str:
        attribute = self._table.attribute(constraint.attribute)
        covered = [
            way.demand
            for way in own
            if way.demand is not None and constraint.covers(way.demand.name)
        ]
        without = [d for d in covered if (d.candidates & attribute.present).bit_count() < d.count]
        if without:
            have = (without[0].candidates & attribute.present).bit_count()
            return (
                f"constraint on {constraint.attribute}: request {without[0].name} needs "
                f"{_devices(without[0].count)}, and {have or 'none'} that can be had "
                f"{'has' if have < 2 else 'have'} the attribute"
            )
        if constraint.distinct:
            need = sum(demand.count for demand in covered)
            return (
                f"constraint on {constraint.attribute}: there are no {need} devices with different "
                "values"
            )

        def rank(value: Value) -> tuple[int, str]:
            mask = attribute.masks[value]
            met = sum(
                min(demand.count, (demand.candidates & mask).bit_count()) for demand in covered
            )
            return (-met, str(value))

        best = min(attribute.masks, key=rank)
        parts = ", ".join(
            f"{demand.name} {(demand.candidates & attribute.masks[best]).bit_count()} of "
            f"{demand.count}"
            for demand in covered
        )
        return (
            f"constraint on {constraint.attribute}: no value has enough devices; the best has "
            f"{parts}"
        )


def _loosest(number: int, ways: Sequence[_Option]) -> Demand | None:
    """Return what a request takes at least, whichever way it is met."""
    demands = [way.demand for way in ways if way.demand is not None]
    if not demands or any(demand.admin for demand in demands):
        return None
    candidates = 0
    for demand in demands:
        candidates |= demand.candidates
    return Demand(number, "", min(demand.count for demand in demands), candidates)


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"


def _lost(mask: int, why: str) -> list[str]:
    return [f"{mask.bit_count()} {why}"] if mask else []


def _named(table: DeviceTable, mask: int) -> str:
    devices: list[PoolDevice] = [table.devices[device] for device in bits(mask)]
    shown = ", ".join(device.id.device for device in devices[:3])
    more = f" and {len(devices) - 3} more" if len(devices) > 3 else ""
    return f"{shown}{more} {'is' if len(devices) == 1 else 'are'}"
