"""What follows from what is left of a node, computed once for all nodes that are alike."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from bayplan.plugin.hookspecs import BoolColumn, IntColumn
from bayplan_plugins.gpu_fragmentation.states import NodeStates, Rows
from bayplan_plugins.gpus.columns import GpuMatrix

__all__ = ["KnownStates", "StateTable", "kinds_of"]

_MOST_KNOWN = 400_000
_Table = npt.NDArray[np.float64]


class KnownStates:
    """Numbers the different states of nodes, whatever the order of their GPUs."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    @property
    def full(self) -> bool:
        """Whether it is time to start again, with tables that are empty."""
        return len(self._numbers) > _MOST_KNOWN

    def of(self, states: NodeStates, cpu: IntColumn, kind: IntColumn) -> Rows:
        """Return the number of each state.

        :param cpu: what counts of each state's CPU.
        :param kind: tells nodes apart that differ in which pods they allow.
        """
        known = self._numbers
        numbers = [known.setdefault(text, len(known)) for text in _texts(cpu, kind, states.left)]
        return np.array(numbers, dtype=np.intp)

    def of_one(self, cpu: int, kind: int, left: Sequence[int]) -> int:
        """Return the number of one state, as ``of`` does."""
        text = array("q", (cpu, kind, *sorted(left))).tobytes()
        return self._numbers.setdefault(text, len(self._numbers))


class StateTable:
    """A few numbers for each known state, computed when they are first asked for.

    :param compute: returns the numbers of states, a row each.
    :param width: how many they are.
    """

    def __init__(self, compute: Callable[[NodeStates], _Table], width: int = 1) -> None:
        self._compute = compute
        self._table = np.zeros((0, width))
        self._known: BoolColumn = np.zeros(0, dtype=np.bool_)

    def of(self, numbers: Rows, states: NodeStates) -> _Table:
        """Return the numbers of some states, a row each.

        :param numbers: those that ``KnownStates`` gave them.
        """
        most = int(numbers.max(initial=0))
        if most >= len(self._known):
            self._grow(2 * most + 1)
        known = self._known[numbers]
        if np.count_nonzero(known) < len(known):
            missing = (~known).nonzero()[0]
            # Any place of those with the same number will do.
            places = dict(zip(numbers[missing].tolist(), missing.tolist(), strict=True))
            new = np.array(list(places), dtype=np.intp)
            some = np.array(list(places.values()), dtype=np.intp)
            self._table[new] = self._compute(states.part(some))
            self._known[new] = True
        found: _Table = self._table[numbers]
        return found

    def of_one(self, number: int) -> Sequence[float] | None:
        """Return the numbers of one state if they are known."""
        if number >= len(self._known) or not self._known.item(number):
            return None
        found: list[float] = self._table[number].tolist()
        return found

    def _grow(self, size: int) -> None:
        table, known = self._table, self._known
        self._table = np.zeros((size, table.shape[1]))
        self._known = np.zeros(size, dtype=np.bool_)
        self._table[: len(table)], self._known[: len(known)] = table, known


def _texts(cpu: IntColumn, kind: IntColumn, left: GpuMatrix) -> list[bytes]:
    keys = np.empty((len(left), left.shape[1] + 2), dtype=np.int64)
    keys[:, 0], keys[:, 1] = cpu, kind
    keys[:, 2:] = left
    keys[:, 2:].sort(axis=1)
    texts: list[bytes] = keys.view(f"V{keys.itemsize * keys.shape[1]}").ravel().tolist()
    return texts


def kinds_of(allowed: BoolColumn) -> tuple[BoolColumn, IntColumn]:
    """Return the different rows of a table, and the place among them of each row.

    :param allowed: by node and choice, whether pods of the choice may use the node.
    """
    kinds, kind = np.unique(allowed, axis=0, return_inverse=True)
    return kinds, kind.reshape(-1)
