"""What a pod gets of the NUMA nodes of a node, with CPUs of its own where it gets some."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan import PodInfo
from bayplan_plugins.cpu_sets.ledger import FreeCpus
from bayplan_plugins.cpu_sets.requests import CpuNeed
from bayplan_plugins.numa.aligned_requests import AlignedRequests, aligned_requests_of
from bayplan_plugins.numa.alignment import AlignedNode, FreeAmounts, NumaPlacement, place_pod
from bayplan_plugins.numa.whole_pods import Criteria, place_whole_pod

__all__ = ["place_on_node", "place_shared"]


def place_on_node(
    pod: PodInfo,
    node: AlignedNode,
    free: FreeAmounts,
    need: CpuNeed | None,
    cpus: FreeCpus | None,
    criteria: Criteria,
) -> NumaPlacement | None:
    """Return what a pod would get; CPUs of its own are among those that nobody has.

    NUMA nodes that have them by the policy that it prefers come first.
    """
    if need is None or cpus is None:
        return place_shared(node, aligned_requests_of(pod), pod, free, criteria)
    if not need.required:
        whole = replace(need, required=True)
        placement = _place_own(pod, node, free, whole, cpus, criteria)
        if placement is not None and sum(placement.taken.get("cpu", ())) == 1000 * need.count:
            return placement
    return _place_own(pod, node, free, need, cpus, criteria)


def place_shared(
    node: AlignedNode,
    requests: AlignedRequests,
    pod: PodInfo,
    free: FreeAmounts,
    criteria: Criteria,
) -> NumaPlacement | None:
    """Return what a pod would get of what is free, without CPUs of its own.

    :param requests: what the kubelet aligns of it; Koordinator aligns everything.
    """
    if node.by_koordinator:
        return place_whole_pod(node, pod.facts.requests, free.amounts, criteria)
    return place_pod(node, requests, free)


def _place_own(
    pod: PodInfo,
    node: AlignedNode,
    free: FreeAmounts,
    need: CpuNeed,
    cpus: FreeCpus,
    criteria: Criteria,
) -> NumaPlacement | None:
    requests = aligned_requests_of(pod)
    countable = tuple(1000 * cpus.on_numa(number, need) for number in node.ids)
    listed = free.amounts.get("cpu", countable)
    left = tuple(min(a // 1000 * 1000, b) for a, b in zip(listed, countable, strict=True))
    everything = tuple(
        1000 * len(cpus.node.topology.on_numa(cpus.node.topology.cpus, (number,)))
        for number in node.ids
    )
    own = replace(node, scope="pod", capacity={"cpu": everything, **node.capacity})
    amounts = FreeAmounts({**free.amounts, "cpu": left}, free.grouped)
    wanted = AlignedRequests({**requests.pod, "cpu": 1000 * need.count}, requests.containers)
    step = cpus.node.topology.per_core if need.required and need.bind == "FullPCPUs" else 1
    return place_shared(own, wanted, pod, amounts, replace(criteria, step=1000 * step))
