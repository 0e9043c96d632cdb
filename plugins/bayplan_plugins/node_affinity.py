"""NodeAffinity: spec.nodeSelector and spec.affinity.nodeAffinity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pydantic

from bayplan import (
    SKIP,
    Args,
    ClusterEvent,
    NodeRow,
    NodeView,
    Normalize,
    Plugin,
    PodInfo,
    PreFilterResult,
    Reads,
    Reject,
    Remedy,
    hookimpl,
)
from bayplan.api.objects import DecodeError, decode_part
from bayplan.api.pod import NodeAffinity as NodeAffinitySpec
from bayplan.api.pod import NodeSelectorTerm, PreferredSchedulingTerm
from bayplan.api.validation import validate_node_affinity
from bayplan.plugin.hookspecs import IntColumn
from bayplan_plugins.shared.node_selection import matches_selector, matches_term, required_match
from bayplan_plugins.shared.node_selection_advice import unmet

__all__ = ["NodeAffinity", "NodeAffinityArgs"]

_REASON = "node(s) didn't match Pod's node affinity/selector"
_CONFLICT = "pod affinity terms conflict"
_ENFORCED = "node(s) didn't match scheduler-enforced node affinity"


class NodeAffinityArgs(Args):
    """Arguments of NodeAffinity; ``addedAffinity`` applies to every pod of the profile."""

    added_affinity: dict[str, object] | None = None

    @pydantic.field_validator("added_affinity")
    @classmethod
    def _is_node_affinity(cls, value: dict[str, object] | None) -> dict[str, object] | None:
        if value is not None:
            for path, message in validate_node_affinity(_decoded(value), "$"):
                raise ValueError(f"{path}: {message}")
        return value


def _decoded(content: dict[str, object]) -> NodeAffinitySpec:
    try:
        return decode_part(NodeAffinitySpec, content)
    except DecodeError as exc:
        raise ValueError(str(exc)) from None


class NodeAffinity(Plugin[NodeAffinityArgs]):
    """Refuse nodes that the pod does not select; score by the weights of preferred terms."""

    Args = NodeAffinityArgs
    reads = Reads.NODE
    by_spec = True
    normalize_scores = Normalize.MAX
    requeue_on = ClusterEvent.NODE_ADDED | ClusterEvent.NODE_LABELS

    @property
    def _added(self) -> NodeAffinitySpec:
        return _decoded(self.args.added_affinity or {})

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods that select nothing; leave only the nodes that every term names."""
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
        required = affinity.required if affinity is not None else None
        if not (pod.spec.node_selector or required or self.args.added_affinity):
            return SKIP
        if required is None:
            return None
        named = [_named(term) for term in required.node_selector_terms]
        found = [names for names in named if names is not None]
        if not found or len(found) < len(named):
            return None
        names = frozenset[str]().union(*found)
        return PreFilterResult(names) if names else _CONFLICT

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes outside the added affinity, then those outside the pod's own."""
        left = np.ones(len(nodes), dtype=np.bool_)
        if self.args.added_affinity and self._added.required is not None:
            left = matches_selector(self._added.required, nodes)
            yield Reject(~left, _ENFORCED, resolvable=False)
        yield Reject(left & ~required_match(pod.spec, nodes), _REASON, resolvable=False)

    @hookimpl
    def pre_score(self, pod: PodInfo) -> object:
        """Skip pods without preferred terms."""
        return None if self._preferred(pod) else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> IntColumn:
        """Sum the weights of the preferred terms that match."""
        total = np.zeros(len(nodes), dtype=np.int64)
        for term in self._preferred(pod):
            total += term.weight * matches_term(term.preference, nodes)
        return total

    def _preferred(self, pod: PodInfo) -> tuple[PreferredSchedulingTerm, ...]:
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
        own = affinity.preferred if affinity is not None else ()
        return (*own, *self._added.preferred) if self.args.added_affinity else own

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Suggest the labels that a node lacks, or the mistake in the selector."""
        for place in np.flatnonzero(~required_match(pod.spec, nodes)).tolist():
            node = NodeRow(nodes.table, nodes.row_at(place))
            change, count = unmet(pod.spec, node.name, node.labels)
            if change:
                cost = 1.0 if change.startswith("with ") else 3.0 + 0.1 * count
                yield Remedy(f"would fit on {node.name} {change}", node.row, cost)


def _named(term: NodeSelectorTerm) -> frozenset[str] | None:
    """Return the only nodes that a term's fields leave; None where they leave others."""
    lists = [
        frozenset(field.values)
        for field in term.match_fields
        if field.key == "metadata.name" and field.operator == "In"
    ]
    return frozenset.intersection(*lists) if lists else None
