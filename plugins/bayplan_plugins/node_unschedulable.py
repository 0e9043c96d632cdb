"""NodeUnschedulable: cordoned nodes take no new pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from bayplan import (
    SKIP,
    Args,
    ClusterEvent,
    NodeView,
    Plugin,
    PodInfo,
    Reads,
    Reject,
    Remedy,
    hookimpl,
)
from bayplan.api import Taint, Toleration
from bayplan.api.tolerations import tolerated

__all__ = ["NodeUnschedulable"]

_REASON = "node(s) were unschedulable"
_TAINT = Taint("node.kubernetes.io/unschedulable", "NoSchedule")


class NodeUnschedulable(Plugin[Args]):
    """Refuse cordoned nodes, unless the pod tolerates the taint that stands for the cordon."""

    reads = Reads.NODE
    by_spec = True
    requeue_on = ClusterEvent.NODE_ADDED | ClusterEvent.NODE_TAINTS

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods that tolerate the cordon."""
        tolerations: tuple[Toleration, ...] = pod.spec.tolerations
        return SKIP if tolerated(_TAINT, tolerations) else None

    @hookimpl
    def filter(self, nodes: NodeView) -> Iterator[Reject]:
        """Refuse cordoned nodes."""
        yield Reject(nodes.unschedulable, _REASON, resolvable=False)

    @hookimpl
    def remedies(self, nodes: NodeView) -> Iterable[Remedy]:
        """Suggest uncordoning a node."""
        names = nodes.table.names
        for row in map(nodes.row_at, np.flatnonzero(nodes.unschedulable).tolist()):
            yield Remedy(f"would fit on {names[row]} if that node was uncordoned", row, 1.0)
