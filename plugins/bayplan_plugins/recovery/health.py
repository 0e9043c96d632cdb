"""How far nodes are to be trusted: what says so, and since when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

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


@dataclass(frozen=True)
class NodeHealth:
    """How far a node is trusted, by which source, and since when it was seen (seconds since 1970).

    ``certain`` says that the kubelet or an operator vouches for it; a monitor's finding is likely.
    """

    trust: Trust = Trust.WELL
    source: str = ""
    since: float = 0.0
    certain: bool = True


@dataclass(frozen=True)
class HealthRules:
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
        return NodeHealth(Trust.SICK, f"NVSentinel: {state}", certain=False)
    for one in node.status.conditions:
        if one.type in fatal_conditions and one.status == "True":
            return NodeHealth(Trust.SICK, f"it has the condition {one.type}", certain=False)
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
        self._read: dict[str, tuple[Node, NodeHealth]] = {}
        """What was read of each node that is not well."""
        self._failures: dict[str, int] = {}
        """How often each node has been lost."""
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
        found = {name: health for name, (_, health) in self._read.items()}
        for name, until in self._distrusted.items():
            times = self._failures[name]
            often = "once" if times == 1 else f"{times} times"
            health = NodeHealth(Trust.DISTRUSTED, f"it failed {often}", until, certain=False)
            found.setdefault(name, health)
        return found

    def _follow(self, nodes: Sequence[Node], now: float) -> None:
        read: dict[str, tuple[Node, NodeHealth]] = {}
        for node, health in self._unwell(nodes):
            name = node.metadata.name
            before = self._read.get(name)
            if health.trust is Trust.LOST and (before is None or before[1].trust < Trust.LOST):
                self._failures[name] = self._failures.get(name, 0) + 1
            same = before is not None and before[1].trust is health.trust
            since = before[1].since if before is not None and same else _since(node, health, now)
            read[name] = (node, replace(health, since=since))
        there = {node.metadata.name for node in nodes}
        for name, (_, health) in self._read.items():
            back = name in there and (name not in read or read[name][1].trust < Trust.LOST)
            if health.trust is Trust.LOST and back and self._rules.distrust:
                doubled = min(self._failures[name] - 1, _MOST_DOUBLED)
                pause = min(_LONGEST_DISTRUST, self._rules.distrust * 2**doubled)
                self._distrusted[name] = now + pause
        self._read = read

    def _unwell(self, nodes: Sequence[Node]) -> Iterator[tuple[Node, NodeHealth]]:
        for node in nodes:
            known = self._read.get(node.metadata.name)
            if known is not None and known[0] is node:
                yield known
                continue
            health = health_of(node, self._rules.fatal_conditions)
            if health.trust is not Trust.WELL:
                yield node, health

    def next_times(self) -> list[float]:
        """Return when nodes are trusted again, in the scheduler's seconds."""
        offset = self._handle.now - self._handle.unix_time
        return [until + offset for until in self._distrusted.values()]
