"""Members of a gang exchange devices that are not written yet, so that all of them fit.

Where a member finds no devices, its claims are solved together with those of the members that were
given devices in the same cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial

import msgspec

from bayplan import Handle, NodeRow, PodInfo
from bayplan_dra.allocator import Choice, ClaimToAllocate, allocation_of
from bayplan_plugins.device_ledger.in_flight import InFlightAllocation
from bayplan_plugins.device_ledger.ledger import DeviceLedger
from bayplan_plugins.dynamic_resources.device_score import DeviceScores
from bayplan_plugins.dynamic_resources.node_allocator import NodeAllocation, NodeAllocator

__all__ = ["GangExchange"]

_MOST_KNOWN = 10_000


class _Answer(msgspec.Struct, frozen=True):
    """Whether an exchange helps on a node, as long as ``of`` stays the same.

    ``anywhere`` says that it may help on other nodes, too: devices are not bound to the node.
    """

    of: Hashable
    anywhere: bool
    helped: bool


class GangExchange:
    """Solves the claims of a pod together with those of its gang.

    :param is_written: tells whether a pod's allocations, by uid, are on their way to the API.
    """

    def __init__(
        self,
        handle: Handle,
        ledger: DeviceLedger,
        allocator: NodeAllocator,
        scores: DeviceScores,
        is_written: Callable[[str], bool],
    ) -> None:
        self._handle = handle
        self._ledger = ledger
        self._allocator = allocator
        self._scores = scores
        self._is_written = is_written
        self._answers: dict[tuple[str, str], _Answer] = {}
        """Of gangs and nodes."""

    def sign(self, pod: PodInfo, key: Hashable, helped: Callable[[NodeRow], bool]) -> Hashable:
        """Return what tells a member apart from pods with equal claims of other units.

        Those are the nodes where only an exchange gives it its claims; all that its gang has where
        devices are not bound to nodes.

        :param key: what tells its claims apart from others.
        :param helped: tells whether only an exchange gives the pod its claims on a node.
        """
        if pod.gang is None:
            return None
        on_node: dict[str, list[InFlightAllocation]] = {}
        for allocation in self._ledger.in_flight.of_unit(pod.gang):
            on_node.setdefault(allocation.node, []).append(allocation)
        rows, nodes = self._handle.snapshot.nodes, []
        for name, own in on_node.items():
            row = rows.row_of.get(name)
            if row is None:
                continue
            answer = self._answer(pod.gang, NodeRow(rows, row), own, key, helped)
            if answer.anywhere:
                return pod.gang
            if answer.helped:
                nodes.append(name)
        return (pod.gang, *nodes) if nodes else None

    def _answer(
        self,
        gang: str,
        node: NodeRow,
        own: Sequence[InFlightAllocation],
        key: Hashable,
        helped: Callable[[NodeRow], bool],
    ) -> _Answer:
        """Return whether an exchange helps on a node where a gang has allocations."""
        devices = self._ledger.devices
        now = (devices.version(node.name), len(own), key)
        known = self._answers.get((gang, node.name))
        if known is not None and known.of == now:
            return known
        if len(self._answers) >= _MOST_KNOWN:
            self._answers.clear()
        anywhere = any(devices.are_anywhere(one.held) for one in own)
        known = _Answer(now, anywhere, not anywhere and helped(node))
        self._answers[gang, node.name] = known
        return known

    def is_possible(self, pod: PodInfo, claims: Sequence[ClaimToAllocate], node: NodeRow) -> bool:
        """Tell whether the pod would get its claims if its gang exchanged devices."""
        return self._joint(pod, claims, node) is not None

    def exchange(
        self, pod: PodInfo, claims: Sequence[ClaimToAllocate], node: NodeRow
    ) -> Sequence[Sequence[Choice]] | None:
        """Give other members new devices and return the pod's own; undone with the trial.

        None where no exchange helps.
        """
        joint = self._joint(pod, claims, node)
        if joint is None:
            return None
        others, solved = joint
        assert solved.choices is not None
        rows, features = self._handle.snapshot.nodes, self._ledger.devices.features
        for other, choices in zip(others, solved.choices, strict=False):
            where = rows.nodes[rows.row_of[other.node]]
            allocation = allocation_of(other.claim, choices, where, features)
            changed = InFlightAllocation(other.claim, other.node, other.unit, choices, allocation)
            before = self._ledger.in_flight.replace(changed)
            if before is not None:
                self._handle.snapshot.on_rollback(partial(self._put_back, before))
        return solved.choices[len(others) :]

    def _put_back(self, allocation: InFlightAllocation) -> None:
        self._ledger.in_flight.replace(allocation)

    def _joint(
        self, pod: PodInfo, claims: Sequence[ClaimToAllocate], node: NodeRow
    ) -> tuple[list[InFlightAllocation], NodeAllocation] | None:
        """Solve the pod's claims together with those of other members; None where that fails."""
        others = self._others(pod, node)
        rows = self._handle.snapshot.nodes
        if not others or any(other.node not in rows.row_of for other in others):
            return None
        state = self._ledger.state.copy()
        for other in others:
            state.release(other.held)
        tasks = [(other.claim, rows.nodes[rows.row_of[other.node]]) for other in others]
        tasks += [(claim, node.node) for claim in claims]
        solved = self._allocator.together(tasks, state)
        if solved.choices is None or self._is_forbidden(pod, node, others, solved.choices):
            return None
        return others, solved

    def _others(self, pod: PodInfo, node: NodeRow) -> list[InFlightAllocation]:
        """Return the allocations of the pod's gang that may still change.

        Only those on the same node, if all devices that the node can use are local.
        """
        if pod.gang is None:
            return []
        own: Iterable[InFlightAllocation] = self._ledger.in_flight.of_unit(pod.gang)
        if self._ledger.devices.are_local(node.node):
            own = (one for one in own if one.node == node.name)
        return [one for one in own if one.pods and self._may_change(one)]

    def _may_change(self, allocation: InFlightAllocation) -> bool:
        """Tell whether nothing is written yet, and all pods that use the claim are on its node."""
        placed = self._handle.snapshot.placed
        return all(
            not self._is_written(uid) and placed.get(pod.key, (pod, ""))[1] == allocation.node
            for uid, pod in allocation.pods.items()
        )

    def _is_forbidden(
        self,
        pod: PodInfo,
        node: NodeRow,
        others: Sequence[InFlightAllocation],
        choices: Sequence[Sequence[Choice]],
    ) -> bool:
        """Tell whether a plugin forbids what the pod or another member would get."""
        own = [choice for claim in choices[len(others) :] for choice in claim]
        parts: list[tuple[PodInfo, NodeRow, Sequence[Choice]]] = [(pod, node, own)]
        for other, theirs in zip(others, choices, strict=False):
            row = NodeRow(node.table, node.table.row_of[other.node])
            parts += [(user, row, theirs) for user in other.pods.values()]
        opinions = (self._scores.opinion(*part) for part in parts)
        return any(opinion is not None and opinion.forbids for opinion in opinions)
