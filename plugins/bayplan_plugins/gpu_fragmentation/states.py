"""What is left of nodes, as the policies see it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bayplan import NodeView
from bayplan.api.cards import WHOLE
from bayplan.plugin.hookspecs import BoolColumn, IntColumn
from bayplan.snapshot import Snapshot
from bayplan_plugins.device_share.columns import CardArrays, Cards
from bayplan_plugins.device_share.ledger import CardLedger
from bayplan_plugins.gpu_fragmentation.groups import SharedCards
from bayplan_plugins.gpu_fragmentation.shapes import NodeChoice, shape_of
from bayplan_plugins.shared.node_selection import required_match

__all__ = ["NodeStates", "StateSource"]

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True)
class NodeStates:
    """Some nodes: milli-CPU left, and thousandths left of each card (0 where there is none).

    ``rows`` are their rows in the node table. ``left`` has a row for each node.
    """

    rows: Rows
    cpu: IntColumn
    left: Cards

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, places: Rows) -> NodeStates:
        """Return the states of some of the nodes, by their places here."""
        return NodeStates(self.rows[places], self.cpu[places], self.left[places])

    def without(self, cpu: int, left: Cards) -> NodeStates:
        """Return the states with less CPU, and with these cards."""
        return NodeStates(self.rows, self.cpu - cpu, left)


class StateSource:
    """Reads the states of nodes out of the snapshot and the ledger of cards."""

    def __init__(self, snapshot: Snapshot, ledger: CardLedger) -> None:
        self._snapshot = snapshot
        self._ledger = ledger
        self.shared = SharedCards(snapshot, ledger)
        self._masks: dict[NodeChoice, BoolColumn] = {}
        self._masks_of: object = None
        self._card_memory: tuple[object, int] = (None, 0)
        self._read_of: CardArrays | None = None
        self._epoch = -1
        self._seen = 0
        self._cpu: IntColumn = np.zeros(0, dtype=np.int64)
        self._left: Cards = np.zeros((0, 0), dtype=np.int64)

    def of(self, rows: Rows) -> NodeStates:
        """Return the states of nodes by row.

        A card's part that is left is the smaller of what is left of its compute and its memory.
        """
        self._follow()
        return NodeStates(rows, self._cpu[rows], self._left[rows])

    def _follow(self) -> None:
        """Read what is left of the nodes that changed since the last call."""
        arrays = self._ledger.columns.arrays()
        table = self._snapshot.nodes
        if self._read_of is not arrays or self._epoch != table.epoch:
            rows = np.arange(len(table))
            self._read_of, self._epoch = arrays, table.epoch
            self._cpu = np.zeros(len(table), dtype=np.int64)
            self._left = np.zeros(arrays.compute.shape, dtype=np.int64)
        elif self._seen == len(table.changes):
            return
        else:
            rows = np.array(sorted(set(table.changes[self._seen :])), dtype=np.intp)
        self._seen = len(table.changes)
        self._cpu[rows] = table.allocatable("cpu")[rows] - table.used("cpu")[rows]
        left = np.maximum(arrays.compute[rows], 0)
        whole = arrays.all_memory[rows]
        if (whole > 0).any():
            memory = arrays.memory[rows].clip(min=0) * WHOLE // np.maximum(whole, 1)
            left = np.where(whole > 0, np.minimum(left, memory), left)
        self._left[rows] = left
        for row in rows.tolist() if self.shared.any_groups else ():
            for place, rest in self.shared.left(table.names[row]):
                self._left[row, place] = rest

    def most(self) -> tuple[int, int]:
        """Return the CPU (milli) and the cards (thousandths) of the largest nodes."""
        arrays = self._ledger.columns.arrays()
        cpu = self._snapshot.nodes.allocatable("cpu")
        cards = arrays.all_compute.clip(min=0).sum(axis=1)
        return int(cpu.max(initial=1)), int(cards.max(initial=1))

    def card_memory(self) -> int:
        """Return the memory in bytes of the typical card, the median; 0 if none is known."""
        table = self._snapshot.nodes
        now = (table.epoch, len(table), table.label_version)
        if self._card_memory[0] != now:
            memory = self._ledger.columns.arrays().all_memory
            known = memory[memory > 0]
            self._card_memory = (now, int(np.median(known)) if len(known) else 0)
        return self._card_memory[1]

    def all_cards(self, rows: Rows) -> Cards:
        """Return the thousandths of each card in all, 0 where there is none."""
        return np.maximum(self._ledger.columns.arrays().all_compute[rows], 0)

    def clusters(self, row: int) -> set[int]:
        """Return of which sizes the pods with cards on a node are, 0 standing for shares."""
        pods = self._snapshot.nodes.pods[row].values()
        memory = self.card_memory()
        asked = ((pod, self.shared.requests(pod)) for pod in pods)
        shapes = [shape_of(pod, found, memory) for pod, found in asked if found]
        return {shape.cluster for shape in shapes}

    def allowed(self, choice: NodeChoice) -> BoolColumn:
        """Return which nodes of the cluster a choice allows."""
        table = self._snapshot.nodes
        now = (table.epoch, table.label_version)
        if self._masks_of != now:
            self._masks_of = now
            self._masks.clear()
        mask = self._masks.get(choice)
        if mask is None:
            mask = self._masks[choice] = required_match(choice.spec, NodeView(table))
        return mask
