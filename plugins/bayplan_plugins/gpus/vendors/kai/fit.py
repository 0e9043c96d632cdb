"""Is a GPU full for a fraction in KAI's words: answers for many nodes at once."""

from __future__ import annotations

import numpy as np

from bayplan import NodeView
from bayplan.dialects.kai.shares import (
    GPU,
    MEMORY_LABEL,
    MIG_LABEL,
    MIG_PREFIX,
    GpuShareRequest,
    gpu_memory_of,
)
from bayplan.plugin.hookspecs import BoolColumn, IntColumn
from bayplan_plugins.gpus.vendors.kai.groups import GpuGroups

__all__ = ["KaiFit"]

_TRUE = ("1", "t", "T", "true", "TRUE", "True")


class KaiFit:
    """Answers for many nodes at once; only nodes with shared GPUs are looked at one by one."""

    def __init__(self, groups: GpuGroups) -> None:
        self._groups = groups

    def may_ever(self, request: GpuShareRequest, nodes: NodeView) -> BoolColumn:
        """Return the nodes whose GPUs would be enough if all were free."""
        enough = (nodes.allocatable(GPU) >= request.devices) & (_each(request, nodes) > 0)
        return enough & ~_partitioned(nodes)

    def slots(self, request: GpuShareRequest, nodes: NodeView) -> IntColumn:
        """Return how many such pods the GPUs of each node have left."""
        each = _each(request, nodes)
        free = np.maximum(nodes.free(GPU), 0)
        # A pod has each of its shares on another GPU.
        count = np.where(free >= request.devices, free * each // request.devices, 0)
        for name, place in self._shared(nodes):
            count[place] = self._groups.slots(request, name)
        return count

    def joins(self, request: GpuShareRequest, nodes: NodeView) -> BoolColumn:
        """Return the nodes where such a pod would share a GPU that others use."""
        found = np.zeros(len(nodes), dtype=np.bool_)
        for name, place in self._shared(nodes):
            chosen = self._groups.choose(request, name)
            found[place] = chosen is not None and any(chosen)
        return found

    def _shared(self, nodes: NodeView) -> list[tuple[str, int]]:
        """Return the nodes of the view with shared GPUs, each with its place there."""
        table = nodes.table
        if nodes.rows is not None:
            pairs = ((table.names[row], place) for place, row in enumerate(nodes.rows.tolist()))
            return [(name, place) for name, place in pairs if self._groups.on_node(name)]
        known = ((name, table.row_of.get(name)) for name in self._groups.nodes())
        return [(name, row) for name, row in known if row is not None]


def _partitioned(nodes: NodeView) -> BoolColumn:
    """Return the nodes whose GPUs are divided by MIG: as a label says, or by what they offer."""
    found = np.zeros(len(nodes), dtype=np.bool_)
    for name in nodes.table.allocatable_columns:
        if name.startswith(MIG_PREFIX):
            found |= nodes.allocatable(name) > 0
    label = nodes.label(MIG_LABEL)
    return np.where(label.codes >= 0, label.where(v in _TRUE for v in label.values), found)


def _each(request: GpuShareRequest, nodes: NodeView) -> IntColumn:
    """Return how many such shares one GPU of each node takes; 0 where it asks for nothing."""
    labels = nodes.label(MEMORY_LABEL)
    sizes = [gpu_memory_of({MEMORY_LABEL: value}) for value in labels.values]
    sizes.append(gpu_memory_of({}))
    asked = [request.memory_of(size) for size in sizes]
    each = [size // need if need > 0 else 0 for size, need in zip(sizes, asked, strict=True)]
    return np.array(each, dtype=np.int64)[labels.codes]
