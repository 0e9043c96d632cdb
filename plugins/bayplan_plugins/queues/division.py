"""Division of a cluster over a tree of queues: quotas first, then what is left by weight.

Each resource is divided alone, group of siblings by group, from the roots down: the children of a
queue divide its fair share. The rules are those of KAI's proportion plugin (resource_division).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan.queues.tree import AmountRows, QueueTree

__all__ = ["Division", "Siblings", "grant_quotas", "share_surplus"]

Rows = npt.NDArray[np.intp]


class Siblings(msgspec.Struct, frozen=True, eq=False):
    """Groups of siblings that are divided side by side; members of a group are consecutive.

    :param group: the group of each member, from 0, rising.
    :param priority: of each member; what is left goes to higher priorities first.
    :param age: the place of each member by creation and UID, the oldest first.
    """

    group: Rows
    priority: npt.NDArray[np.int64]
    age: Rows

    def by_priority(self) -> list[Rows]:
        """Return the members with the highest priority of each group, then the next highest, ..."""
        order = np.lexsort((-self.priority, self.group))
        group, priority = self.group[order], self.priority[order]
        starts = np.ones(len(order), dtype=bool)
        starts[1:] = (group[1:] != group[:-1]) | (priority[1:] != priority[:-1])
        number = np.cumsum(starts)
        first = np.searchsorted(group, group)
        rank = np.empty(len(order), dtype=np.intp)
        rank[order] = number - number[first]
        return [np.flatnonzero(rank == r) for r in range(int(rank.max(initial=-1)) + 1)]


class _Claims(msgspec.Struct, frozen=True, eq=False):
    """What the members of one priority ask for; arrays of shape (members, resources)."""

    group: Rows
    starts: Rows
    requestable: AmountRows
    weight: AmountRows
    usage: AmountRows
    age: Rows

    def sums(self, amounts: AmountRows) -> AmountRows:
        """Return the sum for each group that has members here."""
        sums: AmountRows = np.add.reduceat(amounts, self.starts, axis=0)
        return sums

    def spread(self, by_group: AmountRows) -> AmountRows:
        """Return the value of each member's group."""
        sizes = np.diff(np.append(self.starts, len(self.group)))
        return np.repeat(by_group, sizes, axis=0)


def grant_quotas(
    siblings: Siblings, total: AmountRows, deserved: AmountRows, requestable: AmountRows
) -> tuple[AmountRows, AmountRows]:
    """Give every member what it asks for up to its quota, however much that is in sum.

    :param total: what each group divides, shape (groups, resources).
    :returns: what each member got, and what is left in each group, at least 0.
    """
    quota = np.where(np.isinf(deserved), total[siblings.group], deserved)
    fair = np.minimum(quota, requestable)
    left = total.copy()
    np.subtract.at(left, siblings.group, fair)
    return fair, np.maximum(left, 0.0)


def share_surplus(
    siblings: Siblings,
    left: AmountRows,
    fair: AmountRows,
    requestable: AmountRows,
    weight: AmountRows,
    usage: AmountRows,
    k: float,
) -> None:
    """Give what is left of each group to its members, by priority and weight; changes both arrays.

    :param left: shape (groups, resources).
    :param fair: what each member has, shape (members, resources), like the others.
    :param usage: past usage as a part of the cluster, 0..1.
    :param k: how much past usage counts.
    """
    for members in siblings.by_priority():
        if not left.any():
            return
        group = siblings.group[members]
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        claims = _Claims(
            group,
            starts,
            requestable[members],
            weight[members],
            usage[members],
            siblings.age[members],
        )
        own, rest = fair[members], left[group[starts]]
        remainder = _share_rounds(claims, rest, own, k)
        _share_remainders(claims, rest, own, remainder)
        fair[members], left[group[starts]] = own, rest


def _share_rounds(claims: _Claims, left: AmountRows, fair: AmountRows, k: float) -> AmountRows:
    """Divide whole units by weight until nobody leaves a part of its share to the others.

    :returns: the part of a unit that rounding kept from each member.
    """
    remainder = np.zeros_like(fair)
    active = left > 0
    while active.any():
        missing = np.maximum(claims.requestable - fair, 0.0)
        part = claims.spread(np.where(active, left, 0.0)) * _portions(claims, missing, k)
        whole = (missing <= part) & (missing > 0)
        given = np.where(whole, missing, np.floor(part))
        cut = part - given
        remainder = np.where(whole, 0.0, np.where(cut > 0, cut, remainder))
        fair += given
        left -= claims.sums(given)
        np.maximum(left, 0.0, out=left)
        reprieved = claims.sums(((missing < part) & (given > 0)).astype(np.float64)) > 0
        active &= reprieved & (left > 0)
    return remainder


