"""NodePorts: a host port belongs to one pod of a node."""

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
from bayplan.naming import short_key
from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot.pods import HostPort

__all__ = ["NodePorts"]

_REASON = "node(s) didn't have free ports for the requested pod ports"
_ANY_IP = "0.0.0.0"  # noqa: S104 - a wildcard to compare with


def _clash(pod: PodInfo, other: PodInfo) -> HostPort | None:
    """Return a port that both request, None if there is none."""
    for port in pod.facts.host_ports:
        for theirs in other.facts.host_ports:
            same = (port.protocol, port.port) == (theirs.protocol, theirs.port)
            if same and (_ANY_IP in (port.ip, theirs.ip) or port.ip == theirs.ip):
                return theirs
    return None


class NodePorts(Plugin[Args]):
    """Refuse nodes where a host port that the pod requests is taken.

    The wildcard IP conflicts with every IP of the same protocol and port.
    """

    reads = Reads.PODS
    by_spec = True
    requeue_on = ClusterEvent.NODE_ADDED | ClusterEvent.POD_REMOVED

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods with host ports."""
        return bool(pod.facts.host_ports)

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
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Name the pods that have the ports."""
        snapshot = self.handle.snapshot
        for node in nodes:
            holders = [
                (key, taken)
                for key in nodes.table.pods[node.row]
                if (taken := _clash(pod, snapshot.placed[key][0])) is not None
            ]
            if holders:
                ports = ", ".join(
                    dict.fromkeys(f"{port.port}/{port.protocol}" for _, port in holders)
                )
                pods = " and ".join(short_key(key) for key, _ in holders)
                pods += " has it" if len(holders) == 1 else " have it"
                text = f"would fit on {node.name} if host port {ports} was free"
                ends = tuple(key for key, _ in holders)
                yield Remedy(f"{text} ({pods})", node.row, float(len(holders)), ends=ends)

    @hookimpl
    def slots(self, nodes: NodeView) -> IntColumn:
        """Return 1: a second pod with the same host ports never fits."""
        return np.ones(len(nodes), dtype=np.int64)
