"""Allocation on one node, remembered: equal nodes with equal devices in use share one answer."""

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
from bayplan_plugins.dynamic_resources.ledger import DeviceLedger

__all__ = ["Answer", "NodeSolver"]

_MOST_KEPT = 50_000
_MOST_KEPT_FOR_NODE = 256
_SPARE = 8
_FORBIDDEN = "plugins forbid every choice of devices"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node can give: choices for each claim, or the reason why not.

    ``broken`` is how many groups of devices are broken anew; ``preferences`` which alternative
    each request with ``firstAvailable`` got. ``hopeless`` says that freeing devices cannot help;
    ``chosen_by`` is the plugin that chose among the choices.
    """

    choices: Sequence[Sequence[Choice]] | None
    reason: str = ""
    broken: int = 0
    preferences: Sequence[int] = ()
    hopeless: bool = False
    timed_out: bool = False
    chosen_by: str = ""


@dataclass(slots=True)
class _Kept:
    """Answers for a node, until its devices or who holds them change."""

    version: tuple[int, int]
    table: DeviceTable
    answers: dict[Hashable, Answer] = field(default_factory=dict)


class NodeSolver:
    """Solves for one profile.

    :param levels: the attributes that say which devices belong together.
    :param timeout: seconds for one node.
    """

    def __init__(
        self, ledger: DeviceLedger, levels: Sequence[str], strict: bool, timeout: float
    ) -> None:
        self._ledger = ledger
        self._levels = tuple(levels)
        self._strict = strict
        self._allocator = Allocator(self._levels, strict)
        self._timeout = timeout
        self._by_node: dict[str, _Kept] = {}
        self._limit = _SPARE
        self._known: dict[Hashable, tuple[DeviceTable, Solved | Failure]] = {}

    def answer(
        self,
        key: Hashable,
        claims: Sequence[ClaimToAllocate],
        node: Node,
        score: Score | None = None,
    ) -> Answer:
        """Return what a node can give to claims now; kept under ``key`` until that changes."""
        name = node.metadata.name
        version = self._ledger.version(name)
        kept = self._by_node.get(name)
        table = self._ledger.table(node)
        full = kept is not None and len(kept.answers) >= _MOST_KEPT_FOR_NODE
        if kept is None or kept.version != version or kept.table is not table or full:
            if kept is None:
                self._forget_nodes()
            kept = self._by_node[name] = _Kept(version, table)
        found = kept.answers.get(key)
        if found is None:
            found = self._solve(claims, table, self._ledger.state, score)
            if found.choices is None and not found.timed_out:
                empty = self._solve(claims, table, AllocatedState(), score)
                hopeless = empty.choices is None
                found = Answer(None, found.reason, hopeless=hopeless)
            kept.answers[key] = found
        return found

    def _forget_nodes(self) -> None:
        """Forget nodes that are gone, each time that twice as many are known as at the last."""
        if len(self._by_node) >= self._limit:
            present = self._ledger.nodes
            for name in [name for name in self._by_node if name not in present]:
                del self._by_node[name]
            self._limit = 2 * len(self._by_node) + _SPARE

    def with_state(
        self, claims: Sequence[ClaimToAllocate], node: Node, state: AllocatedState
    ) -> Answer:
        """Return what a node could give if so much were in use."""
        return self._solve(claims, self._ledger.table(node), state, None)

    def together(
        self,
        tasks: Sequence[tuple[ClaimToAllocate, Node]],
        state: AllocatedState,
        score: Score | None = None,
    ) -> Answer:
        """Allocate claims on the nodes of their own, which may share devices."""
        nodes = {node.metadata.name: node for _, node in tasks}
        if len(nodes) == 1:
            (node,) = nodes.values()
            claims = [claim for claim, _ in tasks]
            return self._solve(claims, self._ledger.table(node), state, score)
        tables = {name: self._ledger.table(node) for name, node in nodes.items()}
        pools = [pool for table in tables.values() for pool in table.pools]
        joint = DeviceTable(pools, self._ledger.inventory.features)
        visible = {
            name: sum(1 << joint.index[device.id] for device in table.devices)
            for name, table in tables.items()
        }
        made = [Task(claim, visible[node.metadata.name]) for claim, node in tasks]
        interrupt = self._interrupt()
        try:
            solved = self._allocator.allocate_across(made, joint, state, interrupt, score)
        except AllocationError as exc:
            return Answer(None, str(exc), hopeless=True)
        return _scored_answer(solved, score)

    def _solve(
        self,
        claims: Sequence[ClaimToAllocate],
        table: DeviceTable,
        state: AllocatedState,
        score: Score | None,
    ) -> Answer:
        if self._strict or score is not None:
            try:
                solved = self._allocator.allocate(claims, table, state, self._interrupt(), score)
            except (AllocationError, NodeError) as exc:
                return Answer(None, str(exc), hopeless=True)
            return _answer(solved) if self._strict else _scored_answer(solved, score)
        try:
            key = self._ledger.shapes.key(table, claims, state, self._levels)
        except AllocationError as exc:
            return Answer(None, str(exc), hopeless=True)
        known = self._known.get(key)
        if known is None:
            solved = self._allocator.allocate(claims, table, state, self._interrupt())
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[key] = (table, solved)
            return _answer(solved)
        origin, solved = known
        if isinstance(solved, Failure) or origin is table:
            return _answer(solved)
        return _answer(_moved(solved, origin, table))

    def _interrupt(self) -> Callable[[], bool]:
        until = time.monotonic() + self._timeout
        return lambda: time.monotonic() > until


def _answer(solved: Solved | Failure) -> Answer:
    if isinstance(solved, Failure):
        return Answer(None, solved.reason, timed_out=solved.timed_out)
    return Answer(solved.choices, "", solved.broken, solved.preferences)


def _scored_answer(solved: Solved | Failure, score: Score | None) -> Answer:
    """Return the answer, unless a plugin forbids even the best choice."""
    if score is not None and isinstance(solved, Solved):
        if score([choice for own in solved.choices for choice in own]) == -math.inf:
            return Answer(None, _FORBIDDEN)
    return _answer(solved)


def _moved(solved: Solved, origin: DeviceTable, table: DeviceTable) -> Solved:
    """Return the same choice on another table of the same shape."""
    choices = [
        [
            Choice(choice.wanted, table.devices[origin.index[choice.device.id]], choice.consumed)
            for choice in own
        ]
        for own in solved.choices
    ]
    return Solved(choices, solved.cost, solved.steps, solved.preferences, solved.broken)
