"""Allocation on one node, cached: nodes with equal devices in equal use share one result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from bayplan.api.node import Node
from bayplan_dra.allocator import (
    AllocatedState,
    AllocationError,
    Allocator,
    Choice,
    ClaimToAllocate,
    DeviceTable,
    Failure,
    NodeError,
    Score,
    Solved,
    Task,
)
from bayplan_plugins.dynamic_resources.node_devices import NodeDevices

__all__ = ["NodeAllocation", "NodeAllocator"]

_MOST_CACHED = 50_000
_MOST_CACHED_FOR_NODE = 256
_SPARE = 8
_FORBIDDEN = "plugins forbid every choice of devices"


@dataclass(frozen=True, slots=True)
class NodeAllocation:
    """The devices that claims get on a node, or (``choices`` None) the reason why they get none.

    ``choices`` has one sequence for each claim. ``broken`` counts the groups of devices that were
    whole before; ``preferences`` has the index of the alternative that each request with
    ``firstAvailable`` got. ``unresolvable`` says that freeing devices cannot help; ``chosen_by`` is
    the plugin whose score decided.
    """

    choices: Sequence[Sequence[Choice]] | None
    reason: str = ""
    broken: int = 0
    preferences: Sequence[int] = ()
    unresolvable: bool = False
    timed_out: bool = False
    chosen_by: str = ""


@dataclass(slots=True)
class _Cached:
    """Results for a node, valid until its devices or their holders change."""

    version: tuple[int, int]
    table: DeviceTable
    results: dict[Hashable, NodeAllocation] = field(default_factory=dict)


class NodeAllocator:
    """Allocates claims on nodes, for one profile.

    :param devices: the devices of each node.
    :param state: the devices in use, which change under it.
    :param levels: the attributes that say which devices belong together, most precious first.
    :param strict: take the first devices that fit, in the order of Kubernetes' own allocator.
    :param timeout: seconds for one node.
    """

    def __init__(
        self,
        devices: NodeDevices,
        state: AllocatedState,
        levels: Sequence[str],
        strict: bool,
        timeout: float,
    ) -> None:
        self._devices = devices
        self._state = state
        self._levels = tuple(levels)
        self._strict = strict
        self._allocator = Allocator(self._levels, strict)
        self._timeout = timeout
        self._by_node: dict[str, _Cached] = {}
        self._limit = _SPARE
        self._known: dict[Hashable, tuple[DeviceTable, Solved | Failure]] = {}

    def allocate(
        self,
        key: Hashable,
        claims: Sequence[ClaimToAllocate],
        node: Node,
        score: Score | None = None,
    ) -> NodeAllocation:
        """Return what claims get on a node now; cached under ``key`` until that changes."""
        name = node.metadata.name
        version = self._devices.version(name)
        cached = self._by_node.get(name)
        table = self._devices.table(node)
        full = cached is not None and len(cached.results) >= _MOST_CACHED_FOR_NODE
        if cached is None or cached.version != version or cached.table is not table or full:
            if cached is None:
                self._forget_nodes()
            cached = self._by_node[name] = _Cached(version, table)
        found = cached.results.get(key)
        if found is None:
            found = self._solve(claims, table, self._state, score)
            if found.choices is None and not found.timed_out:
                empty = self._solve(claims, table, AllocatedState(), score)
                unresolvable = empty.choices is None
                found = NodeAllocation(None, found.reason, unresolvable=unresolvable)
            cached.results[key] = found
        return found

    def _forget_nodes(self) -> None:
        """Drop nodes that are gone; runs when the number of cached nodes has doubled."""
        if len(self._by_node) >= self._limit:
            present = self._devices.nodes
            for name in [name for name in self._by_node if name not in present]:
                del self._by_node[name]
            self._limit = 2 * len(self._by_node) + _SPARE

    def with_state(
        self, claims: Sequence[ClaimToAllocate], node: Node, state: AllocatedState
    ) -> NodeAllocation:
        """Return what claims would get on a node if ``state`` were in use; not cached."""
        return self._solve(claims, self._devices.table(node), state, None)

    def together(
        self,
        tasks: Sequence[tuple[ClaimToAllocate, Node]],
        state: AllocatedState,
        score: Score | None = None,
    ) -> NodeAllocation:
        """Allocate claims, each on its own node; the nodes may share devices."""
        nodes = {node.metadata.name: node for _, node in tasks}
        if len(nodes) == 1:
            (node,) = nodes.values()
            claims = [claim for claim, _ in tasks]
            return self._solve(claims, self._devices.table(node), state, score)
        tables = {name: self._devices.table(node) for name, node in nodes.items()}
        pools = [pool for table in tables.values() for pool in table.pools]
        joint = DeviceTable(pools, self._devices.features)
        visible = {
            name: sum(1 << joint.index[device.id] for device in table.devices)
            for name, table in tables.items()
        }
        made = [Task(claim, visible[node.metadata.name]) for claim, node in tasks]
        interrupt = self._interrupt()
        try:
            solved = self._allocator.allocate_across(made, joint, state, interrupt, score)
        except AllocationError as exc:
            return NodeAllocation(None, str(exc), unresolvable=True)
        return _unless_forbidden(solved, score)

    def _solve(
        self,
        claims: Sequence[ClaimToAllocate],
        table: DeviceTable,
        state: AllocatedState,
        score: Score | None,
    ) -> NodeAllocation:
        if self._strict or score is not None:
            try:
                solved = self._allocator.allocate(claims, table, state, self._interrupt(), score)
            except (AllocationError, NodeError) as exc:
                return NodeAllocation(None, str(exc), unresolvable=True)
            return _allocation(solved) if self._strict else _unless_forbidden(solved, score)
        try:
            key = self._devices.shapes.key(table, claims, state, self._levels)
        except AllocationError as exc:
            return NodeAllocation(None, str(exc), unresolvable=True)
        known = self._known.get(key)
        if known is None:
            solved = self._allocator.allocate(claims, table, state, self._interrupt())
            if len(self._known) >= _MOST_CACHED:
                self._known.clear()
            self._known[key] = (table, solved)
            return _allocation(solved)
        origin, solved = known
        if isinstance(solved, Failure) or origin is table:
            return _allocation(solved)
        return _allocation(_moved_to(solved, origin, table))

    def _interrupt(self) -> Callable[[], bool]:
        until = time.monotonic() + self._timeout
        return lambda: time.monotonic() > until


def _unless_forbidden(solved: Solved | Failure, score: Score | None) -> NodeAllocation:
    """Return the result, unless a plugin forbids even the best choice."""
    if score is not None and isinstance(solved, Solved):
        if score([choice for own in solved.choices for choice in own]) == -math.inf:
            return NodeAllocation(None, _FORBIDDEN)
    return _allocation(solved)


def _allocation(solved: Solved | Failure) -> NodeAllocation:
    if isinstance(solved, Failure):
        return NodeAllocation(None, solved.reason, timed_out=solved.timed_out)
    return NodeAllocation(solved.choices, "", solved.broken, solved.preferences)


def _moved_to(solved: Solved, origin: DeviceTable, table: DeviceTable) -> Solved:
    """Return the same choice on another table of the same shape."""
    choices = [
        [
            Choice(choice.wanted, table.devices[origin.index[choice.device.id]], choice.consumed)
            for choice in own
        ]
        for own in solved.choices
    ]
    return Solved(choices, solved.cost, solved.steps, solved.preferences, solved.broken)
