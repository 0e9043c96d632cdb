"""InterPodAffinity: near some pods, away from others; terms of placed pods count too.

Semantics: kube-scheduler 1.36, interpodaffinity. Anti-affinity is symmetric: a placed pod's
required anti-affinity keeps a matching pod out of its domain.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np
from pydantic import Field

from bayplan import (
    SKIP,
    Args,
    ClusterEvent,
    CycleState,
    NodeView,
    Normalize,
    Plugin,
    PodInfo,
    Reads,
    Reject,
    Remedy,
    StateKey,
    hookimpl,
)
from bayplan.naming import short_key
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn, IntColumn
from bayplan.snapshot import AffinityTerm, PodQuery

__all__ = ["InterPodAffinity", "InterPodAffinityArgs"]

_AFFINITY = "node(s) didn't match pod affinity rules"
_ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
_MOST_NAMED = 3
_EXISTING = "node(s) didn't satisfy existing pods anti-affinity rules"


class InterPodAffinityArgs(Args):
    """Arguments of InterPodAffinity."""

    hard_pod_affinity_weight: int = Field(default=1, ge=0, le=100)
    ignore_preferred_terms_of_existing_pods: bool = False


Weighted = tuple[AffinityTerm, IntColumn, int]
_SCORING: StateKey[list[Weighted]] = StateKey("affinity.scoring")


class InterPodAffinity(Plugin[InterPodAffinityArgs]):
    """Refuse and score nodes by the pods in their topology domains."""

    Args = InterPodAffinityArgs
    reads = Reads.CLUSTER
    normalize_scores = Normalize.HOOK
    requeue_on = ClusterEvent.NODE | ClusterEvent.POD

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by the pod's terms, whether it meets them itself, and placed pods' terms on it."""
        held = self.handle.snapshot.index.held_matching(pod)
        if not pod.terms:
            return held
        return (pod.terms, self._meets_own(pod), held)

    # Filter ------------------------------------------------------------------------------

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip if neither the pod nor a placed pod has a required term that concerns it."""
        if pod.terms.required_affinity or pod.terms.required_anti_affinity:
            return None
        held = self.handle.snapshot.index.held_matching(pod)
        return None if any(term.kind == "anti" for term in held) else SKIP

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse by the pod's affinity, its anti-affinity, then that of placed pods."""
        everywhere = nodes.all()
        index = self.handle.snapshot.index
        left = np.ones(len(everywhere), dtype=np.bool_)
        terms = pod.terms
        if terms.required_affinity:
            far = ~self._near_enough(pod, everywhere)
            yield Reject(nodes.pick(far), _AFFINITY, resolvable=False)
            left &= ~far
        if terms.required_anti_affinity:
            crowded = np.zeros(len(everywhere), dtype=np.bool_)
            for term in terms.required_anti_affinity:
                counts = index.counts(PodQuery(terms=(term,)))
                crowded |= _per_node(term, counts, everywhere) > 0
            crowded &= left
            yield Reject(nodes.pick(crowded), _ANTI_AFFINITY)
            left &= ~crowded
        unwelcome = np.zeros(len(everywhere), dtype=np.bool_)
        for held in index.held_matching(pod):
            if held.kind == "anti":
                unwelcome |= _per_node(held.term, index.held(held), everywhere) > 0
        if unwelcome.any():
            yield Reject(nodes.pick(unwelcome & left), _EXISTING)

    @hookimpl
    def slots(self, pod: PodInfo, nodes: NodeView) -> IntColumn:
        """Return 1 for pods with anti-affinity to their own kind, else no limit."""
        labels = self.handle.snapshot.index.namespace_labels(pod)
        alone = any(
            term.matches(pod.namespace, pod.labels, labels)
            for term in pod.terms.required_anti_affinity
        )
        most = 1 if alone else np.iinfo(np.int64).max
        return np.full(len(nodes), most, dtype=np.int64)

    def _near_enough(self, pod: PodInfo, nodes: NodeView) -> BoolColumn:
        """Return the nodes that meet the pod's required affinity."""
        terms = pod.terms.required_affinity
        # A pod counts only if it matches all terms at once.
        counts = self.handle.snapshot.index.counts(PodQuery(terms=terms))
        with_keys = np.ones(len(nodes), dtype=np.bool_)
        near = np.ones(len(nodes), dtype=np.bool_)
        anywhere = False
        for term in terms:
            has_key = nodes.has_label(term.topology_key)
            with_keys &= has_key
            near &= _per_node(term, counts, nodes) > 0
            anywhere = anywhere or bool(counts[has_key].any())
        # The first pod of a group with affinity to itself has no pod to be near.
        if not anywhere and self._meets_own(pod):
            return with_keys
        return near

    def _meets_own(self, pod: PodInfo) -> bool:
        query = PodQuery(terms=pod.terms.required_affinity)
        return query.matches(pod, self.handle.snapshot.index.namespace_labels(pod))

    # Why not -----------------------------------------------------------------------------

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Name the pods that are in the way, or missing."""
        anti = pod.terms.required_anti_affinity
        everywhere = nodes.all()
        in_the_way = self._in_the_way(pod, everywhere)
        terms = pod.terms.required_affinity
        near = np.ones(len(everywhere), dtype=np.bool_)
        if terms:
            near = self._near_enough(pod, everywhere)
        for row in map(nodes.row_at, range(len(nodes))):
            name, others = everywhere.names[row], in_the_way.get(row, ())
            changes: list[str] = []
            if not near[row]:
                changes += [self._wanted(pod, term, everywhere, row) for term in terms]
            if others:
                whose = "the pod's" if anti else "their"
                changes.append(f"{_named(others)} ended, as {whose} anti-affinity asks")
            if changes:
                text = f"would fit on {name} if {' and '.join(changes)}"
                cost = 4.0 * (not near[row]) + len(others)
                yield Remedy(text, row, cost, ends=tuple(others))

    def _wanted(self, pod: PodInfo, term: AffinityTerm, nodes: NodeView, row: int) -> str:
        """Return what a node lacks for an affinity term: the label, pods nearby, or both."""
        what = f"a pod with {term.selector.describe()}"
        if term.namespaces != {pod.namespace}:
            what += f" of namespace {' or '.join(sorted(term.namespaces)) or 'any that it selects'}"
        if nodes.label(term.topology_key).codes[row] >= 0:
            return f"{what} ran in the same {term.topology_key}"
        return f"that node had the label {term.topology_key}, and {what} the same"

    def _in_the_way(self, pod: PodInfo, nodes: NodeView) -> dict[int, list[str]]:
        """Return, by row, the keys of pods that anti-affinity separates from the pod."""
        snapshot = self.handle.snapshot
        labels = snapshot.index.namespace_labels(pod)
        found: dict[int, dict[str, None]] = {}
        rows = {name: row for row, name in enumerate(nodes.names)}
        for key, (other, node) in snapshot.placed.items():
            theirs = snapshot.index.namespace_labels(other)
            terms = [
                term
                for term in pod.terms.required_anti_affinity
                if term.matches(other.namespace, other.labels, theirs)
            ]
            terms += [
                term
                for term in other.terms.required_anti_affinity
                if term.matches(pod.namespace, pod.labels, labels)
            ]
            for topology_key in {term.topology_key for term in terms}:
                if node in rows:
                    for row in _domain(topology_key, rows[node], nodes):
                        found.setdefault(row, {})[key] = None
        return {row: list(keys) for row, keys in found.items()}

    # Score -------------------------------------------------------------------------------

    @hookimpl
    def pre_score(self, pod: PodInfo, state: CycleState) -> object:
        """Collect the terms that score, with their columns; skip if there are none."""
        if self.args.ignore_preferred_terms_of_existing_pods and not pod.terms.preferred:
            # As in kube-scheduler: a pod with preferences of its own is scored by all terms.
            return SKIP
        index = self.handle.snapshot.index
        found: list[Weighted] = [
            (term, index.counts(PodQuery(terms=(term,))), weight)
            for term, weight in pod.terms.preferred
        ]
        for held in index.held_matching(pod):
            if held.kind == "affinity" and self.args.hard_pod_affinity_weight:
                weight = self.args.hard_pod_affinity_weight
                found.append((held.term, index.held(held), weight))
            elif held.kind == "preferred":
                found.append((held.term, index.held(held), held.weight))
        state[_SCORING] = found
        return None if found else SKIP

    @hookimpl
    def score(self, nodes: NodeView, state: CycleState) -> FloatColumn:
        """Sum the weights of all matching pods in the node's domains."""
        everywhere = nodes.all()
        total = np.zeros(len(everywhere), dtype=np.int64)
        for term, counts, weight in state[_SCORING]:
            total += weight * _per_node(term, counts, everywhere)
        return nodes.pick(total).astype(np.float64)

    @hookimpl
    def normalize(self, scores: FloatColumn) -> FloatColumn:
        """Scale so that the lowest score becomes 0 and the highest 100."""
        low, high = scores.min(), scores.max()
        if high == low:
            return np.zeros(len(scores))
        stretched: FloatColumn = np.floor(100 * ((scores - low) / (high - low)))
        return stretched


def _domain(key: str, row: int, nodes: NodeView) -> list[int]:
    """Return the rows of a row's domain; none if the node lacks the label."""
    codes = nodes.label(key).codes
    found: list[int] = np.flatnonzero(codes == codes[row]).tolist() if codes[row] >= 0 else []
    return found


def _named(keys: Sequence[str]) -> str:
    shown = ", ".join(short_key(key) for key in keys[:_MOST_NAMED])
    return shown if len(keys) <= _MOST_NAMED else f"{shown} and {len(keys) - _MOST_NAMED} more"


def _per_node(term: AffinityTerm, counts: IntColumn, nodes: NodeView) -> IntColumn:
    """Return, per node, the sum of the counts in its domain; 0 without the label."""
    column = nodes.label(term.topology_key)
    codes = column.codes
    has_key = codes >= 0
    if has_key.all():
        sums = np.bincount(codes, weights=counts, minlength=len(column.values))
    else:
        size = len(column.values)
        sums = np.bincount(codes[has_key], weights=counts[has_key], minlength=size)
    # The appended value stands for nodes without the label.
    return np.append(sums, 0).astype(np.int64)[codes]