def _portions(claims: _Claims, missing: AmountRows, k: float) -> AmountRows:
    """Return each member's part of what its group divides, 0..1, with past usage counted in."""
    weight = np.where(missing > 0, claims.weight, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        normal = np.nan_to_num(weight / claims.spread(claims.sums(weight)))
        corrected = np.where(weight > 0, np.maximum(0.0, normal + k * (normal - claims.usage)), 0.0)
        return np.nan_to_num(corrected / claims.spread(claims.sums(corrected)))


def _share_remainders(
    claims: _Claims, left: AmountRows, fair: AmountRows, remainder: AmountRows
) -> None:
    """Give one unit each to the members with the largest remainders, older ones first."""
    for column in np.flatnonzero(((left > 0).any(axis=0)) & (remainder > 0).any(axis=0)).tolist():
        waiting = np.flatnonzero(remainder[:, column] > 0)
        group = np.searchsorted(claims.group[claims.starts], claims.group[waiting])
        order = np.lexsort((claims.age[waiting], -remainder[waiting, column], group))
        waiting, group = waiting[order], group[order]
        place = np.arange(len(group)) - np.searchsorted(group, group)
        given = np.clip(left[group, column] - place, 0.0, 1.0)
        fair[waiting, column] += given
        np.subtract.at(left[:, column], group, given)


class _Level(msgspec.Struct, frozen=True, eq=False):
    """The queues of one depth: their rows, and the row of each group's parent (none for roots)."""

    rows: Rows
    parents: Rows | None
    siblings: Siblings


class Division:
    """Divides amounts over a tree of queues; keeps what follows from the tree's shape.

    :param k: how much past usage counts against a queue (KAI's ``kValue``); 0 or less for nothing.
    """

    def __init__(self, tree: QueueTree, k: float = 1.0) -> None:
        self._tree = tree
        self._k = max(0.0, k)
        order = sorted(
            range(len(tree)), key=lambda row: (tree.queues[row].created, tree.queues[row].uid)
        )
        age = np.empty(len(tree), dtype=np.intp)
        age[order] = np.arange(len(tree))
        self._levels = _levels(tree, age)

    def fair_shares(self, total: AmountRows, usage: AmountRows | None = None) -> AmountRows:
        """Return the fair share of each queue by what the tree's queues ask for now.

        :param total: the cluster's amounts, one row of the tree's columns.
        :param usage: past usage of each queue as a part of the cluster, 0..1, in the shape of the
            tree's columns; None for none.
        """
        tree = self._tree
        requestable = np.minimum(tree.limit, tree.demand)
        past = np.zeros_like(requestable) if usage is None else usage
        fair = np.zeros_like(requestable)
        for level in self._levels:
            rows = level.rows
            divided = total[np.newaxis, :] if level.parents is None else fair[level.parents]
            own, left = grant_quotas(
                level.siblings, divided, tree.deserved[rows], requestable[rows]
            )
            share_surplus(
                level.siblings, left, own, requestable[rows], tree.weight[rows], past[rows], self._k
            )
            fair[rows] = own
        return fair


def _levels(tree: QueueTree, age: Rows) -> Sequence[_Level]:
    levels = []
    parents: list[int] = [-1]
    while parents:
        children = [tree.children[row] if row >= 0 else tree.roots for row in parents]
        parents_used = [row for row, own in zip(parents, children, strict=True) if own]
        rows = np.array([row for own in children for row in own], dtype=np.intp)
        if not len(rows):
            break
        group = np.repeat(np.arange(len(parents_used)), [len(own) for own in children if own])
        priority = np.array([tree.queues[row].priority for row in rows.tolist()], dtype=np.int64)
        siblings = Siblings(group, priority, age[rows])
        above = None if parents == [-1] else np.array(parents_used, dtype=np.intp)
        levels.append(_Level(rows, above, siblings))
        parents = rows.tolist()
    return levels
