"""A node whose kubelet aligns resources, and what its Topology Manager gives a pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import add, sub

import msgspec

from bayplan.api import NodeResourceTopology
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.api.resources import amount_of
from bayplan_plugins.gpus.machines import numa_nodes
from bayplan_plugins.numa.aligned_requests import AlignedRequests
from bayplan_plugins.numa.hints import Amounts, Policy, affinity, fill
from bayplan_plugins.numa.memory import MemoryManager, is_memory

__all__ = [
    "AlignedNode",
    "FreeAmounts",
    "NumaPlacement",
    "allowed_numa_nodes",
    "node_from_zones",
    "place_pod",
]


class FreeAmounts(msgspec.Struct, frozen=True):
    """What is free on each NUMA node, by resource.

    ``grouped`` says whether the memory in use is of a set of NUMA nodes (see ``MemoryManager``).
    """

    amounts: Mapping[str, Amounts]
    grouped: bool = False


class NumaPlacement(msgspec.Struct, frozen=True):
    """What a pod takes of each NUMA node, by resource; ``nodes`` may be used (None: any)."""

    taken: Mapping[str, Amounts]
    nodes: frozenset[int] | None


class AlignedNode(msgspec.Struct):
    """A node where resources are aligned; ``ids`` are the numbers of its NUMA nodes.

    Its kubelet aligns them, or, ``by_koordinator``, this scheduler alone, and all that pods request
    (:mod:`bayplan_plugins.numa.whole_pods`). The policy "none" is that of a node of Koordinator's
    where only pods that ask for it are aligned.

    Amounts have one element per NUMA node, in the order of ``ids``. ``capacity`` includes what is
    reserved for the system, ``allocatable`` does not. ``available`` is what the last report says
    is left (``measured``), or all that is allocatable. ``taken`` is what pods took since then, by
    uid; ``reported`` what the pods hold that the report counts, as far as known, and ``returned``
    what of that was released since.
    """

    policy: Policy
    scope: str
    ids: tuple[int, ...]
    capacity: Mapping[str, Amounts]
    allocatable: Mapping[str, Amounts]
    available: Mapping[str, Amounts]
    measured: bool
    by_koordinator: bool = False
    taken: dict[str, Mapping[str, Amounts]] = msgspec.field(default_factory=dict)
    reported: dict[str, Mapping[str, Amounts]] = msgspec.field(default_factory=dict)
    returned: dict[str, Mapping[str, Amounts]] = msgspec.field(default_factory=dict)

    @property
    def shape(self) -> tuple[object, ...]:
        """What has to be equal, besides the free amounts, for nodes to place pods alike."""
        amounts = (tuple(self.capacity.items()), tuple(self.allocatable.items()))
        kind = (self.policy, self.scope, self.ids, self.measured, self.by_koordinator)
        return (*kind, *amounts)

    def is_spread(self, requests: AlignedRequests) -> bool:
        """Tell whether a pod has memory of several NUMA nodes, as it needs more than one has."""
        needs = [one for one, _ in requests.containers] if self.scope == "container" else []
        return any(
            need > max(self.allocatable[name], default=0)
            for one in needs or [requests.pod]
            for name, need in one.items()
            if is_memory(name) and name in self.allocatable
        )


def allowed_numa_nodes(node: AlignedNode, placement: NumaPlacement | None) -> frozenset[int] | None:
    """Return the NUMA nodes that the policy confines a pod's GPUs to; None for any."""
    if placement is None or node.policy not in ("single-numa-node", "restricted"):
        return None
    return placement.nodes


def place_pod(
    node: AlignedNode, requests: AlignedRequests, free: FreeAmounts
) -> NumaPlacement | None:
    """Return what the kubelet would give a pod of what is free; None if it would refuse it."""
    left = dict(free.amounts)
    # Who does not measure does not know of a memory manager: memory is a resource like others.
    manager = MemoryManager(node.allocatable if node.measured else {}, left, free.grouped)
    reused: dict[str, Amounts] = {}
    taken: dict[str, Amounts] = {}
    used = 0
    parts = requests.containers if node.scope == "container" else ((requests.pod, True),)
    for all_needs, stays in parts:
        memory = manager.wanted(all_needs)
        needs = {
            name: n for name, n in all_needs.items() if not (node.measured and is_memory(name))
        }
        hints = manager.hints(memory) if memory else None
        mask = affinity(node.policy, needs, left, node.capacity, reused, hints)
        if mask is None or (memory and not manager.give(memory, mask, stays)):
            return None
        for resource, need in needs.items():
            if resource not in left:
                continue
            nothing = (0,) * len(left[resource])
            own = fill(need, left[resource], mask, reused.get(resource, nothing))
            if not stays:
                reused[resource] = _each(max, own, reused.get(resource, nothing))
                continue
            left[resource] = _each(sub, left[resource], own)
            rest = _each(sub, reused.get(resource, nothing), own)
            reused[resource] = tuple(max(0, amount) for amount in rest)
            taken[resource] = _each(add, taken.get(resource, nothing), own)
        if stays and any(resource in GPU_RESOURCES for resource in needs):
            used |= mask
    # What init containers had and no other container got stays with the pod.
    for resource, amounts in reused.items():
        taken[resource] = _each(add, taken.get(resource, (0,) * len(amounts)), amounts)
    for resource, amounts in manager.free.items():
        taken[resource] = _each(sub, free.amounts[resource], amounts)
    nodes = frozenset(number for place, number in enumerate(node.ids) if used >> place & 1)
    ordered = {
        resource: taken[resource] for resource in requests.pod if any(taken.get(resource, ()))
    }
    return NumaPlacement(ordered, nodes or None)


def _each(apply: Callable[[int, int], int], ones: Amounts, others: Amounts) -> Amounts:
    return tuple(map(apply, ones, others))


def node_from_zones(
    zones: NodeResourceTopology, policy: Policy, scope: str, measured: bool
) -> AlignedNode | None:
    """Return the node that a NodeResourceTopology describes; None without NUMA nodes.

    :param measured: whether it says what is left, too.
    """
    nodes = numa_nodes(zones)
    if not nodes:
        return None
    ids = tuple(sorted(nodes))
    names = dict.fromkeys(r.name for number in ids for r in nodes[number].resources)
    capacity: dict[str, Amounts] = {}
    allocatable: dict[str, Amounts] = {}
    available: dict[str, Amounts] = {}
    for name in names:
        found = [{r.name: r for r in nodes[number].resources}.get(name) for number in ids]
        allocatable[name] = tuple(amount_of(name, r.allocatable) if r else 0 for r in found)
        available[name] = tuple(amount_of(name, r.available) if r else 0 for r in found)
        all_ = tuple(amount_of(name, r.capacity) if r else 0 for r in found)
        capacity[name] = _each(max, all_, allocatable[name])
    left = available if measured else allocatable
    return AlignedNode(policy, scope, ids, capacity, allocatable, left, measured)
