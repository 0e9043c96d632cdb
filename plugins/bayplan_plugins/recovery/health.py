"""How far nodes are to be trusted: what says so, and since when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

import msgspec
from msgspec.structs import replace

from bayplan import Handle
from bayplan.api import Node
from bayplan.api.node_state import (
    FAILED_TAINTS,
    NodeState,
    is_out_of_service,
    is_silent,
    state_of,
)
from bayplan.dialects.nvidia import NVSENTINEL_STATE, NVSENTINEL_WELL
from bayplan.dialects.reading import timestamp

__all__ = ["HealthRules", "NodeHealth", "NodeWatch", "Trust", "health_of"]

_LONGEST_DISTRUST = 86_400.0
_MOST_DOUBLED = 20
_OUTAGE = 0.55
"""More than this part of all nodes fails together: then it is the network, or the control plane.
kube-controller-manager's --unhealthy-zone-threshold is the same."""


class Trust(IntEnum):
    """What may be on a node: the higher, the less."""

    WELL = 0
    """Everything."""
    DISTRUSTED = 1
    """It failed lately: no gangs for a while."""
    SICK = 2
    """What runs there may end there, but nothing new comes."""
    LOST = 3
    """Nothing runs there any more, or nobody knows."""


class NodeHealth(msgspec.Struct, frozen=True):
    """How far a node is trusted, by which source, and since when (seconds since 1970)."""

    trust: Trust = Trust.WELL
    source: str = ""
    since: float = 0.0


class HealthRules(msgspec.Struct, frozen=True):
    """Which conditions make a node sick, and for how long one that failed is distrusted (s)."""

    fatal_conditions: frozenset[str]
    distrust: float


def health_of(node: Node, fatal_conditions: frozenset[str] = frozenset()) -> NodeHealth:
    """Return what a node's object says of its health now."""
    if is_out_of_service(node):
        return NodeHealth(Trust.LOST, "it is out of service")
    if is_silent(node):
        return NodeHealth(Trust.LOST, "its kubelet is silent")
    if state_of(node) is NodeState.FAILED:
        return NodeHealth(Trust.LOST, "its kubelet says that it is not ready")
    state = node.metadata.labels.get(NVSENTINEL_STATE, "")
    if state and state != NVSENTINEL_WELL:
        return NodeHealth(Trust.SICK, f"NVSentinel: {state}")
    for one in node.status.conditions:
        if one.type in fatal_conditions and one.status == "True":
            return NodeHealth(Trust.SICK, f"it has the condition {one.type}")
    return NodeHealth()


def _since(node: Node, health: NodeHealth, now: float) -> float:
    """Return since when a node is what it is, as its taints tell it, or else now."""
    if health.trust is not Trust.LOST:
        return now
    stated = [timestamp(one.time_added) for one in node.spec.taints if one.key in FAILED_TAINTS]
    return min((at for at in stated if 0 < at <= now), default=now)


class NodeWatch:
    """Follows the health of all nodes, and distrusts those that fail again and again for longer."""

    def __init__(self, handle: Handle, rules: HealthRules) -> None:
        self._handle = handle
        self._rules = rules
        self._nodes: dict[str, Node] = {}
        self._unwell: dict[str, NodeHealth] = {}
        self._failures: dict[str, int] = {}
        """How often each node has been lost after it was well."""
        self._distrusted: dict[str, float] = {}
        """Until when nodes that are back are distrusted, in seconds since 1970."""
        self._at: object = None
        self.is_trusted_again = False
        """Whether a node is distrusted no more since somebody last asked; who asks clears it."""

    def look(self) -> Mapping[str, NodeHealth]:
        """Return the nodes that are not well."""
        table, now = self._handle.snapshot.nodes, self._handle.unix_time
        at = table.epoch, table.node_version
        if at != self._at:
            self._at = at
            self._follow(table.nodes, now)
        over = [name for name, until in self._distrusted.items() if until <= now]
        for name in over:
            del self._distrusted[name]
            self.is_trusted_again = True
        if not self._distrusted:
            return self._unwell
        return {name: self._distrust(name) for name in self._distrusted} | self._unwell

    @property
    def is_outage(self) -> bool:
        """Whether so many nodes are lost that what tells of them has failed, and not they."""
        lost = sum(one.trust is Trust.LOST for one in self._unwell.values())
        return lost > _OUTAGE * len(self._nodes)

    def _distrust(self, name: str) -> NodeHealth:
        times = self._failures.get(name, 0)
        often = "once" if times == 1 else f"{times} times"
        return NodeHealth(Trust.DISTRUSTED, f"it failed {often}")

    def _follow(self, nodes: Sequence[Node], now: float) -> None:
        """Read the nodes that changed."""
        before, self._nodes = self._nodes, {node.metadata.name: node for node in nodes}
        for name in before.keys() - self._nodes.keys():
            for known in (self._unwell, self._failures, self._distrusted):
                known.pop(name, None)
        # What is lost in an outage is not the node's fault, nor is coming back from it.
        outage = self.is_outage
        for name, node in self._nodes.items():
            old = before.get(name)
            if old is not node:
                self._read(name, node, old is not None, now, outage)

    def _read(self, name: str, node: Node, was_there: bool, now: float, outage: bool) -> None:
        health, known = health_of(node, self._rules.fatal_conditions), self._unwell.get(name)
        was_lost = known is not None and known.trust is Trust.LOST
        if health.trust is Trust.LOST and not was_lost and was_there and not outage:
            # One that has just come and is not ready yet has not failed.
            self._failures[name] = self._failures.get(name, 0) + 1
        if was_lost and health.trust is not Trust.LOST and not outage and name in self._failures:
            doubled = min(self._failures[name] - 1, _MOST_DOUBLED)
            if self._rules.distrust:
                pause = self._rules.distrust * 2**doubled
                self._distrusted[name] = now + min(_LONGEST_DISTRUST, pause)
        if health.trust is Trust.WELL:
            self._unwell.pop(name, None)
            return
        same = known is not None and known.trust is health.trust
        since = known.since if known is not None and same else _since(node, health, now)
        self._unwell[name] = replace(health, since=since)

    def next_times(self) -> list[float]:
        """Return when nodes are trusted again, in the scheduler's seconds."""
        offset = self._handle.now - self._handle.unix_time
        return [until + offset for until in self._distrusted.values()]
