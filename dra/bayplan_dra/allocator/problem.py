"""What a search works on: the demands, what is left of the devices, and partial solutions.

Sets of devices are integers with one bit for each device of the table. Demands and constraints are
known by their number, which is their place in the sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bayplan_dra.allocator.attributes import Value
from bayplan_dra.allocator.model import Amount
from bayplan_dra.allocator.requests import AttributeConstraint
from bayplan_dra.allocator.table import DeviceTable, Group
from bayplan_dra.allocator.usage import CounterKey

__all__ = [
    "MOST_STEPS",
    "AllocationProblem",
    "DeviceDemand",
    "DeviceSolution",
    "PartialSolution",
    "StepBudget",
]

MOST_STEPS = 10_000
"""Steps after which an allocation without a solution is given up."""


class StepBudget:
    """The steps that all searches for one allocation may take together.

    :param interrupt: called every 16 steps; the search stops when it returns True.
    :param most: the number of steps.
    """

    def __init__(self, interrupt: Callable[[], bool] | None = None, most: int = MOST_STEPS) -> None:
        self.steps = 0
        self._most = most
        self._interrupt = interrupt

    def spend(self) -> bool:
        """Count a step; return False when there are none left."""
        self.steps += 1
        if self.steps > self._most:
            return False
        due = self.steps % 16 == 0 and self._interrupt is not None
        return not (due and self._interrupt is not None and self._interrupt())


@dataclass(eq=False, slots=True)
class DeviceDemand:
    """``count`` devices of the candidates, for one request of one claim.

    :ivar claim: the number of the claim.
    :ivar every: the demand takes all of its candidates.
    :ivar consumed: the capacity that a share of a device takes, by device and capacity name.
    """

    claim: int
    name: str
    count: int
    candidates: int
    every: bool = False
    admin: bool = False
    consumed: Mapping[int, Mapping[str, Amount]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AllocationProblem:
    """The constraints of several claims on one table, and what is left of its devices.

    :ivar constraints: each with the number of its claim.
    :ivar counters: what is left of each counter.
    :ivar shares: what is left of each shared device's capacity.
    :ivar counted: the shared devices in use, whose counters are already taken.
    :ivar used: all devices in use.
    """

    table: DeviceTable
    constraints: Sequence[tuple[int, AttributeConstraint]]
    counters: Mapping[CounterKey, Amount]
    shares: Mapping[tuple[int, str], Amount]
    counted: int
    used: int
    groups: Sequence[Group]

    def covered(self, demands: Sequence[DeviceDemand]) -> list[list[int]]:
        """Return, for each constraint, the numbers of the demands that it covers."""
        return [
            [
                number
                for number, demand in enumerate(demands)
                if demand.claim == claim and constraint.covers(demand.name)
            ]
            for claim, constraint in self.constraints
        ]


@dataclass(frozen=True, slots=True)
class DeviceSolution:
    """The devices of each demand, and the cost of all devices that are then in use."""

    chosen: Sequence[int]
    cost: int


@dataclass(frozen=True, slots=True)
class PartialSolution:
    """What each demand may still get, still needs, and has; hashable, to remember dead ends.

    :ivar masks: the candidates left to each demand.
    :ivar left: the number of devices that each demand still needs.
    :ivar chosen: the devices of each demand.
    :ivar allowed: the values that each constraint allows; None for a distinct one.
    :ivar counted: the devices whose counters are taken.
    """

    masks: tuple[int, ...]
    left: tuple[int, ...]
    chosen: tuple[int, ...]
    counters: tuple[tuple[CounterKey, Amount], ...]
    shares: tuple[tuple[tuple[int, str], Amount], ...]
    allowed: tuple[frozenset[Value] | None, ...]
    counted: int

    @classmethod
    def start(cls, problem: AllocationProblem, demands: Sequence[DeviceDemand]) -> PartialSolution:
        """Return the solution in which nothing is chosen yet."""
        return cls(
            tuple(demand.candidates for demand in demands),
            tuple(demand.count for demand in demands),
            (0,) * len(demands),
            tuple(sorted(problem.counters.items())),
            tuple(sorted(problem.shares.items())),
            (None,) * len(problem.constraints),
            problem.counted,
        )

    def used(self, before: int) -> int:
        """Return the devices in use, with those that were in use before."""
        for chosen in self.chosen:
            before |= chosen
        return before

    def with_domains(
        self, masks: Sequence[int], allowed: Sequence[frozenset[Value] | None]
    ) -> PartialSolution:
        """Return the same choice with other candidates and allowed values."""
        return PartialSolution(
            tuple(masks),
            self.left,
            self.chosen,
            self.counters,
            self.shares,
            tuple(allowed),
            self.counted,
        )

    def with_masks(self, masks: Sequence[int]) -> PartialSolution:
        """Return the same choice with other candidates."""
        return self.with_domains(masks, self.allowed)

    def with_mask(self, number: int, mask: int) -> PartialSolution:
        """Return the same choice with other candidates for one demand."""
        masks = list(self.masks)
        masks[number] = mask
        return self.with_masks(masks)

    def with_allowed(self, index: int, values: frozenset[Value]) -> PartialSolution:
        """Return the same choice with other values allowed by one constraint."""
        allowed = list(self.allowed)
        allowed[index] = values
        return self.with_domains(self.masks, allowed)
