"""The NUMA nodes of a pod where Koordinator aligns it: as a whole, with all that it requests.

Unlike the kubelet, Koordinator's scheduler does that for pods of every class, and nobody refuses
the pod afterwards. A set of NUMA nodes will do if each of them has some of every resource, and they
have enough when it is divided evenly. The smallest set wins; of equal ones, the one whose CPU and
memory would be used least, or most. SingleNUMANode takes no larger set, BestEffort refuses nobody
(koordinator-sh/koordinator v1.8, nodenumaresource and frameworkext/topologymanager).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from bayplan.api.gpus import GPU_RESOURCES
from bayplan.dialects.koordinator.cpu_sets import NumaStrategy
from bayplan_plugins.numa.alignment import AlignedNode, NumaPlacement
from bayplan_plugins.numa.hints import Amounts, fill, masks, sum_of

__all__ = ["NO_CRITERIA", "Criteria", "place_whole_pod"]

_SCORED = ("cpu", "memory")


class Criteria(msgspec.Struct, frozen=True):
    """What else counts for the choice of NUMA nodes, by their places.

    :param fullest: whether the fullest NUMA nodes come first, instead of the emptiest.
    :param step: CPU is divided in such parts, in milli-CPU.
    :param near: the NUMA nodes of the pod's devices, which come first.
    :param not_alone: NUMA nodes that the pod may not have as its only one.
    :param not_shared: NUMA nodes that the pod may not have together with others.
    """

    fullest: bool = False
    step: int = 1
    near: Collection[int] = ()
    not_alone: Collection[int] = ()
    not_shared: Collection[int] = ()

    @classmethod
    def by(cls, strategy: NumaStrategy, step: int = 1) -> Criteria:
        """Return the criteria of a strategy of a profile."""
        return cls(strategy == "MostAllocated", step)

    def allow(self, places: Sequence[int]) -> bool:
        """Tell whether a pod may have these NUMA nodes."""
        closed = self.not_shared if len(places) > 1 else self.not_alone
        return not any(place in closed for place in places)


NO_CRITERIA = Criteria()


def place_whole_pod(
    node: AlignedNode, requests: Mapping[str, int], free: Mapping[str, Amounts], criteria: Criteria
) -> NumaPlacement | None:
    """Return what a pod gets of which NUMA nodes; None if it would be refused.

    :param requests: what the whole pod requests; what no NUMA node has counts for nothing.
    :param free: what is free of each resource.
    """
    needs = {name: need for name, need in requests.items() if need and any(_all(node, name))}
    if not needs:
        return NumaPlacement({}, None)
    wide = len(node.ids) if node.policy != "single-numa-node" else 1
    best: tuple[tuple[bool, float], Mapping[str, Amounts], int] | None = None
    width = 0
    for mask in masks(len(node.ids)):
        if mask.bit_count() > wide or (best is not None and mask.bit_count() > width):
            break
        taken = _divided(needs, free, mask, criteria)
        if taken is None:
            continue
        rank = (_holds(mask, criteria.near), _score(node, needs, free, mask, criteria.fullest))
        if best is None or rank > best[0]:
            best, width = (rank, taken, mask), mask.bit_count()
    if best is not None:
        return _placement(node, needs, best[1], best[2])
    if node.policy != "best-effort":
        return None
    everywhere = (1 << len(node.ids)) - 1
    return _placement(node, {}, {n: fill(need, free[n], everywhere) for n, need in needs.items()})


def _all(node: AlignedNode, resource: str) -> Amounts:
    return node.capacity.get(resource, ())


def _placement(
    node: AlignedNode, needs: Mapping[str, int], taken: Mapping[str, Amounts], mask: int = 0
) -> NumaPlacement:
    """Return a placement; which of the GPUs are taken is the choice of their ledger."""
    nodes = frozenset(number for place, number in enumerate(node.ids) if mask >> place & 1)
    own = {name: amounts for name, amounts in taken.items() if name not in GPU_RESOURCES}
    has_gpus = any(name in GPU_RESOURCES for name in needs)
    return NumaPlacement(own, nodes if has_gpus and nodes else None)


def _holds(mask: int, places: Collection[int]) -> bool:
    return all(mask >> place & 1 for place in places)


def _divided(
    needs: Mapping[str, int], free: Mapping[str, Amounts], mask: int, criteria: Criteria
) -> Mapping[str, Amounts] | None:
    """Return what a pod takes of each NUMA node of a set; None if they do not have it."""
    places = [place for place in range(mask.bit_length()) if mask >> place & 1]
    if not criteria.allow(places):
        return None
    taken: dict[str, Amounts] = {}
    for name, need in needs.items():
        own = free[name]
        if name in GPU_RESOURCES:
            if sum_of(own, mask) < need:
                return None
            continue
        if not all(own[place] for place in places):
            return None
        divided = _evenly(need, own, places, criteria.step if name == "cpu" else 1)
        if divided is None:
            return None
        taken[name] = divided
    return taken


def _evenly(need: int, free: Amounts, places: Sequence[int], step: int) -> Amounts | None:
    """Divide a need evenly; NUMA nodes with less give what they have, in the order of that."""
    taken = [0] * len(free)
    for index, place in enumerate(sorted(places, key=lambda one: free[one])):
        part = need // step // (len(places) - index) * step
        if index == len(places) - 1:
            part = need
        taken[place] = min(part, free[place])
        need -= taken[place]
    return None if need else tuple(taken)


def _score(
    node: AlignedNode,
    needs: Mapping[str, int],
    free: Mapping[str, Amounts],
    mask: int,
    fullest: bool,
) -> float:
    """Return how empty, or how full, the CPU and memory of a set would be, up to 100."""
    points = []
    for name in _SCORED:
        total = sum_of(node.allocatable[name], mask) if name in node.allocatable else 0
        if total:
            left = max(0, sum_of(free[name], mask) - needs.get(name, 0))
            points.append(100 * (total - left if fullest else left) // total)
    return sum(points) / len(points) if points else 0.0
