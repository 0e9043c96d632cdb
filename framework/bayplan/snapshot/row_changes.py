"""Which rows of the node table changed, and where rows went when others came or left.

Readers keep the epoch and the position that they have seen, and bring what they computed up to date
from there.
"""

from __future__ import annotations

from collections import deque
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["RowChanges", "Rows", "Stale", "moved", "numbers_now"]

Rows = npt.NDArray[np.intp]
Scalar = TypeVar("Scalar", bound=np.generic)

_MOST_CHANGES = 100_000
_MOST_MOVES = 16


class Stale(msgspec.Struct, frozen=True):
    """What a reader has to do: ``rows`` to read again, oldest change first.

    ``origin`` is, for each row, the row that it was at the reader's last look, -1 for a new one;
    None if no row has another number.
    """

    rows: list[int]
    origin: Rows | None = None


def moved(column: npt.NDArray[Scalar], origin: Rows, missing: int = 0) -> npt.NDArray[Scalar]:
    """Return a column, or matrix, whose rows follow those of the table.

    :param origin: for each row, its number before, -1 for a new one.
    :param missing: what new rows hold.
    """
    new = origin < 0
    if new.all():
        return np.full((len(origin), *column.shape[1:]), missing, dtype=column.dtype)
    found = column[origin]
    found[new] = missing
    return found


def numbers_now(origin: Rows, size: int) -> Rows:
    """Return, for each row before, its number now, -1 for one that is gone.

    :param origin: for each row now, its number before, -1 for a new one.
    :param size: how many rows there were before.
    """
    now = np.full(size, -1, dtype=np.intp)
    stays = np.flatnonzero(origin >= 0)
    now[origin[stays]] = stays
    return now


class RowChanges:
    """The log of changed rows. A new epoch begins when rows get other numbers."""

    def __init__(self) -> None:
        self.epoch = 0
        """Changes when rows get other numbers, or everything about all of them is stale."""
        self.position = 0
        """How many changes of rows there were up to now."""
        self._changes: list[int] = []
        """The rows that changed, oldest first, by their numbers now; the oldest are forgotten."""
        self._forgotten = 0
        self._renumbered = 0
        """The position of the latest epoch."""
        self._moves: deque[tuple[int, Rows]] = deque(maxlen=_MOST_MOVES)
        """The epochs that began as rows moved, with the row before of each row."""

    def mark(self, row: int) -> None:
        """Log a change of a row."""
        self._changes.append(row)
        self.position += 1

    def since(self, position: int) -> list[int] | None:
        """Return the rows that changed since a position, oldest first.

        None when that is too long ago to say, or was in another epoch.
        """
        first = position - self._forgotten
        known = first >= 0 and position >= self._renumbered
        return self._changes[first:] if known else None

    def stale_since(self, epoch: int, position: int) -> Stale | None:
        """Return what is stale since an epoch and a position; None if everything may be."""
        first = position - self._forgotten
        if first < 0:
            return None
        if epoch == self.epoch:
            return Stale(self._changes[first:])
        origin = self._origin_since(epoch)
        return Stale(self._changes[first:], origin) if origin is not None else None

    def _origin_since(self, epoch: int) -> Rows | None:
        moves = [move for at, move in self._moves if at > epoch]
        if len(moves) != self.epoch - epoch:
            return None
        origin = moves.pop()
        for move in reversed(moves):
            # Without any row in between there is nothing that they could come from.
            before = move[origin] if len(move) else np.full(len(origin), -1, dtype=np.intp)
            origin = np.where(origin >= 0, before, -1)
        return origin

    def renumber(self, origin: Rows, size: int) -> None:
        """Begin an epoch as rows get other numbers.

        :param origin: for each row, its number before, -1 for a new one.
        :param size: how many rows there were before.
        """
        now = numbers_now(origin, size)
        if len(origin):
            # Positions stay: the change of a row that is gone becomes one of the first row.
            self._changes = np.maximum(now[np.array(self._changes, dtype=np.intp)], 0).tolist()
        else:
            self._forgotten += len(self._changes)
            self._changes = []
        self.epoch += 1
        self._moves.append((self.epoch, origin))
        self._renumbered = self.position

    def restart(self) -> None:
        """Begin an epoch in which everything about all rows is stale."""
        self.epoch += 1

    def trim(self, rows: int) -> None:
        """Forget the older half of the changes if there are many.

        :param rows: how many rows there are.
        """
        if len(self._changes) > max(_MOST_CHANGES, 2 * rows):
            half = len(self._changes) // 2
            del self._changes[:half]
            self._forgotten += half
