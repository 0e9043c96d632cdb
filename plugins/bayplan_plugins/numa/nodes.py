"""How resources are aligned on a node, and what its NUMA nodes have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bayplan.api import NodeResourceTopology
from bayplan.api.cpu_lists import cpus_in
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.dialects.koordinator.cpu_sets import publishes_cpus
from bayplan.topology.machine.model import Machine
from bayplan_plugins.cpu_sets.ledger import amplify
from bayplan_plugins.cpu_sets.nodes import NodeCpus
from bayplan_plugins.numa.alignment import AlignedNode, node_from_zones
from bayplan_plugins.numa.hints import Amounts
from bayplan_plugins.numa.policies import NodePolicy

__all__ = ["described", "gpus_by_numa_node"]


def described(
    policy: NodePolicy,
    zones: NodeResourceTopology | None,
    cpus: NodeCpus | None,
    machine: Machine | None,
) -> AlignedNode | None:
    """Return a node, None where nothing is aligned of any pod.

    :param zones: what the node reports.
    :param cpus: what its agent, if any, says of its CPUs.
    """
    published = zones is not None and publishes_cpus(zones)
    if zones is not None and published and (policy.by_koordinator or policy.policy == "none"):
        return _of_koordinator(policy, zones, cpus, machine)
    if policy.policy == "none":
        return None
    if zones is not None:
        return node_from_zones(zones, policy.policy, policy.scope, measured=not published)
    return _from_machine(policy, machine) if machine is not None else None


def _of_koordinator(
    policy: NodePolicy,
    zones: NodeResourceTopology,
    cpus: NodeCpus | None,
    machine: Machine | None,
) -> AlignedNode | None:
    """Return a node without the CPUs that nobody gets, amplified as the node is, with its GPUs.

    Its agent lists CPU and memory only.
    """
    made = node_from_zones(zones, policy.policy, "pod", measured=False)
    if made is None:
        return None
    made.by_koordinator = True
    amounts = dict(made.allocatable)
    if cpus is not None and "cpu" in amounts:
        counts = (len(cpus.topology.on_numa(cpus.reserved, (number,))) for number in made.ids)
        amounts["cpu"] = tuple(
            amplify(max(0, milli - 1000 * count), cpus.ratio)
            for milli, count in zip(amounts["cpu"], counts, strict=True)
        )
    gpus = gpus_by_numa_node(machine, None, made.ids) if machine is not None else None
    if gpus is not None and any(gpus):
        amounts.setdefault(GPU_RESOURCES[0], gpus)
    made.capacity = {**amounts, **made.capacity}
    made.allocatable = made.available = amounts
    return made


def _from_machine(policy: NodePolicy, machine: Machine) -> AlignedNode | None:
    cpus = dict(machine.platform.numa_cpus)
    ids = tuple(sorted({*cpus, *(n for n in machine.numa_of if n is not None)}))
    if not ids:
        return None
    capacity = {GPU_RESOURCES[0]: tuple(machine.numa_of.count(node) for node in ids)}
    if cpus:
        capacity["cpu"] = tuple(1000 * len(cpus_in(cpus.get(node, ""))) for node in ids)
    return AlignedNode(
        policy.policy, policy.scope, ids, capacity, capacity, capacity, measured=False
    )


def gpus_by_numa_node(
    machine: Machine, gpus: Iterable[int] | None, ids: Sequence[int]
) -> Amounts | None:
    """Return how many of some GPUs, None for all, are on each NUMA node.

    None where the machine does not tell.
    """
    if all(number is None for number in machine.numa_of):
        return None
    found = [machine.numa_of[gpu] for gpu in gpus] if gpus is not None else list(machine.numa_of)
    return tuple(found.count(number) for number in ids)
