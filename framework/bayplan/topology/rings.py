"""Rings: in which order a collective passes GPUs, and what such a ring carries.

A ring collective runs at the speed of its slowest edge. GPUs that are connected by several NVLinks
carry several rings at once: on a DGX-1V, {0, 1, 2, 3} carry two rings of single links in either
direction, which is 100 GB/s; {0, 1, 4, 5} only one. Formulas: nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from bayplan.topology.bandwidth import Bandwidth
from bayplan.topology.machine import Machine

__all__ = [
    "BUS_FACTORS",
    "RingModel",
    "all_reduce_seconds",
    "bus_factor",
    "ring_across",
    "ring_edges",
    "ring_model",
    "ring_order",
    "slowest_edge",
]

Matrix = npt.NDArray[np.float64]
_EXACT_ORDER = 8
_EXACT_RING = 16
_MOST_STEPS = 20_000

BUS_FACTORS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce")
"""The collectives that ``bus_factor`` knows."""


def bus_factor(collective: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth of a collective over so many ranks."""
    if collective == "all-reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all-gather", "reduce-scatter", "all-to-all"):
        return (ranks - 1) / ranks
    if collective in BUS_FACTORS:
        return 1.0
    raise ValueError(f"there is no collective {collective!r} (there is {', '.join(BUS_FACTORS)})")


def all_reduce_seconds(size: float, ranks: int, gbps: float) -> float:
    """Return how long a large ring all-reduce of ``size`` bytes takes at ``gbps`` GB/s."""
    return bus_factor("all-reduce", ranks) * size / (gbps * 1e9) if ranks > 1 else 0.0


# One ring ------------------------------------------------------------------------------------


def ring_edges(order: Sequence[int]) -> list[tuple[int, int]]:
    """Return the edges of a ring; none for one GPU, one edge there and back for two."""
    if len(order) < 2:
        return []
    return [*pairwise(order), (order[-1], order[0])]


def slowest_edge(bandwidth: Matrix, order: Sequence[int]) -> float:
    """Return the bandwidth of a ring's slowest edge; infinite for one GPU."""
    return min((float(bandwidth[a, b]) for a, b in ring_edges(order)), default=float("inf"))


def ring_order(bandwidth: Matrix, gpus: Sequence[int]) -> tuple[int, ...]:
    """Return GPUs in the order of their best ring, the lowest index first.

    Best is the fastest slowest edge, then the least sum of 1/bandwidth, then the lowest indices.
    Exact for up to 8 GPUs; above, the nearest neighbour improved by 2-opt.
    """
    chosen = sorted(gpus)
    if len(chosen) < 4:
        return tuple(chosen)
    own = bandwidth[np.ix_(chosen, chosen)]
    if _is_uniform(own):
        return tuple(chosen)
    order = _exact_order(own) if len(chosen) <= _EXACT_ORDER else _improved_order(own)
    return tuple(chosen[place] for place in order)


def _is_uniform(own: Matrix) -> bool:
    off = own[~np.eye(len(own), dtype=np.bool_)]
    return bool((off == off[0]).all()) if len(off) else True


def _cost(own: Matrix) -> list[list[float]]:
    with np.errstate(divide="ignore"):
        cost: list[list[float]] = (1.0 / own).tolist()
    return cost


def _exact_order(own: Matrix) -> list[int]:
    """Try every ring from 0, cutting what is slower or longer than the best."""
    size = len(own)
    speed: list[list[float]] = own.tolist()
    cost = _cost(own)
    best: list[int] = []
    best_key = (float("-inf"), float("-inf"))

    def extend(path: list[int], left: list[int], slowest: float, length: float) -> None:
        nonlocal best, best_key
        if (slowest, -length) <= best_key:
            return
        last = path[-1]
        if not left:
            key = (min(slowest, speed[last][0]), -(length + cost[last][0]))
            if path[1] < last and key > best_key:
                best, best_key = path, key
            return
        for index, other in enumerate(left):
            rest = left[:index] + left[index + 1 :]
            extend(
                [*path, other], rest, min(slowest, speed[last][other]), length + cost[last][other]
            )

    extend([0], list(range(1, size)), float("inf"), 0.0)
    return best


