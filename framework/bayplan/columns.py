"""What one plugin's Filter or Score says about all nodes, as columns over the rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bayplan.hookspecs import BoolColumn, FloatColumn
from bayplan.plugin import Normalize, Reads, Refusal
from bayplan.runtime import HookCall, Spellings

__all__ = ["FilterColumn", "ScoreColumn", "as_mask", "as_scores", "by_maximum"]

_MAX_SCORE = 100.0


@dataclass(slots=True)
class FilterColumn:
    """One filter plugin's refusals over all rows, by (reason, resolvable)."""

    spellings: Spellings
    refusals: dict[tuple[str, bool], BoolColumn] = field(default_factory=dict)
    mask: BoolColumn = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
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

    def set_row(self, row: int, refusal: str | Refusal | None, size: int) -> None:
        """Take over one row's answer."""
        if self.mask[row]:
            for mask in self.refusals.values():
                mask[row] = False
        self.mask[row] = refusal is not None
        if refusal is None:
            return
        if isinstance(refusal, str):
            refusal = Refusal((refusal,))
        for reason in refusal.reasons:
            key = (reason, refusal.resolvable)
            if key not in self.refusals:
                self.refusals[key] = np.zeros(size, dtype=np.bool_)
            self.refusals[key][row] = True


@dataclass(slots=True)
class ScoreColumn:
    """One score plugin's scores: as it gave them, and as they count (normalised, not weighted)."""

    spellings: Spellings
    raw: FloatColumn = field(default_factory=lambda: np.zeros(0))
    counted: FloatColumn = field(default_factory=lambda: np.zeros(0))
    bounds: tuple[float, float] | None = None
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

    @property
    def flat(self) -> bool:
        """Whether all nodes have the same score, so that normalising needs no maximum."""
        return self.bounds is not None and self.bounds[0] == self.bounds[1]


def as_mask(mask: object, size: int) -> BoolColumn:
    """Return what a plugin gave as a mask.

    :raises ValueError: unless it is one boolean a node.
    """
    array = np.asarray(mask)
    if array.dtype != np.bool_ or array.shape != (size,):
        raise ValueError(
            f"Reject.mask: expected {size} booleans, got {array.dtype} of shape {array.shape}"
        )
    return array


def as_scores(scores: object, size: int) -> FloatColumn:
    """Return what a plugin gave as scores.

    :raises ValueError: unless it is one finite number a node.
    """
    array = np.asarray(scores, dtype=np.float64)
    if array.shape != (size,):
        raise ValueError(f"expected {size} scores, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError("a score is not a finite number")
    return array


def by_maximum(raw: FloatColumn, top: float, reverse: bool) -> FloatColumn:
    """kube-scheduler's DefaultNormalizeScore: in proportion to the maximum, rounded down."""
    if top == 0:
        return np.full(len(raw), _MAX_SCORE if reverse else 0.0)
    scaled = np.floor(_MAX_SCORE * raw / top)
    return _MAX_SCORE - scaled if reverse else scaled
