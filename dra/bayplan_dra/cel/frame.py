"""The frame that a compiled expression runs on: device, budget, interrupt, iterations, locals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bayplan_dra.cel.errors import CostExceeded, EvaluationError, Interrupted
from bayplan_dra.cel.values import Optional, go_type

__all__ = [
    "BUDGET",
    "COST_LIMIT",
    "DEVICE",
    "FIRST_LOCAL",
    "Frame",
    "Run",
    "iteration",
    "size_of",
    "spend",
    "spend_for",
]

COST_LIMIT = 1_000_000
"""What one evaluation may cost, in steps (Kubernetes' limit for selectors)."""

Frame = list[Any]
"""The device, the rest of the budget, the interrupt, the count of iterations, and the locals."""
Run = Callable[[Frame], Any]
"""A compiled expression."""

DEVICE, BUDGET, INTERRUPT, ITERATIONS, FIRST_LOCAL = range(5)
_CHECK_EVERY = 100


def iteration(source: Run, slots: Sequence[int], cost: int) -> Callable[[Frame], Iteration]:
    """Return the iteration over a list or map; ``cost`` is paid for each step."""
    return lambda f: Iteration(f, source(f), slots, cost)


class Iteration:
    """Iterates over a list or map: sets the variables, pays the cost, calls the interrupt.

    :param slots: of the variables; with two, the index or key is the first.
    :raises EvaluationError: for a value that cannot be iterated over.
    """

    __slots__ = ("_cost", "_frame", "_items", "_slots")

    def __init__(self, frame: Frame, value: Any, slots: Sequence[int], cost: int) -> None:
        self._frame, self._slots, self._cost = frame, slots, cost
        if isinstance(value, tuple):
            self._items = enumerate(value) if len(slots) == 2 else iter(value)
        elif isinstance(value, dict):
            self._items = iter(value.items() if len(slots) == 2 else value)
        else:
            raise EvaluationError(f"got '{go_type(value)}', expected iterable type")

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> None:
        item = next(self._items)
        f = self._frame
        spend(f, self._cost)
        f[ITERATIONS] += 1
        if f[ITERATIONS] % _CHECK_EVERY == 0 and f[INTERRUPT] is not None and f[INTERRUPT]():
            raise Interrupted("operation interrupted")
        if len(self._slots) == 2:
            f[self._slots[0]], f[self._slots[1]] = item
        else:
            f[self._slots[0]] = item


def spend(f: Frame, cost: int) -> None:
    """Pay from the budget.

    :raises CostExceeded: when nothing is left.
    """
    f[BUDGET] -= cost
    if f[BUDGET] < 0:
        raise CostExceeded("operation cancelled: actual cost limit exceeded")


def size_of(value: Any, most: int) -> int:
    """Return the number of values in a value, plus a tenth of the length of its texts.

    :param most: the count stops beyond it.
    """
    if isinstance(value, str | bytes):
        return 1 + len(value) // 10
    if not isinstance(value, tuple | dict | Optional):
        return 1
    waiting = [value]
    count = 0
    while waiting:
        one = waiting.pop()
        count += 1
        if count + len(waiting) > most:
            return most + 1
        if isinstance(one, tuple):
            waiting.extend(one)
        elif isinstance(one, dict):
            waiting.extend(one)
            waiting.extend(one.values())
        elif isinstance(one, Optional):
            waiting.append(one.value)
        elif isinstance(one, str | bytes):
            count += len(one) // 10
    return count


def spend_for(f: Frame, value: Any) -> None:
    """Pay for a new list or map, with everything in it.

    :raises CostExceeded: when nothing is left.
    """
    spend(f, size_of(value, f[BUDGET]))
