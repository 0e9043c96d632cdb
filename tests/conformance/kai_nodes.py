"""What nodes have left after a KAI scenario, as the scheduler's own ledgers know it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bayplan import PodInfo
from bayplan.api import Quantity
from bayplan.api.resources import amount_of
from bayplan.scheduler.scheduler import Scheduler
from bayplan_plugins.gpus.vendors.kai.groups import GpuGroups
from bayplan_plugins.numa.ledger import NumaLedger

__all__ = ["NodeState", "Zones", "differences", "states_of"]

Zones = Mapping[str, Collection[int]]
"""The NUMA nodes that pods have something of, by the pods' keys."""


@dataclass(frozen=True)
class NodeState:
    """The whole GPUs that are idle, those that pods on their way out give back, and NUMA nodes.

    ``left`` is what the NUMA nodes will have left once those pods are gone and the pods that wait
    for them have come, by resource.
    """

    idle: int
    releasing: int
    left: Mapping[str, tuple[int, ...]]


def states_of(
    scheduler: Scheduler, leaving: Collection[str], coming: Mapping[str, tuple[PodInfo, str]]
) -> tuple[dict[str, NodeState], Zones]:
    """Return the state of each node, and the NUMA nodes of the pods.

    :param leaving: the keys of pods on their way out.
    :param coming: the pods that wait for them, by key, each with its node.
    """
    snapshot = scheduler.snapshot
    groups = snapshot.shared(GpuGroups, GpuGroups)
    numa = snapshot.shared(NumaLedger, NumaLedger)
    names = snapshot.nodes.names
    idle = {name: groups.free_gpus(name) for name in names}
    zones = {key: _zones_of(numa, pod, node) for key, (pod, node) in snapshot.placed.items()}
    with snapshot.trial():
        for key in leaving:
            snapshot.remove_pod(key)
        unused = {name: _unused(groups, name) for name in names}
        releasing = {name: groups.free_gpus(name) + unused[name] - idle[name] for name in names}
        for key, (pod, node) in coming.items():
            placement = numa.place(pod, node)
            if placement is not None:
                numa.take(pod, node, placement)
                zones[key] = _zones_of(numa, pod, node)
            releasing[node] -= pod.requests.get("nvidia.com/gpu", 0)
        left = {name: _left(numa, name) for name in names}
    states = {name: NodeState(idle[name], releasing[name], left[name]) for name in names}
    return states, zones


def _unused(groups: GpuGroups, node: str) -> int:
    return sum(not group.pods for group in groups.on_node(node).values())


def _zones_of(numa: NumaLedger, pod: PodInfo, node: str) -> Collection[int]:
    aligned = numa.node(node)
    if aligned is None:
        return ()
    held = aligned.taken.get(pod.uid) or aligned.reported.get(pod.uid) or {}
    return sorted({z for own in held.values() for z, amount in enumerate(own) if amount})


def _left(numa: NumaLedger, node: str) -> Mapping[str, tuple[int, ...]]:
    aligned = numa.node(node)
    return numa.free(node, aligned).amounts if aligned is not None else {}


def differences(expected: Mapping[str, Any], found: NodeState) -> Iterator[tuple[str, str, str]]:
    """Yield what of a node differs from what a case expects: a name, the expected and the found."""
    for name, number in (("idle", found.idle), ("releasing", found.releasing)):
        wanted = expected.get(f"{name}_gpus") or 0
        if wanted != number:
            yield f"{name} GPUs", str(wanted), str(number)
    for zone, amounts in (expected.get("numa_zones_available") or {}).items():
        for resource, text in amounts.items():
            own = found.left.get(resource, ())
            amount = own[int(zone)] if int(zone) < len(own) else 0
            if amount_of(resource, Quantity(str(text))) != amount:
                yield f"zone {zone}, {resource}", str(text), str(amount)
