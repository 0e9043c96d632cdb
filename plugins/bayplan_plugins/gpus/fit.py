"""Is a GPU full? The one answer, for many nodes over columns, and for one node.

Amounts decide for most requests: columns compare them for all nodes at once. Where an adapter's
rules decide, ``choice`` asks it for the nodes that are left. Whole GPUs whose topology matters are
chosen among :meth:`~bayplan_plugins.gpus.whole_gpus.WholeGpus.free`; fractions in KAI's words by
:mod:`~bayplan_plugins.gpus.vendors.kai.fit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from bayplan import PodInfo
from bayplan.api.gpu_shares import GpuUse, Partition, Share
from bayplan.plugin.hookspecs import BoolColumn, IntColumn
from bayplan_plugins.gpus.columns import GpuArrays, GpuColumns, GpuMatrix
from bayplan_plugins.gpus.node_gpus import NodeGpus
from bayplan_plugins.gpus.per_node import PerNode
from bayplan_plugins.gpus.vendors.adapter import Choice, FitAdapter, ShareRequest

BoolMatrix = npt.NDArray[np.bool_]

__all__ = ["Fit", "fits_again", "is_overfull"]

_MOST_REQUESTS = 512


class Fit:
    """Tells which nodes have enough left for requests, and which would have if they were empty.

    The latter is computed once for a request, until what nodes offer changes.

    :param node: returns a node's GPUs by name, for a pod by uid that may be there already.
    """

    def __init__(self, columns: GpuColumns, node: Callable[[str, str], NodeGpus | None]) -> None:
        self._columns = columns
        self._node = node
        self._version = -1
        self._ever: dict[ShareRequest, BoolColumn] = {}
        self._choices: PerNode[Choice] = PerNode()

    # Many nodes ------------------------------------------------------------------------------

    def now(self, request: ShareRequest, rows: IntColumn) -> BoolColumn:
        """Return, for rows of the table, whether the request fits now.

        What fits here is refused by ``choice`` only where more than amounts decides.
        """
        arrays = self._columns.arrays()
        enough = _enough(request, arrays.compute[rows], arrays.memory[rows], arrays, rows)
        enough &= arrays.slots[rows] > 0
        return _enough_gpus(request, enough)

    def if_empty(self, request: ShareRequest) -> BoolColumn:
        """Return, for all rows, whether the request would fit if nothing were taken."""
        arrays = self._columns.arrays()
        if self._version != self._columns.totals_version or len(self._ever) > _MOST_REQUESTS:
            self._version = self._columns.totals_version
            self._ever.clear()
        known = self._ever.get(request)
        if known is None:
            enough = _enough(request, arrays.all_compute, arrays.all_memory, arrays, None)
            known = self._ever[request] = _enough_gpus(request, enough)
        return known

    def slots(self, request: ShareRequest, rows: IntColumn) -> IntColumn:
        """Return how many requests like this one fit on each row, at most."""
        arrays = self._columns.arrays()
        left = arrays.compute[rows]
        each = arrays.slots[rows].clip(min=0)
        if request.compute:
            each = np.minimum(each, left.clip(min=0) // request.compute)
        if request.memory and not request.share:
            each = np.minimum(each, arrays.memory[rows].clip(min=0) // request.memory)
        total: IntColumn = each.sum(axis=1) // max(1, request.gpus)
        return total

    # One node --------------------------------------------------------------------------------

    def fits(self, request: ShareRequest, row: int) -> bool:
        """Tell in plain numbers whether the request fits on one row now."""
        arrays = self._columns.arrays()
        least, memory, share = max(0, request.compute), request.memory, request.share
        missing = request.gpus
        for place, compute in enumerate(arrays.compute[row].tolist()):
            if compute < least or arrays.slots.item(row, place) <= 0:
                continue
            if share:
                memory = math.ceil(arrays.all_memory.item(row, place) * share)
            if arrays.memory.item(row, place) >= memory:
                missing -= 1
                if missing <= 0:
                    return True
        return missing <= 0

    def choice(self, pod: PodInfo, request: ShareRequest, name: str) -> Choice:
        """Return some of the shares that a pod would get on a node, or why it gets none."""
        known = self._node(name, pod.uid)
        if known is None or known.adapter is None:
            return Choice(reason="no GPUs", resolvable=False)
        adapter = known.adapter
        choose = adapter.fits if isinstance(adapter, FitAdapter) else adapter.choose
        return self._choices.get(
            request, name, known.version, lambda: choose(pod, request, known.state(pod.uid))
        )


def fits_again(known: NodeGpus, shares: Sequence[Share]) -> bool:
    """Tell whether a node's GPUs have these shares left, all of them together."""
    wanted: dict[int, GpuUse] = {}
    for share in shares:
        wanted[share.gpu] = wanted.get(share.gpu, GpuUse()).plus(share)
    taken = known.partitions() if any(use.partitions for use in wanted.values()) else None
    for index, use in wanted.items():
        place = known.position.get(index)
        if place is None:
            return False
        gpu = known.gpus[place]
        if (
            known.compute[place] + use.compute > gpu.compute
            or (gpu.memory and known.memory[place] + use.memory > gpu.memory)
            or known.slots[place] + use.slots > gpu.slots
        ):
            return False
        if taken is not None and _overlap([*taken[place], *use.partitions]):
            return False
    return True


def is_overfull(known: NodeGpus, uid: str) -> bool:
    """Tell whether a GPU of a pod, by uid, has more taken than it has, of what the pod takes.

    No choice does that: somebody else has been given as much since then.
    """
    own = known.held.get(uid, ())
    others = known.partitions(uid) if any(share.partition for share in own) else None
    for share in own:
        place = known.position.get(share.gpu)
        if place is None:
            continue
        gpu = known.gpus[place]
        if (
            (share.compute and known.compute[place] > gpu.compute)
            or (share.memory and gpu.memory and known.memory[place] > gpu.memory)
            or (share.slots and known.slots[place] > gpu.slots)
        ):
            return True
        if others is not None and share.partition is not None:
            mine = share.partition
            if any(_overlap((mine, one)) for one in others[place]):
                return True
    return False


def _enough(
    request: ShareRequest,
    compute: GpuMatrix,
    memory: GpuMatrix,
    arrays: GpuArrays,
    rows: IntColumn | None,
) -> BoolMatrix:
    enough = compute >= max(0, request.compute)
    if request.share:
        whole = arrays.all_memory if rows is None else arrays.all_memory[rows]
        enough &= memory >= np.ceil(whole * request.share)
    elif request.memory:
        enough &= memory >= request.memory
    return enough


def _enough_gpus(request: ShareRequest, enough: BoolMatrix) -> BoolColumn:
    found: BoolColumn
    if request.gpus == 1:
        found = np.logical_or.reduce(enough, axis=1)
    else:
        found = np.add.reduce(enough, axis=1, dtype=np.int64) >= request.gpus
    return found


def _overlap(partitions: Sequence[Partition]) -> bool:
    """Tell whether any two partitions of a GPU share a memory slice."""
    spans = sorted((one.start, one.start + one.size) for one in partitions)
    return any(before > start for (_, before), (start, _) in pairwise(spans))
