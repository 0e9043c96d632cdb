"""What a search works on: the demands, what is left of the devices, and partial solutions.

Sets of devices are integers with one bit for each device of the table. Demands and constraints are
known by their number, which is their place in the sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bayplan_dra.allocator.attributes import Value
from bayplan_dra.allocator.model import Amount, Interrupt, TimedOut
from bayplan_dra.allocator.requests import AttributeConstraint
from bayplan_dra.allocator.table import DeviceTable, Group, Turn
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

    :param interrupt: asked for every 16 pieces of work; the search stops when it returns True.
    :param most: the number of steps.
    """

    def __init__(self, interrupt: Interrupt | None = None, most: int = MOST_STEPS) -> None:
        self.steps = 0
        self.interrupt = interrupt
        self._most = most
        self._work = 0

    def spend(self) -> None:
        """Count a step.

        :raises TimedOut: when there are none left, or the interrupt says so.
        """
        self.steps += 1
        if self.steps > self._most:
            raise TimedOut.after(self.steps)
        self.check()

    def check(self) -> None:
        """Count a piece of work that is no step of its own.

        :raises TimedOut: when the interrupt says so.
        """
        if self.is_interrupted():
            raise TimedOut.interrupted(self.steps)

    def is_interrupted(self) -> bool:
        """Count a piece of work; tell whether to stop."""
        self._work += 1
        return self._work % 16 == 0 and self.interrupt is not None and self.interrupt()


class DeviceDemand(msgspec.Struct, eq=False):
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
    consumed: Mapping[int, Mapping[str, Amount]] = msgspec.field(default_factory=dict)


class AllocationProblem(msgspec.Struct, frozen=True):
    """The constraints of several claims on one table, and what is left of its devices.

    :ivar constraints: each with the number of its claim.
    :ivar counters: what is left of each counter.
    :ivar shares: what is left of each shared device's capacity.
    :ivar counted: the shared devices in use, whose counters are already taken.
    :ivar used: all devices in use.
    :ivar turns: when each device is tried; empty if that does not matter.
    :ivar most: the largest amount of each capacity that a shared device has.
    """

    table: DeviceTable
    constraints: Sequence[tuple[int, AttributeConstraint]]
    counters: Mapping[CounterKey, Amount]
    shares: Mapping[tuple[int, str], Amount]
    counted: int
    used: int
    groups: Sequence[Group]
    turns: Sequence[Turn] = ()
    most: Mapping[str, Amount] = msgspec.field(default_factory=dict)

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


class DeviceSolution(msgspec.Struct, frozen=True):
    """The devices of each demand, and the cost of all devices that are then in use."""

    chosen: Sequence[int]
    cost: int


class PartialSolution(msgspec.Struct, frozen=True):
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
