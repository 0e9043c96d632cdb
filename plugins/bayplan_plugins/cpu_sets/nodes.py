"""The CPUs of a node, as its agent publishes them and its labels say."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from bayplan.api import Node, NodeResourceTopology
from bayplan.dialects.koordinator.cpu_sets import (
    BindPolicy,
    NumaStrategy,
    amplification_of,
    node_bind_policy,
    node_strategy,
    published_cpus,
)
from bayplan_plugins.cpu_sets.topology import Cpu, CpuTopology

__all__ = ["NodeCpus", "cpus_of_node"]


class NodeCpus(msgspec.Struct, frozen=True, eq=False):
    """What holds for all pods on a node.

    :param topology: without CPUs where none are published.
    :param reserved: the CPUs that no pod gets.
    :param bind: the policy that the node demands, "" for none.
    :param strategy: which NUMA nodes come first, None where the node does not say.
    :param ratio: by how much its CPUs are amplified, 1 or more.
    """

    topology: CpuTopology
    reserved: frozenset[int]
    bind: BindPolicy
    strategy: NumaStrategy | None
    ratio: float


def cpus_of_node(node: Node, found: NodeResourceTopology | None) -> tuple[NodeCpus | None, str]:
    """Return a node's CPUs, None where nothing is said of them; and what could not be read."""
    try:
        published = published_cpus(found) if found is not None else None
        ratio = amplification_of(node.metadata.annotations)
    except ValueError as exc:
        return None, str(exc)
    labels = node.metadata.labels
    bind, strategy = node_bind_policy(labels, published), node_strategy(labels)
    if published is None and not bind and ratio == 1:
        return None, ""
    if published is None:
        return NodeCpus(_topology(()), frozenset(), bind, strategy, ratio), ""
    return NodeCpus(_topology(published.cpus), published.reserved, bind, strategy, ratio), ""


@lru_cache(maxsize=256)
def _topology(cpus: tuple[tuple[int, tuple[int, int, int]], ...]) -> CpuTopology:
    """Return one object for all nodes whose CPUs are alike."""
    return CpuTopology({number: Cpu(*place) for number, place in cpus})
