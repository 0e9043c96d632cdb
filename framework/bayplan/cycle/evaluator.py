"""Filter and Score for one pod over all nodes, kept up to date from cycle to cycle.

An evaluation belongs to a pod signature. When a pod of the same signature comes, only the rows
that changed since are computed again, by the plugin's per-node spelling where it has one. A plugin
that reads more than the row (``Reads.CLUSTER``) is computed again in full.
``Evaluator(cached=False)`` computes everything every time: the plain path, the oracle of tests.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from bayplan.cycle.columns import (
    MAX_SCORE,
    FilterColumn,
    ScoreColumn,
    as_column,
    as_mask,
    as_scores,
    by_maximum,
    out_of_range,
)
from bayplan.cycle.evaluation import NOWHERE, Evaluation
from bayplan.plugin.base import SKIP, CycleState, Normalize, PreFilterResult, Reads, Reject
from bayplan.plugin.decision import nothing_left
from bayplan.plugin.failures import PLUGIN_RAISES
from bayplan.plugin.hookspecs import BoolColumn
from bayplan.profiles.runtime import Hook, HookCall, Runtime, guard
from bayplan.snapshot import NodeRow, NodeView, PodInfo, Snapshot

__all__ = ["Evaluator", "Trace"]

Rows = npt.NDArray[np.intp]

_SHARED = ("pre_filter", "filter", "filter_node", "pre_score", "score", "score_node")
"""The hooks whose answers pods of equal spec and signature share."""
_KEPT_SIGNATURES = 256
_FEW_CHANGES = 8
_PART_BY_ROW = 64
_PART = 4
"""Which part of all nodes, 1 in so many, may have changed without starting from scratch."""
_FEW_ROWS = 8
"""For up to so many rows, calls for single nodes are faster than one for columns."""
_NOT_CONSIDERED = "not considered because the filter failed on another node"


class _Compiled:
    """What an evaluation asks of the plugins of a runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.signs = tuple(call.call for call in runtime["sign"])
        self.all_sign = runtime.signs_of(_SHARED) is not None
        self.filters = runtime.spellings("filter", "filter_node")
        self.scores = runtime.spellings("score", "score_node")
        self.clusterwide = {
            hook: tuple(c for c in runtime[hook] if Reads.CLUSTER in c.plugin.reads)
            for hook in ("pre_filter", "pre_score")
        }


class _Changed(msgspec.Struct, frozen=True):
    """The rows that changed since an evaluation was up to date.

    ``nodes`` are the same ones, to be asked one by one; none where columns are faster.
    """

    rows: Rows
    nodes: tuple[NodeRow, ...]


class Trace(msgspec.Struct, frozen=True):
    """A pod, by key, whose evaluations are logged hook by hook; ``log`` gets one line a call."""

    pod: str
    log: Callable[[str], None]


