"""TaintToleration: nodes with taints that the pod does not tolerate are refused or avoided."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
from bayplan.plugin.hookspecs import IntColumn

__all__ = ["TaintToleration"]


class TaintToleration(Plugin[Args]):
    """Refuse NoSchedule and NoExecute taints; score by untolerated PreferNoSchedule ones."""

    reads = Reads.NODE
    by_spec = True
    normalize_scores = Normalize.MAX_REVERSED
    requeue_on = ClusterEvent.NODE_ADDED | ClusterEvent.NODE_TAINTS

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes with untolerated taints; which ones, the remedies say."""
        refused = [_refuse(taints, pod.spec.tolerations) for taints in nodes.taint_sets]
        if any(refused):
            mask = np.array(refused, dtype=np.bool_)[nodes.taint_codes]
            yield Reject(mask, "node(s) had untolerated taint(s)", resolvable=False)

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
        """Suggest tolerations, or the end of the conditions behind a node's taints."""
        changes = [_change(taints, pod.spec.tolerations) for taints in nodes.taint_sets]
        for place, code in enumerate(nodes.taint_codes.tolist()):
            if changes[code]:
                cost, row = 1.0 + 0.5 * len(nodes.taint_sets[code]), nodes.row_at(place)
                text = f"would fit on {nodes.table.names[row]} if {changes[code]}"
                yield Remedy(text, row, cost)


_CONDITIONS = {
    "node.kubernetes.io/not-ready": "that node was Ready",
    "node.kubernetes.io/unreachable": "that node was reachable",
    "node.kubernetes.io/unschedulable": "that node was uncordoned",
    "node.kubernetes.io/memory-pressure": "that node had memory to spare",
    "node.kubernetes.io/disk-pressure": "that node had disk space to spare",
    "node.kubernetes.io/pid-pressure": "that node had process IDs to spare",
    "node.kubernetes.io/network-unavailable": "the network of that node was available",
    "node.kubernetes.io/out-of-service": "that node was in service",
    "node.cloudprovider.kubernetes.io/uninitialized": "that node was initialized",
    "node.cloudprovider.kubernetes.io/shutdown": "that node was running",
}
"""Taints that Kubernetes manages itself: tolerating them does not help a pod to run."""


def _change(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> str:
    """Return what would let a pod onto nodes with these taints; "" if nothing is needed."""
    tolerations = tuple(tolerations)
    blocking = [
        taint
        for taint in taints
        if taint.effect != "PreferNoSchedule" and not tolerated(taint, tolerations)
    ]
    ends = [_CONDITIONS[taint.key] for taint in blocking if taint.key in _CONDITIONS]
    own = [
        f"{taint.key}{'=' * bool(taint.value)}{taint.value}:{taint.effect}"
        for taint in blocking
        if taint.key not in _CONDITIONS
    ]
    if own:
        ends.append(f"the pod tolerated {' and '.join(own)}")
    return " and ".join(dict.fromkeys(ends))


def _refuse(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> bool:
    """Tell whether any of the taints refuses a pod with these tolerations."""
    return any(
        taint.effect != "PreferNoSchedule" and not tolerated(taint, tolerations) for taint in taints
    )
