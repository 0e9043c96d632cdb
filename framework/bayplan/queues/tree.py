"""One tree of queues as columns: rows are queues, parents before their children.

Amounts are float64 arrays of shape (queues, resources): CPU in milli-CPU, anything else in its
unit, ``inf`` for what nothing bounds. What a leaf uses counts in each of its ancestors, too.
More than a quantity can hold counts as much as it can hold, so that every sum is finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bayplan.api.quantity import MAX_QUANTITY
from bayplan.api.queue import UNLIMITED, Amounts, Queue, Share

__all__ = ["EPSILON", "AmountRows", "QueueTree"]

AmountRows = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

EPSILON = 1e-6
"""Amounts that differ by less are equal; parts of devices do not add up exactly."""
_MOST = MAX_QUANTITY * 1000.0
"""The largest amount of a quantity in thousandths, as CPU is counted."""


class QueueTree:
    """The queues of one tree, with what each may have and what it has.

    ``deserved``, ``guaranteed``, ``limit``, ``weight``, ``lent`` and ``borrowed`` are the columns
    of the definitions. ``used`` is what pods on nodes take, ``fixed`` the part of it that cannot
    be taken back, ``demand`` what all living pods ask for, on nodes or not.

    :param queues: in any order; parents have to be among them.
    :raises ValueError: for two queues of one name, a parent that is missing, or a cycle; the text
        names the queues.
    """

    def __init__(self, queues: Iterable[Queue], resources: Sequence[str] = ()) -> None:
        self.queues: list[Queue] = _parents_first(list(queues))
        self.row_of: dict[str, int] = {one.name: row for row, one in enumerate(self.queues)}
        parents = [self.row_of[q.parent] if q.parent else -1 for q in self.queues]
        self.parent: Rows = np.array(parents, dtype=np.intp)
        self.children: list[list[int]] = [[] for _ in self.queues]
        self.roots: list[int] = []
        self.paths: list[Rows] = []
        for row, parent in enumerate(parents):
            if parent < 0:
                self.roots.append(row)
                self.paths.append(np.array([row], dtype=np.intp))
            else:
                self.children[parent].append(row)
                self.paths.append(np.concatenate(([row], self.paths[parent])))
        self.resources: list[str] = []
        self.column_of: dict[str, int] = {}
        shape = (len(self.queues), 0)
        self.deserved: AmountRows = np.zeros(shape)
        self.guaranteed: AmountRows = np.zeros(shape)
        self.limit: AmountRows = np.zeros(shape)
        self.weight: AmountRows = np.zeros(shape)
        self.lent: AmountRows = np.zeros(shape)
        self.borrowed: AmountRows = np.zeros(shape)
        self.used: AmountRows = np.zeros(shape)
        self.fixed: AmountRows = np.zeros(shape)
        self.demand: AmountRows = np.zeros(shape)
        self.changes = 0
        """Counts what was used, asked for or taken back."""
        self.add_resources(resources)

    # Resources ---------------------------------------------------------------------------

    def add_resources(self, names: Iterable[str]) -> None:
        """Add columns for resources that the tree does not have yet."""
        fresh = [name for name in dict.fromkeys(names) if name not in self.column_of]
        if not fresh:
            return
        for name in fresh:
            self.column_of[name] = len(self.resources)
            self.resources.append(name)
        for field in ("deserved", "guaranteed", "limit", "weight", "lent", "borrowed"):
            added = [[_share(queue, field).of(name) for name in fresh] for queue in self.queues]
            columns = np.array(added, dtype=np.float64).reshape(-1, len(fresh))
            self._append(field, np.where(columns == UNLIMITED, columns, columns.clip(max=_MOST)))
        for field in ("used", "fixed", "demand"):
            self._append(field, np.zeros((len(self.queues), len(fresh))))

    def _append(self, field: str, columns: AmountRows) -> None:
        setattr(self, field, np.concatenate((getattr(self, field), columns), axis=1))

    def vector(self, amounts: Amounts) -> AmountRows:
        """Return amounts as one row of the columns; adds columns for new resources."""
        self.add_resources(amounts)
        row = np.zeros(len(self.resources))
        for name, amount in amounts.items():
            row[self.column_of[name]] = min(amount, _MOST)
        return row

    def amounts(self, row: AmountRows) -> dict[str, float]:
        """Return one row of the columns as amounts by resource, without zeros."""
        return {
            name: float(row[at]) for at, name in enumerate(self.resources[: len(row)]) if row[at]
        }

    # Shape -------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.queues)

    def is_leaf(self, row: int) -> bool:
        """Tell whether a queue has no children."""
        return not self.children[row]

    def path(self, row: int) -> Sequence[int]:
        """Return the rows from a queue up to its root, itself first."""
        rows: list[int] = self.paths[row].tolist()
        return rows

    def name(self, row: int) -> str:
        """Return a queue's name."""
        return self.queues[row].name

    def branches(self, one: int, other: int) -> tuple[int, int] | None:
        """Return the ancestors (or selves) of two queues just below their lowest common ancestor.

        Without a common ancestor these are their roots. None when one contains the other.
        """
        mine, theirs = self.path(one)[::-1], self.path(other)[::-1]
        for first, second in zip(mine, theirs, strict=False):
            if first != second:
                return first, second
        return None

    # Usage -------------------------------------------------------------------------------

    def use(self, row: int, amounts: AmountRows, sign: int = 1, fixed: bool = False) -> None:
        """Count amounts as used in a queue and its ancestors.

        :param sign: how often, below 0 to take them back.
        """
        self.changes += 1
        width = len(amounts)
        rows = self.paths[row]
        self.used[rows, :width] += sign * amounts
        if fixed:
            self.fixed[rows, :width] += sign * amounts

    def ask(self, row: int, amounts: AmountRows, sign: int = 1) -> None:
        """Count amounts as asked for in a queue and its ancestors; ``sign`` -1 takes them back."""
        self.changes += 1
        self.demand[self.paths[row], : len(amounts)] += sign * amounts


def _share(queue: Queue, field: str) -> Share:
    share: Share = getattr(queue, field)
    return share


def _parents_first(queues: list[Queue]) -> list[Queue]:
    by_name: dict[str, Queue] = {}
    for queue in queues:
        if queue.name in by_name:
            raise ValueError(f'two queues have the name "{queue.name}"')
        by_name[queue.name] = queue
    ordered: dict[str, Queue] = {}
    for queue in queues:
        chain: dict[str, Queue] = {}
        current: Queue | None = queue
        while current is not None and current.name not in ordered:
            if current.name in chain:
                raise ValueError(f"queues are their own ancestors: {_cycle(chain, current.name)}")
            chain[current.name] = current
            if current.parent and current.parent not in by_name:
                raise ValueError(
                    f'queue "{current.name}" has the parent "{current.parent}", '
                    "which does not exist"
                )
            current = by_name[current.parent] if current.parent else None
        ordered |= dict(reversed(chain.items()))
    return list(ordered.values())


def _cycle(chain: Mapping[str, Queue], name: str) -> str:
    names = list(chain)
    return " -> ".join([*names[names.index(name) :], name])
