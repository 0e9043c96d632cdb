"""A node whose kubelet aligns resources, and what its Topology Manager gives a pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import add, sub

from bayplan.api import NodeResourceTopology
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.api.resources import amount_of
from bayplan_plugins.node_numa.aligned_requests import AlignedRequests
from bayplan_plugins.node_numa.hints import Amounts, Policy, affinity, fill
from bayplan_plugins.shared.gpus.machines import numa_nodes

__all__ = ["AlignedNode", "NumaPlacement", "allowed_numa_nodes", "node_from_zones", "place_pod"]


@dataclass(frozen=True)
class NumaPlacement:
    """What a pod takes of each NUMA node, by resource; ``nodes`` may be used (None: any)."""

    taken: Mapping[str, Amounts]
    nodes: frozenset[int] | None


@dataclass
class AlignedNode:
    """A node whose kubelet aligns resources; ``ids`` are the numbers of its NUMA nodes.

    Amounts have one element per NUMA node, in the order of ``ids``. ``available`` is what the last
    report says (``measured``), or the capacity. ``taken`` is what pods took since then, by uid;
    ``reported`` what the pods hold that the report counts, as far as known, and ``returned`` what
    of that was released since.
    """

    policy: Policy
    scope: str
    ids: tuple[int, ...]
    capacity: Mapping[str, Amounts]
    available: Mapping[str, Amounts]
    measured: bool
    taken: dict[str, Mapping[str, Amounts]] = field(default_factory=dict)
    reported: dict[str, Mapping[str, Amounts]] = field(default_factory=dict)
    returned: dict[str, Mapping[str, Amounts]] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[object, ...]:
        """What has to be equal, besides the free amounts, for nodes to place pods alike."""
        return (self.policy, self.scope, self.ids, tuple(self.capacity.items()))


def allowed_numa_nodes(node: AlignedNode, placement: NumaPlacement | None) -> frozenset[int] | None:
    """Return the NUMA nodes that the policy confines a pod's GPUs to; None for any."""
    if placement is None or node.policy not in ("single-numa-node", "restricted"):
        return None
    return placement.nodes


def place_pod(
    node: AlignedNode, requests: AlignedRequests, free: Mapping[str, Amounts]
) -> NumaPlacement | None:
    """Return what the kubelet would give a pod of what is free; None if it would refuse it."""
    left = dict(free)
    reused: dict[str, Amounts] = {}
    taken: dict[str, Amounts] = {}
    used = 0
    parts = requests.containers if node.scope == "container" else ((requests.pod, True),)
    for needs, stays in parts:
        mask = affinity(node.policy, needs, left, node.capacity, reused)
        if mask is None:
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
    nodes = frozenset(number for place, number in enumerate(node.ids) if used >> place & 1)
    return NumaPlacement(taken, nodes or None)


def _each(apply: Callable[[int, int], int], ones: Amounts, others: Amounts) -> Amounts:
    return tuple(map(apply, ones, others))


def node_from_zones(zones: NodeResourceTopology, policy: Policy, scope: str) -> AlignedNode | None:
    """Return the node that a NodeResourceTopology describes; None without NUMA nodes."""
    nodes = numa_nodes(zones)
    if not nodes:
        return None
    ids = tuple(sorted(nodes))
    names = dict.fromkeys(r.name for number in ids for r in nodes[number].resources)
    capacity: dict[str, Amounts] = {}
    available: dict[str, Amounts] = {}
    for name in names:
        found = [{r.name: r for r in nodes[number].resources}.get(name) for number in ids]
        capacity[name] = tuple(amount_of(name, r.allocatable) if r else 0 for r in found)
        available[name] = tuple(amount_of(name, r.available) if r else 0 for r in found)
    return AlignedNode(policy, scope, ids, capacity, available, measured=True)
