"""What choosing a device means for everything that is still open.

After each choice, constraints, counters and counts narrow the candidates of the other demands,
until nothing changes or a demand has too few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bayplan_dra.allocator.attributes import Value
from bayplan_dra.allocator.model import Amount
from bayplan_dra.allocator.problem import AllocationProblem, DeviceDemand, PartialSolution
from bayplan_dra.allocator.table import AttributeIndex
from bayplan_dra.allocator.usage import CounterKey

__all__ = ["Propagation"]


class Propagation:
    """Narrows partial solutions of one problem.

    :ivar weights: for each demand, how often it was the one that had too few candidates.
    """

    def __init__(self, problem: AllocationProblem, demands: Sequence[DeviceDemand]) -> None:
        self.weights = [0] * len(demands)
        self._problem = problem
        self._demands = demands
        self._constraints = [constraint for _, constraint in problem.constraints]
        self._indices = [problem.table.attribute(one.attribute) for one in self._constraints]
        self._covered = problem.covered(demands)
        self._by_demand: list[list[int]] = [[] for _ in demands]
        for number, covered in enumerate(self._covered):
            for demand in covered:
                self._by_demand[demand].append(number)
        self._light_first = _consumers_by_need(problem, demands)

    def start(self) -> PartialSolution | None:
        """Return the first partial solution; None when a demand has too few candidates."""
        state = PartialSolution.start(self._problem, self._demands)
        masks = list(state.masks)
        for number, constraint in enumerate(self._constraints):
            for demand in self._covered[number]:
                masks[demand] &= self._indices[number].present
                if self._demands[demand].every and masks[demand] != state.masks[demand]:
                    return None
            if not constraint.distinct:
                state = state.with_allowed(number, frozenset(self._indices[number].masks))
        return self._narrow(state.with_masks(masks))

    def include(self, state: PartialSolution, number: int, device: int) -> PartialSolution | None:
        """Give a device to a demand; return None when too little is left then.

        :param number: the number of the demand.
        """
        table = self._problem.table
        demand, bit = self._demands[number], 1 << device
        masks = list(state.masks)
        left = list(state.left)
        chosen = list(state.chosen)
        left[number] -= 1
        chosen[number] |= bit
        masks[number] &= ~bit
        shared = bool(table.shareable & bit) and device in demand.consumed
        if not shared:
            for other, one in enumerate(self._demands):
                if one.claim == demand.claim or not (one.admin or demand.admin):
                    masks[other] &= ~bit
        shares = state.shares
        if shared:
            shares = _consume(state.shares, device, demand.consumed[device])
            left_now = dict(shares)
            for other, one in enumerate(self._demands):
                takes = one.consumed.get(device)
                if takes and any(left_now[device, n] < amount for n, amount in takes.items()):
                    masks[other] &= ~bit
        counters, counted = state.counters, state.counted
        if table.needs[device] and not counted & bit:
            taken = _count(counters, table.needs[device])
            if taken is None:
                return None
            counters, counted = taken, counted | bit
            self._drop_short(dict(counters), table.needs[device], counted, masks)
        after = PartialSolution(
            tuple(masks), tuple(left), tuple(chosen), counters, shares, state.allowed, counted
        )
        return self._narrow(self._constrain(after, number, device))

    def _drop_short(
        self,
        counters: Mapping[CounterKey, Amount],
        changed: Mapping[CounterKey, Amount],
        counted: int,
        masks: list[int],
    ) -> None:
        """Drop the candidates that need more of a counter than is left of it."""
        gone = 0
        for key in changed:
            for device, need in self._problem.table.consumers[key]:
                if need > counters[key]:
                    gone |= 1 << device
        gone &= ~counted
        for other in range(len(masks)):
            masks[other] &= ~gone

    def _constrain(self, state: PartialSolution, number: int, device: int) -> PartialSolution:
        """Apply what a chosen device means for the constraints of its claim."""
        masks = list(state.masks)
        for index in self._by_demand[number]:
            attribute = self._indices[index]
            own = attribute.values[device]
            if self._constraints[index].distinct:
                gone = 0
                for value in own:
                    gone |= attribute.masks[value]
                for other in self._covered[index]:
                    masks[other] &= ~gone
            else:
                allowed = state.allowed[index]
                state = state.with_allowed(index, own if allowed is None else allowed & own)
        return state.with_masks(masks)

    def _narrow(self, state: PartialSolution) -> PartialSolution | None:
        """Let constraints and counts narrow the candidates; None when a demand has too few."""
        masks = list(state.masks)
        allowed = list(state.allowed)
        changed = True
        while changed:
            changed = False
            for index, constraint in enumerate(self._constraints):
                if constraint.distinct:
                    continue
                values = allowed[index]
                assert values is not None
                kept = self._supported(state, masks, index, values)
                if not kept and any(state.left[n] or state.chosen[n] for n in self._covered[index]):
                    for number in self._covered[index]:
                        self.weights[number] += 1
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
        for number, demand in enumerate(self._demands):
            if demand.every and state.left[number] > masks[number].bit_count():
                return None
        return state.with_domains(masks, allowed)

    def _supported(
        self, state: PartialSolution, masks: Sequence[int], index: int, values: frozenset[Value]
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
                exclusive = not union & self._problem.table.shareable
                if not exclusive or union.bit_count() >= total:
                    kept.append(value)
        return frozenset(kept)

    def _enough(self, state: PartialSolution, masks: Sequence[int]) -> bool:
        """Tell whether every demand, and all together, have enough candidates."""
        union = total = 0
        for number, (mask, left) in enumerate(zip(masks, state.left, strict=True)):
            if mask.bit_count() < left:
                self.weights[number] += 1
                return False
            if left and not self._demands[number].admin:
                union |= mask
                total += left
        return bool(union & self._problem.table.shareable) or union.bit_count() >= total

    def _enough_values(self, state: PartialSolution, masks: Sequence[int]) -> bool:
        """Tell whether each device that must be distinct can have a value of its own."""
        for index, constraint in enumerate(self._constraints):
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

    def _enough_counters(self, state: PartialSolution, masks: Sequence[int]) -> bool:
        """Tell whether the candidates that need least leave every counter at zero or more."""
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


def _consumers_by_need(
    problem: AllocationProblem, demands: Sequence[DeviceDemand]
) -> dict[CounterKey, tuple[int, list[tuple[int, Amount]]]]:
    """Return who needs each counter: the set of devices, and each with its need, least first."""
    # A device that several demands may use at once takes its counters only once.
    common = problem.table.shareable
    if any(demand.admin for demand in demands):
        common = problem.table.all
    found = {}
    for key, users in problem.table.consumers.items():
        own = [(device, need) for device, need in users if not common >> device & 1]
        mask = sum(1 << device for device, _ in own)
        found[key] = (mask, sorted(own, key=lambda item: item[1]))
    return found


def _consume(
    shares: tuple[tuple[tuple[int, str], Amount], ...],
    device: int,
    takes: Mapping[str, Amount],
) -> tuple[tuple[tuple[int, str], Amount], ...]:
    return tuple(
        (key, amount - takes[key[1]] if key[0] == device and key[1] in takes else amount)
        for key, amount in shares
    )


def _count(
    counters: tuple[tuple[CounterKey, Amount], ...],
    needs: Mapping[CounterKey, Amount],
) -> tuple[tuple[CounterKey, Amount], ...] | None:
    """Take what a device needs from the counters; None where there is too little."""
    after = []
    for key, amount in counters:
        need = needs.get(key, 0)
        if need > amount:
            return None
        after.append((key, amount - need))
    return tuple(after)
