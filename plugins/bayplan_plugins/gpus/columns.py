"""What is left of every GPU of the cluster, as columns: a row a node, a place a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan.api.gpu_shares import WHOLE, OfferedGpu
from bayplan.plugin.hookspecs import BoolColumn, IntColumn
from bayplan.snapshot import Snapshot
from bayplan.snapshot.row_changes import Rows, moved
from bayplan_plugins.gpus.node_gpus import NodeGpus
from bayplan_plugins.shared.stale_nodes import StaleNodes

__all__ = ["NO_GPU", "GpuArrays", "GpuColumns", "GpuMatrix", "gives_parts"]

GpuMatrix = npt.NDArray[np.int64]
"""A number for every GPU: rows are nodes, columns the places of their GPUs."""
NO_GPU = -1
"""What is left where there is no GPU, or none that may be used."""
_FEW = 8


class GpuArrays(msgspec.Struct, frozen=True):
    """What is left and what there is in all of each GPU; NO_GPU where no pod may use one.

    ``adapter`` is the number of each node's adapter, -1 without GPUs. ``shared`` are the nodes
    that give out parts of GPUs. ``part`` are the
    thousandths of a GPU that are left of its compute and of its memory, whichever is less; 0 where
    no pod may use one.
    """

    adapter: IntColumn
    shared: BoolColumn
    part: GpuMatrix
    compute: GpuMatrix
    memory: GpuMatrix
    slots: GpuMatrix
    all_compute: GpuMatrix
    all_memory: GpuMatrix


class GpuColumns:
    """The GPUs of all node rows; read again only for nodes that changed.

    :param gpus: returns the GPUs of a node by name, None where it has none.
    """

    def __init__(self, snapshot: Snapshot, gpus: Callable[[str], NodeGpus | None]) -> None:
        self._snapshot = snapshot
        self._gpus = gpus
        self._arrays = _empty(0, _FEW)
        self._stale = StaleNodes(snapshot)
        self._filled: dict[int, NodeGpus] = {}
        """Of which GPUs each row shows what there is in all."""
        self.totals_version = 0
        """Changes with what there is in all, of any GPU."""

    def touch(self, name: str) -> None:
        """Mark a node's GPUs as changed."""
        self._stale.touch(name)

    def arrays(self) -> GpuArrays:
        """Return the columns of all rows; do not change them."""
        if self._stale.up_to_date:
            return self._arrays
        table = self._snapshot.nodes
        stale = self._stale.take()
        if stale.origin is not None:
            self._move(stale.origin)
        # Where all are stale, most are what they were: each is compared with what it showed.
        elif stale.all and len(self._arrays.adapter) != len(table):
            self._arrays = _empty(len(table), self._arrays.compute.shape[1])
            self._filled.clear()
            self.totals_version += 1
        for name in stale.names:
            row = table.row_of.get(name)
            if row is not None:
                self._fill(row, self._gpus(name))
        return self._arrays

    def _move(self, origin: Rows) -> None:
        """Follow the rows to their new numbers."""
        arrays = self._arrays
        self._arrays = GpuArrays(
            moved(arrays.adapter, origin, NO_GPU),
            moved(arrays.shared, origin),
            moved(arrays.part, origin),
            *(moved(column, origin, NO_GPU) for column in _columns(arrays)),
        )
        filled = self._filled
        before = enumerate(origin.tolist())
        self._filled = {row: filled[old] for row, old in before if old in filled}
        self.totals_version += 1

    def _fill(self, row: int, found: NodeGpus | None) -> None:
        arrays = self._arrays
        if found is None:
            self.totals_version += self._filled.pop(row, None) is not None
            _clear(arrays, row)
            return
        places: Iterable[int] = found.changed
        if self._filled.get(row) is not found:
            self._filled[row] = found
            self.totals_version += 1
            if len(found.gpus) > arrays.compute.shape[1]:
                arrays = self._arrays = _wider(arrays, len(found.gpus))
            _clear(arrays, row)
            arrays.adapter[row] = found.code
            arrays.shared[row] = any(map(gives_parts, found.gpus))
            places = range(len(found.gpus))
            for place, gpu in enumerate(found.gpus):
                if gpu.usable:
                    arrays.all_compute[row, place] = gpu.compute
                    arrays.all_memory[row, place] = gpu.memory
        for place in places:
            gpu = found.gpus[place]
            if gpu.usable:
                compute = max(0, gpu.compute - found.compute[place])
                memory = max(0, gpu.memory - found.memory[place])
                arrays.compute[row, place] = compute
                arrays.memory[row, place] = memory
                arrays.slots[row, place] = max(0, gpu.slots - found.slots[place])
                part = memory * WHOLE // gpu.memory if gpu.memory else compute
                arrays.part[row, place] = min(compute, part)
        found.changed.clear()


def gives_parts(gpu: OfferedGpu) -> bool:
    """Tell whether pods are given parts of a GPU; other devices than accelerators have none."""
    return gpu.compute > 0 and (gpu.slots > 1 or gpu.compute < WHOLE)


def _clear(arrays: GpuArrays, row: int) -> None:
    arrays.adapter[row] = NO_GPU
    arrays.shared[row] = False
    arrays.part[row] = 0
    for column in _columns(arrays):
        column[row] = NO_GPU


def _columns(arrays: GpuArrays) -> tuple[GpuMatrix, ...]:
    return (arrays.compute, arrays.memory, arrays.slots, arrays.all_compute, arrays.all_memory)


def _empty(rows: int, width: int) -> GpuArrays:
    adapter = np.full(rows, NO_GPU, dtype=np.int64)
    shared = np.zeros(rows, dtype=np.bool_)
    part = np.zeros((rows, width), dtype=np.int64)
    others = (np.full((rows, width), NO_GPU, dtype=np.int64) for _ in range(5))
    return GpuArrays(adapter, shared, part, *others)


def _wider(arrays: GpuArrays, width: int) -> GpuArrays:
    wider = _empty(len(arrays.adapter), width)
    wider.adapter[:] = arrays.adapter
    wider.shared[:] = arrays.shared
    wider.part[:, : arrays.part.shape[1]] = arrays.part
    for new, old in zip(_columns(wider), _columns(arrays), strict=True):
        new[:, : old.shape[1]] = old
    return wider
