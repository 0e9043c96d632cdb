"""TaintToleration: nodes with taints that the pod does not tolerate are refused or avoided."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

import numpy as np

from bayplan import (
    Args,
    ClusterEvent,
    NodeView,
    Normalize,
    Plugin,
    PodInfo,
    Reads,
    Reject,
    Remedy,
    hookimpl,
)
from bayplan.api import Taint, Toleration
from bayplan.api.tolerations import tolerated
from bayplan.hookspecs import IntColumn

__all__ = ["TaintToleration"]


class TaintToleration(Plugin[Args]):
    """Refuse NoSchedule and NoExecute taints; score by untolerated PreferNoSchedule ones."""

    reads = Reads.NODE
    normalize_scores = Normalize.MAX_REVERSED
    requeue_on = ClusterEvent.NODE_ADDED | ClusterEvent.NODE_TAINTS

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """The tolerations are parts of the spec."""
        return pod.facts

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes by their first untolerated taint."""
        blocking = [_blocking(taints, pod.spec.tolerations) for taints in nodes.taint_sets]
        for taint in dict.fromkeys(taint for taint in blocking if taint is not None):
            sets = np.array([found == taint for found in blocking], dtype=np.bool_)
            reason = f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
            yield Reject(sets[nodes.taint_codes], reason, resolvable=False)

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> IntColumn:
        """Count the untolerated PreferNoSchedule taints."""
        relevant = [t for t in pod.spec.tolerations if t.effect in ("", "PreferNoSchedule")]
        counts = [
            sum(t.effect == "PreferNoSchedule" and not tolerated(t, relevant) for t in taints)
            for taints in nodes.taint_sets
        ]
        return np.array(counts, dtype=np.int64)[nodes.taint_codes]

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Suggest the toleration that a node would need."""
        for row, code in enumerate(nodes.taint_codes):
            taint = _blocking(nodes.taint_sets[code], pod.spec.tolerations)
            if taint is not None:
                text = f"would fit on {nodes.names[row]} if the pod tolerated "
                value = f"={taint.value}" if taint.value else ""
                yield Remedy(f"{text}{taint.key}{value}:{taint.effect}", row, cost=2.0)


def _blocking(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    for taint in taints:
        if taint.effect != "PreferNoSchedule" and not tolerated(taint, tolerations):
            return taint
    return None
