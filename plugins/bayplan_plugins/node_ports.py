"""NodePorts: a host port is held by one pod of a node."""

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
from bayplan.hookspecs import IntColumn

__all__ = ["NodePorts"]

_REASON = "node(s) didn't have free ports for the requested pod ports"
_ANY_IP = "0.0.0.0"  # noqa: S104 - a wildcard to compare with


class NodePorts(Plugin[Args]):
    """Refuse nodes where a port that the pod wants on the host is taken.

    The wildcard IP conflicts with every IP of the same protocol and port.
    """

    reads = Reads.PODS
    requeue_on = ClusterEvent.NODE_ADDED | ClusterEvent.POD_REMOVED

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """The host ports are parts of the spec."""
        return pod.facts

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods without host ports."""
        return None if pod.facts.host_ports else SKIP

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes with a conflict on any port."""
        taken = np.zeros(len(nodes), dtype=np.bool_)
        for port in pod.facts.host_ports:
            for ip, holders in nodes.ports_in_use(port.protocol, port.port).items():
                if _ANY_IP in (ip, port.ip) or ip == port.ip:
                    taken |= holders > 0
        yield Reject(taken, _REASON)

    @hookimpl
    def slots(self, nodes: NodeView) -> IntColumn:
        """A second pod with the same host ports never fits."""
        return np.ones(len(nodes), dtype=np.int64)