def _improved_order(own: Matrix) -> list[int]:
    cost = _cost(own)
    size = len(own)
    order = [0]
    left = list(range(1, size))
    while left:
        nearest = min(left, key=lambda other: (cost[order[-1]][other], other))
        left.remove(nearest)
        order.append(nearest)
    improved = True
    while improved:
        improved = False
        for i in range(1, size - 1):
            for j in range(i + 1, size):
                before, after = order[i - 1], order[(j + 1) % size]
                old = cost[before][order[i]] + cost[order[j]][after]
                new = cost[before][order[j]] + cost[order[i]][after]
                if new < old - 1e-12:
                    order[i : j + 1] = order[i : j + 1][::-1]
                    improved = True
    return order if order[1] < order[-1] else [order[0], *order[:0:-1]]


def ring_across(orders: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return one ring over the GPUs of several nodes, as (node, GPU).

    It enters and leaves each node once, which is as rarely as a ring can: with k nodes k edges
    cross between nodes. ``orders`` are the nodes' own ring orders.
    """
    return [(node, gpu) for node, order in enumerate(orders) for gpu in order]


# Rings in parallel ---------------------------------------------------------------------------


class RingModel:
    """What rings over any set of a machine's GPUs carry; answers are kept."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._wire: list[list[float]] = machine.bandwidth.tolist()
        self._nvlink: list[list[float]] = (machine.nvlinks * machine.link.wire).tolist()
        self._direct: list[list[int]] = machine.direct.tolist()
        self._any_direct = bool(machine.direct.any())
        self._known: dict[int, float] = {}
        self._over_nvlink: dict[int, bool] = {}
        self._counts: dict[int, int] = {}

    def slowest(self, gpus: Sequence[int]) -> float:
        """Return the slowest edge of the best single ring, GB/s on the wire.

        Exact for up to 16 GPUs; above, what the order by 2-opt has.
        """
        if len(gpus) < 2:
            return float("inf")
        if len(gpus) > _EXACT_RING:
            own = self._machine.ports(gpus)
            return slowest_edge(own, ring_order(own, range(len(gpus))))
        mask = _mask(gpus)
        found = self._known.get(mask)
        if found is None:
            found = self._known[mask] = _slowest(self._wire, sorted(gpus))
        return found

    def over_nvlink(self, gpus: Sequence[int]) -> bool:
        """Tell whether a ring passes these GPUs over NVLink alone; one GPU needs none."""
        if len(gpus) < 2:
            return True
        mask = _mask(gpus)
        found = self._over_nvlink.get(mask)
        if found is None:
            if len(gpus) > _EXACT_RING:
                own: Matrix = self._machine.nvlinks[np.ix_(gpus, gpus)].astype(np.float64)
                slowest = slowest_edge(own, ring_order(own, range(len(gpus))))
            else:
                slowest = _slowest(self._nvlink, sorted(gpus))
            found = self._over_nvlink[mask] = slowest > 0
        return found

    def parallel(self, gpus: Sequence[int]) -> int:
        """Return how many rings of single NVLinks the GPUs carry at once, in both directions.

        0 where GPUs are connected through switches, whose ports one ring fills. Exact for up to 8
        GPUs; above, one ring in both directions is counted.
        """
        if len(gpus) < 3 or not self._any_direct:
            return 0
        mask = _mask(gpus)
        found = self._counts.get(mask)
        if found is None:
            own = [[self._direct[a][b] for b in gpus] for a in gpus]
            found = self._counts[mask] = 2 * _disjoint_rings(own)
        return found

    def bandwidth(self, gpus: Sequence[int]) -> float:
        """Return what all rings together carry, GB/s on the wire; infinite for one GPU."""
        return max(self.slowest(gpus), self.parallel(gpus) * self._machine.link.wire)

    def bounds(self, members: Matrix) -> Matrix:
        """Return upper bounds of ``bandwidth`` for sets given as rows of 0 and 1."""
        machine = self._machine
        size = int(members[0].sum())
        outside = np.where(members == 1, 0.0, np.inf)
        need = min(2, size - 1)
        off = machine.bandwidth.copy()
        np.fill_diagonal(off, 0.0)
        bound = np.zeros(len(members))
        for value in np.unique(off[off > 0]):
            edges = members @ (off >= value).astype(np.float64) + outside
            bound[(edges >= need).all(axis=1)] = value
        if self._any_direct and size > 2:
            links = (members @ machine.direct.astype(np.float64) + outside).min(axis=1)
            bound = np.maximum(bound, links // 2 * 2 * machine.link.wire)
        return bound

    def both(self, gpus: Sequence[int]) -> Bandwidth:
        """Return the wire's and NCCL's bandwidth of all rings together."""
        wire = self.bandwidth(gpus)
        if len(gpus) < 2:
            return Bandwidth(wire, wire)
        single = _slowest(self._machine.effective.tolist(), sorted(gpus))
        parallel = self.parallel(gpus) * self._machine.link.effective
        return Bandwidth(wire, max(single, parallel))


@lru_cache(maxsize=256)
def ring_model(machine: Machine) -> RingModel:
    """Return the model of a machine; one for each."""
    return RingModel(machine)


def _mask(gpus: Sequence[int]) -> int:
    mask = 0
    for gpu in gpus:
        mask |= 1 << gpu
    return mask


def _slowest(speed: Sequence[Sequence[float]], gpus: Sequence[int]) -> float:
    """Return the fastest slowest edge of a ring: the largest value whose edges still hold one."""
    size = len(gpus)
    if size < 2:
        return float("inf")
    own = [[speed[a][b] for b in gpus] for a in gpus]
    if size == 2:
        return own[0][1]
    values = sorted({own[a][b] for a in range(size) for b in range(a)}, reverse=True)
    if len(values) == 1:
        return values[0]
    for value in values:
        edges = [
            sum(1 << b for b in range(size) if b != a and own[a][b] >= value) for a in range(size)
        ]
        if _has_ring(edges):
            return value
    return 0.0


def _has_ring(edges: Sequence[int]) -> bool:
    """Tell whether a graph, given as a mask of neighbours each, has a Hamiltonian cycle.

    Few edges at a vertex say no, many at all of them yes (Dirac); else by dynamic programming over
    the sets of vertices passed.
    """
    size = len(edges)
    degrees = [mask.bit_count() for mask in edges]
    if min(degrees) < 2:
        return False
    if 2 * min(degrees) >= size:
        return True
    full = (1 << size) - 1
    layer = {1: 1}
    for _ in range(size - 1):
        after: dict[int, int] = {}
        for passed, ends in layer.items():
            reach = 0
            left = ends
            while left:
                low = left & -left
                reach |= edges[low.bit_length() - 1]
                left ^= low
            reach &= ~passed
            while reach:
                low = reach & -reach
                grown = passed | low
                after[grown] = after.get(grown, 0) | low
                reach ^= low
        layer = after
    return bool(layer.get(full, 0) & edges[0])


def _disjoint_rings(links: list[list[int]]) -> int:
    """Return how many rings share a multigraph so that no link is in two of them."""
    size = len(links)
    most = min(sum(row) for row in links) // 2
    if not most:
        return 0
    if size > _EXACT_ORDER:
        return int(_has_ring([sum(1 << b for b in range(size) if row[b]) for row in links]))
    rings = _all_rings(links)
    best = 0
    steps = 0

    def pack(start: int, count: int) -> None:
        nonlocal best, steps
        best = max(best, count)
        steps += 1
        if best == most or steps > _MOST_STEPS:
            return
        if count + min(sum(row) for row in links) // 2 <= best:
            return
        for index in range(start, len(rings)):
            ring = rings[index]
            if all(links[a][b] for a, b in ring):
                for a, b in ring:
                    links[a][b] -= 1
                    links[b][a] -= 1
                pack(index, count + 1)
                for a, b in ring:
                    links[a][b] += 1
                    links[b][a] += 1
                if best == most:
                    return

    pack(0, 0)
    return best


def _all_rings(links: Sequence[Sequence[int]]) -> list[list[tuple[int, int]]]:
    """Return every ring over all vertices, those with the most links on their thinnest edge first.

    In a ring of three an edge is passed once, as in any larger one.
    """
    size = len(links)
    found: list[list[int]] = []

    def extend(path: list[int], left: int) -> None:
        last = path[-1]
        if not left:
            if links[last][0] and path[1] < last:
                found.append(path)
            return
        for other in range(1, size):
            if left >> other & 1 and links[last][other]:
                extend([*path, other], left & ~(1 << other))

    extend([0], (1 << size) - 2)
    rings = [ring_edges(path) for path in found]
    return sorted(rings, key=lambda ring: -min(links[a][b] for a, b in ring))