class Evaluator:
    """Evaluates pods for one profile on one snapshot.

    :param cached: whether evaluations are kept from cycle to cycle; False is the plain path.
    :param trace: a pod to log, evaluated from scratch each time.
    """

    def __init__(
        self,
        runtime: Runtime,
        snapshot: Snapshot,
        cached: bool = True,
        trace: Trace | None = None,
    ) -> None:
        self._runtime = runtime
        self._snapshot = snapshot
        self._cached = cached
        self._trace = trace
        self._kept: OrderedDict[Hashable, Evaluation] = OrderedDict()
        self._compiled: dict[Runtime, _Compiled] = {}
        self._normalize = runtime.by_plugin("normalize")

    def evaluate(self, pod: PodInfo) -> Evaluation:
        """Return the evaluation of a pod, up to date with the snapshot.

        :raises PluginError: when a plugin raises.
        """
        view = self._snapshot.view()
        if self._trace is not None and self._trace.pod == pod.key:
            return self._traced(pod, self._trace)
        # The plain path asks every plugin about every pod.
        runtime = self._runtime.of(pod) if self._cached else self._runtime
        compiled = self._compiled.get(runtime)
        if compiled is None:
            compiled = self._compiled[runtime] = _Compiled(runtime)
        if not (self._cached and compiled.all_sign):
            return self._fresh(compiled, pod, view)
        signature = (compiled, pod.facts.signature, *[sign(pod, view) for sign in compiled.signs])
        try:
            # Popped, so that nothing half done is cached when a plugin raises.
            kept = self._kept.pop(signature, None)
        except TypeError:
            raise self._unhashable(pod, view) from None
        if kept is None or not self._refresh(compiled, kept, pod, view):
            kept = self._fresh(compiled, pod, view)
        self._kept[signature] = kept
        if len(self._kept) > _KEPT_SIGNATURES:
            self._kept.popitem(last=False)
        return kept

    def _traced(self, pod: PodInfo, trace: Trace) -> Evaluation:
        """Evaluate a pod from scratch and log each hook, its plugin, its losses and its time."""
        calls: list[tuple[str, str, float]] = []

        def timed(call: HookCall) -> HookCall:
            def run(*args: object) -> object:
                started = time.perf_counter()
                try:
                    return call(*args)
                finally:
                    calls.append((call.hook, call.name, time.perf_counter() - started))

            return replace(call, call=run)

        timed_runtime = self._runtime.with_calls(timed)
        result = Evaluator(timed_runtime, self._snapshot, cached=False).evaluate(pod)
        lost = {c.call.name: int(c.mask.sum()) for c in result.filters}
        nodes = len(self._snapshot.nodes)
        trace.log(f"trace {pod.key}: {nodes} nodes, {int(result.feasible.sum())} feasible")
        for (hook, name), seconds in _summed(calls).items():
            refused = lost.get(name, 0) if hook.startswith("filter") else 0
            losses = f"  refuses {refused} nodes" if refused else ""
            trace.log(f"  {hook:12} {name:32} {seconds * 1e6:9.1f} us{losses}")
        return result

    def _unhashable(self, pod: PodInfo, view: NodeView) -> Exception:
        for call in self._runtime["sign"]:
            guard(call, hash, call(pod, view))
        return TypeError("a signature changed while it was read")

    # From scratch -----------------------------------------------------------------------------

    def _fresh(self, compiled: _Compiled, pod: PodInfo, view: NodeView) -> Evaluation:
        table = self._snapshot.nodes
        result = Evaluation(pod, compiled.runtime.unconcerned)
        result.epoch, result.position = table.epoch, table.position
        result.node_version = table.node_version
        skipped = result.skipped["pre_filter"]
        if not self._pre_filter(compiled, pod, view, result):
            result.feasible = np.zeros(len(view), dtype=np.bool_)
            result.total = np.full(len(view), NOWHERE)
            return result
        result.filters = [
            FilterColumn(spellings)
            for spellings in compiled.filters
            if spellings.call.name not in skipped
        ]
        for column in result.filters:
            self._fill_filter(column, pod, view, result)
        self._combine_filters(result, len(view))
        result.failure = result.failing(_feasible_nodes_wanted(len(view)))
        if result.failure is not None:
            others = result.failure.others
            result.failure.column.add(others, _NOT_CONSIDERED, resolvable=False)
            self._combine_filters(result, len(view))
        skipped = result.skipped["pre_score"]
        candidates = NodeView(table, mask=result.feasible)
        for call in compiled.runtime["pre_score"]:
            if call(pod, candidates, result.state) is SKIP:
                skipped.add(call.name)
        result.scores = [
            ScoreColumn(spellings)
            for spellings in compiled.scores
            if spellings.call.name not in skipped
        ]
        for score in result.scores:
            self._fill_score(score, pod, view, result)
            self._normalise(score, pod, view, result)
        result.sum_up()
        return result

    def _pre_filter(
        self, compiled: _Compiled, pod: PodInfo, view: NodeView, result: Evaluation
    ) -> bool:
        """Ask PreFilter; return False when it refuses every node."""
        left: dict[str, frozenset[str]] = {}
        for call in compiled.runtime["pre_filter"]:
            answer = call(pod, view, result.state)
            if answer is SKIP:
                result.skipped["pre_filter"].add(call.name)
            elif isinstance(answer, PreFilterResult):
                left[call.name] = answer.node_names
                if not frozenset.intersection(*left.values()):
                    result.refusal = (call.name, nothing_left(list(left)))
                    return False
            elif answer is not None:
                result.refusal = (call.name, answer)
                return False
        result.limit(left, self._snapshot.nodes.row_of, len(view))
        return True

    def _fill_filter(
        self, column: FilterColumn, pod: PodInfo, view: NodeView, result: Evaluation
    ) -> None:
        size = len(view)
        column.clear(size)
        if column.vector is None:
            rows = self._survivors_before(column, result, size)
            nodes = (NodeRow(view.table, row) for row in rows)
            self._ask_nodes(column, nodes, pod, result.state, size)
            return
        call = column.vector
        for reject in self._rejects(call, pod, view, result.state):
            mask = guard(call, as_mask, reject.mask, size)
            column.add(mask, reject.reason, reject.resolvable, reject.error)

    def _rejects(
        self, call: HookCall, pod: PodInfo, nodes: NodeView, state: CycleState
    ) -> list[Reject]:
        found: list[Any] = guard(call, list, call.call(pod, nodes, state) or ())
        for reject in found:
            if not isinstance(reject, Reject) or not isinstance(reject.reason, str):
                problem = TypeError(f"expected Reject(mask, reason), got {reject!r}")
                raise call.failed(problem) from problem
        return found

    def _survivors_before(
        self, column: FilterColumn, result: Evaluation, size: int
    ) -> Iterable[int]:
        """Return the rows that no column-wise filter refuses; only these get a per-node call."""
        refused = result.outside(size)
        for other in result.filters:
            if other is not column and other.vector is not None and len(other.mask) == size:
                refused |= other.mask
        return [int(row) for row in np.flatnonzero(~refused)]

    def _ask_nodes(
        self,
        column: FilterColumn,
        nodes: Iterable[NodeRow],
        pod: PodInfo,
        state: CycleState,
        size: int,
    ) -> bool:
        """Ask about nodes one by one; return whether any is refused that was not, or was."""
        assert column.per_node is not None
        ask, refused, moved = column.per_node.call, column.mask, False
        for node in nodes:
            refusal, before = ask(pod, node, state), refused.item(node.row)
            if refusal is not None or before:
                column.set_row(node.row, refusal, size)
                moved |= before is (refusal is None)
        return moved

    def _combine_filters(self, result: Evaluation, size: int) -> None:
        refused = result.outside(size)
        for column in result.filters:
            refused |= column.mask
        result.feasible = ~refused

    def _fill_score(
        self, score: ScoreColumn, pod: PodInfo, view: NodeView, result: Evaluation
    ) -> None:
        if score.vector is not None:
            call = score.vector
            answer = call.call(pod, view, result.state)
            if score.kind is Normalize.HOOK:
                # Its scores are checked once they are normalised.
                score.raw = guard(call, as_column, answer, len(view)).copy()
                return
            found = guard(call, as_scores, answer, len(view))
            score.raw, score.bounds = found.column.copy(), found.bounds
            return
        assert score.per_node is not None
        score.raw, score.bounds = np.zeros(len(view)), None
        for row in np.flatnonzero(result.feasible):
            score.raw[row] = score.per_node(pod, NodeRow(view.table, int(row)), result.state)

    def _normalise(
        self, score: ScoreColumn, pod: PodInfo, view: NodeView, result: Evaluation
    ) -> None:
        """Normalise a column over the feasible nodes.

        :raises PluginError: when the normalised score of a feasible node is outside 0..100.
        """
        score.strays = False
        if score.kind is Normalize.HOOK:
            self._normalise_by_hook(score, pod, view, result)
        elif len(view):
            if score.bounds is None:
                score.bounds = (float(score.raw.min()), float(score.raw.max()))
            score.note(*score.bounds)
        if score.kind is Normalize.NONE:
            score.counted = score.raw
        elif score.kind is not Normalize.HOOK:
            self._normalise_by_maximum(score, result.feasible)
        if score.strays:
            self._check_range(score, result.feasible)

    def _normalise_by_hook(
        self, score: ScoreColumn, pod: PodInfo, view: NodeView, result: Evaluation
    ) -> None:
        feasible = result.feasible
        everywhere = np.count_nonzero(feasible) == len(feasible)
        if not everywhere:
            part = score.raw[feasible]
        else:
            # The hook may change what it gets: scores that are asked for each time are its own.
            part = score.raw if score.clusterwide else score.raw.copy()
        if not len(part):
            score.counted = np.zeros(len(view))
            return
        hook = self._normalize[score.call.name]
        candidates = NodeView(view.table, mask=None if everywhere else feasible)
        answer = hook.call(pod, part, candidates, result.state)
        try:
            found = as_scores(answer, len(part))
        except PLUGIN_RAISES as exc:
            guard(score.call, as_scores, score.raw, len(view))
            raise hook.failed(exc) from exc
        if everywhere:
            score.counted = found.column
        else:
            score.counted = np.zeros(len(view))
            score.counted[feasible] = found.column
        assert found.bounds is not None, "there are rows"
        score.note(*found.bounds)

    def _normalise_by_maximum(self, score: ScoreColumn, feasible: BoolColumn) -> None:
        if score.flat:
            top = float(score.raw[0])
        else:
            top = float(score.raw[feasible].max()) if feasible.any() else 0.0
        score.counted = by_maximum(score.raw, top, score.kind is Normalize.MAX_REVERSED)

    def _check_range(self, score: ScoreColumn, feasible: BoolColumn) -> None:
        """Raise PluginError for the first feasible node whose score is outside 0..100."""
        by_itself = score.kind in (Normalize.NONE, Normalize.HOOK)
        column = score.counted if by_itself else score.raw
        wrong = (column < 0) | (column > MAX_SCORE) if by_itself else column < 0
        rows = np.flatnonzero(wrong & feasible)
        if len(rows):
            row = int(rows[0])
            call = score.call
            if score.kind is Normalize.HOOK:
                call = self._normalize[call.name]
            raise call.failed(out_of_range(score.kind, column.item(row), self._name(row)))

    def _name(self, row: int) -> str:
        return self._snapshot.nodes.names[row]

    # By changed rows ---------------------------------------------------------------------

    def _refresh(self, compiled: _Compiled, kept: Evaluation, pod: PodInfo, view: NodeView) -> bool:
        """Bring a cached evaluation up to date; return False to compute it from scratch instead."""
        table = self._snapshot.nodes
        if kept.epoch != table.epoch or kept.node_version != table.node_version:
            return False
        if kept.refusal is not None or kept.failure is not None:
            return kept.position == table.position
        kept.pod = pod
        if kept.position == table.position:
            return True
        changes = table.changed_since(kept.position)
        if changes is None:
            return False
        rows = sorted(set(changes))
        if len(rows) > _FEW_CHANGES:
            part = _PART if kept.over_columns else _PART_BY_ROW
            if len(rows) > len(view) // part:
                return False
        kept.position = table.position
        few = len(rows) <= _FEW_ROWS
        nodes = tuple(NodeRow(table, row) for row in rows) if few else ()
        changed = _Changed(np.array(rows, dtype=np.intp), nodes)
        if not self._prepare(compiled.clusterwide["pre_filter"], "pre_filter", kept, view):
            return False
        moved = self._refresh_filters(kept, pod, view, changed)
        if moved is None:
            return False
        candidates = NodeView(table, mask=kept.feasible)
        if not self._prepare(compiled.clusterwide["pre_score"], "pre_score", kept, candidates):
            return False
        self._refresh_scores(kept, pod, view, changed, moved)
        return True

    def _refresh_filters(
        self, kept: Evaluation, pod: PodInfo, view: NodeView, changed: _Changed
    ) -> bool | None:
        """Ask the filters again; return whether a changed row is feasible that was not, or was.

        None says to compute the evaluation from scratch instead.
        """
        clusterwide = moved = False
        for column in kept.filters:
            if column.clusterwide:
                if column.vector is None:
                    return None
                clusterwide = True
                self._fill_filter(column, pod, view, kept)
            elif column.by_pods:
                moved |= self._update_filter(column, changed, pod, view, kept)
        if clusterwide:
            columns: list[FilterColumn | ScoreColumn] = [*kept.filters, *kept.scores]
            if any(column.vector is None for column in columns):
                # Other rows may be feasible now that no per-node hook has seen.
                return None
            before = kept.feasible[changed.rows]
            self._combine_filters(kept, len(view))
            moved = not np.array_equal(before, kept.feasible[changed.rows])
        elif moved:
            moved = kept.combine_rows(changed.rows)
        return moved if kept.failing(_feasible_nodes_wanted(len(view))) is None else None

    def _prepare(self, calls: Hook, hook: str, kept: Evaluation, view: NodeView) -> bool:
        """Run a hook again for plugins that read beyond a row; False if an answer changed."""
        skipped = kept.skipped[hook]
        for call in calls:
            answer = call.call(kept.pod, view, kept.state)
            was_skipped = call.name in skipped
            if (answer is SKIP) != was_skipped or not (answer is None or answer is SKIP):
                return False
        return True

    def _update_filter(
        self,
        column: FilterColumn,
        changed: _Changed,
        pod: PodInfo,
        view: NodeView,
        kept: Evaluation,
    ) -> bool:
        """Ask a filter again; return False if it refuses the same of the changed rows."""
        size, rows = len(view), changed.rows
        if column.per_node is not None and (column.vector is None or changed.nodes):
            nodes = changed.nodes or NodeView(view.table, rows)
            return self._ask_nodes(column, nodes, pod, kept.state, size)
        call = column.vector
        assert call is not None
        column.clear_rows(rows)
        part = NodeView(view.table, rows)
        for reject in self._rejects(call, pod, part, kept.state):
            hit = rows[guard(call, as_mask, reject.mask, len(rows))]
            if not len(hit):
                continue
            key = (reject.reason, reject.resolvable)
            if key not in column.refusals:
                column.refusals[key] = np.zeros(size, dtype=np.bool_)
            column.refusals[key][hit] = True
            column.mask[hit] = True
            if reject.error:
                column.errors.update(hit.tolist())
        return True

    def _refresh_scores(
        self, kept: Evaluation, pod: PodInfo, view: NodeView, changed: _Changed, moved: bool
    ) -> None:
        clusterwide = any(column.clusterwide for column in kept.filters)
        everywhere = clusterwide
        # The scores before this one have changed in these rows only.
        first: ScoreColumn | None = None
        for score in kept.scores:
            renewed = score.clusterwide
            if renewed:
                self._fill_score(score, pod, view, kept)
            elif score.by_pods or (score.vector is None and moved):
                self._update_score(score, changed, pod, view, kept)
            if score.kind is not Normalize.NONE and (
                renewed or moved or clusterwide or score.by_pods
            ):
                same = not renewed and score.bounds is not None
                feasible_too = not (moved or clusterwide)
                if same and score.kind is not Normalize.HOOK and (score.flat or feasible_too):
                    continue
                self._normalise(score, pod, view, kept)
                first, everywhere = first or score, True
            elif renewed:
                self._normalise(score, pod, view, kept)
                first, everywhere = first or score, True
            elif score.strays:
                self._check_range(score, kept.feasible)
        if everywhere:
            kept.sum_up_from(changed.rows, first)
        else:
            kept.sum_up_rows(changed.rows)

    def _update_score(
        self, score: ScoreColumn, changed: _Changed, pod: PodInfo, view: NodeView, kept: Evaluation
    ) -> None:
        rows = changed.rows
        if score.per_node is not None and (score.vector is None or changed.nodes):
            ask = score.per_node.call
            everywhere = score.vector is not None
            for node in changed.nodes or NodeView(view.table, rows):
                if everywhere or kept.feasible.item(node.row):
                    score.set_row(node.row, ask(pod, node, kept.state))
            return
        score.bounds = None
        assert score.vector is not None
        part = score.vector.call(pod, NodeView(view.table, rows), kept.state)
        found = guard(score.vector, as_scores, part, len(rows))
        score.raw[rows] = found.column
        if found.bounds is not None:
            score.note(*found.bounds)


def _feasible_nodes_wanted(nodes: int) -> int:
    """Return how many feasible nodes are enough for kube-scheduler to stop looking.

    numFeasibleNodesToFind with the default of percentageOfNodesToScore.
    """
    percentage = max(5, 50 - nodes // 125)
    return min(nodes, max(100, nodes * percentage // 100))


def _summed(calls: Iterable[tuple[str, str, float]]) -> dict[tuple[str, str], float]:
    total: dict[tuple[str, str], float] = {}
    for hook, name, seconds in calls:
        total[hook, name] = total.get((hook, name), 0.0) + seconds
    return total
