"""The search for the best complete allocation.

A *demand* is one request of one claim with its candidates. The search takes the demand that has
least to spare, and one of its candidates, and asks two questions: what if the demand has a device
like this one, and what if it has none like this one? Two devices are alike when a symmetry of what
is left exchanges them (colour refinement, exact because topology groups are nested; where they
are not, only devices that belong to the same groups are alike). After every step the constraints
narrow what the other demands can have. States without a solution are remembered, and branches
that cannot become cheaper than the best solution are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from bayplan_dra.allocator.attributes import Value
from bayplan_dra.allocator.model import Amount, TimedOut
from bayplan_dra.allocator.requests import Constraint
from bayplan_dra.allocator.table import AttributeIndex, DeviceTable, Group, bits
from bayplan_dra.allocator.usage import CounterKey

__all__ = ["Budget", "Demand", "Problem", "Search", "Solution", "broken_groups", "cost_of"]

MOST_STEPS = 10_000
"""Steps after which an allocation without a solution is given up."""
_EXACT_DEVICES = 16
_EXACT_STEPS = 20_000
_MORE_STEPS = 200
"""Further steps for a better solution, with up to 16 candidates, and with more."""
_MOST_SCORED = 512
_BASE = 1_000_000


class Budget:
    """What all searches for one allocation may take together.

    :param interrupt: asked now and then whether to stop.
    """

    def __init__(self, interrupt: Callable[[], bool] | None = None, most: int = MOST_STEPS) -> None:
        self.steps = 0
        self._most = most
        self._interrupt = interrupt

    def spend(self) -> bool:
        """Count a step; False when there are no more."""
        self.steps += 1
        if self.steps > self._most:
            return False
        due = self.steps % 16 == 0 and self._interrupt is not None
        return not (due and self._interrupt is not None and self._interrupt())


@dataclass(eq=False, slots=True)
class Demand:
    """So many devices of the candidates, for one request of one claim.

    ``every`` demands take all of their candidates. ``consumed`` is what a share of each costs.
    """

    claim: int
    name: str
    count: int
    candidates: int
    every: bool = False
    admin: bool = False
    consumed: Mapping[int, Mapping[str, Amount]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Problem:
    """Demands of several claims on one table, and what is left of it.

    ``constraints`` belong to a claim, by its number; ``counters`` and ``shares`` are what is left
    of counters and of shared capacity; ``counted`` are the shared devices in use, whose counters
    are taken already; ``used`` all devices in use, for the score.
    """

    table: DeviceTable
    constraints: Sequence[tuple[int, Constraint]]
    counters: Mapping[CounterKey, Amount]
    shares: Mapping[tuple[int, str], Amount]
    counted: int
    used: int
    groups: Sequence[Group]


@dataclass(frozen=True, slots=True)
class Solution:
    """The devices of each demand, and what breaking groups costs in all."""

    chosen: Sequence[int]
    cost: int


@dataclass(frozen=True, slots=True)
class _State:
    """A partial solution: what each demand has, may have, and still needs."""

    masks: tuple[int, ...]
    left: tuple[int, ...]
    chosen: tuple[int, ...]
    counters: tuple[tuple[CounterKey, Amount], ...]
    shares: tuple[tuple[tuple[int, str], Amount], ...]
    allowed: tuple[frozenset[Value] | None, ...]
    counted: int


def cost_of(groups: Sequence[Group], used: int) -> int:
    """Return what it costs that these devices are used; smaller is better.

    First comes how many groups are broken (used in part), level by level; among equals, free
    devices had better be together: the sum of the squares of what is free in each group.
    """
    return sum(_cost(group, (used & group.mask).bit_count()) for group in groups)


def broken_groups(groups: Sequence[Group], used: int) -> int:
    """Return how many groups are used in part."""
    return sum(_is_broken(group, (used & group.mask).bit_count()) for group in groups)


def _is_broken(group: Group, used: int) -> bool:
    return used > 0 and (group.partition or used < group.mask.bit_count())


def _cost(group: Group, used: int) -> int:
    broken = _is_broken(group, used)
    free = group.mask.bit_count() - used
    weight: int = _BASE ** (8 - min(group.level, 7))
    return int(broken) * weight - free * free


class Search:
    """One search. ``steps`` counts the states that were expanded.

    :param budget: what may be spent until there is a solution.
    :param score: rates complete solutions in the place of ``cost_of``; larger is better.
    """

    def __init__(
        self,
        problem: Problem,
        demands: Sequence[Demand],
        budget: Budget,
        score: Callable[[Sequence[int]], float] | None = None,
    ) -> None:
        self.problem = problem
        self.demands = tuple(demands)
        self.steps = 0
        self._budget = budget
        self._score = score
        self._limit = 0
        self._weights = [0] * len(self.demands)
        self._best: Solution | None = None
        self._best_score = float("-inf")
        self._scored = 0
        self._failed: set[object] = set()
        self._indices = [problem.table.attribute(c.attribute) for _, c in problem.constraints]
        self._covered = [
            [
                number
                for number, demand in enumerate(self.demands)
                if demand.claim == claim and constraint.covers(demand.name)
            ]
            for claim, constraint in problem.constraints
        ]
        self._by_demand: list[list[int]] = [[] for _ in self.demands]
        for number, covered in enumerate(self._covered):
            for demand in covered:
                self._by_demand[demand].append(number)
        self._tables = [
            [_cost(group, n) for n in range(group.mask.bit_count() + 1)] for group in problem.groups
        ]
        self._light_first: dict[CounterKey, tuple[int, list[tuple[int, Amount]]]] = {}
        # What several demands may use at once takes its counters only once.
        common = problem.table.shareable
        if any(demand.admin for demand in self.demands):
            common = problem.table.all
        for key, users in problem.table.consumers.items():
            new = [(device, n) for device, n in users if not common >> device & 1]
            mask = sum(1 << device for device, _ in new)
            self._light_first[key] = (mask, sorted(new, key=lambda item: item[1]))
        self._by_size = sorted(
            problem.groups, key=lambda group: (not group.partition, -group.mask.bit_count())
        )
        self._candidates = 0
        for one in self.demands:
            self._candidates |= one.candidates
        self._classes = self._symmetry_groups()
        # A device that takes from two counter sets takes from each a part of its own.
        single = all(
            len({key[:2] for key in problem.table.needs[device]}) < 2
            for device in bits(self._candidates)
        )
        masks = [mask & self._candidates for _, mask in self._classes]
        self._nested = single and _are_nested(masks)

    # The whole -------------------------------------------------------------------------------

    def first(self) -> Solution | None:
        """Return any solution.

        :raises TimedOut: when the search took too long.
        """
        return self._run(only_first=True)

    def best(self) -> Solution | None:
        """Return the best solution; with more than 16 candidates, a good one.

        :raises TimedOut: when the search took too long without finding any.
        """
        return self._run(only_first=False)

    def _run(self, only_first: bool) -> Solution | None:
        state = self._start()
        if state is None:
            return None
        self._only_first = only_first
        self._visit(state)
        return self._best

    def _start(self) -> _State | None:
        problem = self.problem
        state = _State(
            tuple(demand.candidates for demand in self.demands),
            tuple(demand.count for demand in self.demands),
            (0,) * len(self.demands),
            tuple(sorted(problem.counters.items())),
            tuple(sorted(problem.shares.items())),
            (None,) * len(problem.constraints),
            problem.counted,
        )
        masks = list(state.masks)
        for number, constraint in enumerate(self._constraints()):
            for demand in self._covered[number]:
                masks[demand] &= self._indices[number].present
                if self.demands[demand].every and masks[demand] != state.masks[demand]:
                    return None
            if not constraint.distinct:
                values = frozenset(self._indices[number].masks)
                state = _replace_allowed(state, number, values)
        return self._narrow(_with_masks(state, masks))

    def _constraints(self) -> Sequence[Constraint]:
        return [constraint for _, constraint in self.problem.constraints]

    # The tree --------------------------------------------------------------------------------

    def _visit(self, state: _State) -> bool:
        """Search below a state; return whether any solution was found there."""
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
        if self._best is None and not self._budget.spend():
            raise TimedOut(f"gave up the search for devices after {self._budget.steps} steps")
        found = self._branch(state, open_demands)
        if not found:
            self._failed.add(key)
        return found

    def _done(self) -> bool:
        if self._best is None:
            return False
        if self._score is not None:
            return self._only_first or self._scored >= _MOST_SCORED
        return self._only_first or self.steps > self._limit

    def _branch(self, state: _State, open_demands: Sequence[int]) -> bool:
        spare = {n: state.masks[n].bit_count() - state.left[n] for n in open_demands}
        # What made others fail before comes first.
        weights = self._weights
        number = min(open_demands, key=lambda n: (spare[n] / (1 + weights[n]), n))
        if spare[number] == 0:
            # It needs all that it may have.
            forced: _State | None = state
            for device in bits(state.masks[number]):
                if forced is None or not forced.masks[number] >> device & 1:
                    return False
                forced = self._include(forced, number, device)
            return forced is not None and self._visit(forced)
        colours = self._colours(state)
        found = False
        mask = state.masks[number]
        order = self._order(state, number)
        for device in order:
            if not mask >> device & 1:
                continue
            if mask.bit_count() < state.left[number]:
                break
            with_it = self._include(_with_mask(state, number, mask), number, device)
            if with_it is not None and self._visit(with_it):
                found = True
                if self._done():
                    return True
            for other in order:
                if colours[other] == colours[device]:
                    mask &= ~(1 << other)
        if not found:
            self._weights[number] += 1
        return found

    def _found(self, state: _State) -> None:
        used = self.problem.used
        for chosen in state.chosen:
            used |= chosen
        if self._score is not None:
            self._scored += 1
            score = self._score(state.chosen)
            if self._best is None or score > self._best_score:
                self._best_score = score
                # Bounds are those of the built-in cost; they must not cut this search.
                self._best = Solution(state.chosen, _BASE**9)
            return
        cost = sum(
            table[(used & group.mask).bit_count()]
            for group, table in zip(self.problem.groups, self._tables, strict=True)
        )
        if self._best is None:
            exact = self._candidates.bit_count() <= _EXACT_DEVICES
            self._limit = self.steps + (_EXACT_STEPS if exact else _MORE_STEPS)
        if self._best is None or cost < self._best.cost:
            self._best = Solution(state.chosen, cost)

    def _bound(self, state: _State) -> int:
        """Return what any solution below a state costs at least."""
        used = self.problem.used
        for chosen in state.chosen:
            used |= chosen
        may = 0
        for mask, left in zip(state.masks, state.left, strict=True):
            if left:
                may |= mask
        may &= ~used
        total = sum(state.left)
        bound = 0
        for group, table in zip(self.problem.groups, self._tables, strict=True):
            now = (used & group.mask).bit_count()
            most = now + min(total, (may & group.mask).bit_count())
            bound += table[now] if most == now else min(table[now : most + 1])
        return bound

    def _order(self, state: _State, number: int) -> list[int]:
        """Order candidates: groups that can hold all that is missing, the fullest first."""
        mask, left = state.masks[number], state.left[number]
        used = self.problem.used
        for chosen in state.chosen:
            used |= chosen
        keys: dict[int, list[int]] = {device: [] for device in bits(mask)}
        for group in self._by_size:
            here = mask & group.mask
            if not here:
                continue
            free = (group.mask & ~used).bit_count()
            for device in bits(here):
                keys[device] += [int(here.bit_count() < left), free]
        return sorted(keys, key=lambda device: (keys[device], device))

    # One step --------------------------------------------------------------------------------

    def _include(self, state: _State, number: int, device: int) -> _State | None:
        """Give a device to a demand; return what is then left, None when that is too little."""
        table = self.problem.table
        demand, bit = self.demands[number], 1 << device
        masks = list(state.masks)
        left = list(state.left)
        chosen = list(state.chosen)
        left[number] -= 1
        chosen[number] |= bit
        masks[number] &= ~bit
        shared = bool(table.shareable & bit) and device in demand.consumed
        if not shared:
            for other, one in enumerate(self.demands):
                if one.claim == demand.claim or not (one.admin or demand.admin):
                    masks[other] &= ~bit
        shares = state.shares
        if shared:
            shares = self._consume(state.shares, device, demand.consumed[device])
            left_now = dict(shares)
            for other, one in enumerate(self.demands):
                takes = one.consumed.get(device)
                if takes and any(left_now[device, n] < amount for n, amount in takes.items()):
                    masks[other] &= ~bit
        counters, counted = state.counters, state.counted
        if table.needs[device] and not counted & bit:
            taken = self._count(counters, table.needs[device])
            if taken is None:
                return None
            counters, counted = taken, counted | bit
            self._drop_short(dict(counters), table.needs[device], counted, masks)
        after = _State(
            tuple(masks), tuple(left), tuple(chosen), counters, shares, state.allowed, counted
        )
        return self._narrow(self._constrain(after, number, device))

    def _consume(
        self,
        shares: tuple[tuple[tuple[int, str], Amount], ...],
        device: int,
        takes: Mapping[str, Amount],
    ) -> tuple[tuple[tuple[int, str], Amount], ...]:
        return tuple(
            (key, amount - takes[key[1]] if key[0] == device and key[1] in takes else amount)
            for key, amount in shares
        )

    def _count(
        self,
        counters: tuple[tuple[CounterKey, Amount], ...],
        needs: Mapping[CounterKey, Amount],
    ) -> tuple[tuple[CounterKey, Amount], ...] | None:
        after = []
        for key, amount in counters:
            need = needs.get(key, 0)
            if need > amount:
                return None
            after.append((key, amount - need))
        return tuple(after)

    def _drop_short(
        self,
        counters: Mapping[CounterKey, Amount],
        changed: Mapping[CounterKey, Amount],
        counted: int,
        masks: list[int],
    ) -> None:
        """Take out devices that need more of a counter than is left of it."""
        gone = 0
        for key in changed:
            for device, need in self.problem.table.consumers[key]:
                if need > counters[key]:
                    gone |= 1 << device
        gone &= ~counted
        for other in range(len(masks)):
            masks[other] &= ~gone

    def _constrain(self, state: _State, number: int, device: int) -> _State:
        """Apply what a chosen device means for the constraints of its claim."""
        masks = list(state.masks)
        for index in self._by_demand[number]:
            constraint = self.problem.constraints[index][1]
            attribute = self._indices[index]
            own = attribute.values[device]
            if constraint.distinct:
                gone = 0
                for value in own:
                    gone |= attribute.masks[value]
                for other in self._covered[index]:
                    masks[other] &= ~gone
            else:
                allowed = state.allowed[index]
                state = _replace_allowed(state, index, own if allowed is None else allowed & own)
        return _with_masks(state, masks)

    def _narrow(self, state: _State) -> _State | None:
        """Let constraints and counts narrow the candidates; None when a demand has too few."""
        masks = list(state.masks)
        allowed = list(state.allowed)
        changed = True
        while changed:
            changed = False
            for index, constraint in enumerate(self._constraints()):
                if constraint.distinct:
                    continue
                values = allowed[index]
                assert values is not None
                kept = self._supported(state, masks, index, values)
                if not kept and any(state.left[n] or state.chosen[n] for n in self._covered[index]):
                    for number in self._covered[index]:
                        self._weights[number] += 1
                    return None
                if kept != values:
                    allowed[index] = kept
                    changed = True
                reach = 0
                for value in kept:
                    reach |= self._indices[index].masks[value]
                for number in self._covered[index]:
                    if masks[number] & ~reach:
                        masks[number] &= reach
                        changed = True
        if not self._enough(state, masks) or not self._enough_values(state, masks):
            return None
        if self._light_first and not self._enough_counters(state, masks):
            return None
        for number, demand in enumerate(self.demands):
            if demand.every and state.left[number] > masks[number].bit_count():
                return None
        return _with_domains(state, masks, allowed)

    def _supported(
        self, state: _State, masks: Sequence[int], index: int, values: frozenset[Value]
    ) -> frozenset[Value]:
        """Return the values that all demands of a constraint could agree on."""
        attribute: AttributeIndex = self._indices[index]
        needy = [(n, state.left[n]) for n in self._covered[index] if state.left[n]]
        if not needy:
            return values
        kept = []
        for value in values:
            mask = attribute.masks[value]
            union = total = 0
            for number, left in needy:
                here = masks[number] & mask
                if here.bit_count() < left:
                    break
                union |= here
                total += left
            else:
                exclusive = not union & self.problem.table.shareable
                if not exclusive or union.bit_count() >= total:
                    kept.append(value)
        return frozenset(kept)

    def _enough(self, state: _State, masks: Sequence[int]) -> bool:
        union = total = 0
        for number, (mask, left) in enumerate(zip(masks, state.left, strict=True)):
            if mask.bit_count() < left:
                self._weights[number] += 1
                return False
            if left and not self.demands[number].admin:
                union |= mask
                total += left
        return bool(union & self.problem.table.shareable) or union.bit_count() >= total

    def _enough_values(self, state: _State, masks: Sequence[int]) -> bool:
        """Tell whether there is a value of its own for each device that must be distinct."""
        for index, constraint in enumerate(self._constraints()):
            if constraint.distinct:
                union = total = 0
                for number in self._covered[index]:
                    if state.left[number]:
                        union |= masks[number]
                        total += state.left[number]
                if (
                    total
                    and sum(bool(m & union) for m in self._indices[index].masks.values()) < total
                ):
                    return False
        return True

    def _enough_counters(self, state: _State, masks: Sequence[int]) -> bool:
        """Tell whether the lightest candidates would leave every counter at zero or more."""
        left_of = dict(state.counters)
        for key, (consumers, ordered) in self._light_first.items():
            least: Amount = 0
            for mask, left in zip(masks, state.left, strict=True):
                needed = left - (mask & ~consumers).bit_count()
                if needed <= 0:
                    continue
                for device, amount in ordered:
                    if mask >> device & 1:
                        least += amount
                        needed -= 1
                        if not needed:
                            break
            if least and least > left_of[key]:
                return False
        return True

    # Symmetry --------------------------------------------------------------------------------

    def _symmetry_groups(self) -> list[tuple[object, int]]:
        """Return all sets of devices that matter together, each with its kind."""
        found: dict[tuple[object, int], None] = {}
        for group in self.problem.groups:
            found[(("level", group.level, group.partition), group.mask)] = None
        for index, attribute in enumerate(self._indices):
            for mask in attribute.masks.values():
                found[(("constraint", index), mask)] = None
        return list(found)

    def _colours(self, state: _State) -> Mapping[int, object]:
        """Return a colour for each candidate; equal colours mean that a symmetry exchanges them."""
        relevant = 0
        for mask in state.masks:
            relevant |= mask
        if self._score is not None:
            return {device: device for device in bits(relevant)}
        used = self.problem.used
        for chosen in state.chosen:
            used |= chosen
        colours = self._first_colours(state, relevant)
        groups = [
            (kind, mask, (used & mask).bit_count(), mask.bit_count())
            for kind, mask in self._classes
            if mask & relevant
        ]
        if not self._nested:
            return {
                device: (colour, tuple(bool(mask >> device & 1) for _, mask, _, _ in groups))
                for device, colour in colours.items()
            }
        return self._refined(colours, groups, relevant)

    def _first_colours(self, state: _State, relevant: int) -> dict[int, int]:
        """Return colours by what devices are by themselves: who may have them, what they cost."""
        table = self.problem.table
        masks = list(dict.fromkeys(state.masks))
        plain = not table.consumers and not table.shareable
        counters = {} if plain else dict(state.counters)
        shares = {} if plain else dict(state.shares)
        admin = any(demand.admin for demand in self.demands)
        palette: dict[object, int] = {}
        colours: dict[int, int] = {}
        for device in bits(relevant):
            own: list[object] = [mask >> device & 1 for mask in masks]
            if not plain or admin:
                own += [chosen >> device & 1 for chosen in state.chosen]
            if not plain:
                needs = table.needs[device].items()
                own.append(
                    tuple(
                        sorted(
                            (key[2:] if self._nested else key, n, counters[key]) for key, n in needs
                        )
                    )
                )
                capacity = table.devices[device].spec.capacity
                own.append(tuple((name, shares.get((device, name))) for name in capacity))
                consumed = (demand.consumed.get(device, {}) for demand in self.demands)
                own.append(tuple(tuple(sorted(one.items())) for one in consumed))
                own.append(state.counted >> device & 1)
            colours[device] = palette.setdefault(tuple(own), len(palette))
        return colours

    def _refined(
        self,
        colours: dict[int, int],
        groups: Sequence[tuple[object, int, int, int]],
        relevant: int,
    ) -> Mapping[int, object]:
        members = [list(bits(mask & relevant)) for _, mask, _, _ in groups]
        for _ in range(len(groups) + 1):
            palette: dict[object, int] = {}
            of_group = [
                palette.setdefault(
                    (kind, used, size, tuple(sorted(colours[device] for device in own))),
                    len(palette),
                )
                for (kind, _, used, size), own in zip(groups, members, strict=True)
            ]
            around: dict[int, list[int]] = {device: [] for device in colours}
            for colour, own in zip(of_group, members, strict=True):
                for device in own:
                    around[device].append(colour)
            fresh: dict[object, int] = {}
            refined = {
                device: fresh.setdefault((colour, tuple(sorted(around[device]))), len(fresh))
                for device, colour in colours.items()
            }
            if len(fresh) == len(set(colours.values())):
                return refined
            colours = refined
        return colours


def _are_nested(masks: Sequence[int]) -> bool:
    """Tell whether any two sets are apart, or one holds the other."""
    distinct = {mask for mask in masks if mask & (mask - 1)}
    return all(a & b in (0, a, b) for a, b in combinations(distinct, 2))


def _with_domains(
    state: _State, masks: Sequence[int], allowed: Sequence[frozenset[Value] | None]
) -> _State:
    """Return the state with other devices and other constraint values still open."""
    return _State(
        tuple(masks),
        state.left,
        state.chosen,
        state.counters,
        state.shares,
        tuple(allowed),
        state.counted,
    )


def _with_masks(state: _State, masks: Sequence[int]) -> _State:
    return _with_domains(state, masks, state.allowed)


def _with_mask(state: _State, number: int, mask: int) -> _State:
    masks = list(state.masks)
    masks[number] = mask
    return _with_masks(state, masks)


def _replace_allowed(state: _State, index: int, values: frozenset[Value]) -> _State:
    allowed = list(state.allowed)
    allowed[index] = values
    return _with_domains(state, state.masks, allowed)
