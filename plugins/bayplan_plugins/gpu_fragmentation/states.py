"""What is left of nodes, as the policies see it."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan import NodeRow, NodeView
from bayplan.plugin.hookspecs import BoolColumn, IntColumn
from bayplan.snapshot import Snapshot
from bayplan_plugins.gpu_fragmentation.groups import SharedGpus
from bayplan_plugins.gpu_fragmentation.pod_classes import NodeChoice, class_of
from bayplan_plugins.gpus.columns import GpuMatrix
from bayplan_plugins.gpus.ledger import GpuLedger
from bayplan_plugins.shared.node_selection import required_match

__all__ = ["NodeStates", "StateSource"]

Rows = npt.NDArray[np.intp]


class NodeStates(msgspec.Struct):
    """Some nodes: milli-CPU left, and thousandths left of each GPU (0 where there is none).

    ``rows`` are their rows in the node table. ``left`` has a row for each node.
    """

    rows: Rows
    cpu: IntColumn
    left: GpuMatrix

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, places: Rows) -> NodeStates:
        """Return the states of some of the nodes, by their places here."""
        return NodeStates(self.rows[places], self.cpu[places], self.left[places])

    def and_also(self, other: NodeStates) -> NodeStates:
        """Return these states, and then others."""
        return NodeStates(
            np.concatenate((self.rows, other.rows)),
            np.concatenate((self.cpu, other.cpu)),
            np.concatenate((self.left, other.left)),
        )

    def without(self, cpu: int, left: GpuMatrix) -> NodeStates:
        """Return the states with less CPU, and with these GPUs."""
        return NodeStates(self.rows, self.cpu - cpu, left)


class StateSource:
    """Reads the states of nodes out of the snapshot and the ledger of GPUs."""

    def __init__(self, snapshot: Snapshot, ledger: GpuLedger) -> None:
        self._snapshot = snapshot
        self._ledger = ledger
        self.shared = SharedGpus(snapshot, ledger)
        self._masks: dict[NodeChoice, BoolColumn] = {}
        self._masks_of: object = None
        self._gpu_memory: tuple[object, int] = (None, 0)

    def of(self, rows: Rows) -> NodeStates:
        """Return the states of nodes by row.

        A GPU's part that is left is the smaller of what is left of its compute and its memory.
        """
        table = self._snapshot.nodes
        cpu = table.allocatable_of("cpu", rows) - table.used_of("cpu", rows)
        return NodeStates(rows, cpu, self.left(rows))

    def left(self, rows: Rows) -> GpuMatrix:
        """Return the thousandths of GPUs that are left of nodes by row, a row each."""
        left: GpuMatrix = self._ledger.columns.arrays().part[rows]
        if self.shared.any_groups:
            for place, row in enumerate(rows.tolist()):
                for gpu, rest in self.shared.left(self._snapshot.nodes.names[row]):
                    left[place, gpu] = rest
        return left

    def of_one(self, row: int) -> tuple[int, list[int]]:
        """Return one node's milli-CPU and thousandths of GPUs that are left, as ``of`` does."""
        parts: list[int] = self._ledger.columns.arrays().part[row].tolist()
        node = NodeRow(self._snapshot.nodes, row)
        if self.shared.any_groups:
            for gpu, rest in self.shared.left(node.name):
                parts[gpu] = rest
        return node.free("cpu"), parts

    def most(self) -> tuple[int, int]:
        """Return the CPU (milli) and the GPUs (thousandths) of the largest nodes."""
        arrays = self._ledger.columns.arrays()
        cpu = self._snapshot.nodes.allocatable("cpu")
        gpus = arrays.all_compute.clip(min=0).sum(axis=1)
        return int(cpu.max(initial=1)), int(gpus.max(initial=1))

    def gpu_memory(self) -> int:
        """Return the memory in bytes of the typical GPU, the median; 0 if none is known."""
        table = self._snapshot.nodes
        now = (table.epoch, table.label_version)
        if self._gpu_memory[0] != now:
            memory = self._ledger.columns.arrays().all_memory
            known = memory[memory > 0]
            self._gpu_memory = (now, int(np.median(known)) if len(known) else 0)
        return self._gpu_memory[1]

    def all_gpus(self, rows: Rows) -> GpuMatrix:
        """Return the thousandths of each GPU in all, 0 where there is none."""
        return np.maximum(self._ledger.columns.arrays().all_compute[rows], 0)

    def clusters(self, row: int) -> set[int]:
        """Return of which sizes the pods with GPUs on a node are, 0 standing for shares."""
        pods = self._snapshot.nodes.pods[row].values()
        memory = self.gpu_memory()
        asked = ((pod, self.shared.requests(pod)) for pod in pods)
        pod_classes = [class_of(pod, found, memory) for pod, found in asked if found]
        return {pod_class.cluster for pod_class in pod_classes}

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
