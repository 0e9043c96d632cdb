"""Filter and Score for one pod over all nodes, kept up to date from cycle to cycle.

An evaluation belongs to a pod signature. When the same signature comes again, only the rows that
changed since are computed again, by the plugin's per-node spelling where it has one; a plugin
that reads more than the row (``Reads.CLUSTER``) is computed again in full. ``Evaluator(cached=
False)`` computes everything every time: the plain path, which tests compare with this one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from bayplan.decision import Finalist, PodDecision, fit_message
from bayplan.errors import PluginError
from bayplan.hookspecs import BoolColumn, FloatColumn
from bayplan.plugin import SKIP, CycleState, Normalize, Reads, Refusal, Reject
from bayplan.runtime import HookCall, Runtime, guard
from bayplan.snapshot import NodeRow, NodeView, PodInfo, Snapshot

__all__ = ["Evaluation", "Evaluator"]

_KEPT_SIGNATURES = 128
_FINALISTS = 5
_MAX_SCORE = 100.0
_NOWHERE = -np.inf


@dataclass(slots=True)
class FilterColumn:
    """One filter plugin's refusals over all rows, by (reason, resolvable)."""

    vector: HookCall | None
    per_node: HookCall | None
    refusals: dict[tuple[str, bool], BoolColumn] = field(default_factory=dict)
    mask: BoolColumn = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    call: HookCall = field(init=False)
    clusterwide: bool = field(init=False)
    by_pods: bool = field(init=False)

    def __post_init__(self) -> None:
        self.call = _either(self.vector, self.per_node)
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

    vector: HookCall | None
    per_node: HookCall | None
    weight: int
    raw: FloatColumn = field(default_factory=lambda: np.zeros(0))
    counted: FloatColumn = field(default_factory=lambda: np.zeros(0))
    bounds: tuple[float, float] | None = None
    call: HookCall = field(init=False)
    clusterwide: bool = field(init=False)
    by_pods: bool = field(init=False)
    kind: Normalize = field(init=False)

    def __post_init__(self) -> None:
        self.call = _either(self.vector, self.per_node)
        self.clusterwide = Reads.CLUSTER in self.call.plugin.reads
        self.by_pods = Reads.PODS in self.call.plugin.reads
        self.kind = self.call.plugin.normalize_scores

    @property
    def flat(self) -> bool:
        """Whether all nodes have the same score, so that normalising needs no maximum."""
        return self.bounds is not None and self.bounds[0] == self.bounds[1]


class Evaluation:
    """Which nodes can take a pod, and how good each is.

    ``feasible`` and ``total`` are columns over all rows; ``total`` is -inf where not feasible.
    """

    __slots__ = (
        "epoch",
        "feasible",
        "filters",
        "node_version",
        "pod",
        "position",
        "refusal",
        "scores",
        "skipped",
        "state",
        "total",
    )

    def __init__(self, pod: PodInfo) -> None:
        self.pod = pod
        self.state = CycleState()
        self.filters: list[FilterColumn] = []
        self.scores: list[ScoreColumn] = []
        self.refusal: tuple[str, str] | None = None
        self.skipped: dict[str, set[str]] = {"pre_filter": set(), "pre_score": set()}
        self.feasible: BoolColumn = np.zeros(0, dtype=np.bool_)
        self.total: FloatColumn = np.zeros(0)
        self.epoch = -1
        self.position = 0
        self.node_version = -1

    def best(self, rows: npt.NDArray[np.intp] | None = None) -> int | None:
        """Return the row of the best feasible node, the first among equals; None without any.

        ``rows`` limits the choice; the first in its order wins among equals.
        """
        if not len(self.total) or (rows is not None and not len(rows)):
            return None
        if rows is None:
            row = int(self.total.argmax())
        else:
            row = int(rows[self.total[rows].argmax()])
        return row if self.total[row] != _NOWHERE else None

    def describe(self, names: list[str], finalists: bool) -> PodDecision:
        """Return the record of this evaluation."""
        decision = PodDecision(self.pod.key, len(names), pre_filter=self.refusal)
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
        left = np.ones(decision.nodes, dtype=np.bool_)
        refused: list[tuple[str, str, int]] = []
        removed: list[tuple[str, int]] = []
        for column in self.filters:
            first = column.mask & left
            count = int(first.sum())
            if not count:
                continue
            removed.append((column.call.name, count))
            hopeless = np.zeros(decision.nodes, dtype=np.bool_)
            for (reason, resolvable), mask in column.refusals.items():
                here = mask & left
                number = int(here.sum())
                if number:
                    refused.append((column.call.name, reason, number))
                if not resolvable:
                    hopeless |= here
            decision.unresolvable += int(hopeless.sum())
            left &= ~column.mask
        decision.refused, decision.removed = tuple(refused), tuple(removed)

    def _finalists(self, names: list[str]) -> tuple[Finalist, ...]:
        order = np.argsort(-self.total, kind="stable")[:_FINALISTS]
        return tuple(
            Finalist(
                names[row],
                float(self.total[row]),
                {c.call.name: float(c.weight * c.counted[row]) for c in self.scores},
            )
            for row in order
            if self.feasible[row]
        )


