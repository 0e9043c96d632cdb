"""Allocation on one node, cached: nodes with equal devices in equal use share one result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence

import msgspec
from msgspec.structs import replace

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
    SelectorError,
    Solved,
    Task,
    TimedOut,
)
from bayplan_plugins.device_ledger.node_devices import NodeDevices

__all__ = ["Deadline", "NodeAllocation", "NodeAllocator"]

_MOST_CACHED = 50_000
_MOST_CACHED_FOR_NODE = 256
_SPARE = 8
_FORBIDDEN = "plugins forbid every choice of devices"


class NodeAllocation(msgspec.Struct, frozen=True):
    """The devices that claims get on a node, or (``choices`` None) the reason why they get none.

    ``choices`` has one sequence for each claim. ``broken`` counts the groups of devices that were
    whole before, ``lost`` is the room that divided hardware loses, in thousandths of it;
    ``preferences`` has the index of the alternative that each request with
    ``firstAvailable`` got. ``unresolvable`` says that freeing devices cannot help; ``error`` is a
    selector that fails; ``chosen_by`` is the plugin whose score decided.
    """

    choices: Sequence[Sequence[Choice]] | None
    reason: str = ""
    broken: int = 0
    preferences: Sequence[int] = ()
    unresolvable: bool = False
    timed_out: bool = False
    error: SelectorError | None = None
    chosen_by: str = ""
    lost: int = 0


class Deadline(msgspec.Struct):
    """Interrupts a search when its time is over; ``passed`` says that it did."""

    clock: Callable[[], float]
    until: float
    passed: bool = False

    def __call__(self) -> bool:
        """Tell whether the time is over."""
        self.passed = self.passed or self.clock() > self.until
        return self.passed


class _Cached(msgspec.Struct):
    """Results for a node, valid until its devices or their holders change."""

    version: tuple[int, int]
    table: DeviceTable
    results: dict[Hashable, NodeAllocation] = msgspec.field(default_factory=dict)


class NodeAllocator:
    """Allocates claims on nodes, for one profile.

    :param devices: the devices of each node.
    :param state: the devices in use; it changes between calls.
    :param levels: the attributes that say which devices belong together, most precious first.
    :param strict: take the first devices that fit, in the order of Kubernetes' own allocator.
    :param timeout: seconds for one node.
    :param ignore_selector_errors: do not select a device on which a selector fails.
    :param clock: returns the time in seconds.
    """

    def __init__(
        self,
        devices: NodeDevices,
        state: AllocatedState,
        levels: Sequence[str],
        strict: bool,
        timeout: float,
        ignore_selector_errors: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._devices = devices
        self._state = state
        self._levels = tuple(levels)
        self._strict = strict
        self._allocator = Allocator(self._levels, strict, ignore_selector_errors)
        self._timeout = timeout
        self._clock = clock
        self._by_node: dict[str, _Cached] = {}
        self._limit = _SPARE
        self._known: dict[Hashable, tuple[DeviceTable, Solved | Failure | SelectorError]] = {}

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
            deadline = self.deadline()
            found = self._solve(claims, table, self._state, deadline, score)
            if found.choices is None and not found.timed_out and found.error is None:
                # Kubernetes evicts nobody for a claim.
                unresolvable = self._strict or (
                    self._solve(claims, table, AllocatedState(), deadline, score).choices is None
                )
                found = replace(found, unresolvable=unresolvable)
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
        return self._solve(claims, self._devices.table(node), state, self.deadline())

    def deadline(self) -> Deadline:
        """Return the deadline of a search on one node that starts now."""
        return Deadline(self._clock, self._clock() + self._timeout)

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
            return self._solve(claims, self._devices.table(node), state, self.deadline(), score)
        tables = {name: self._devices.table(node) for name, node in nodes.items()}
        pools = [pool for table in tables.values() for pool in table.pools]
        joint = DeviceTable(pools, self._devices.features)
        visible = {
            name: sum(1 << joint.index[device.id] for device in table.devices)
            for name, table in tables.items()
        }
        made = [Task(claim, visible[node.metadata.name]) for claim, node in tasks]
        deadline = self.deadline()
        try:
            solved = self._allocator.allocate_across(made, joint, state, deadline, score)
        except AllocationError as exc:
            return NodeAllocation(None, str(exc), unresolvable=True)
        if isinstance(solved, Solved):
            for name, table in tables.items():
                own = zip(tasks, solved.choices, strict=True)
                mine = [
                    c.device.id for task, got in own if task[1].metadata.name == name for c in got
                ]
                if table.host is not None and not table.host.allows(state, mine):
                    return NodeAllocation(None, f"node {name} may not have so many GPUs")
        return _unless_forbidden(solved, score)

    def _solve(
        self,
        claims: Sequence[ClaimToAllocate],
        table: DeviceTable,
        state: AllocatedState,
        deadline: Deadline,
        score: Score | None = None,
    ) -> NodeAllocation:
        try:
            if self._strict:
                return _allocation(self._search(claims, table, state, deadline))
            if score is None:
                return _allocation(self._shared(claims, table, state, deadline))
            return _unless_forbidden(self._search(claims, table, state, deadline, score), score)
        except SelectorError as exc:
            return NodeAllocation(None, str(exc), unresolvable=True, error=exc)
        except TimedOut as exc:
            return NodeAllocation(None, self._late(str(exc)), timed_out=True)
        except (AllocationError, NodeError) as exc:
            return NodeAllocation(None, str(exc), unresolvable=True)

    def _search(
        self,
        claims: Sequence[ClaimToAllocate],
        table: DeviceTable,
        state: AllocatedState,
        deadline: Deadline,
        score: Score | None = None,
    ) -> Solved | Failure:
        found = self._allocator.allocate(claims, table, state, deadline, score)
        if isinstance(found, Failure) and found.timed_out and deadline.passed:
            return replace(found, reason=self._late(found.reason))
        return found

    def _late(self, reason: str) -> str:
        return f"{reason}, as filterTimeout ({self._timeout:g} s) was over"

    def _shared(
        self,
        claims: Sequence[ClaimToAllocate],
        table: DeviceTable,
        state: AllocatedState,
        deadline: Deadline,
    ) -> Solved | Failure:
        """Return what claims get; the answer is shared with nodes of its equivalence class.

        :raises AllocationError: when no node can help.
        :raises SelectorError: when a selector fails.
        :raises TimedOut: when the time is over before the selectors are evaluated.
        """
        key = self._devices.equivalence_classes.key(table, claims, state, self._levels, deadline)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_CACHED:
                self._known.clear()
            try:
                known = (table, self._search(claims, table, state, deadline))
            except SelectorError as exc:
                known = (table, exc)
            self._known[key] = known
        origin, answer = known
        if isinstance(answer, SelectorError):
            # It is raised again and again, and must not keep frames alive.
            raise answer.with_traceback(None)
        if isinstance(answer, Failure) or origin is table:
            return answer
        return _moved_to(answer, origin, table)


def _unless_forbidden(solved: Solved | Failure, score: Score | None) -> NodeAllocation:
    """Return the result, unless a plugin forbids even the best choice."""
    if score is not None and isinstance(solved, Solved):
        if score([choice for own in solved.choices for choice in own]) == -math.inf:
            return NodeAllocation(None, _FORBIDDEN)
    return _allocation(solved)


def _allocation(solved: Solved | Failure) -> NodeAllocation:
    if isinstance(solved, Failure):
        return NodeAllocation(None, solved.reason, timed_out=solved.timed_out)
    return NodeAllocation(solved.choices, "", solved.broken, solved.preferences, lost=solved.lost)


def _moved_to(solved: Solved, origin: DeviceTable, table: DeviceTable) -> Solved:
    """Return the same choice on another table of the same equivalence class."""
    choices = [
        [
            Choice(choice.wanted, table.devices[origin.index[choice.device.id]], choice.consumed)
            for choice in own
        ]
        for own in solved.choices
    ]
    return replace(solved, choices=choices)
