"""Which node with GPUs to empty next, so that an autoscaler can remove it: whole racks first.

Pods only move to nodes that stay, in racks that hold more, or to fuller nodes of their own rack. So
each move makes full racks and full nodes fuller, and moves come to an end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from bayplan import Handle, PodInfo
from bayplan.api.gpu_shares import WHOLE
from bayplan.api.owners import belongs_to_node
from bayplan.dialects import may_be_evicted
from bayplan.dialects.autoscaling import DO_NOT_DISRUPT, SAFE_TO_EVICT
from bayplan.dialects.kai.shares import is_reservation
from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot.networks import Networks
from bayplan_plugins.gpu_fragmentation.pod_classes import PodClass
from bayplan_plugins.gpu_fragmentation.states import StateSource
from bayplan_plugins.shared.moving import maker_of

__all__ = ["EmptyingChoice", "nodes_to_empty"]


class EmptyingChoice(msgspec.Struct, frozen=True):
    """A node that may be emptied: its pods, and the GPUs of the node.

    They may go to the nodes of the first of the ``targets`` that take all of them: to those of
    other racks, or else also to those of their own.
    """

    node: str
    pods: Sequence[PodInfo]
    targets: Sequence[IntColumn]
    gpus: float


class _Loaded(msgspec.Struct):
    """A node that has pods: those that would have to move, and how full it is."""

    row: int
    rack: str
    pods: list[PodInfo] = msgspec.field(default_factory=list)
    load: int = 0
    stays: bool = False
    """Whether it has a pod that nobody moves."""


def nodes_to_empty(
    handle: Handle,
    source: StateSource,
    class_of: Callable[[PodInfo], PodClass],
    is_alone: Callable[[PodInfo], bool],
) -> Iterator[EmptyingChoice]:
    """Yield the nodes with GPUs that may be emptied, the best first.

    Those of a rack that can be emptied as a whole come first, then those of the racks, and of these
    the nodes, that hold least.

    :param class_of: returns what a pod asks of GPUs.
    :param is_alone: tells whether no other pod needs one.
    """
    nodes = _loaded(handle, source, class_of, is_alone)
    of_rack: dict[str, list[_Loaded]] = defaultdict(list)
    for one in nodes:
        of_rack[one.rack].append(one)
    loads = {rack: sum(one.load for one in own) for rack, own in of_rack.items()}
    fixed = {rack: any(one.stays for one in own) for rack, own in of_rack.items()}

    def key(one: _Loaded) -> tuple[bool, int, str, bool, int, int]:
        return fixed[one.rack], loads[one.rack], one.rack, one.stays, one.load, one.row

    ordered = sorted(nodes, key=key)
    names = handle.snapshot.nodes.names
    rows = np.array([one.row for one in ordered], dtype=np.intp)
    gpus = source.all_gpus(rows).sum(axis=1) / WHOLE if len(rows) else rows
    for place, one in enumerate(ordered):
        if not one.stays and one.pods:
            fuller = [other for other in ordered[place + 1 :] if other.rack != one.rack]
            targets = [np.array([other.row for other in fuller], dtype=np.intp), rows[place + 1 :]]
            yield EmptyingChoice(names[one.row], one.pods, targets, float(gpus[place]))


def _loaded(
    handle: Handle,
    source: StateSource,
    class_of: Callable[[PodInfo], PodClass],
    is_alone: Callable[[PodInfo], bool],
) -> list[_Loaded]:
    """Return the nodes with GPUs that have pods of their own."""
    table = handle.snapshot.nodes
    everywhere = np.arange(len(table), dtype=np.intp)
    has_gpus = source.all_gpus(everywhere).sum(axis=1) > 0
    racks = _racks(handle, len(table))
    found: dict[int, _Loaded] = {}
    for pod, node in handle.snapshot.placed.values():
        row = table.row_of.get(node)
        if row is None or not has_gpus[row] or is_reservation(pod.pod):
            continue
        if belongs_to_node(pod.pod.metadata):
            continue
        one = found.setdefault(row, _Loaded(row, racks[row]))
        one.pods.append(pod)
        # A pod without GPUs counts, too, so that every move makes something fuller.
        one.load += 1 + class_of(pod).total
        one.stays |= pod.terminating or not is_alone(pod) or not _may_ever_move(handle, pod)
    return list(found.values())


def _may_ever_move(handle: Handle, pod: PodInfo) -> bool:
    """Tell whether somebody makes a pod again, we schedule it, and its owner lets it go."""
    kept = pod.annotations.get(SAFE_TO_EVICT) == "false"
    kept |= pod.annotations.get(DO_NOT_DISRUPT) == "true"
    return bool(maker_of(pod)) and handle.schedules(pod) and may_be_evicted(pod.pod) and not kept


def _racks(handle: Handle, count: int) -> list[str]:
    """Return for each node row the innermost network domain of several nodes, "" without one."""
    for tree in Networks.of(handle.snapshot).trees().values():
        for layer in reversed(tree.layers):
            domains = tree.layers[layer]
            if any(len(domain.rows) > 1 for domain in domains):
                racks = [""] * count
                for domain in domains:
                    for row in domain.rows.tolist():
                        racks[row] = "/".join(domain.path)
                return racks
    return [""] * count