class Evaluator:
    """Evaluates pods for one profile on one snapshot."""

    def __init__(self, runtime: Runtime, snapshot: Snapshot, cached: bool = True) -> None:
        self._runtime = runtime
        self._snapshot = snapshot
        self._cached = cached
        self._kept: OrderedDict[Hashable, Evaluation] = OrderedDict()
        self._signs = tuple(call.call for call in runtime["sign"])
        signing = {call.name for call in runtime["sign"]}
        asked = {
            call.name
            for hook in ("pre_filter", "filter", "filter_node", "pre_score", "score", "score_node")
            for call in runtime[hook]
        }
        self._all_sign = asked <= signing
        self._filters = _pairs(runtime, "filter", "filter_node")
        self._scores = _pairs(runtime, "score", "score_node")
        self._traced: str | None = None
        self._tell: Callable[[str], None] = lambda line: None
        self._normalize = runtime.by_plugin("normalize")
        self._clusterwide = {
            hook: tuple(c for c in runtime[hook] if Reads.CLUSTER in c.plugin.reads)
            for hook in ("pre_filter", "pre_score")
        }

    def evaluate(self, pod: PodInfo) -> Evaluation:
        """Return the evaluation of a pod, up to date with the snapshot.

        :raises PluginError: when a plugin raises.
        """
        view = self._snapshot.view()
        if self._traced == pod.key:
            return self._trace(pod, view)
        if not (self._cached and self._all_sign):
            return self._fresh(pod, view)
        signature = tuple([sign(pod, view) for sign in self._signs])
        try:
            kept = self._kept.get(signature)
        except TypeError:
            raise self._unhashable(pod, view) from None
        if kept is not None:
            self._kept.move_to_end(signature)
            if self._refresh(kept, pod, view):
                return kept
        evaluation = self._kept[signature] = self._fresh(pod, view)
        if len(self._kept) > _KEPT_SIGNATURES:
            self._kept.popitem(last=False)
        return evaluation

    def trace(self, pod_key: str, tell: Callable[[str], None]) -> None:
        """Describe, whenever this pod is evaluated, each hook, its plugin, losses and time."""
        self._traced, self._tell = pod_key, tell

    def _trace(self, pod: PodInfo, view: NodeView) -> Evaluation:
        calls: list[tuple[str, str, float]] = []

        def timed(call: HookCall) -> HookCall:
            def run(*args: object) -> object:
                started = time.perf_counter()
                try:
                    return call(*args)
                finally:
                    calls.append((call.hook, call.name, time.perf_counter() - started))

            return replace(call, call=run)

        plain = self._runtime
        self._runtime = plain.with_calls(timed)
        self._filters = _pairs(self._runtime, "filter", "filter_node")
        self._scores = _pairs(self._runtime, "score", "score_node")
        try:
            result = self._fresh(pod, view)
        finally:
            self._runtime = plain
            self._filters = _pairs(plain, "filter", "filter_node")
            self._scores = _pairs(plain, "score", "score_node")
        lost = {c.call.name: int(c.mask.sum()) for c in result.filters}
        self._tell(f"trace {pod.key}: {len(view)} nodes, {int(result.feasible.sum())} feasible")
        for (hook, name), seconds in _summed(calls).items():
            refused = lost.get(name, 0) if hook.startswith("filter") else 0
            losses = f"  refuses {refused} nodes" if refused else ""
            self._tell(f"  {hook:12} {name:32} {seconds * 1e6:9.1f} us{losses}")
        return result

    def _unhashable(self, pod: PodInfo, view: NodeView) -> Exception:
        for call in self._runtime["sign"]:
            guard(call, lambda call=call: hash(call(pod, view)))  # type: ignore[misc]
        return TypeError("a signature changed while it was read")

    # In full -----------------------------------------------------------------------------

    def _fresh(self, pod: PodInfo, view: NodeView) -> Evaluation:
        table = self._snapshot.nodes
        result = Evaluation(pod)
        result.epoch, result.position = table.epoch, len(table.changes)
        result.node_version = table.node_version
        skipped = result.skipped["pre_filter"]
        for call in self._runtime["pre_filter"]:
            answer = call(pod, view, result.state)
            if answer is SKIP:
                skipped.add(call.name)
            elif answer is not None:
                result.refusal = (call.name, answer)
                result.feasible = np.zeros(len(view), dtype=np.bool_)
                result.total = np.full(len(view), _NOWHERE)
                return result
        result.filters = [
            FilterColumn(vector, per_node)
            for vector, per_node in self._filters
            if (vector or per_node).name not in skipped  # type: ignore[union-attr]
        ]
        for column in result.filters:
            self._fill_filter(column, pod, view, result)
        self._combine_filters(result, len(view))
        skipped = result.skipped["pre_score"]
        candidates = NodeView(table, mask=result.feasible)
        for call in self._runtime["pre_score"]:
            if call(pod, candidates, result.state) is SKIP:
                skipped.add(call.name)
        result.scores = [
            ScoreColumn(vector, per_node, (vector or per_node).weight)  # type: ignore[union-attr]
            for vector, per_node in self._scores
            if (vector or per_node).name not in skipped  # type: ignore[union-attr]
        ]
        for score in result.scores:
            self._fill_score(score, pod, view, result)
            self._count(score, pod, view, result)
        _sum_up(result)
        return result

    def _fill_filter(
        self, column: FilterColumn, pod: PodInfo, view: NodeView, result: Evaluation
    ) -> None:
        size = len(view)
        column.refusals = {}
        column.mask = np.zeros(size, dtype=np.bool_)
        if column.vector is None:
            rows = self._survivors_before(column, result, size)
            self._ask_rows(column, rows, pod, result.state, size)
            return
        call = column.vector
        for reject in self._rejects(call, pod, view, result.state):
            mask = _as_mask(call, reject.mask, size)
            key = (reject.reason, reject.resolvable)
            known = column.refusals.get(key)
            column.refusals[key] = mask.copy() if known is None else known | mask
            column.mask |= mask

    def _rejects(
        self, call: HookCall, pod: PodInfo, nodes: NodeView, state: CycleState
    ) -> list[Reject]:
        found = guard(call, lambda: list(call(pod, nodes, state) or ()))
        for reject in found:
            if not isinstance(reject, Reject) or not isinstance(reject.reason, str):
                problem = TypeError(f"expected Reject(mask, reason), got {reject!r}")
                raise PluginError(call.name, call.hook, problem) from problem
        return found

    def _survivors_before(
        self, column: FilterColumn, result: Evaluation, size: int
    ) -> Iterable[int]:
        """Rows that no column-wise filter refuses: only those are worth a per-node call."""
        refused = np.zeros(size, dtype=np.bool_)
        for other in result.filters:
            if other is not column and other.vector is not None and len(other.mask) == size:
                refused |= other.mask
        return [int(row) for row in np.flatnonzero(~refused)]

    def _ask_rows(
        self,
        column: FilterColumn,
        rows: Iterable[int],
        pod: PodInfo,
        state: CycleState,
        size: int,
    ) -> None:
        table = self._snapshot.nodes
        assert column.per_node is not None
        for row in rows:
            column.set_row(row, column.per_node.call(pod, NodeRow(table, row), state), size)

    def _combine_filters(self, result: Evaluation, size: int) -> None:
        refused = np.zeros(size, dtype=np.bool_)
        for column in result.filters:
            refused |= column.mask
        result.feasible = ~refused

    def _fill_score(
        self, score: ScoreColumn, pod: PodInfo, view: NodeView, result: Evaluation
    ) -> None:
        if score.vector is not None:
            call = score.vector
            score.raw = _as_scores(call, call(pod, view, result.state), len(view)).copy()
            return
        assert score.per_node is not None
        score.raw = np.zeros(len(view))
        for row in np.flatnonzero(result.feasible):
            score.raw[row] = score.per_node(pod, NodeRow(view.table, int(row)), result.state)

    def _count(self, score: ScoreColumn, pod: PodInfo, view: NodeView, result: Evaluation) -> None:
        """Normalise a column over the feasible nodes."""
        kind = score.kind
        if kind is Normalize.NONE:
            score.counted = score.raw
            return
        score.bounds = (float(score.raw.min()), float(score.raw.max())) if len(view) else None
        feasible = result.feasible
        if kind is not Normalize.HOOK and score.flat:
            score.counted = _by_maximum(
                score.raw, float(score.raw[0]), kind is Normalize.MAX_REVERSED
            )
            return
        if kind is Normalize.HOOK:
            score.counted = np.zeros(len(view))
            rows = np.flatnonzero(feasible)
            if len(rows):
                feasible_nodes = NodeView(view.table, rows)
                hook = self._normalize[score.call.name]
                part = hook(pod, score.raw[rows], feasible_nodes, result.state)
                score.counted[rows] = _as_scores(hook, part, len(rows))
            return
        top = float(score.raw[feasible].max()) if feasible.any() else 0.0
        score.counted = _by_maximum(score.raw, top, kind is Normalize.MAX_REVERSED)

    # By changed rows ---------------------------------------------------------------------

    def _refresh(self, kept: Evaluation, pod: PodInfo, view: NodeView) -> bool:
        """Bring a kept evaluation up to date; False when it is better computed anew."""
        table = self._snapshot.nodes
        changes = table.changes
        if kept.epoch != table.epoch or kept.node_version != table.node_version:
            return False
        if kept.refusal is not None:
            return kept.position == len(changes)
        kept.pod = pod
        if kept.position == len(changes):
            return True
        rows = sorted(set(changes[kept.position :]))
        if len(rows) > max(8, len(view) // 64):
            return False
        kept.position = len(changes)
        before = [bool(kept.feasible[row]) for row in rows]
        if not self._refresh_filters(kept, pod, view, rows):
            return False
        return self._refresh_scores(kept, pod, view, rows, before)

    def _refresh_filters(
        self, kept: Evaluation, pod: PodInfo, view: NodeView, rows: list[int]
    ) -> bool:
        if not self._prepare("pre_filter", kept, pod, view):
            return False
        clusterwide = False
        for column in kept.filters:
            if column.clusterwide:
                if column.vector is None:
                    return False
                clusterwide = True
                self._fill_filter(column, pod, view, kept)
            elif column.by_pods:
                self._update_filter(column, rows, pod, view, kept)
        if clusterwide:
            columns: list[FilterColumn | ScoreColumn] = [*kept.filters, *kept.scores]
            if any(column.vector is None for column in columns):
                # Other rows may have become candidates that no per-node hook has seen.
                return False
            self._combine_filters(kept, len(view))
            return True
        for row in rows:
            kept.feasible[row] = not any(c.mask.item(row) for c in kept.filters)
        return True

    def _prepare(self, hook: str, kept: Evaluation, pod: PodInfo, view: NodeView) -> bool:
        """Prepare again the plugins that look beyond a row; False where one changed its mind."""
        for call in self._clusterwide[hook]:
            answer = call.call(pod, view, kept.state)
            was_skipped = call.name in kept.skipped[hook]
            if (answer is SKIP) != was_skipped or not (answer is None or answer is SKIP):
                return False
        return True

    def _update_filter(
        self, column: FilterColumn, rows: list[int], pod: PodInfo, view: NodeView, kept: Evaluation
    ) -> None:
        size = len(view)
        if column.per_node is not None:
            self._ask_rows(column, rows, pod, kept.state, size)
            return
        some = np.array(rows, dtype=np.intp)
        call = column.vector
        assert call is not None
        for row in rows:
            column.set_row(row, None, size)
        part = NodeView(view.table, some)
        for reject in self._rejects(call, pod, part, kept.state):
            hit = some[_as_mask(call, reject.mask, len(some))]
            key = (reject.reason, reject.resolvable)
            if key not in column.refusals:
                column.refusals[key] = np.zeros(size, dtype=np.bool_)
            column.refusals[key][hit] = True
            column.mask[hit] = True

    def _refresh_scores(
        self, kept: Evaluation, pod: PodInfo, view: NodeView, rows: list[int], before: list[bool]
    ) -> bool:
        candidates = NodeView(view.table, mask=kept.feasible)
        if not self._prepare("pre_score", kept, pod, candidates):
            return False
        moved = any(bool(kept.feasible[row]) != was for row, was in zip(rows, before, strict=True))
        clusterwide = any(column.clusterwide for column in kept.filters)
        everywhere = clusterwide
        for score in kept.scores:
            renewed = score.clusterwide
            if renewed:
                self._fill_score(score, pod, view, kept)
            elif score.by_pods or (score.vector is None and moved):
                self._update_score(score, rows, pod, view, kept)
            if score.kind is not Normalize.NONE and (
                renewed or moved or clusterwide or score.by_pods
            ):
                unmoved = not renewed and not score.by_pods
                if unmoved and score.flat and score.kind is not Normalize.HOOK:
                    continue
                self._count(score, pod, view, kept)
                everywhere = True
            elif renewed:
                score.counted = score.raw
                everywhere = True
        if everywhere:
            _sum_up(kept)
            return True
        for row in rows:
            if kept.feasible[row]:
                total = 0.0
                for score in kept.scores:
                    total += score.weight * score.counted.item(row)
                kept.total[row] = total
            else:
                kept.total[row] = _NOWHERE
        return True

    def _update_score(
        self, score: ScoreColumn, rows: list[int], pod: PodInfo, view: NodeView, kept: Evaluation
    ) -> None:
        if score.per_node is not None:
            for row in rows:
                if score.vector is not None or kept.feasible[row]:
                    value = score.per_node.call(pod, NodeRow(view.table, row), kept.state)
                    score.raw[row] = value
            return
        assert score.vector is not None
        some = np.array(rows, dtype=np.intp)
        part = score.vector(pod, NodeView(view.table, some), kept.state)
        score.raw[some] = _as_scores(score.vector, part, len(some))


def _either(vector: HookCall | None, per_node: HookCall | None) -> HookCall:
    call = vector or per_node
    assert call is not None
    return call


def _summed(calls: Iterable[tuple[str, str, float]]) -> dict[tuple[str, str], float]:
    total: dict[tuple[str, str], float] = {}
    for hook, name, seconds in calls:
        total[hook, name] = total.get((hook, name), 0.0) + seconds
    return total


def _pairs(
    runtime: Runtime, vector: str, per_node: str
) -> list[tuple[HookCall | None, HookCall | None]]:
    """Join the two spellings of each plugin, column-wise ones first, in the profile's order."""
    vectors, singles = runtime.by_plugin(vector), runtime.by_plugin(per_node)
    return [(vectors.get(name), singles.get(name)) for name in dict.fromkeys([*vectors, *singles])]


def _by_maximum(raw: FloatColumn, top: float, reverse: bool) -> FloatColumn:
    """kube-scheduler's DefaultNormalizeScore: in proportion to the maximum, rounded down."""
    if top == 0:
        return np.full(len(raw), _MAX_SCORE if reverse else 0.0)
    scaled = np.floor(_MAX_SCORE * raw / top)
    return _MAX_SCORE - scaled if reverse else scaled


def _sum_up(result: Evaluation) -> None:
    total = np.zeros(len(result.feasible))
    for score in result.scores:
        total += score.weight * score.counted
    total[~result.feasible] = _NOWHERE
    result.total = total


def _as_mask(call: HookCall, mask: object, size: int) -> BoolColumn:
    array = np.asarray(mask)
    if array.dtype != np.bool_ or array.shape != (size,):
        problem = ValueError(
            f"Reject.mask: expected {size} booleans, got {array.dtype} of shape {array.shape}"
        )
        guard(call, lambda: _raise(problem))
    return array


def _as_scores(call: HookCall, scores: object, size: int) -> FloatColumn:
    def convert() -> FloatColumn:
        array = np.asarray(scores, dtype=np.float64)
        if array.shape != (size,):
            raise ValueError(f"expected {size} scores, got shape {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError("a score is not a finite number")
        return array

    return guard(call, convert)


def _raise(problem: Exception) -> Exception:
    raise problem
