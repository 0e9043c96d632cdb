"""Which nodes can take a pod and how good each is: the result of Filter and Score."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from bayplan.cycle.columns import FilterColumn, ScoreColumn
from bayplan.plugin.base import CycleState, NodeRefusals
from bayplan.plugin.decision import Finalist, PodDecision, fit_message, not_satisfied
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn, IntColumn
from bayplan.snapshot import PodInfo

Rows = npt.NDArray[np.intp]

__all__ = ["NOWHERE", "Evaluation", "FilterFailure", "Slots"]

NOWHERE = -np.inf
"""The total of a node that cannot take the pod."""
_FINALISTS = 5
_FEW_ROWS = 8
"""For up to so many rows, plain numbers are faster than columns."""


_BLOCK = 256
_MANY_ROWS = 16_384
"""From so many rows on, the best is found by the best of each block of rows."""


class Slots(NamedTuple):
    """How many pods equal to one fit on each node at most, at a position of the changes.

    ``by_row`` is what the plugins allow that read a node alone, whether or not it takes the pod.
    """

    position: int
    by_row: IntColumn
    bound: IntColumn


class FilterFailure(NamedTuple):
    """A filter that could not tell about some nodes, and so refuses the others, too.

    ``rows`` are the former, ``others`` is the mask of those that are only refused for that.
    """

    column: FilterColumn
    rows: npt.NDArray[np.intp]
    others: BoolColumn


class Evaluation:
    """Which nodes can take a pod, and how good each is.

    ``feasible`` and ``total`` are columns over all rows; ``total`` is -inf where not feasible.
    ``failure`` is the filter that failed the pod's attempt, so that no node is feasible.
    """

    __slots__ = (
        "_description",
        "_peaks",
        "_refusals",
        "_refused",
        "_sum",
        "epoch",
        "failure",
        "feasible",
        "filters",
        "limits",
        "node_version",
        "pod",
        "position",
        "refusal",
        "scores",
        "skipped",
        "slots",
        "state",
        "total",
    )

    def __init__(self, pod: PodInfo, unconcerned: Collection[str] = ()) -> None:
        self.pod = pod
        self.state = CycleState()
        self.limits: dict[str, BoolColumn] = {}
        """The rows that each plugin's PreFilterResult leaves out, by plugin."""
        self.filters: list[FilterColumn] = []
        self.scores: list[ScoreColumn] = []
        self.refusal: tuple[str, str] | None = None
        self.failure: FilterFailure | None = None
        self.skipped = {hook: set(unconcerned) for hook in ("pre_filter", "pre_score")}
        self.feasible: BoolColumn = np.zeros(0, dtype=np.bool_)
        self.total: FloatColumn = np.zeros(0)
        self._refused: BoolColumn | None = None
        self._refusals: tuple[int, list[NodeRefusals]] | None = None
        self._description: tuple[int, PodDecision] | None = None
        self.slots: Slots | None = None
        """What was asked last."""
        self._peaks: FloatColumn | None = None
        """The largest total of each block of rows; None where they have to be found again."""
        self._sum: tuple[ScoreColumn, FloatColumn] | None = None
        self.epoch = -1
        self.position = 0
        self.node_version = -1

    @property
    def over_columns(self) -> bool:
        """Whether all of its filters and scores have a spelling over columns."""
        columns: list[FilterColumn | ScoreColumn] = [*self.filters, *self.scores]
        return all(column.vector is not None for column in columns)

    def best(self, rows: npt.NDArray[np.intp] | None = None) -> int | None:
        """Return the row of the best feasible node, the first among equals; None without one.

        ``rows`` limits the choice; the first in its order wins among equals.
        """
        if not len(self.total) or (rows is not None and not len(rows)):
            return None
        if rows is None:
            row = self._first_best()
        else:
            row = int(rows[self.total[rows].argmax()])
        return row if self.total[row] != NOWHERE else None

    def _first_best(self) -> int:
        """Return the first row with the largest total, without a look at every row."""
        total = self.total
        if len(total) < _MANY_ROWS:
            return int(total.argmax())
        if self._peaks is None:
            self._peaks = np.maximum.reduceat(total, np.arange(0, len(total), _BLOCK))
        start = int(self._peaks.argmax()) * _BLOCK
        return start + int(total[start : start + _BLOCK].argmax())

    def failing(self, enough: int) -> FilterFailure | None:
        """Return the filter that fails the pod's attempt, None for none.

        It could not tell about nodes that the filters before let pass.

        :param enough: feasible nodes with which Kubernetes may never have come to these nodes.
        """
        if not any(column.errors for column in self.filters):
            return None
        left = ~self.outside(len(self.feasible))
        for column in self.filters:
            rows = [row for row in sorted(column.errors) if left[row]]
            if rows:
                if np.count_nonzero(self.feasible) >= enough:
                    return None
                return FilterFailure(column, np.array(rows, dtype=np.intp), self.feasible)
            left &= ~column.mask
        return None

    def limit(
        self, left: Mapping[str, frozenset[str]], row_of: Mapping[str, int], size: int
    ) -> None:
        """Leave out the nodes that a PreFilterResult does not name.

        :param left: the names of the nodes that each plugin leaves.
        """
        for plugin, names in left.items():
            mask = np.ones(size, dtype=np.bool_)
            mask[[row_of[name] for name in names if name in row_of]] = False
            self.limits[plugin] = mask

    def outside(self, size: int) -> BoolColumn:
        """Return the mask of the rows that PreFilter leaves out."""
        mask = np.zeros(size, dtype=np.bool_)
        for own in self.limits.values():
            mask |= own
        return mask

    def refusals(self) -> list[NodeRefusals]:
        """Return which nodes refuse the pod and why; the first plugin that does counts.

        Do not change what is returned.
        """
        if self._refusals is None or self._refusals[0] != self.position:
            self._refusals = self.position, self._found_refusals()
        return self._refusals[1]

    def _found_refusals(self) -> list[NodeRefusals]:
        size = len(self.feasible)
        left = np.ones(size, dtype=np.bool_)
        nowhere = np.zeros(size, dtype=np.bool_)
        if self.refusal is not None:
            plugin, reason = self.refusal
            return [NodeRefusals(plugin, left, ((reason, left),), left, by_row=True)]
        found: list[NodeRefusals] = []
        limited = not_satisfied(list(self.limits))
        for plugin, mask in self.limits.items():
            here = mask & left
            found.append(NodeRefusals(plugin, here, ((limited, here),), here, by_row=True))
            left &= ~mask
        for column in self.filters:
            here = column.mask & left
            if not here.any():
                continue
            unresolvable = nowhere.copy()
            reasons = []
            for (reason, resolvable), mask in column.refusals.items():
                reasons.append((reason, mask & here))
                if not resolvable:
                    unresolvable |= mask & here
            by_row = not column.clusterwide
            found.append(NodeRefusals(column.call.name, here, reasons, unresolvable, by_row))
            left &= ~column.mask
        return [refusal for refusal in found if refusal.mask.any()]

    def refused_for_good(self) -> BoolColumn:
        """Return the nodes that are refused whatever pods they have; do not change it."""
        if self._refused is None:
            self._refused = self.outside(len(self.feasible))
            for column in self.filters:
                if not column.by_pods and not column.clusterwide:
                    self._refused |= column.mask
        return self._refused

    def sum_up(self) -> None:
        """Add up the weighted scores of all plugins for every node."""
        self._sum = self._peaks = None
        total = np.zeros(len(self.feasible))
        for score in self.scores:
            total += score.weight * score.counted
        total[~self.feasible] = NOWHERE
        self.total = total

    def sum_up_from(self, rows: Rows, first: ScoreColumn | None) -> None:
        """Add up the scores again, of which those before ``first`` changed in some rows only.

        The sum of those is kept; it is added up in the same order as all are.
        """
        if first is None:
            self.sum_up()
            return
        place = self.scores.index(first)
        if self._sum is not None and self._sum[0] is first:
            part, before = self._sum[1], self.scores[:place]
            if len(rows) <= _FEW_ROWS:
                for row in rows.tolist():
                    part[row] = sum([one.weight * one.counted.item(row) for one in before])
            else:
                part[rows] = sum(one.weight * one.counted[rows] for one in before)
        else:
            part = np.zeros(len(self.feasible))
            for score in self.scores[:place]:
                part += score.weight * score.counted
            self._sum = first, part
        self._peaks = None
        total = part
        for score in self.scores[place:]:
            total = total + score.weight * score.counted
        if np.count_nonzero(self.feasible) < len(total):
            total[~self.feasible] = NOWHERE
        self.total = total

    def combine_rows(self, rows: Rows) -> bool:
        """Combine what the filters say of some nodes again; the others have not changed.

        :returns: whether any of these nodes is feasible that was not, or the other way round.
        """
        masks = [column.mask for column in self.filters if column.by_pods]
        masks.append(self.refused_for_good())
        if len(rows) > _FEW_ROWS:
            before = self.feasible[rows]
            self.feasible[rows] = ~np.logical_or.reduce([mask[rows] for mask in masks])
            return not np.array_equal(before, self.feasible[rows])
        moved = False
        for row in rows.tolist():
            feasible = True
            for mask in masks:
                if mask.item(row):
                    feasible = False
                    break
            if feasible != self.feasible.item(row):
                self.feasible[row] = feasible
                moved = True
        return moved

    def sum_up_rows(self, rows: Rows) -> None:
        """Add up the scores of some nodes again."""
        self._sum = None
        if len(rows) <= _FEW_ROWS:
            for row in rows.tolist():
                points = [score.weight * score.counted.item(row) for score in self.scores]
                self.total[row] = sum(points) if self.feasible.item(row) else NOWHERE
            if self._peaks is not None:
                for block in {row // _BLOCK for row in rows.tolist()}:
                    self._peaks[block] = self.total[block * _BLOCK : (block + 1) * _BLOCK].max()
            return
        self._peaks = None
        total = np.zeros(len(rows))
        for score in self.scores:
            total += score.weight * score.counted[rows]
        total[~self.feasible[rows]] = NOWHERE
        self.total[rows] = total

    def describe(self, names: list[str], finalists: bool) -> PodDecision:
        """Return the evaluation as a record.

        :param names: the nodes' names, by row.
        :param finalists: whether to record the scores of the best nodes.
        """
        if finalists:
            return self._described(names, finalists)
        if self._description is None or self._description[0] != self.position:
            self._description = self.position, self._described(names, finalists)
        # Members of a gang that are alike are refused alike.
        return replace(self._description[1], pod=self.pod.key)

    def _described(self, names: list[str], finalists: bool) -> PodDecision:
        decision = PodDecision(
            self.pod.key, len(names), pre_filter=self.refusal, error=self.failure is not None
        )
        if self.refusal is not None:
            decision.message = fit_message(len(names), (), self.refusal)
            return decision
        decision.feasible = int(self.feasible.sum())
        if decision.feasible < len(names):
            self._describe_refusals(decision)
        if finalists and decision.feasible:
            decision.finalists = self._finalists(names)
        decision.message = fit_message(len(names), decision.refused)
        return decision

    def _describe_refusals(self, decision: PodDecision) -> None:
        found = self.refusals()
        counted = [
            (refusal.plugin, reason, int(mask.sum()))
            for refusal in found
            for reason, mask in refusal.reasons
        ]
        decision.refused = tuple(one for one in counted if one[2])
        decision.removed = tuple((refusal.plugin, int(refusal.mask.sum())) for refusal in found)

    def _finalists(self, names: list[str]) -> tuple[Finalist, ...]:
        return tuple(
            Finalist(
                names[row],
                float(self.total[row]),
                {c.call.name: float(c.weight * c.counted[row]) for c in self.scores},
            )
            for row in self._best_rows()
        )

    def _best_rows(self) -> list[int]:
        """Return the rows of the finalists, best first, in row order among equals."""
        count = min(_FINALISTS, int(self.feasible.sum()))
        if not count:
            return []
        # Sorting all nodes would cost more than the decision itself.
        least = np.partition(self.total, -count)[-count]
        above = np.flatnonzero(self.total > least)
        above = above[np.argsort(-self.total[above], kind="stable")]
        equal = np.flatnonzero(self.total == least)[: count - len(above)]
        found: list[int] = [*above.tolist(), *equal.tolist()]
        return found
