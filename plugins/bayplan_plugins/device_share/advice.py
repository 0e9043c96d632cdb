"""What would have to be free on a node's GPUs for a pod's share to fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from bayplan import NodeView, Remedy
from bayplan.api.gpu_shares import MEBIBYTE, WHOLE, OfferedGpu
from bayplan.naming import counted
from bayplan.plugin.hookspecs import IntColumn
from bayplan_plugins.gpus.columns import GpuArrays
from bayplan_plugins.gpus.vendors.adapter import ShareRequest

__all__ = [
    "counted_that_would_fit",
    "gpus_that_could_be_used",
    "what_would_fit",
    "whole_gpus_that_would_fit",
]

_GIBIBYTE = 1024 * MEBIBYTE
_MOST_LISTED = 8


class _Missing(msgspec.Struct, frozen=True):
    """What one GPU lacks: memory (bytes), compute (thousandths), and slots, 0 or 1."""

    memory: int
    compute: int
    slots: int
    cost: float


def what_would_fit(
    request: ShareRequest,
    arrays: GpuArrays,
    nodes: NodeView,
    own: IntColumn,
    divides: Callable[[str], bool],
) -> Iterator[Remedy]:
    """Suggest, for each node, what would have to be free on the GPUs that lack the least.

    :param own: the places in ``nodes`` of those that offer GPUs by the request's adapter.
    :param divides: tells whether a node, by name, divides GPUs into partitions.
    """
    for place in own.tolist():
        row = place if nodes.rows is None else int(nodes.rows[place])
        name = nodes.table.names[row]
        gpus = [_missing(request, arrays, row, gpu) for gpu in _gpus(request, arrays, row)]
        gpus.sort(key=lambda one: one.cost)
        count = request.gpus if divides(name) else max(request.gpus, request.apart)
        lacking = [one for one in gpus[:count] if one.cost > 0]
        if len(gpus) < count or not lacking:
            continue
        text = f"would fit on {name} if {_amounts(lacking)} were freed"
        if any(one.memory for one in lacking):
            text += _fragmented(request, arrays, row)
        yield Remedy(text, row, sum(one.cost for one in lacking), frees=True)


def whole_gpus_that_would_fit(
    request: ShareRequest, arrays: GpuArrays, nodes: NodeView, own: IntColumn, resource: str
) -> Iterator[Remedy]:
    """Suggest, for each node, how many whole GPUs would have to be free.

    In the words of NodeResourcesFit, which asks for the same.

    :param own: the places in ``nodes`` of those that offer GPUs by the request's adapter.
    :param resource: the resource that counts whole GPUs, "" for none.
    """
    for place in own.tolist():
        row = place if nodes.rows is None else int(nodes.rows[place])
        gpus = [_missing(request, arrays, row, gpu) for gpu in _gpus(request, arrays, row)]
        count = request.gpus - sum(one.cost == 0 for one in gpus)
        if len(gpus) < request.gpus or count <= 0:
            continue
        name, verb = nodes.table.names[row], "was" if count == 1 else "were"
        amount = f"{count} {resource}" if resource else counted(count, "GPU")
        text = f"would fit if {amount} {verb} freed on {name}"
        yield Remedy(text, row, count / len(gpus), frees=True)


def counted_that_would_fit(
    asked: Mapping[str, int], nodes: NodeView, own: IntColumn
) -> Iterator[Remedy]:
    """Suggest, for each node, how many replicas or partitions of a resource would have to be free.

    In the words of NodeResourcesFit, which asks for the same.

    :param asked: the amounts of extended resources.
    :param own: the places in ``nodes`` of those that offer GPUs by the request's adapter.
    """
    offered = {name: nodes.allocatable(name) for name in asked}
    free = {name: nodes.free(name) for name in asked}
    for place in own.tolist():
        short = {name: need - int(free[name][place]) for name, need in asked.items()}
        lacking = {name: count for name, count in short.items() if count > 0}
        if not lacking or any(offered[name][place] < need for name, need in asked.items()):
            continue
        row = place if nodes.rows is None else int(nodes.rows[place])
        amounts = " and ".join(f"{count} {name}" for name, count in lacking.items())
        verb = "was" if list(lacking.values()) == [1] else "were"
        cost = sum(count / int(offered[name][place]) for name, count in lacking.items())
        text = f"would fit if {amounts} {verb} freed on {nodes.table.names[row]}"
        yield Remedy(text, row, cost, frees=True)


def gpus_that_could_be_used(
    request: ShareRequest,
    nodes: NodeView,
    own: IntColumn,
    gpus_of_node: Callable[[str], Sequence[OfferedGpu]],
) -> Iterator[Remedy]:
    """Suggest, for each node, which GPUs that nobody may use now would be enough if pods could.

    :param own: the places in ``nodes`` of those that offer GPUs by the request's adapter.
    :param gpus_of_node: returns the GPUs of a node by name.
    """
    for place in own.tolist():
        row = place if nodes.rows is None else int(nodes.rows[place])
        name = nodes.table.names[row]
        found = [
            gpu
            for gpu in gpus_of_node(name)
            if gpu.compute >= request.compute and gpu.memory >= _memory(request, gpu.memory)
        ]
        idle = [gpu for gpu in found if not gpu.usable]
        divided = any(gpu.profiles for gpu in found)
        count = request.gpus if divided else max(request.gpus, request.apart)
        missing = count - (len(found) - len(idle))
        if not 0 < missing <= len(idle):
            continue
        reported = [
            f"GPU {gpu.index} was {'uncordoned' if gpu.healthy else 'healthy'}"
            for gpu in idle[:missing]
        ]
        yield Remedy(f"would fit on {name} if {' and '.join(reported)}", row, float(missing))


def _gpus(request: ShareRequest, arrays: GpuArrays, row: int) -> Iterator[int]:
    """Yield the GPUs that could hold the share if they were empty."""
    for gpu in range(arrays.compute.shape[1]):
        compute, memory = int(arrays.all_compute[row, gpu]), int(arrays.all_memory[row, gpu])
        if 0 <= request.compute <= compute and _memory(request, memory) <= memory:
            yield gpu


def _memory(request: ShareRequest, total: int) -> int:
    return int(np.ceil(total * request.share)) if request.share else request.memory


def _missing(request: ShareRequest, arrays: GpuArrays, row: int, gpu: int) -> _Missing:
    total = int(arrays.all_memory[row, gpu])
    need = _memory(request, total)
    memory = max(0, need - max(0, int(arrays.memory[row, gpu])))
    compute = max(0, request.compute - max(0, int(arrays.compute[row, gpu])))
    slots = int(arrays.slots[row, gpu] < 1)
    return _Missing(memory, compute, slots, memory / max(1, total) + compute / WHOLE + slots)


def _amounts(lacking: list[_Missing]) -> str:
    """Return what GPUs lack: ``2 GiB on one gpu`` or ``30 % of compute and a slot on ...``."""
    found: dict[str, int] = {}
    for one in lacking:
        parts = [_size(one.memory)] if one.memory else []
        parts += [f"{one.compute / 10:g} % of compute"] if one.compute else []
        parts += ["a slot"] if one.slots else []
        text = " and ".join(parts)
        found[text] = found.get(text, 0) + 1
    return ", and ".join(f"{text} on {_on(count)}" for text, count in found.items())


def _on(count: int) -> str:
    return "one GPU" if count == 1 else f"each of {counted(count, 'GPU')}"


def _fragmented(request: ShareRequest, arrays: GpuArrays, row: int) -> str:
    """Say that a node has enough memory in all, but not on one GPU."""
    left = [
        int(arrays.memory[row, gpu])
        for gpu in _gpus(request, arrays, row)
        if arrays.memory[row, gpu] > 0 and arrays.slots[row, gpu] > 0
    ]
    need = request.gpus * _memory(request, int(arrays.all_memory[row].max(initial=0)))
    if not need or sum(left) < need or len(left) < 2:
        return ""
    if len(set(left)) == 1:
        return f"; {counted(len(left), 'GPU')} have {_size(left[0])} each: fragmented"
    sizes = ", ".join(_size(one) for one in sorted(left, reverse=True)[:_MOST_LISTED])
    return f"; its GPUs have {sizes}: fragmented"


def _size(amount: int) -> str:
    if amount >= _GIBIBYTE:
        return f"{amount / _GIBIBYTE:.4g} GiB"
    return f"{amount / MEBIBYTE:.4g} MiB"
