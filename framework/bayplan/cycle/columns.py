"""One plugin's answers to Filter or Score for all nodes, as columns over the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bayplan.plugin.base import Normalize, Reads, Refusal
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn
from bayplan.profiles.runtime import HookCall, Spellings

__all__ = [
    "MAX_SCORE",
    "FilterColumn",
    "ScoreColumn",
    "Scores",
    "as_column",
    "as_mask",
    "as_scores",
    "by_maximum",
    "out_of_range",
]

MAX_SCORE = 100.0
"""The highest normalised score, as in kube-scheduler."""

Bounds = tuple[float, float] | None
_FEW = 16
"""For up to so many nodes, plain numbers are faster than columns."""


@dataclass(slots=True, eq=False)
class FilterColumn:
    """One filter plugin's refusals over all rows, by (reason, resolvable).

    ``errors`` are the refused rows for which the plugin could not tell.
    """

    spellings: Spellings
    refusals: dict[tuple[str, bool], BoolColumn] = field(default_factory=dict)
    mask: BoolColumn = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    errors: set[int] = field(default_factory=set)
    call: HookCall = field(init=False)
    vector: HookCall | None = field(init=False)
    per_node: HookCall | None = field(init=False)
    clusterwide: bool = field(init=False)
    by_pods: bool = field(init=False)

    def __post_init__(self) -> None:
        self.vector, self.per_node = self.spellings.vector, self.spellings.per_node
        self.call = self.spellings.call
        self.clusterwide = Reads.CLUSTER in self.call.plugin.reads
        self.by_pods = Reads.PODS in self.call.plugin.reads

    def clear(self, size: int) -> None:
        """Drop all answers."""
        self.refusals = {}
        self.mask = np.zeros(size, dtype=np.bool_)
        self.errors = set()

    def add(
        self, refused: BoolColumn, reason: str, resolvable: bool = True, error: bool = False
    ) -> None:
        """Refuse the rows of a mask."""
        key = (reason, resolvable)
        known = self.refusals.get(key)
        self.refusals[key] = refused.copy() if known is None else known | refused
        self.mask |= refused
        if error:
            self.errors.update(np.flatnonzero(refused).tolist())

    def clear_rows(self, rows: npt.NDArray[np.intp]) -> None:
        """Drop the answers for some rows."""
        if self.errors:
            self.errors.difference_update(rows.tolist())
        self.mask[rows] = False
        for mask in self.refusals.values():
            mask[rows] = False

    def set_row(self, row: int, refusal: str | Refusal | None, size: int) -> None:
        """Set one row's answer."""
        if self.mask.item(row):
            self.errors.discard(row)
            for mask in self.refusals.values():
                mask[row] = False
            self.mask[row] = False
        if refusal is None:
            return
        self.mask[row] = True
        if isinstance(refusal, str):
            refusal = Refusal((refusal,))
        if refusal.error:
            self.errors.add(row)
        for reason in refusal.reasons:
            key = (reason, refusal.resolvable)
            if key not in self.refusals:
                self.refusals[key] = np.zeros(size, dtype=np.bool_)
            self.refusals[key][row] = True


@dataclass(slots=True, eq=False)
class ScoreColumn:
    """One score plugin's scores: ``raw`` as returned, ``counted`` normalised but not weighted.

    ``bounds`` are the lowest and highest raw score, None when scores changed since they were
    normalised. ``strays`` says that the score of some node, feasible or not, is outside 0..100 when
    normalised.
    """

    spellings: Spellings
    raw: FloatColumn = field(default_factory=lambda: np.zeros(0))
    counted: FloatColumn = field(default_factory=lambda: np.zeros(0))
    bounds: Bounds = None
    strays: bool = False
    call: HookCall = field(init=False)
    vector: HookCall | None = field(init=False)
    per_node: HookCall | None = field(init=False)
    clusterwide: bool = field(init=False)
    by_pods: bool = field(init=False)
    kind: Normalize = field(init=False)
    weight: int = field(init=False)

    def __post_init__(self) -> None:
        self.vector, self.per_node = self.spellings.vector, self.spellings.per_node
        self.call = self.spellings.call
        self.clusterwide = Reads.CLUSTER in self.call.plugin.reads
        self.by_pods = Reads.PODS in self.call.plugin.reads
        self.kind = self.call.plugin.normalize_scores
        self.weight = self.call.weight

    def set_row(self, row: int, points: float) -> None:
        """Set one row's raw score."""
        if points == self.raw.item(row):
            return
        self.raw[row] = points
        self.bounds = None
        if not 0 <= points <= MAX_SCORE:
            self.note(points, points)

    def note(self, low: float, high: float) -> None:
        """Check new scores, given their lowest and highest, for values outside 0..100."""
        scaled = self.kind in (Normalize.MAX, Normalize.MAX_REVERSED)
        if low < 0 or (high > MAX_SCORE and not scaled):
            self.strays = True

    @property
    def flat(self) -> bool:
        """Whether all nodes have the same score, so that normalising needs no maximum."""
        return self.bounds is not None and self.bounds[0] == self.bounds[1]


def as_mask(mask: object, size: int) -> BoolColumn:
    """Return a plugin's mask as an array of booleans.

    :raises ValueError: unless it has one boolean a node.
    """
    array = np.asarray(mask)
    if array.dtype != np.bool_ or array.shape != (size,):
        raise ValueError(
            f"Reject.mask: expected {size} booleans, got {array.dtype} of shape {array.shape}"
        )
    return array


class Scores(NamedTuple):
    """Scores, one a node, and their bounds: lowest and highest, None without any node."""

    column: FloatColumn
    bounds: Bounds


def as_column(scores: object, size: int) -> FloatColumn:
    """Return a plugin's scores as an array of floats, some of which may not be finite.

    :raises ValueError: unless it has one number a node.
    """
    array = np.asarray(scores)
    if array.shape != (size,):
        raise ValueError(f"expected {size} scores, got shape {array.shape}")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"expected {size} scores, got {array.dtype}")
    return array.astype(np.float64, copy=False)


def as_scores(scores: object, size: int) -> Scores:
    """Return a plugin's scores as an array of floats, with their bounds.

    :raises ValueError: unless it has one finite number a node.
    """
    column = as_column(scores, size)
    if not size:
        return Scores(column, None)
    if size <= _FEW:
        numbers = column.tolist()
        low, high = min(numbers), max(numbers)
        if any(map(math.isnan, numbers)):
            low = math.nan
    else:
        # The first NaN counts as both the lowest and the highest.
        low, high = column.item(column.argmin()), column.item(column.argmax())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("a score is not a finite number")
    return Scores(column, (low, high))


def out_of_range(kind: Normalize, score: float, node: str) -> ValueError:
    """Return the error for a score that is outside 0..100 when normalised."""
    if kind in (Normalize.MAX, Normalize.MAX_REVERSED):
        return ValueError(
            f"score {score:g} of node {node} is negative, so it has no place in 0..100"
        )
    hint = "; set normalize_scores, or return 0 to 100" if kind is Normalize.NONE else ""
    return ValueError(f"score {score:g} of node {node} is not in 0..100{hint}")


def by_maximum(raw: FloatColumn, top: float, reverse: bool) -> FloatColumn:
    """Scale scores to 0..100 by the maximum, rounded down (DefaultNormalizeScore)."""
    if top == 0:
        return np.full(len(raw), MAX_SCORE if reverse else 0.0)
    scaled = np.floor(MAX_SCORE * raw / top)
    return MAX_SCORE - scaled if reverse else scaled
