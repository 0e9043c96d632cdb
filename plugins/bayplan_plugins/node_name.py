"""NodeName: a pod that names its node runs there or nowhere."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

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
    hookimpl,
)

__all__ = ["NodeName"]

_REASON = "node(s) didn't match the requested node name"


class NodeName(Plugin[Args]):
    """Compare spec.nodeName with the node's name."""

    reads = Reads.NODE
    requeue_on = ClusterEvent.NODE_ADDED

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by spec.nodeName."""
        return pod.spec.node_name

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods that name no node."""
        return None if pod.spec.node_name else SKIP

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse every other node."""
        others = np.array([name != pod.spec.node_name for name in nodes.names], dtype=np.bool_)
        yield Reject(others, _REASON, resolvable=False)
